# SPDX-License-Identifier: Apache-2.0
"""The temporary folder that the processes of one server share."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX, LOCK = "polyvox-server-", "lock"
MIN_AGE = 60.0  # seconds before a folder without a lock counts as left behind: one that is new may not have it yet


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder for this user only, deleted at the end. Folders of servers that were killed are deleted before.

    The lock shows that a server runs. The kernel releases it with the process, and no child inherits it.
    """
    _delete_left_behind(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name,
        open(Path(name) / LOCK, "w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _delete_left_behind(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it belongs to another user, or another server deletes it
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < MIN_AGE:
                continue
            with open(folder / LOCK, "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
