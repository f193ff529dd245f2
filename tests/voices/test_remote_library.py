# SPDX-License-Identifier: Apache-2.0
"""The voice library in an object store: two libraries on one store, conflicts, caching, failures of the store."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from polyvox import remote_store
from polyvox.errors import InvalidRequest, UnknownVoice, VoiceExists, VoiceLibraryError
from polyvox.file_store import FileStore, FolderStore, open_store
from polyvox.remote_store import REFRESH_SECONDS, RETRY_SECONDS, RemoteStore
from polyvox.server.settings_sources import load_settings
from polyvox.text import Lexicon, Pronunciation
from polyvox.text.dictionary_library import DictionaryLibrary
from polyvox.voices import Voice, VoiceLibrary
from voices.factories import add, version


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def url() -> Iterator[str]:
    location = f"memory://{uuid.uuid4().hex}/voices"
    yield location
    memory = MemoryFileSystem()
    if memory.exists(location):
        memory.rm(location, recursive=True)


def library_at(url: str, clock: Clock) -> VoiceLibrary:
    library = VoiceLibrary(url)
    library.store = RemoteStore(url, clock)  # also for file://, which is a folder otherwise
    return library


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_two_libraries_share_one_store(kind: str, url: str, tmp_path: Path) -> None:
    location = url if kind == "memory" else f"file://{tmp_path}"
    clock = Clock()
    one, two = library_at(location, clock), library_at(location, clock)
    assert one.list() == two.list() == []
    add(one, "anna", 1)
    assert version(one.get("anna")) == 1
    clock.now += REFRESH_SECONDS
    assert version(two.get("anna")) == 1
    add(two, "anna", 2, replace=True)
    clock.now += REFRESH_SECONDS
    assert version(one.get("anna")) == 2
    two.remove("anna")
    clock.now += REFRESH_SECONDS
    with pytest.raises(UnknownVoice):
        one.get("anna")


def test_a_name_that_another_library_has_just_added_is_a_conflict(url: str) -> None:
    clock = Clock()
    one, two = library_at(url, clock), library_at(url, clock)
    assert two.list() == []  # this list is cached
    add(one, "anna", 1)
    with pytest.raises(VoiceExists):
        add(two, "anna", 2)
    assert version(one.get("anna")) == 1


def test_concurrent_adds_of_one_name_have_one_winner(url: str) -> None:
    clock, barrier = Clock(), threading.Barrier(4)
    won: list[int] = []

    def add_anna(number: int) -> None:
        library = library_at(url, clock)
        barrier.wait()
        try:
            add(library, "anna", number)
            won.append(number)
        except VoiceExists:
            pass

    threads = [threading.Thread(target=add_anna, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [version(library_at(url, clock).get("anna"))]


def test_concurrent_renames_by_one_server_have_one_winner(url: str) -> None:
    library, barrier = library_at(url, Clock()), threading.Barrier(4)
    add(library, "anna", 1)
    won: list[str] = []

    def rename(number: int) -> None:
        barrier.wait()
        with suppress(UnknownVoice):
            won.append(library.edit("anna", lambda voice: replace(voice, name=f"anna-{number}")).name)

    threads = [threading.Thread(target=rename, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [voice.name for voice in library.list()]


@pytest.mark.parametrize("name", ["anna", "bob"])
def test_an_edit_does_not_bring_back_a_voice_that_another_server_has_removed(url: str, name: str) -> None:
    clock = Clock()
    one, two = library_at(url, clock), library_at(url, clock)
    add(one, "anna", 1)
    two.get("anna")
    one.remove("anna")
    with pytest.raises(UnknownVoice):
        two.edit("anna", lambda voice: replace(voice, name=name))
    assert library_at(url, clock).list() == []


def test_a_rename_of_a_voice_that_another_server_removes_meanwhile_leaves_no_voice(url: str) -> None:
    clock = Clock()
    one, two = library_at(url, clock), library_at(url, clock)
    add(one, "anna", 1)

    def change(voice: Voice) -> Voice:
        two.remove("anna")
        return replace(voice, name="bob")

    with pytest.raises(UnknownVoice):
        one.edit("anna", change)
    assert library_at(url, clock).list() == []


def test_voices_are_read_once_and_the_list_at_most_every_two_seconds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    add(library_at(url, clock), "anna", 1)
    library = library_at(url, clock)
    calls: list[str] = []
    for name in ("ls", "cat_file"):
        original = getattr(MemoryFileSystem, name)

        def counted(self: Any, *args: Any, _name: str = name, _original: Any = original, **options: Any) -> Any:
            calls.append(_name)
            return _original(self, *args, **options)

        monkeypatch.setattr(MemoryFileSystem, name, counted)
    first = library.get("anna")
    assert library.get("anna") is first
    assert calls == ["ls", "cat_file"]
    clock.now += REFRESH_SECONDS
    assert library.get("anna") is first
    assert calls == ["ls", "cat_file", "ls"]


def test_cached_voices_stay_available_while_the_store_fails(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    library = library_at(url, clock)
    add(library, "anna", 1)
    add(library, "bob", 2)
    library.get("anna")
    clock.now += REFRESH_SECONDS
    with monkeypatch.context() as failing:
        for name in ("ls", "cat_file", "pipe_file", "exists"):

            def fail(*_: object, **__: object) -> None:
                raise RuntimeError("connection refused")

            failing.setattr(MemoryFileSystem, name, fail)
        assert version(library.get("anna")) == 1
        with pytest.raises(VoiceLibraryError, match=r"'bob' cannot be read .*: connection refused"):
            library.get("bob")  # known, but not in the cache
        with pytest.raises(VoiceLibraryError, match="connection refused"):
            add(library, "carl", 3)
        with pytest.raises(VoiceLibraryError, match="connection refused"):
            library.remove("anna")
        with pytest.raises(VoiceLibraryError, match="connection refused"):
            library_at(url, clock).list()  # has no list to use
    clock.now += RETRY_SECONDS
    assert version(library.get("bob")) == 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("voice store not available") == 2
    assert messages.count("voice store available") == 1


def test_a_store_that_does_not_answer_times_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(remote_store, "CALL_TIMEOUT", 0.05)
    monkeypatch.setattr(remote_store, "MAX_CALLS", 1)
    monkeypatch.setattr(MemoryFileSystem, "ls", lambda *_, **__: release.wait(30))
    clock = Clock()
    library = library_at(url, clock)
    try:
        for _ in range(2):  # the second time without a call, which would wait again
            with pytest.raises(VoiceLibraryError, match=r"did not answer within 0\.05 s"):
                library.list()
        clock.now += RETRY_SECONDS
        with pytest.raises(VoiceLibraryError, match="1 calls of the store have not returned"):
            library.list()
    finally:
        release.set()


def test_an_own_change_is_visible_at_once_while_another_thread_reads_the_list(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    library = library_at(url, clock)
    add(library, "anna", 1)
    assert len(library.list()) == 1
    clock.now += REFRESH_SECONDS
    reading, release, original = threading.Event(), threading.Event(), MemoryFileSystem.ls

    def list_slowly(self: MemoryFileSystem, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        reading.set()
        release.wait(30)
        return found

    with monkeypatch.context() as slow:
        slow.setattr(MemoryFileSystem, "ls", list_slowly)
        thread = threading.Thread(target=library.list)
        thread.start()
        try:
            assert reading.wait(30)
            add(library, "bob", 2)
            assert version(library.get("bob")) == 2
            library.remove("anna")
            with pytest.raises(UnknownVoice):
                library.get("anna")
        finally:
            release.set()
            thread.join(30)
    assert [voice.name for voice in library.list()] == ["bob"]


def test_a_damaged_file_is_reported_with_its_url(url: str) -> None:
    add(VoiceLibrary(url), "anna", 1)
    MemoryFileSystem().pipe_file(f"{url}/anna.safetensors", b"junk")
    (found,) = VoiceLibrary(url).damaged()
    assert (found.name, found.path) == ("anna", f"{url}/anna.safetensors")


def test_dictionaries_are_in_the_same_store(url: str) -> None:
    clock = Clock()
    one, two = (DictionaryLibrary(library_at(url, clock).store.subfolder("dictionaries")) for _ in range(2))
    added = one.add("", "Terms", None, Lexicon([Pronunciation("SQL", "sequel")]))
    assert two.get("", added.id).name == "Terms"
    one.remove("", added.id)
    clock.now += REFRESH_SECONDS
    assert two.owned_by("") == []


def test_a_location_is_a_folder_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder: FileStore = open_store(tmp_path)
    assert isinstance(folder, FolderStore)
    assert open_store(f"file://{tmp_path}").location == str(tmp_path)
    assert open_store("memory://a/voices").location == "memory://a/voices"
    assert RemoteStore("memory://user:password@a/voices?token=1").location == "memory://a/voices"
    assert load_settings({"voices_dir": "memory://a/voices"}).voices_dir == "memory://a/voices"
    assert load_settings({"voices_dir": str(tmp_path)}).voices_dir == tmp_path
    with pytest.raises(InvalidRequest, match="Invalid value for 'voices_dir': cannot be opened: Protocol not known"):
        open_store("nothing://bucket/voices")
    monkeypatch.setenv("POLYVOX_HOME", "memory://home/")
    assert VoiceLibrary().store.location == "memory://home/voices"
