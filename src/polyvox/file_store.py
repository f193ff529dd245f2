# SPDX-License-Identifier: Apache-2.0
"""Where a library keeps its files: a folder, or the URL of an object store (remote_store.py)."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from polyvox.files import link_new, sweep_partials, sync_folder, write_partial

MIN_CACHE_AGE_NS = 1_000_000_000  # two writes within a tick of the file system's clock may look the same
FILE_SCHEME = "file://"


class FileStore(Protocol):
    """Small files by name. Processes may read and write them concurrently; a write is visible whole or not at all.

    All methods raise OSError if the store cannot be used.
    """

    @property
    def location(self) -> str:
        """The path or the URL."""

    def names(self) -> list[str]:
        """The names of all files; none if the folder does not exist."""

    def version(self, name: str) -> object | None:
        """A value that changes with the file; None if there is no such file."""

    def read(self, name: str, max_bytes: int) -> tuple[object | None, bytes]:
        """The version, None if it may not be used to recognise the file later, and at most this many bytes.

        Raises FileNotFoundError.
        """

    def add(self, name: str, data: bytes) -> None:
        """Writes a new file. Raises FileExistsError."""

    def replace(self, name: str, data: bytes) -> None:
        """Writes a file, whether the name exists or not."""

    def update(self, name: str, max_bytes: int, change: Callable[[bytes], tuple[str, bytes]]) -> None:
        """Replaces a file by the name and the content that `change` returns for its content.

        Raises FileNotFoundError, and FileExistsError for another name that exists.
        """

    def remove(self, name: str) -> None:
        """Deletes a file. Raises FileNotFoundError."""

    def sweep(self) -> int:
        """Deletes old temporary files of killed processes and returns their number."""

    def subfolder(self, name: str) -> "FileStore":
        """The store of a folder in this one."""


class FolderStore:
    """The files of a folder. A change is visible at once to all processes; they change it one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def location(self) -> str:
        return str(self.folder)

    def names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def version(self, name: str) -> object | None:
        try:
            stat = (self.folder / name).stat()
        except FileNotFoundError:
            return None
        if not S_ISREG(stat.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return _version(stat)

    def read(self, name: str, max_bytes: int) -> tuple[object | None, bytes]:
        with (self.folder / name).open("rb") as file:
            stat = os.fstat(file.fileno())
            data = file.read(max_bytes)
        return _version(stat) if time.time_ns() - stat.st_mtime_ns > MIN_CACHE_AGE_NS else None, data

    def add(self, name: str, data: bytes) -> None:
        """Through a hard link, which fails if the name exists."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            self._write(name, data, new=True)

    def replace(self, name: str, data: bytes) -> None:
        """Through a rename."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            self._write(name, data, new=False)

    def update(self, name: str, max_bytes: int, change: Callable[[bytes], tuple[str, bytes]]) -> None:
        """A process that is killed in between leaves both names."""
        with self._locked():
            new_name, data = change(self.read(name, max_bytes)[1])
            self._write(new_name, data, new=new_name != name)
            if new_name != name:
                self._remove(name)

    def remove(self, name: str) -> None:
        with self._locked():
            self._remove(name)

    def sweep(self) -> int:
        return sweep_partials(self.folder)

    def subfolder(self, name: str) -> "FolderStore":
        return FolderStore(self.folder / name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other writers out, of all processes. The kernel releases the lock of a process that ends."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems cannot lock a folder: there the later write wins
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may have inherited the descriptor
            os.close(descriptor)

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink()
        with suppress(OSError):
            sync_folder(self.folder)
        self.sweep()

    def _write(self, name: str, data: bytes, new: bool) -> None:
        partial = write_partial(self.folder, data)
        try:
            if new:
                link_new(partial, self.folder / name)
            else:
                partial.replace(self.folder / name)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(self.folder)
        self.sweep()


def open_store(location: str | os.PathLike[str]) -> FileStore:
    """The store of a folder or of a URL such as s3://bucket/folder. Raises InvalidRequest for a URL without driver."""
    if not is_url(location):
        return FolderStore(Path(location))
    if (url := os.fspath(location)).startswith(FILE_SCHEME):
        return FolderStore(Path(url.removeprefix(FILE_SCHEME)))
    from polyvox.remote_store import RemoteStore

    return RemoteStore(url)


def is_url(location: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(location)


def without_secrets(url: str) -> str:
    """The URL without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1], query=""))


def _version(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
