# SPDX-License-Identifier: Apache-2.0
"""Atomic file writes, and the steps of which libraries of files are made."""

import errno
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from polyvox.errors import InvalidRequest

PARTIAL = ".partial"
PARTIAL_FILE = re.compile(r"\.polyvox-[0-9a-f]{16}\.partial")  # the temporary files of write_atomically
PARTIAL_MAX_AGE = 3600.0  # seconds; a write takes milliseconds, so an older temporary file has no writer
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # file systems without hard links


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file through a temporary file and a rename. Raises InvalidRequest if the path is not writable."""
    partial = path.with_name(f".polyvox-{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(data)
        partial.replace(path)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            partial.unlink()
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest("path", str(path), f"cannot be written: {reason}") from None


def write_partial(folder: Path, data: bytes) -> Path:
    """A new hidden file, synced to disk and readable by its owner only."""
    partial = folder / f".{secrets.token_hex(8)}{PARTIAL}"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    return partial


def link_new(partial: Path, path: Path) -> None:
    """Rename a file without overwriting. Raises FileExistsError."""
    try:
        os.link(partial, path)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        # Not atomic: if another process adds the name at the same moment, the later write wins.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        partial.replace(path)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that new names in it are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep_partials(folder: Path) -> int:
    """Delete old temporary files of killed processes and return their number."""
    num_deleted = 0
    with suppress(OSError):
        for file in os.scandir(folder):
            if file.name.startswith(".") and file.name.endswith(PARTIAL):
                # Another process may have deleted it.
                with suppress(FileNotFoundError):
                    if time.time() - file.stat(follow_symlinks=False).st_mtime > PARTIAL_MAX_AGE:
                        os.unlink(file.path)
                        num_deleted += 1
    return num_deleted
