# SPDX-License-Identifier: Apache-2.0
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from polyvox.errors import InvalidRequest, UnknownVoice, VoiceExists, VoiceLibraryError
from polyvox.files import PARTIAL, PARTIAL_MAX_AGE
from polyvox.models.info import ModelIdentity
from polyvox.models.request import ClonedVoice
from polyvox.voices import VoiceLibrary
from polyvox.voices.voice import MAX_FILE
from voices.factories import MODEL, OTHER, add, cloned, version
from voices.killed_writers import environment, run

pytestmark = pytest.mark.slow


@pytest.fixture
def library(tmp_path: Path) -> VoiceLibrary:
    return VoiceLibrary(tmp_path / "home/voices")


def test_a_voice_round_trips(library: VoiceLibrary) -> None:
    kept = add(library, "Anna", 7)
    found = VoiceLibrary(library.folder).get("anna")
    assert version(found) == 7
    assert found.info() == kept.info()
    assert (found.name, found.created.utcoffset()) == ("Anna", kept.created.utcoffset())


def test_a_voice_may_have_only_an_embedding(library: VoiceLibrary) -> None:
    library.add("anna", cloned(3, in_context=False), MODEL)
    voice = library.get("anna").cloned_for(MODEL)
    assert voice.codes is None
    assert voice.transcript is None
    assert library.get("anna").info()["mode"] == "vector"


def test_the_first_write_creates_a_private_folder(library: VoiceLibrary) -> None:
    assert library.list() == []
    assert not library.folder.exists()
    add(library, "anna", 1)
    assert stat.S_IMODE(library.folder.stat().st_mode) == 0o700
    (file,) = library.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"POLYVOX_HOME": "/a", "XDG_DATA_HOME": "/b"}, "/a/voices"),
        ({"XDG_DATA_HOME": "/b"}, "/b/polyvox/voices"),
        ({"HOME": "/c"}, "/c/.local/share/polyvox/voices"),
    ],
)
def test_the_default_folder(variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLYVOX_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert VoiceLibrary().folder == Path(folder)


def test_without_a_home_folder_the_library_is_empty_and_writes_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLYVOX_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    library = VoiceLibrary()
    assert library.list() == []
    with pytest.raises(VoiceLibraryError, match="Set POLYVOX_HOME"):
        add(library, "anna", 1)


def test_names_are_unique_ignoring_case(library: VoiceLibrary) -> None:
    add(library, "Straße", 1)
    for name in ("Straße", "STRASSE", "strasse"):
        with pytest.raises(VoiceExists, match="exists"):
            add(library, name, 2)
        assert version(library.get(name)) == 1
    add(library, "STRASSE", 2, replace=True)
    assert [(voice.name, version(voice)) for voice in library.list()] == [("STRASSE", 2)]


@pytest.mark.parametrize(
    "name",
    ["anna", "Anna Warm", "a.b-c_d", "7", "小明", "Zoë", "Zoe\u0308", "हिन्दी", "x" * 60, "con", "Ａnna"],
)
def test_names_may_be_of_any_script(name: str, library: VoiceLibrary) -> None:
    add(library, name, 1)
    assert library.get(name).name == name
    (file,) = library.folder.iterdir()
    assert file.name.isascii()


@pytest.mark.parametrize(
    "name",
    [
        "", " ", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "C:x", "a\0b", "a\nb", "-rf", ".hidden", "a.", " a",
        "a ", "a  b", "a..b", "x" * 61, "é" * 31, "auto", "Default", "NONE", "a%2fb", "a*", "😀", "\u0301a", "a\u200bb",
        "\u202eanna", "\ud800", "~", "$(x)", None, 7, b"anna",
    ],
)  # fmt: skip
def test_unsafe_names_are_rejected(name: str, library: VoiceLibrary) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^Invalid value for 'name': must be up to 60 bytes of letters and digits"
    ):
        add(library, name, 1)
    with pytest.raises(UnknownVoice):
        library.get(name)
    with pytest.raises(UnknownVoice):
        library.remove(name)
    assert not library.folder.exists()


def test_the_error_for_an_unknown_voice_lists_the_voices(library: VoiceLibrary) -> None:
    with pytest.raises(UnknownVoice, match="voice library is empty"):
        library.get("anna")
    add(library, "bob", 1)
    add(library, "Carl", 1)
    for ask in (library.get, library.remove):
        with pytest.raises(UnknownVoice, match=r"must be one of bob, Carl \(got 'anna'\)"):
            ask("anna")


def test_a_voice_is_found_by_its_content_id(library: VoiceLibrary) -> None:
    first, second, third = add(library, "anna", 1), add(library, "bob", 1), add(library, "carl", 2)
    assert first.id == second.id != third.id
    assert library.get(third.id).name == "carl"
    assert version(library.get(first.id)) == 1
    with pytest.raises(UnknownVoice):
        library.get("0" * 64)


def test_the_content_id_is_the_same_on_every_machine(library: VoiceLibrary) -> None:
    """A change would make all stored voices unreadable."""
    assert add(library, "anna", 1).id == "bacc5e4b2a33f2a74a299a1d9b74130059bb71149d62880f3a7605cfdcb0be75"


def test_a_voice_of_another_model_is_rejected_with_both_names(library: VoiceLibrary) -> None:
    voice = add(library, "anna", 1)
    assert voice.cloned_for(ModelIdentity("renamed", MODEL.fingerprint, can_clone=True)).vector is voice.vector
    with pytest.raises(InvalidRequest) as caught:
        voice.cloned_for(OTHER)
    for part in ("'anna'", "must be a voice for Large-Base (base-96-", "this voice is for Small-Base (base-48-"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("voice", "fields", "message"),
    [
        (ClonedVoice(np.full(4, np.nan, np.float32)), {}, "voice.vector"),
        (ClonedVoice(np.zeros(0, np.float32)), {}, "voice.vector"),
        (ClonedVoice(np.zeros((2, 2), np.float32)), {}, "voice.vector"),
        (ClonedVoice([0.0]), {}, "voice.vector"),  # type: ignore[arg-type]
        (ClonedVoice(np.ones(4, np.float32), np.full((2, 6), -1), "x"), {}, "voice.codes"),
        (ClonedVoice(np.ones(4, np.float32), np.zeros((0, 6), np.int64), "x"), {}, "voice.codes"),
        (ClonedVoice(np.ones(4, np.float32), np.ones((2, 6)), "x"), {}, "voice.codes"),  # type: ignore[arg-type]
        (ClonedVoice(np.ones(4, np.float32), np.ones((2, 6), np.int64)), {}, "require each other"),
        (ClonedVoice(np.ones(4, np.float32), None, "x"), {}, "require each other"),
        (ClonedVoice(np.ones(4, np.float32), np.ones((2, 6), np.int64), "\ud800"), {}, "control characters"),
        (cloned(1), {"consent": "x" * 10_001}, "'consent': .* at most 10,000"),
        (cloned(1), {"consent": "\x1b[2J"}, "'consent': .* control characters"),
        (cloned(1), {"description": 7}, "description"),
        (cloned(1), {"seconds": float("nan")}, "seconds"),
    ],
)
def test_invalid_voices_are_rejected(
    voice: ClonedVoice, fields: dict[str, object], message: str, library: VoiceLibrary
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        library.add("anna", voice, MODEL, **fields)  # type: ignore[arg-type]
    assert not library.folder.exists()


@pytest.mark.parametrize("source", ["/home/me/anna.wav", "..\\me\\anna.wav", "anna.wav"])
def test_only_the_file_name_of_the_source_is_stored(source: str, library: VoiceLibrary) -> None:
    assert library.add("anna", cloned(1), MODEL, source=source).source == "anna.wav"
    assert b"/me" not in next(library.folder.iterdir()).read_bytes()


def test_instances_see_each_others_changes_at_once(library: VoiceLibrary) -> None:
    other = VoiceLibrary(library.folder)
    add(library, "anna", 1)
    assert version(other.get("anna")) == 1
    add(library, "anna", 2, replace=True)
    assert version(other.get("anna")) == 2
    library.remove("anna")
    assert other.list() == []
    with pytest.raises(UnknownVoice):
        other.get("anna")


def test_an_unchanged_file_is_read_once(library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    add(library, "anna", 1)
    assert library.get("anna") is not library.get("anna")  # a young file is not cached
    os.utime(library.folder / "anna.safetensors", (1, 1))
    first = library.get("anna")
    monkeypatch.setattr(Path, "open", None)
    assert library.get("ANNA") is first


def test_a_replaced_file_is_read_again_however_old_it_is(library: VoiceLibrary) -> None:
    """Only files of some age are cached."""
    file = library.folder / "anna.safetensors"
    for number, time in ((1, 1_000), (2, 2_000)):
        add(VoiceLibrary(library.folder), "anna", number, replace=True)
        os.utime(file, (time, time))
        assert version(library.get("anna")) == number
        assert library.get("anna") is library.get("anna")


def test_a_file_system_without_hard_links_is_supported(library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    add(library, "anna", 1)
    monkeypatch.setattr(VoiceLibrary, "check_free", lambda *_: None)  # another process added it after the check
    with pytest.raises(VoiceExists):
        add(library, "anna", 2)
    assert version(library.get("anna")) == 1
    assert len(list(library.folder.iterdir())) == 1


# Damaged files


def damages(whole: bytes) -> dict[str, bytes]:
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    return {
        "empty": b"",
        "truncated arrays": whole[:-7],
        "truncated header": whole[:40],
        "another file": b"RIFF" * 100,
        "corrupt array": bytes(flipped),
        "corrupt metadata": whole.replace(b'"consent":"1"', b'"consent":"2"'),
        "no voice": save({"vector": np.ones(4, np.float32)}),
        "no vector": save({"x": np.ones(4, np.float32)}, {"format": "polyvox-voice-1"}),
        "huge": bytes(MAX_FILE + 1),
        "a huge header": (2**62).to_bytes(8, "little") + whole[8:],
    }


@pytest.mark.parametrize("damage", damages(bytes(50)))
def test_a_damaged_file_is_reported_and_other_voices_work(damage: str, library: VoiceLibrary, tmp_path: Path) -> None:
    add(library, "anna", 1)
    add(library, "bob", 2)
    file = library.folder / "anna.safetensors"
    damaged = damages(file.read_bytes())[damage]
    assert damaged != file.read_bytes()
    library.get("anna")
    file.write_bytes(damaged)
    with pytest.raises(VoiceLibraryError, match=r"'anna' cannot be read \(.*anna\.safetensors: .+\)\. Remove it"):
        library.get("anna")
    with pytest.raises(VoiceLibraryError):
        library.export("anna", tmp_path / "x")
    assert [voice.name for voice in library.list()] == ["bob"]
    (found,) = library.damaged()
    assert (found.name, found.path) == ("anna", file)
    with pytest.raises(VoiceExists):
        add(library, "anna", 3)
    with pytest.raises(InvalidRequest, match="a file from `polyvox voice export`"):
        library.import_(file, "carl")
    add(library, "anna", 3, replace=True)
    assert version(library.get("anna")) == 3
    file.write_bytes(damaged)
    library.remove("anna")
    assert library.damaged() == ()


def test_other_files_are_reported_or_ignored(library: VoiceLibrary) -> None:
    add(library, "anna", 1)
    (library.folder / "notes.txt").write_text("mine")
    (library.folder / "folder.safetensors").mkdir()
    os.mkfifo(library.folder / "pipe.safetensors")
    (library.folder / "bob.safetensors").write_bytes((library.folder / "anna.safetensors").read_bytes())
    assert [voice.name for voice in library.list()] == ["anna"]
    assert {found.name: found.reason for found in library.damaged()} == {
        "bob": "it has the voice 'anna'; import it instead",
        "folder": "not a regular file",
        "pipe": "not a regular file",
    }


def test_an_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    library = VoiceLibrary(tmp_path / "file")
    for ask in (library.list, lambda: add(library, "anna", 1)):
        with pytest.raises(VoiceLibraryError, match=r"The voice library in .*file cannot be used"):
            ask()


def test_a_full_disk_keeps_the_old_voice(library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    add(library, "anna", 1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VoiceLibraryError, match="No space left on device"):
        add(library, "anna", 2, replace=True)
    assert version(library.get("anna")) == 1
    assert len(list(library.folder.iterdir())) == 1


# Export and import


def test_an_exported_voice_can_be_imported(library: VoiceLibrary, tmp_path: Path) -> None:
    kept = add(library, "Anna", 5)
    library.export("anna", tmp_path / "anna.safetensors")
    other = VoiceLibrary(tmp_path / "other")
    assert other.import_(tmp_path / "anna.safetensors").info() == kept.info()
    assert version(other.get("anna")) == 5
    assert other.import_(tmp_path / "anna.safetensors", "Bob").id == kept.id
    assert [voice.name for voice in other.list()] == ["Anna", "Bob"]
    with pytest.raises(VoiceExists):
        other.import_(tmp_path / "anna.safetensors")
    other.import_(tmp_path / "anna.safetensors", replace=True)
    with pytest.raises(InvalidRequest, match="'name'"):
        other.import_(tmp_path / "anna.safetensors", "../x")


def test_invalid_paths_of_export_and_import_are_rejected(library: VoiceLibrary, tmp_path: Path) -> None:
    add(library, "anna", 1)
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "nowhere/x", tmp_path / "folder"):
        with pytest.raises(InvalidRequest, match="cannot be written"):
            library.export("anna", path)
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(PARTIAL)]
    with pytest.raises(InvalidRequest, match="cannot be read"):
        library.import_(tmp_path / "nowhere")


# Killed processes


def test_old_temporary_files_are_deleted(library: VoiceLibrary) -> None:
    add(library, "anna", 1)
    old, young = (library.folder / f".{name}{PARTIAL}" for name in ("old", "young"))
    for file in (old, young):
        file.write_bytes(b"half of a voice")
    then = old.stat().st_mtime - PARTIAL_MAX_AGE - 1
    os.utime(old, (then, then))
    assert [voice.name for voice in library.list()] == ["anna"]
    assert old.exists()
    add(library, "bob", 2)
    assert not old.exists()
    assert young.exists()
    os.utime(young, (then, then))
    library.remove("bob")
    assert not young.exists()


# For each n a child, which kills itself at its nth file system call. Prints its exit status and what it left.
KILLED_WRITERS = """
import json, os, signal, sys
from pathlib import Path
from voices.factories import add, version
from polyvox.voices import VoiceLibrary

folder, act, before = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])

def change(last):
    calls = 0
    def count(event, _):
        nonlocal calls
        if event in ("open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.scandir"):
            calls += 1
            if calls == last:
                os.kill(os.getpid(), signal.SIGKILL)
    library = VoiceLibrary(folder)
    sys.addaudithook(count)
    library.remove("anna") if act == "remove" else add(library, "anna", 2, act == "replace")

assert "torch" not in sys.modules
for last in range(1, 20):
    for file in folder.glob("*.safetensors"):
        file.unlink()
    if before is not None:
        add(VoiceLibrary(folder), "anna", before)
    child = os.fork()
    if child == 0:
        change(last)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    library = VoiceLibrary(folder)
    print(json.dumps([status, [version(voice) for voice in library.list()], len(library.damaged())]))
    if status == 0:
        break
"""


@pytest.mark.parametrize(("act", "before", "after"), [("add", None, 2), ("replace", 1, 2), ("remove", 1, None)])
def test_a_writer_killed_at_any_step_leaves_the_old_or_the_new_voice(
    act: str, before: int | None, after: int | None, library: VoiceLibrary
) -> None:
    command = [sys.executable, "-c", KILLED_WRITERS, str(library.folder), act, json.dumps(before)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert [status for status, _, _ in ends] == [-9] * (len(ends) - 1) + [0]
    assert not any(num_damaged for _, _, num_damaged in ends)
    seen = [found[0] if found else None for _, found, _ in ends]
    assert seen[0] == before
    assert seen[-1] == after
    assert len(seen) >= 3
    assert set(seen) == {before, after}
    assert seen == sorted(seen, key=lambda found: found == after)


def test_a_hundred_killed_writers_damage_nothing(tmp_path: Path) -> None:
    run(tmp_path / "voices", 50)
