# SPDX-License-Identifier: Apache-2.0
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Loaded, LoadedTTS
from polyvox.errors import CheckpointError, InvalidRequest
from polyvox.models.qwen3_tts.config import read_config
from polyvox.models.tokenizer import MAX_KNOWN_CHARS, TextTokenizer, _load
from polyvox.tts import EMBEDDED_VOICE

VISIBLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(str.strip)
EMBEDDED = TextTokenizer(EMBEDDED_VOICE, replace(read_config(EMBEDDED_VOICE), phoneme_alphabet=None))
CHAT = _load(EMBEDDED_VOICE)
CHAT.encode_special_tokens = False


@given(VISIBLE)
def test_the_parts_have_the_ids_of_the_whole_chat(text: str) -> None:
    """The reference implementation encodes one string and slices it; the parts alone must have the same ids."""
    said = text.strip()
    whole = CHAT.encode(f"<|im_start|>assistant\n{said}<|im_end|>\n<|im_start|>assistant\n").ids
    if not any(token in said for token in CHAT.get_vocab() if token.startswith("<") and token.endswith(">")):
        assert EMBEDDED.role + EMBEDDED.text(text) == whole[:-5]
        turn = CHAT.encode(f"<|im_start|>user\n{said}<|im_end|>\n").ids
        assert EMBEDDED.instructions(text) == turn


def test_control_tokens_in_a_text_are_plain_text(embedded: LoadedTTS) -> None:
    ids = embedded.model.tokenizer.text("end<|im_end|>of <tts_pad> it")
    assert max(ids) < embedded.model.config.im_start_id


@pytest.mark.parametrize("text", ["", " ", "\n\t \u2003", "a\ud800b"])
def test_text_without_visible_characters_is_rejected(text: str, embedded: LoadedTTS) -> None:
    for encode, field in (
        (embedded.model.tokenizer.text, "text"),
        (embedded.model.tokenizer.instructions, "instructions"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            encode(text)
        assert caught.value.field == field


def test_no_text_is_lost(loaded: Loaded) -> None:
    tokenizer = loaded("custom_voice", "float32").model.tokenizer
    text = "Any text, naïve or 北京, 😀 – every byte of it."
    vocabulary = {value: key for key, value in tokenizer._tokenizer.get_vocab().items()}
    symbols = "".join(vocabulary[i] for i in tokenizer.text(text))
    decoder = {chr(256 + i): b for i, b in enumerate(b for b in range(256) if chr(b) not in symbols_as_is())}
    assert bytes(decoder.get(s, ord(s)) for s in symbols).decode() == text


def symbols_as_is() -> set[str]:
    """The bytes that byte-level BPE represents as themselves."""
    return {chr(b) for b in (*range(33, 127), *range(161, 173), *range(174, 256))}


@pytest.mark.parametrize("pairs", [False, True])
def test_tokenizer_json_replaces_vocabulary_and_merges(pairs: bool, checkpoints: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints / "base", tmp_path / "checkpoint")
    config, text = read_config(folder), "Any text, naïve or 北京, 😀 <|im_end|>"
    before = TextTokenizer(folder, config)
    saved = json.loads(before._tokenizer.to_str())
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in saved["model"]["merges"]]
    saved["model"]["merges"] = merges if pairs else [" ".join(merge) for merge in merges]
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (folder / name).unlink()
    after = TextTokenizer(folder, config)
    assert after.text(text) == before.text(text)
    assert after.role == before.role
    (folder / "tokenizer.json").write_text(json.dumps({**saved, "model": {"type": "WordPiece"}}))
    with pytest.raises(CheckpointError, match="WordPiece"):
        TextTokenizer(folder, config)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
@pytest.mark.parametrize("damage", ["absent", "garbage"])
def test_a_damaged_vocabulary_is_rejected(name: str, damage: str, checkpoints: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints / "base", tmp_path / "checkpoint")
    if damage == "absent":
        (folder / name).unlink()
    else:
        (folder / name).write_text("zz qq\n{")
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        TextTokenizer(folder, read_config(folder))


def test_ids_that_contradict_the_config_are_rejected(checkpoints: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints / "base", tmp_path / "checkpoint")
    config = read_config(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    added = settings["added_tokens_decoder"]
    settings["added_tokens_decoder"] = {str(int(key) + 1): value for key, value in added.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="endoftext"):
        TextTokenizer(folder, config)
    (folder / "merges.txt").write_text("#version: 0.2\na s\n")
    settings["added_tokens_decoder"] = added
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="assistant"):
        TextTokenizer(folder, config)


def test_a_bounded_number_of_short_pre_tokens_is_kept(embedded: LoadedTTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvox.models.tokenizer.MAX_KNOWN", 2)
    tokenizer = embedded.model.tokenizer
    monkeypatch.setattr(tokenizer, "_known", {})
    long = "a" * (MAX_KNOWN_CHARS + 1)
    first, again = (tokenizer.pieces(f"one {long} two three two") for _ in range(2))
    assert len(tokenizer._known) <= 2
    assert long not in tokenizer._known
    assert first == again == tokenizer._encode(f"one {long} two three two")
