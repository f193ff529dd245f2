# SPDX-License-Identifier: Apache-2.0
"""The voice library: one file per voice in a folder or an object store, written atomically and read without locks.

The file name is derived from the name of the voice. In a folder a new voice is a hard link, which fails if the name
exists; a changed voice is a rename; a removed voice is one deleted file. Processes change a folder one after another,
under a lock that ends with its process. A killed process leaves at most a hidden temporary file, which a later write of
any process deletes.
"""

import os
import re
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from polyvox.errors import InvalidRequest, UnknownVoice, VoiceExists, VoiceLibraryError
from polyvox.file_store import FolderStore, is_url, open_store
from polyvox.files import write_partial
from polyvox.models.info import ModelIdentity
from polyvox.models.request import ClonedVoice
from polyvox.voices.voice import MAX_FILE, Voice, check, from_bytes, name_key, new_voice, to_bytes

SUFFIX = ".safetensors"
CACHE_SIZE = 1024  # voices in memory
CONTENT_ID = re.compile(r"[0-9a-f]{64}")
ADD_HINT = "Add a voice with: polyvox voice add NAME FILE --model MODEL."


@dataclass(frozen=True, slots=True)
class DamagedVoice:
    """A file of the library that cannot be read, and the reason. path: or the URL."""

    name: str
    path: Path | str
    reason: str


class VoiceLibrary:
    """The voices of a folder, or of a URL such as s3://bucket/voices. Processes may read and change it concurrently.

    They see each other's changes at once in a folder, and within seconds in an object store. The default folder is
    $POLYVOX_HOME/voices, or polyvox/voices in the user's data folder.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.store = open_store(default_folder() if folder is None else folder)
        self._cache: dict[str, tuple[object, Voice | DamagedVoice]] = {}  # by file name
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """The folder of a library that is not in an object store."""
        assert isinstance(self.store, FolderStore)
        return self.store.folder

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
        """Add a voice. Raises VoiceExists if the name exists and replace is False."""
        new = new_voice(name, voice, model, consent, source, seconds, description)
        self._put(new, replace)
        return new

    def get(self, name: str) -> Voice:
        """The voice with this name (case-insensitive) or content id. Raises UnknownVoice."""
        if isinstance(name, str) and CONTENT_ID.fullmatch(name):
            found: Voice | DamagedVoice | None = next((voice for voice in self.list() if voice.id == name), None)
        else:
            try:
                found = self._load(to_file_name(name))
            except InvalidRequest:  # not a valid name, so no voice has it
                found = None
        if found is None:
            raise self._unknown(name)
        if isinstance(found, DamagedVoice):
            raise _damaged_error(found)
        return found

    def resolve(
        self, voice: str | ClonedVoice | None, model: ModelIdentity, own: Collection[str] = ()
    ) -> str | ClonedVoice | None:
        """Resolve the name of a library voice to a cloned voice; names in `own`, the built-in voices, stay as they are.

        Raises InvalidRequest for a voice of another model and UnknownVoice for an unknown name.
        """
        if isinstance(voice, ClonedVoice) or (isinstance(voice, str) and voice.lower() in own):
            return voice
        if isinstance(voice, str):
            with suppress(UnknownVoice):
                return self.get(voice).cloned_for(model)
        fitting = [found.name for found in self.list() if found.fits(model)] if model.can_clone else []
        names = [*own, *fitting] or "must be a ClonedVoice, because the voice library has no voice for this model"
        if isinstance(voice, str) and (own or model.can_clone):
            raise UnknownVoice("voice", voice, names)
        if voice is None and model.can_clone:
            raise InvalidRequest("voice", voice, names)
        return voice

    def list(self) -> list[Voice]:
        """All readable voices, sorted by name."""
        return [found for found in self._scan() if isinstance(found, Voice)]

    def damaged(self) -> tuple[DamagedVoice, ...]:
        """The files that cannot be read. `remove` deletes them by name."""
        return tuple(found for found in self._scan() if isinstance(found, DamagedVoice))

    def check_free(self, name: str) -> None:
        """Raises InvalidRequest for an invalid name and VoiceExists for a name in use."""
        file_name = to_file_name(name)
        try:
            if file_name in self.store.names():
                raise _exists_error(name)
        except OSError as error:
            raise self._library_error(error) from None

    def remove(self, name: str) -> None:
        """Delete a voice and its data. Raises UnknownVoice."""
        try:
            self.store.remove(to_file_name(name))
        except (FileNotFoundError, InvalidRequest):
            raise self._unknown(name) from None
        except OSError as error:
            raise self._library_error(error) from None

    def edit(self, name: str, change: Callable[[Voice], Voice]) -> Voice:
        """Store what `change` returns for a voice. Raises UnknownVoice, and VoiceExists for a name in use.

        Concurrent changes of the voice come before or after this one. A process that is killed while it renames a voice
        leaves it under both names.
        """
        file_name, changed = to_file_name(self.get(name).name), []

        def change_file(data: bytes) -> tuple[str, bytes]:
            found = self._parse(file_name, data)
            if isinstance(found, DamagedVoice):
                raise _damaged_error(found)
            new = change(found)
            check(new)
            changed.append(new)
            return to_file_name(new.name), to_bytes(new)

        try:
            self.store.update(file_name, MAX_FILE + 1, change_file)
        except FileNotFoundError:
            raise self._unknown(name) from None
        except FileExistsError:
            raise _exists_error(changed[0].name) from None
        except OSError as error:
            raise self._library_error(error) from None
        return changed[0]

    def export(self, name: str, path: str | os.PathLike[str]) -> Voice:
        """Write a voice to a file that another library can import. An existing file is replaced atomically."""
        voice, target = self.get(name), Path(path)
        try:
            partial = write_partial(target.absolute().parent, to_bytes(voice))
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
        """Add the voice of an exported file, under its own name or another."""
        try:
            voice = from_bytes(_read_file(Path(path)))
        except OSError as error:
            raise InvalidRequest("path", str(path), f"cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise InvalidRequest("path", str(path), f"must be a file from `polyvox voice export`: {error}") from None
        if name is not None:
            name_key(name)
            voice = _renamed(voice, name)
        self._put(voice, replace)
        return voice

    def sweep(self) -> int:
        """Delete old temporary files of killed processes and return their number."""
        return self.store.sweep()

    # Files

    def _put(self, voice: Voice, replace: bool) -> None:
        if not replace:
            self.check_free(voice.name)  # before anything is written
        if isinstance(self.store, FolderStore) and self.folder.parts[:1] == ("~",):
            raise VoiceLibraryError("There is no home folder for the voice library. Set POLYVOX_HOME to a folder.")
        file_name, data = to_file_name(voice.name), to_bytes(voice)
        try:
            if replace:
                self.store.replace(file_name, data)
            else:
                self.store.add(file_name, data)
        except FileExistsError:
            raise _exists_error(voice.name) from None
        except OSError as error:
            raise self._library_error(error) from None

    def _scan(self) -> tuple[Voice | DamagedVoice, ...]:
        try:
            names = self.store.names()
        except OSError as error:
            raise self._library_error(error) from None
        names = [name for name in names if name.endswith(SUFFIX) and not name.startswith(".")]
        found = [voice for name in names if (voice := self._load(name)) is not None]
        return tuple(sorted(found, key=lambda voice: voice.name.casefold()))

    def _load(self, file_name: str) -> Voice | DamagedVoice | None:
        """The voice of a file, from the cache if the file has not changed. None if there is no file."""
        try:
            version = self.store.version(file_name)
            if version is None:
                raise FileNotFoundError
            with self._lock:
                cached = self._cache.get(file_name)
            if cached is not None and cached[0] == version:
                return cached[1]
            version, data = self.store.read(file_name, MAX_FILE + 1)
            found = self._parse(file_name, data)
        except FileNotFoundError:
            with self._lock:
                self._cache.pop(file_name, None)
            return None
        except OSError as error:
            return self._damaged(file_name, error.strerror or str(error))
        with self._lock:
            self._cache.pop(file_name, None)
            if version is not None:
                self._cache[file_name] = version, found
            while len(self._cache) > CACHE_SIZE:
                del self._cache[next(iter(self._cache))]
        return found

    def _parse(self, file_name: str, data: bytes) -> Voice | DamagedVoice:
        try:
            voice = from_bytes(data)
            if to_file_name(voice.name) != file_name:
                raise ValueError(f"it has the voice {voice.name!r}; import it instead")
        except ValueError as error:
            return self._damaged(file_name, str(error))
        return voice

    def _damaged(self, file_name: str, reason: str) -> DamagedVoice:
        name = unquote(file_name.removesuffix(SUFFIX))
        store = self.store
        path = store.folder / file_name if isinstance(store, FolderStore) else f"{store.location}/{file_name}"
        return DamagedVoice(name if name.isprintable() else file_name, path, reason)

    def _unknown(self, name: str) -> UnknownVoice:
        names = [voice.name for voice in self.list()]
        return UnknownVoice("voice", name, names or "the voice library is empty", "" if names else ADD_HINT)

    def _library_error(self, error: OSError) -> VoiceLibraryError:
        return VoiceLibraryError(
            f"The voice library in {self.store.location} cannot be used: {error.strerror or error}."
        )


def default_folder() -> Path | str:
    """The folder of the user's voice library, or its URL."""
    if home := os.environ.get("POLYVOX_HOME"):
        if is_url(home):
            return f"{home.rstrip('/')}/voices"
        return Path(os.path.expanduser(home)) / "voices"
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    # Without a home folder it stays ~; nothing is found there and writing fails.
    return Path(os.path.expanduser(data)) / "polyvox/voices"


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE + 1)


def to_file_name(name: str) -> str:
    return quote(name_key(name), safe="") + SUFFIX


def _renamed(voice: Voice, name: str) -> Voice:
    """A copy with another name. In the class a parameter shadows dataclasses.replace."""
    return replace(voice, name=name)


def _exists_error(name: str) -> VoiceExists:
    return VoiceExists("name", name, "a voice with this name exists", "Choose another name, or replace the voice.")


def _damaged_error(found: DamagedVoice) -> VoiceLibraryError:
    return VoiceLibraryError(
        f"The voice {found.name!r} cannot be read ({found.path}: {found.reason}). "
        f"Remove it with `polyvox voice rm`, or add it again with --replace."
    )
