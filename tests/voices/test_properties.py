# SPDX-License-Identifier: Apache-2.0
"""Two libraries over one folder behave like one dictionary for any sequence of operations."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from polyvox.errors import InvalidRequest, UnknownVoice, VoiceExists
from polyvox.models.info import ModelIdentity
from polyvox.voices import VoiceLibrary
from polyvox.voices.library import to_file_name
from polyvox.voices.voice import MAX_NAME, Voice, from_bytes, name_key, new_voice, to_bytes
from voices import factories
from voices.factories import cloned, version

pytestmark = pytest.mark.slow

NAMES = ("anna", "Anna", "ANNA", "bob", "Zoë", "Zoe\u0308", "小明")
names, versions, sides = st.sampled_from(NAMES), st.integers(0, 60), st.integers(0, 1)


class Libraries(RuleBasedStateMachine):
    """`expected` maps keys to the last written name and version."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.sides = (VoiceLibrary(self.folder / "voices"), VoiceLibrary(self.folder / "voices"))
        self.expected: dict[str, tuple[str, int]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(side=sides, name=names, number=versions, replace=st.booleans())
    def add(self, side: int, name: str, number: int, replace: bool) -> None:
        if name_key(name) in self.expected and not replace:
            with pytest.raises(VoiceExists):
                factories.add(self.sides[side], name, number, replace)
        else:
            factories.add(self.sides[side], name, number, replace)
            self.expected[name_key(name)] = name, number

    @rule(side=sides, name=names)
    def remove(self, side: int, name: str) -> None:
        if self.expected.pop(name_key(name), None) is None:
            with pytest.raises(UnknownVoice):
                self.sides[side].remove(name)
        else:
            self.sides[side].remove(name)

    @rule(side=sides, name=names, new=names, replace=st.booleans())
    def export_and_import(self, side: int, name: str, new: str, replace: bool) -> None:
        """Export from one library and import into the other under another name."""
        file = self.folder / "exported"
        if name_key(name) not in self.expected:
            with pytest.raises(UnknownVoice):
                self.sides[side].export(name, file)
            return
        self.sides[side].export(name, file)
        if name_key(new) in self.expected and not replace:
            with pytest.raises(VoiceExists):
                self.sides[1 - side].import_(file, new)
        else:
            self.sides[1 - side].import_(file, new, replace=replace)
            self.expected[name_key(new)] = new, self.expected[name_key(name)][1]

    @invariant()
    def both_libraries_agree(self) -> None:
        for library in self.sides:
            assert {name_key(v.name): (v.name, version(v)) for v in library.list()} == self.expected
            assert library.damaged() == ()
            for name in NAMES:
                if name_key(name) in self.expected:
                    assert version(library.get(name)) == self.expected[name_key(name)][1]

    @invariant()
    def there_are_no_other_files(self) -> None:
        assert len(list((self.folder / "voices").glob("*"))) == len(self.expected)


TestLibraries = Libraries.TestCase
TestLibraries.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(st.text(max_size=70) | st.text("aÄßﬁ小²7.-_ ", min_size=1, max_size=30))
@settings(max_examples=500, deadline=None)
def test_a_name_is_rejected_or_maps_to_one_file(name: str) -> None:
    try:
        key = name_key(name)
    except InvalidRequest:
        return
    file_name = to_file_name(name)
    assert Path("/library", file_name).parent == Path("/library")
    assert file_name.isascii()
    assert not file_name.startswith(".")
    assert len(file_name) <= 3 * MAX_NAME + 12
    assert name_key(key) == key  # idempotent


@given(
    texts=st.lists(st.none() | st.text(st.characters(exclude_categories=("Cc", "Cs"))), min_size=3, max_size=3),
    number=versions,
    in_context=st.booleans(),
    seconds=st.none() | st.floats(0, 1e6),
)
@settings(max_examples=200, deadline=None)
def test_any_voice_round_trips(texts: list[str | None], number: int, in_context: bool, seconds: float | None) -> None:
    consent, description, model = texts
    identity = ModelIdentity(model or "", "base-1", can_clone=True)
    voice = new_voice("Anna", cloned(number, in_context), identity, consent, None, seconds, description)
    assert from_bytes(to_bytes(voice)).info() == voice.info()


IDENTITY = ModelIdentity("a model", "base-1", can_clone=True)
FILE = to_bytes(new_voice("anna", cloned(3), IDENTITY, "yes", "a.wav", 1.0, None))


def same(voice: Voice) -> bool:
    return to_bytes(voice) == FILE


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
@settings(max_examples=500, deadline=None)
def test_a_changed_byte_is_detected_or_changes_nothing(offset: int, change: int) -> None:
    data = bytearray(FILE)
    data[offset] ^= change
    try:
        voice = from_bytes(bytes(data))
    except ValueError:
        return
    assert same(voice)  # e.g. white space at the end of the header


@given(st.binary(max_size=300) | st.integers(0, len(FILE)).map(lambda end: FILE[:end] + b"\xff" * 9))
@settings(max_examples=500, deadline=None)
def test_random_bytes_are_rejected_with_a_reason(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_bytes(data)
