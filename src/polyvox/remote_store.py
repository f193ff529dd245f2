# SPDX-License-Identifier: Apache-2.0
"""Files in an object store such as S3, through fsspec. The list of files is cached for seconds.

While the store does not answer, the last list is used, so that cached files stay available.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fsspec.core import url_to_fs

from polyvox.errors import InvalidRequest
from polyvox.file_store import without_secrets

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
        self.location = without_secrets(url)
        self._url, self._clock = url.rstrip("/"), clock
        self._fs, self._root = _open(self._url)
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # of the thread that reads the list
        self._writing = threading.RLock()  # of the thread that changes a file
        self._versions: dict[str, object] | None = None  # the last list, with the writes since
        self._expires_at = 0.0
        self._num_writes = 0
        self._error: OSError | None = None  # of the last list
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
        self._write(name, lambda: self._fs.pipe_file(f"{self._root}/{name}", data, mode="create"))

    def replace(self, name: str, data: bytes) -> None:
        self._write(name, lambda: self._fs.pipe_file(f"{self._root}/{name}", data))

    def update(self, name: str, max_bytes: int, change: Callable[[bytes], tuple[str, bytes]]) -> None:
        """Between the threads of this process; of a change by another one meanwhile, the later write wins.

        If another process removes the file meanwhile, no file is left under the new name.
        """
        path = f"{self._root}/{name}"
        with self._locked():
            new_name, data = change(self._call(lambda: bytes(self._fs.cat_file(path, 0, max_bytes))))
            if new_name == name:
                self.replace(name, data)
                return
            self.add(new_name, data)
            try:
                self.remove(name)
            except FileNotFoundError:
                self.remove(new_name)
                raise

    def remove(self, name: str) -> None:
        path = f"{self._root}/{name}"

        def remove() -> None:
            if not self._fs.exists(path):  # an object store deletes what does not exist
                raise FileNotFoundError(errno.ENOENT, "no such file")
            self._fs.rm_file(path)

        self._write(name, remove, exists=False)

    def sweep(self) -> int:
        """An object store has no temporary files."""
        return 0

    def subfolder(self, name: str) -> "RemoteStore":
        return RemoteStore(f"{self._url}/{name}", self._clock)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps the other writers of this process out."""
        if not self._writing.acquire(timeout=CALL_TIMEOUT):
            raise OSError(errno.ETIMEDOUT, f"the store did not answer within {CALL_TIMEOUT:g} s")
        try:
            yield
        finally:
            self._writing.release()

    def _write(self, name: str, write: Callable[[], None], exists: bool = True) -> None:
        """exists: whether the file exists afterwards."""
        written = False
        try:
            with self._locked():
                self._call(write)
            written = True
        finally:
            with self._lock:
                self._num_writes += 1  # a list that is being read may not contain it
                self._expires_at = 0.0
                if written and self._versions is not None:
                    versions = {key: value for key, value in self._versions.items() if key != name}
                    self._versions = {**versions, name: object()} if exists else versions

    def _list(self) -> dict[str, object]:
        """The version of each file. Threads that need a new list while another one reads it use the last one."""
        if (versions := self._fresh_list()) is not None:
            return versions
        with self._lock:
            versions = self._versions
        if not self._reading.acquire(timeout=0.0 if versions is not None else CALL_TIMEOUT):
            if versions is None:
                raise OSError(errno.ETIMEDOUT, f"the store did not answer within {CALL_TIMEOUT:g} s")
            return versions
        try:
            if (versions := self._fresh_list()) is not None:
                return versions  # another thread has read it meanwhile
            return self._refresh()
        finally:
            self._reading.release()

    def _fresh_list(self) -> dict[str, object] | None:
        """The last list, if it need not be read again yet. Raises the error if the first one has just failed."""
        with self._lock:
            if self._clock() >= self._expires_at:
                return None
            if self._versions is None and self._error is not None:
                raise OSError(self._error.errno, self._error.strerror)
            return self._versions

    def _refresh(self) -> dict[str, object]:
        with self._lock:
            num_writes = self._num_writes
        try:
            found = self._call(self._read_list)
        except OSError as error:
            self._report(error)
            with self._lock:
                self._expires_at = self._clock() + RETRY_SECONDS
                if self._versions is None:
                    raise
                return self._versions
        self._report(None)
        with self._lock:
            if self._versions is None or num_writes == self._num_writes:
                self._versions = found
            if num_writes == self._num_writes:
                self._expires_at = self._clock() + REFRESH_SECONDS
            return self._versions

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
        if error is not None and self._error is None:
            log.warning("voice store not available", extra={"location": self.location, "error": str(error)})
        elif error is None and self._error is not None:
            log.info("voice store available", extra={"location": self.location})
        self._error = error

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
        raise InvalidRequest("voices_dir", without_secrets(url), f"cannot be opened: {error}") from None
    return fs, str(root).rstrip("/")
