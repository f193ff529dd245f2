# SPDX-License-Identifier: Apache-2.0
"""Pronunciation dictionaries on disk: versions, owners, concurrent changes, damaged files."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from polyvox.errors import InvalidRequest
from polyvox.file_store import FolderStore
from polyvox.text import Lexicon, Pronunciation
from polyvox.text.dictionary_library import (
    MAX_VERSIONS,
    Dictionary,
    DictionaryLibrary,
    DictionaryLibraryError,
    UnknownDictionary,
    updated,
)
from polyvox.text.lexicon_files import parse_pls, to_pls

TERMS = Lexicon([Pronunciation("SQL", "sequel", match_case=True), Pronunciation("Linux", phonemes="ˈlɪnəks")])


def renamed(name: str, old: Dictionary) -> Dictionary:
    return replace(old, name=name)


def test_another_process_reads_what_was_added(tmp_path: Path) -> None:
    added = DictionaryLibrary(FolderStore(tmp_path)).add("", "Terms", "of computers", TERMS)
    found = DictionaryLibrary(FolderStore(tmp_path)).get("", added.id)
    assert (found.name, found.description, found.version_id) == ("Terms", "of computers", added.version_id)
    assert found.lexicon.pronunciations == TERMS.pronunciations
    assert [each.id for each in DictionaryLibrary(FolderStore(tmp_path)).owned_by("")] == [added.id]


def test_old_versions_can_be_read_until_there_are_too_many(tmp_path: Path) -> None:
    library = DictionaryLibrary(FolderStore(tmp_path))
    first = library.add("", "Terms", None, TERMS)
    for number in range(MAX_VERSIONS):
        assert library.get("", first.id, first.version_id).number == 1
        library.change("", first.id, partial(renamed, f"Terms {number}"))
    with pytest.raises(UnknownDictionary):
        library.get("", first.id, first.version_id)
    assert library.get("", first.id).name == f"Terms {MAX_VERSIONS - 1}"
    assert len(list(tmp_path.iterdir())) == MAX_VERSIONS


def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    added = DictionaryLibrary(FolderStore(tmp_path)).add("", "Terms", None, Lexicon())

    def add_word(number: int) -> None:
        def edit(old: Dictionary) -> Dictionary:
            return replace(old, lexicon=updated(old.lexicon, [Pronunciation(f"word{number}", "x")]))

        DictionaryLibrary(FolderStore(tmp_path)).change("", added.id, edit)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_word, range(20)))
    assert len(DictionaryLibrary(FolderStore(tmp_path)).get("", added.id).lexicon) == 20


def test_other_owners_and_damaged_files_are_not_found(tmp_path: Path) -> None:
    library = DictionaryLibrary(FolderStore(tmp_path))
    added = library.add("anna", "Terms", None, TERMS)
    with pytest.raises(UnknownDictionary):
        library.get("bert", added.id)
    (tmp_path / f"{added.id}.1.json").write_text("{")
    with pytest.raises(UnknownDictionary):
        DictionaryLibrary(FolderStore(tmp_path)).get("anna", added.id)


@pytest.mark.parametrize("damaged", ["{", "[]", '{"rules": [{"type": []}]}'])
def test_a_dictionary_whose_newest_version_is_damaged_can_be_listed_and_changed(tmp_path: Path, damaged: str) -> None:
    added = DictionaryLibrary(FolderStore(tmp_path)).add("", "Terms", None, TERMS)
    (tmp_path / f"{added.id}.2.json").write_text(damaged)
    library = DictionaryLibrary(FolderStore(tmp_path))
    assert [each.number for each in library.owned_by("")] == [1]
    assert library.change("", added.id, partial(renamed, "Words")).number == 3
    assert library.get("", added.id).name == "Words"


def test_a_change_that_other_processes_prevent_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = DictionaryLibrary(FolderStore(tmp_path))
    added = library.add("", "Terms", None, TERMS)
    monkeypatch.setattr(library, "_write", mock.Mock(side_effect=FileExistsError))
    with pytest.raises(DictionaryLibraryError, match="changed too often"):
        library.change("", added.id, partial(renamed, "Words"))


def test_limits_and_an_unusable_folder_are_errors(tmp_path: Path) -> None:
    library = DictionaryLibrary(FolderStore(tmp_path))
    many = Lexicon(Pronunciation(f"word{number}", "x") for number in range(10_001))
    for name, lexicon in (("", TERMS), ("x" * 201, TERMS), ("Many", many)):
        with pytest.raises(InvalidRequest):
            library.add("", name, None, lexicon)
    (tmp_path / "file").write_text("")
    with pytest.raises(DictionaryLibraryError, match="cannot be used"):
        DictionaryLibrary(FolderStore(tmp_path / "file")).add("", "Terms", None, TERMS)


def test_a_pls_file_has_the_same_pronunciations() -> None:
    found = parse_pls(to_pls(TERMS.pronunciations)).pronunciations
    assert [(each.word, each.respelling, each.phonemes) for each in found] == [
        ("SQL", "sequel", ""),
        ("Linux", "", "ˈlɪnəks"),
    ]


def test_a_lexicon_over_another_has_precedence_and_keeps_the_words_of_both() -> None:
    base = Lexicon.from_words({"SQL": "ess queue ell", "NATO": "nay toe"})
    found = Lexicon.from_words({"SQL": "sequel"}).over(base)
    assert [found.match(word, 0)[0].respelling for word in ("SQL", "NATO")] == ["sequel", "nay toe"]  # type: ignore[index]
