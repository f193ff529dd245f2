"""The voice library: one file a voice, each written whole or not at all, and no process waits for another.

A file has the name of its voice, so that a new voice is a link that fails where there is one already, a changed voice
is a rename, and a removed one is gone at once, with all that was known of it. A process that is killed leaves at most a
hidden file that nobody reads, which a later write of any process takes away.
"""

import errno
import os
import re
import secrets
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG
from urllib.parse import quote, unquote

from polyvox.errors import InvalidRequest, UnknownVoice, VoiceExists, VoiceLibraryError
from polyvox.models.info import ModelIdentity
from polyvox.models.request import ClonedVoice
from polyvox.voices.voice import MAX_FILE, Voice, from_bytes, name_key, new_voice, to_bytes

SUFFIX = ".safetensors"
PARTIAL = ".partial"
SWEEP_SECONDS = 3600.0  # a write takes milliseconds: what is older than this was left by a process that died
KEPT = 1024  # voices in memory
SETTLED_NS = 1_000_000_000  # two files written within a tick of the clock, milliseconds, may look the same
CONTENT_ID = re.compile(r"[0-9a-f]{64}")
ADD_HINT = "Add a voice with: polyvox voice add NAME FILE --model MODEL."
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # of file systems that cannot link

Version = tuple[int, int, int]  # inode, time and size: another file has another one


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file of the library that cannot be read, and why."""

    name: str
    path: Path
    reason: str


class VoiceLibrary:
    """The voices of a folder; any number of processes may read and change it, and see each other's changes at once.

    By default the folder is $POLYVOX_HOME/voices, or polyvox/voices among the user's data.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self._read: dict[Path, tuple[Version, Voice | Damaged]] = {}
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        voice: ClonedVoice,
        model: ModelIdentity,
        *,
        consent: str | None = None,
        source: str | None = None,
        seconds: float | None = None,
        description: str | None = None,
        replace: bool = False,
    ) -> Voice:
        """Keeps a voice under a name; raises VoiceExists where there is one and replace is not set."""
        new = new_voice(name, voice, model, consent, source, seconds, description)
        self._put(new, replace)
        return new

    def get(self, name: str) -> Voice:
        """The voice of this name, in any spelling of its case, or of this content id; raises UnknownVoice."""
        if isinstance(name, str) and CONTENT_ID.fullmatch(name):
            found: Voice | Damaged | None = next((voice for voice in self.list() if voice.id == name), None)
        else:
            try:
                found = self._load(self._path(name))
            except InvalidRequest:  # what cannot be a name is not one of a voice
                found = None
        if found is None:
            raise self._unknown(name)
        if isinstance(found, Damaged):
            raise _broken(found)
        return found

    def resolve(
        self, voice: str | ClonedVoice | None, model: ModelIdentity, own: Collection[str] = ()
    ) -> str | ClonedVoice | None:
        """A voice as a model takes it: what the library has by this name, or what it was where that is its own.

        Raises InvalidRequest for a voice of another model, UnknownVoice for a name that neither has.
        """
        if isinstance(voice, ClonedVoice) or (isinstance(voice, str) and voice.lower() in own):
            return voice
        if isinstance(voice, str):
            with suppress(UnknownVoice):
                return self.get(voice).cloned_for(model)
        fitting = [kept.name for kept in self.list() if kept.fits(model)] if model.can_clone else []
        names = [*own, *fitting] or "must be a ClonedVoice, because the voice library has no voice for this model"
        if isinstance(voice, str) and (own or model.can_clone):
            raise UnknownVoice("voice", voice, names)
        if voice is None and model.can_clone:
            raise InvalidRequest("voice", voice, names)
        return voice

    def list(self) -> list[Voice]:
        """All voices that can be read, by name."""
        return [found for found in self._scan() if isinstance(found, Voice)]

    def damaged(self) -> tuple[Damaged, ...]:
        """The files that cannot be read; `remove` takes them away, by name."""
        return tuple(found for found in self._scan() if isinstance(found, Damaged))

    def check_free(self, name: str) -> None:
        """Raises InvalidRequest for what cannot be a name, VoiceExists for a name that is taken."""
        path = self._path(name)
        try:
            if path.exists():
                raise _taken(name)
        except OSError as error:
            raise self._unusable(error) from None

    def remove(self, name: str) -> None:
        """Takes a voice away, and all that is stored of it; raises UnknownVoice where there is none."""
        try:
            self._path(name).unlink()
        except (FileNotFoundError, InvalidRequest):
            raise self._unknown(name) from None
        except OSError as error:
            raise self._unusable(error) from None
        with suppress(OSError):
            _sync(self.folder)
        self.sweep()

    def export(self, name: str, path: str | os.PathLike[str]) -> Voice:
        """Writes a voice to a file that another library can import; an old file stays until the new one is whole."""
        voice, target = self.get(name), Path(path)
        try:
            partial = _write(target.absolute().parent, to_bytes(voice))
            try:
                partial.replace(target)
            except BaseException:
                partial.unlink()
                raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidRequest("path", str(path), f"cannot be written: {reason}") from None
        return voice

    def import_(self, path: str | os.PathLike[str], name: str | None = None, *, replace: bool = False) -> Voice:
        """Keeps the voice of an exported file, under its own name or another."""
        try:
            voice = from_bytes(_bytes(Path(path)))
        except OSError as error:
            raise InvalidRequest("path", str(path), f"cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise InvalidRequest("path", str(path), f"must be a file from `polyvox voice export`: {error}") from None
        if name is not None:
            name_key(name)
            voice = _renamed(voice, name)  # `replace` is an argument here
        self._put(voice, replace)
        return voice

    def sweep(self) -> int:
        """Takes away what processes that were killed have left, once it is old; how many files that was."""
        swept = 0
        with suppress(OSError):
            for file in os.scandir(self.folder):
                if file.name.startswith(".") and file.name.endswith(PARTIAL):
                    # It may be gone by now: another process sweeps too.
                    with suppress(FileNotFoundError):
                        if time.time() - file.stat(follow_symlinks=False).st_mtime > SWEEP_SECONDS:
                            os.unlink(file.path)
                            swept += 1
        return swept

    # Files

    def _path(self, name: str) -> Path:
        return self.folder / (quote(name_key(name), safe="") + SUFFIX)

    def _put(self, voice: Voice, replace: bool) -> None:
        path = self._path(voice.name)
        if not replace:
            self.check_free(voice.name)  # before anything is written
        if self.folder.parts[:1] == ("~",):
            raise VoiceLibraryError("there is no home folder for the voice library: set POLYVOX_HOME to a folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            partial = _write(self.folder, to_bytes(voice))
            try:
                if replace:
                    partial.replace(path)
                else:
                    _link(partial, path)
            finally:
                partial.unlink(missing_ok=True)
            _sync(self.folder)
        except FileExistsError:
            raise _taken(voice.name) from None
        except OSError as error:
            raise self._unusable(error) from None
        self.sweep()

    def _scan(self) -> tuple[Voice | Damaged, ...]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._unusable(error) from None
        paths = [self.folder / name for name in names if name.endswith(SUFFIX) and not name.startswith(".")]
        found = [voice for path in paths if (voice := self._load(path)) is not None]
        return tuple(sorted(found, key=lambda voice: voice.name.casefold()))

    def _load(self, path: Path) -> Voice | Damaged | None:
        """The voice of a file, as it was read last unless the file is another one now; None where there is none."""
        try:
            stat = path.stat()
            if not S_ISREG(stat.st_mode):
                return Damaged(_name(path), path, "it is no file")
            version = _version(stat)
            with self._lock:
                kept = self._read.get(path)
            if kept is not None and kept[0] == version:
                return kept[1]
            with path.open("rb") as file:
                version = _version(os.fstat(file.fileno()))
                found = self._parsed(path, file.read(MAX_FILE + 1))
        except FileNotFoundError:
            with self._lock:
                self._read.pop(path, None)
            return None
        except OSError as error:
            return Damaged(_name(path), path, error.strerror or str(error))
        with self._lock:
            self._read.pop(path, None)
            if time.time_ns() - version[1] > SETTLED_NS:
                self._read[path] = version, found
            while len(self._read) > KEPT:
                del self._read[next(iter(self._read))]
        return found

    def _parsed(self, path: Path, data: bytes) -> Voice | Damaged:
        try:
            voice = from_bytes(data)
            if self._path(voice.name) != path:
                raise ValueError(f"it holds the voice {voice.name!r}: import it instead")
        except ValueError as error:
            return Damaged(_name(path), path, str(error))
        return voice

    def _unknown(self, name: str) -> UnknownVoice:
        names = [voice.name for voice in self.list()]
        return UnknownVoice("voice", name, names or "the voice library is empty", "" if names else ADD_HINT)

    def _unusable(self, error: OSError) -> VoiceLibraryError:
        return VoiceLibraryError(f"the voice library in {self.folder} cannot be used: {error.strerror or error}")


def default_folder() -> Path:
    """Where the user's voices are."""
    if home := os.environ.get("POLYVOX_HOME"):
        return Path(os.path.expanduser(home)) / "voices"
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    # Where there is no home it stays ~: nothing is found there, and nothing can be written.
    return Path(os.path.expanduser(data)) / "polyvox/voices"


def _write(folder: Path, data: bytes) -> Path:
    """A hidden file of its own that is on the disk when this returns, for its owner's eyes only."""
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


def _link(partial: Path, path: Path) -> None:
    """Gives a file its name; raises FileExistsError where another file has it."""
    try:
        os.link(partial, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # The same, but for a moment in which another process may take the name: the later one wins.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        partial.replace(path)


def _sync(folder: Path) -> None:
    """A name is on the disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE + 1)


def _version(stat: os.stat_result) -> Version:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _name(path: Path) -> str:
    name = unquote(path.name.removesuffix(SUFFIX))
    return name if name.isprintable() else path.name


def _renamed(voice: Voice, name: str) -> Voice:
    return replace(voice, name=name)


def _taken(name: str) -> VoiceExists:
    return VoiceExists("name", name, "a voice with this name exists", "Choose another name, or replace the voice.")


def _broken(found: Damaged) -> VoiceLibraryError:
    return VoiceLibraryError(
        f"the voice {found.name!r} cannot be read ({found.path}: {found.reason}): "
        f"remove it with `polyvox voice rm`, or add it again with --replace"
    )
