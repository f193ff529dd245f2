# SPDX-License-Identifier: Apache-2.0
"""Tokenizations of one text share its frames; positions in the text are bytes; joined speech has one phase."""

from pathlib import Path

import numpy as np
import torch

from polyvox.tts import EMBEDDED_VOICE
from training.layout import NUM_CODEBOOKS
from training.pool import Packing, Pool, Utterance, completing_bytes, joined
from training.source import CLASSES, source_codes
from training.tokens import load_tokenizer

TEXTS = ("ɐn ˈɔkwəɹd ʤˈɛsʧəɹ.", "skˈɪf — nˈO…")


def utterance(text: str, index: int, held_out: bool, voice: int = 1) -> Utterance:
    """One frame for each character."""
    advance = torch.arange(len(text)) % 7 + 40
    codes = np.zeros((len(text), NUM_CODEBOOKS), np.uint16)
    codes[:, 1] = source_codes(advance, voice).numpy()
    return Utterance(text, codes, np.arange(len(text)), voice, index, held_out)


def packed(*utterances: Utterance, dropouts: tuple[float | None, ...] = (None, 0.5)) -> Pool:
    packing = Packing([load_tokenizer(EMBEDDED_VOICE, dropout) for dropout in dropouts])
    for one in utterances:
        packing.add(one)
    return packing.pool()


def test_tokenizations_of_one_text_share_their_frames(tmp_path: Path) -> None:
    pool = packed(utterance(TEXTS[0], 7, False), utterance(TEXTS[1], 64, True))
    first, second = map(len, TEXTS)
    assert pool.text.tolist() == [7, 64, 7]  # held-out texts are tokenized as served only
    assert pool.held_out.tolist() == [False, True, False]
    assert pool.first_frame.tolist() == [0, first, 0]
    assert pool.frame_count.tolist() == [first, second, first]
    assert len(pool.codes) == len(pool.positions) == first + second
    assert pool.token_count.sum() == len(pool.tokens) == len(pool.token_ends)
    pool.save(tmp_path / "pool.npz")
    loaded = Pool.load(tmp_path / "pool.npz")
    assert all(np.array_equal(getattr(loaded, name), getattr(pool, name)) for name in Pool.__slots__)


def test_the_token_of_a_frame_is_found_by_its_byte() -> None:
    pool = packed(*(utterance(text, 1, False) for text in TEXTS), dropouts=(None, 0.5, 1.0))
    vocabulary = load_tokenizer(EMBEDDED_VOICE).get_vocab()
    spelled = {number: token for token, number in vocabulary.items()}
    for entry in range(len(pool.text)):
        text = TEXTS[entry % len(TEXTS)]
        tokens = slice(pool.first_token[entry], pool.first_token[entry] + pool.token_count[entry])
        ends = pool.token_ends[tokens]
        assert ends[-1] == len(text.encode())
        assert np.diff(ends, prepend=0).tolist() == [len(spelled[number]) for number in pool.tokens[tokens].tolist()]
        positions = pool.positions[pool.first_frame[entry] :][: len(text)]
        assert np.searchsorted(ends, positions, side="right").max() < len(ends)


def test_a_character_ends_at_its_last_byte() -> None:
    text = "a—ɹ b"
    assert completing_bytes(text).tolist() == [len(text[: i + 1].encode()) - 1 for i in range(len(text))]


def test_joined_utterances_have_one_text_and_one_phase() -> None:
    parts = [utterance(text, 3, False) for text in TEXTS]
    both = joined(parts, 1)
    assert both.text == " ".join(TEXTS)
    assert "".join(both.text[index] for index in both.phonemes) == "".join(TEXTS)
    advance = torch.cat([torch.arange(len(text)) % 7 + 40 for text in TEXTS])
    assert np.array_equal(both.codes[:, 1], source_codes(advance, 1).numpy())
    assert np.array_equal(both.codes[:, 1] // CLASSES, np.concatenate([one.codes[:, 1] for one in parts]) // CLASSES)
    assert both.index == -1
    assert np.array_equal(parts[1].codes, utterance(TEXTS[1], 3, False).codes)  # the parts are unchanged
