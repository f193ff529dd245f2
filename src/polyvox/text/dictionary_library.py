# SPDX-License-Identifier: Apache-2.0
"""Pronunciation dictionaries in files: one file per version, written atomically and without locks.

Adding a version fails if another process has added the same version number; then the change is made again on the newer
version. The newest versions are kept, so that requests may name an older one.
"""

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.file_store import FileStore
from polyvox.text.lexicon import Lexicon, Pronunciation
from polyvox.text.lexicon_files import MAX_ENTRIES, MAX_FILE_BYTES, parse_rules, to_rule

SUFFIX = ".json"
MAX_DICTIONARIES = 1000
MAX_VERSIONS = 10  # of a dictionary
MAX_ATTEMPTS = 100  # to add a version while other processes add versions
MAX_NAME, MAX_DESCRIPTION = 200, 2000  # characters
CACHE_SIZE = 32  # versions in memory
_FILE = re.compile(r"([A-Za-z0-9]{20})\.(\d{1,9})\.json")


class UnknownDictionary(InvalidRequest):
    """No pronunciation dictionary has this id or version."""

    status = 404
    code = "dictionary_not_found"


class DictionaryLibraryError(PolyvoxError):
    """The store of the pronunciation dictionaries cannot be read or written."""

    code = "dictionary_library"


@dataclass(frozen=True, slots=True)
class Dictionary:
    """One version of a dictionary. owner: a name of the API key that may use it. created: of the first version."""

    id: str
    number: int  # of the version
    owner: str
    name: str
    description: str | None
    created: int  # Unix time
    lexicon: Lexicon

    @property
    def version_id(self) -> str:
        rules = [to_rule(each) for each in self.lexicon.pronunciations]
        content = json.dumps([self.id, self.number, rules], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    @property
    def has_phonemes(self) -> bool:
        return any(each.phonemes for each in self.lexicon.pronunciations)


class DictionaryLibrary:
    """The dictionaries of a file store. Processes may read and change it concurrently."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._cache: dict[str, Dictionary] = {}  # by file name
        self._lock = threading.Lock()

    def add(self, owner: str, name: str, description: str | None, lexicon: Lexicon) -> Dictionary:
        _check(name, description, lexicon)
        if len(self._versions()) >= MAX_DICTIONARIES:
            raise InvalidRequest("name", name, f"at most {MAX_DICTIONARIES} dictionaries can be stored")
        found = Dictionary(secrets.token_hex(10), 1, owner, name, description, int(time.time()), lexicon)
        self._write(found)
        return found

    def get(self, owner: str, dictionary_id: str, version_id: str | None = None) -> Dictionary:
        """A version of a dictionary, by default its newest. Raises UnknownDictionary."""
        numbers = self._versions().get(dictionary_id, [])
        for found in self._readable(dictionary_id, numbers):
            if found.owner == owner and version_id in (None, found.version_id):
                return found
        value = dictionary_id if version_id is None else f"{dictionary_id}/{version_id}"
        raise UnknownDictionary("pronunciation_dictionary_id", value, "is not a dictionary of this API key")

    def owned_by(self, owner: str) -> list[Dictionary]:
        """The newest version of each dictionary, the newest dictionary first."""
        readable = [self._readable(key, numbers) for key, numbers in self._versions().items()]
        newest = [found for found in (next(versions, None) for versions in readable) if found is not None]
        return sorted((each for each in newest if each.owner == owner), key=lambda each: (-each.created, each.id))

    def change(self, owner: str, dictionary_id: str, edit: Callable[[Dictionary], Dictionary]) -> Dictionary:
        """Stores what `edit` returns for the newest version as the next one."""
        for _ in range(MAX_ATTEMPTS):
            numbers = self._versions().get(dictionary_id, [0])
            old = self.get(owner, dictionary_id)
            found = replace(edit(old), number=max(old.number, numbers[-1]) + 1)  # the newest file may be damaged
            _check(found.name, found.description, found.lexicon)
            try:
                self._write(found)
            except FileExistsError:
                continue
            self._delete(dictionary_id, self._versions().get(dictionary_id, [])[:-MAX_VERSIONS])
            return found
        raise DictionaryLibraryError(f"The dictionary {dictionary_id} is changed too often by other requests.")

    def remove(self, owner: str, dictionary_id: str) -> None:
        """Deletes all versions. Raises UnknownDictionary."""
        self.get(owner, dictionary_id)
        self._delete(dictionary_id, self._versions().get(dictionary_id, []))

    def _delete(self, dictionary_id: str, numbers: Iterable[int]) -> None:
        try:
            for number in numbers:
                with suppress(FileNotFoundError):
                    self._store.remove(_file_name(dictionary_id, number))
        except OSError as error:
            raise self._error(error) from None

    def _readable(self, dictionary_id: str, numbers: Sequence[int]) -> Iterator[Dictionary]:
        """The versions that are not damaged, the newest first."""
        found = (self._read(dictionary_id, number) for number in reversed(numbers))
        return (each for each in found if each is not None)

    def _versions(self) -> dict[str, list[int]]:
        """The version numbers of each dictionary, in order."""
        try:
            names = self._store.names()
        except OSError as error:
            raise self._error(error) from None
        found: dict[str, list[int]] = {}
        for match in filter(None, map(_FILE.fullmatch, names)):
            found.setdefault(match[1], []).append(int(match[2]))
        return {key: sorted(numbers) for key, numbers in found.items()}

    def _write(self, dictionary: Dictionary) -> None:
        """Raises FileExistsError if the version exists."""
        content = {
            "owner": dictionary.owner,
            "name": dictionary.name,
            "description": dictionary.description,
            "created": dictionary.created,
            "rules": [to_rule(each) for each in dictionary.lexicon.pronunciations],
        }
        data = json.dumps(content).encode()
        if len(data) > MAX_FILE_BYTES:
            raise InvalidRequest("rules", len(data), f"must have at most {MAX_FILE_BYTES:,} bytes")
        try:
            self._store.add(_file_name(dictionary.id, dictionary.number), data)
        except FileExistsError:
            raise
        except OSError as error:
            raise self._error(error) from None

    def _read(self, dictionary_id: str, number: int) -> Dictionary | None:
        """None if another process has deleted the file, or if it is damaged. Versions never change."""
        name = _file_name(dictionary_id, number)
        with self._lock:
            cached = self._cache.get(name)
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, InvalidRequest):
            if cached is not None and self._store.version(name) is not None:
                return cached
            content = json.loads(self._store.read(name, MAX_FILE_BYTES + 1)[1])
            lexicon = parse_rules(json.dumps(content["rules"]))
            owner, title, description, created = (content[key] for key in ("owner", "name", "description", "created"))
            found = Dictionary(dictionary_id, number, owner, title, description, created, lexicon)
            with self._lock:
                self._cache[name] = found
                while len(self._cache) > CACHE_SIZE:
                    del self._cache[next(iter(self._cache))]
            return found
        return None

    def _error(self, error: OSError) -> DictionaryLibraryError:
        reason = error.strerror or error
        return DictionaryLibraryError(
            f"The pronunciation dictionaries in {self._store.location} cannot be used: {reason}."
        )


def _file_name(dictionary_id: str, number: int) -> str:
    return f"{dictionary_id}.{number}{SUFFIX}"


def updated(lexicon: Lexicon, pronunciations: Iterable[Pronunciation]) -> Lexicon:
    """A lexicon in which pronunciations replace those of equal words."""
    new = tuple(pronunciations)
    words = {each.word for each in new}
    return Lexicon([*(each for each in lexicon.pronunciations if each.word not in words), *new])


def _check(name: str, description: str | None, lexicon: Lexicon) -> None:
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidRequest("name", name, f"must have 1 to {MAX_NAME} printable characters")
    if description is not None and len(description) > MAX_DESCRIPTION:
        raise InvalidRequest("description", description, f"must have at most {MAX_DESCRIPTION:,} characters")
    if len(lexicon) > MAX_ENTRIES:
        raise InvalidRequest("rules", len(lexicon), f"must have at most {MAX_ENTRIES:,} rules")
