# SPDX-License-Identifier: Apache-2.0
"""Changes of the voice library by several threads or processes at once."""

import fcntl
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from polyvox.errors import UnknownVoice, VoiceExists
from polyvox.voices import Voice, VoiceLibrary
from voices.factories import MODEL, add, cloned, version

pytestmark = pytest.mark.slow


@pytest.fixture
def library(tmp_path: Path) -> VoiceLibrary:
    return VoiceLibrary(tmp_path / "home/voices")


def test_concurrent_adds_of_one_name_have_one_winner(library: VoiceLibrary) -> None:
    barrier, won = threading.Barrier(8), []

    def add_anna(number: int) -> None:
        barrier.wait()
        try:
            add(VoiceLibrary(library.folder), "anna", number)
            won.append(number)
        except VoiceExists:
            pass

    threads = [threading.Thread(target=add_anna, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [version(library.get("anna"))]
    assert len(list(library.folder.iterdir())) == 1


def test_concurrent_renames_of_one_voice_have_one_winner(library: VoiceLibrary) -> None:
    add(library, "anna", 1)
    barrier, won = threading.Barrier(8), []

    def rename(number: int) -> None:
        barrier.wait()
        with suppress(UnknownVoice):
            edited = VoiceLibrary(library.folder).edit("anna", lambda voice: replace(voice, name=f"anna-{number}"))
            won.append(edited.name)

    threads = [threading.Thread(target=rename, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [voice.name for voice in library.list()]
    assert len(list(library.folder.iterdir())) == 1


def test_concurrent_edits_of_one_voice_are_all_kept(library: VoiceLibrary) -> None:
    library.add("anna", cloned(1), MODEL, description="")
    barrier = threading.Barrier(8)

    def append(letter: str) -> None:
        barrier.wait()
        VoiceLibrary(library.folder).edit(
            "anna", lambda voice: replace(voice, description=f"{voice.description}{letter}")
        )

    threads = [threading.Thread(target=append, args=[letter]) for letter in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(library.get("anna").description or "") == list("abcdefgh")


def test_an_edit_does_not_bring_back_a_voice_that_is_removed_meanwhile(
    library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(library, "anna", 1)
    waiting, lock = threading.Event(), fcntl.flock
    thread = threading.Thread(target=lambda: VoiceLibrary(library.folder).remove("anna"))

    def report_wait(file: int, operation: int) -> None:
        if threading.current_thread() is thread:
            waiting.set()
        lock(file, operation)

    def change(voice: Voice) -> Voice:
        thread.start()
        assert waiting.wait(30)
        return replace(voice, description="new")

    monkeypatch.setattr(fcntl, "flock", report_wait)
    library.edit("anna", change)
    thread.join()
    assert library.list() == []


def test_an_edit_keeps_the_voice_if_the_new_name_is_in_use(library: VoiceLibrary) -> None:
    for name, number in (("anna", 1), ("bob", 2)):
        add(library, name, number)
    with pytest.raises(VoiceExists, match="'bob'"):
        library.edit("anna", lambda voice: replace(voice, name="bob"))
    assert [(voice.name, version(voice)) for voice in library.list()] == [("anna", 1), ("bob", 2)]


def test_a_folder_that_cannot_be_locked_is_supported(library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lock(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    add(library, "anna", 1)
    library.edit("anna", lambda voice: replace(voice, name="bob"))
    assert [version(voice) for voice in library.list()] == [1]
    library.remove("bob")
    assert library.list() == []
