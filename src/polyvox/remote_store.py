# SPDX-License-Identifier: Apache-2.0
"""Files in an object store such as S3, through fsspec. The list of files is cached for seconds.

While the store does not answer, the last list is used, so that cached files stay available.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fsspec.core import url_to_fs

from polyvox.errors import InvalidRequest

log = logging.getLogger(__name__)

T = TypeVar("T")

REFRESH_SECONDS = 2.0  # age after which the list of files is read again
CALL_TIMEOUT = 10.0  # seconds of one call of the store
RETRY_SECONDS = 5.0  # after a failed list
MAX_CALLS = 16  # at once; a call that does not return keeps its thread
# Fields of fsspec's file information that change with the content, by store.
VERSION_FIELDS = ("ETag", "etag", "generation", "md5Hash", "LastModified", "last_modified", "mtime", "created", "size")


class RemoteStore:
    """The files below a URL. A change by another process is visible after REFRESH_SECONDS, an own one at once."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.location = _without_secrets(url)
        self._url, self._clock = url.rstrip("/"), clock
        self._fs, self._root = _open(self._url)
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # of the thread that reads the list
        self._versions: dict[str, object] | None = None  # the last list
        self._expires_at = 0.0
        self._failed = False
        self._calls = threading.BoundedSemaphore(MAX_CALLS)

    def names(self) -> list[str]:
        return list(self._list())

    def version(self, name: str) -> object | None:
        return self._list().get(name)

    def read(self, name: str, max_bytes: int) -> tuple[object | None, bytes]:
        """The version is that of the list: a file that has changed since is read again after the next list."""
        version = self._list().get(name)
        path = f"{self._root}/{name}"
        return version, self._call(lambda: bytes(self._fs.cat_file(path, 0, max_bytes)))

    def add(self, name: str, data: bytes) -> None:
        """In one conditional request where the store has it (S3, Google Cloud Storage); elsewhere after a check."""
        self._write(lambda: self._fs.pipe_file(f"{self._root}/{name}", data, mode="create"))

    def replace(self, name: str, data: bytes) -> None:
        self._write(lambda: self._fs.pipe_file(f"{self._root}/{name}", data))

    def remove(self, name: str) -> None:
        path = f"{self._root}/{name}"

        def remove() -> None:
            if not self._fs.exists(path):  # an object store deletes what does not exist
                raise FileNotFoundError(errno.ENOENT, "no such file")
            self._fs.rm_file(path)

        self._write(remove)

    def sweep(self) -> int:
        """An object store has no temporary files."""
        return 0

    def subfolder(self, name: str) -> "RemoteStore":
        return RemoteStore(f"{self._url}/{name}", self._clock)

    def _write(self, write: Callable[[], None]) -> None:
        try:
            self._call(write)
        finally:
            with self._lock:
                self._expires_at = 0.0

    def _list(self) -> dict[str, object]:
        """The version of each file. Threads that need a new list while another one reads it use the last one."""
        with self._lock:
            versions, is_fresh = self._versions, self._clock() < self._expires_at
        if versions is not None and (is_fresh or not self._reading.acquire(blocking=False)):
            return versions
        if versions is None:
            self._reading.acquire()  # the call below has a timeout
        try:
            found = self._call(self._read_list)
            self._report(None)
            with self._lock:
                self._versions, self._expires_at = found, self._clock() + REFRESH_SECONDS
            return found
        except OSError as error:
            self._report(error)
            with self._lock:
                self._expires_at = self._clock() + RETRY_SECONDS
                if self._versions is None:
                    raise
                return self._versions
        finally:
            self._reading.release()

    def _read_list(self) -> dict[str, object]:
        try:
            found = self._fs.ls(self._root, detail=True, refresh=True)
        except FileNotFoundError:
            return {}
        files = [info for info in found if info["type"] == "file"]
        return {
            info["name"].rsplit("/", 1)[-1]: tuple(str(info[field]) for field in VERSION_FIELDS if field in info)
            for info in files
        }

    def _report(self, error: OSError | None) -> None:
        """One line when the store fails and one when it answers again."""
        if error is not None and not self._failed:
            log.warning("voice store not available", extra={"location": self.location, "error": str(error)})
        elif error is None and self._failed:
            log.info("voice store available", extra={"location": self.location})
        self._failed = error is not None

    def _call(self, work: Callable[[], T]) -> T:
        """Runs a call of the store with CALL_TIMEOUT. Raises FileNotFoundError, FileExistsError or another OSError."""
        if not self._calls.acquire(timeout=CALL_TIMEOUT):
            raise OSError(errno.EBUSY, f"{MAX_CALLS} calls of the store have not returned")
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)
            finally:
                self._calls.release()
                done.set()

        threading.Thread(target=run, name="polyvox-store", daemon=True).start()
        if not done.wait(CALL_TIMEOUT):
            raise OSError(errno.ETIMEDOUT, f"the store did not answer within {CALL_TIMEOUT:g} s")
        if not errors:
            return results[0]
        error = errors[0]
        if isinstance(error, FileExistsError | FileNotFoundError):
            raise error
        # Drivers raise errors of their own libraries.
        raise OSError(errno.EIO, str(error) or type(error).__name__) from error


def _open(url: str) -> tuple[Any, str]:
    try:
        fs, root = url_to_fs(url)
    except (ImportError, ValueError) as error:  # no package for this scheme
        raise InvalidRequest("voices_dir", _without_secrets(url), f"cannot be opened: {error}") from None
    return fs, str(root).rstrip("/")


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1], query=""))
