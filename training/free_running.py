# SPDX-License-Identifier: Apache-2.0
"""Judge a talker without audio: it generates held-out texts, and the texts' phonemes are searched in its codes 0.

    python -m training.free_running --corpus DIR --codec DIR --pool pool.npz --talker DIR [--texts 128]

A code 0 stands for the phonemes of three units. Rare phonemes share codes, so a unit may be each phoneme to which the
encoder gives a probability of MIN_PROBABILITY. Phonemes of a text that are not found in its units, in their order, are
missing; repetitions show in the length only. The true codes have missing phonemes, too: a good talker has no more.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.config import ModelConfig, parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import IGNORED, Batch, Batches, row_count
from training.codec import load_encoder
from training.corpus import Phonemes
from training.encoder import PHONEMES, SpeechEncoder
from training.layout import CODE_0_SIZE, NUM_CODEBOOKS, SAMPLING, voice_files
from training.losses import code_0_scores, input_rows, predict_codes
from training.pool import Pool
from training.symbols import IDS
from training.talker import LAYOUTS, load_talker
from training.units import UNITS_PER_FRAME

SILENT = sorted(IDS[symbol] for symbol in ";:,.!?—… ˈˌ")  # symbols without a sound of their own
TEMPERATURES = (0.0, 0.3)
MAX_LENGTH = 1.5  # frames relative to the true number after which speech is a runaway
EXTRA_FRAMES = 10
LOST = 3  # phonemes missing at the end of a sequence that has lost its end
MIN_PROBABILITY = 0.03


class KVCache:
    """Keys and values of all rows so far; all sequences are at the same row."""

    def __init__(self, model: Talker, batch: int, length: int) -> None:
        shape = model.config
        like = model.codec_head.weight
        self._keys = like.new_empty(shape.layers, batch, shape.kv_heads, length, shape.head_dim)
        self._values = torch.empty_like(self._keys)

    def at(self, row: int) -> Attend:
        """Attention of one row to itself and all rows before it."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, :, :, row], self._values[layer, :, :, row] = k[:, 0], v[:, 0]
            keys, values = self._keys[layer, :, :, : row + 1], self._values[layer, :, :, : row + 1]
            return F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, enable_gqa=True).transpose(1, 2)

        return attend


@torch.no_grad()
def generate(model: Talker, batch: Batch, end: int, temperature: float) -> list[np.ndarray]:
    """The codes 0 that the talker generates for each entry, after its own frames; `end` is the id of end of speech.

    Only the text of the batch is read. A sequence without an end has all rows of the batch.
    """
    count, length = batch.text.shape
    text = input_rows(model, batch, torch.full_like(batch.frames, -1))
    begin = (batch.target != IGNORED).int().argmax(1)  # the row before the first frame
    cache = KVCache(model, count, length)
    frame = torch.full((count, NUM_CODEBOOKS), -1, device=text.device)
    ended = torch.zeros(count, dtype=torch.bool, device=text.device)
    made = []
    for row in range(length):
        rows = text[:, row] + model.frame_rows(frame.clamp(min=0)) * (frame[:, :1] >= 0)
        hidden = model(rows[:, None], torch.full((1, 1), row, device=text.device), cache.at(row))[:, 0]
        scores = code_0_scores(model, hidden, end)
        if temperature:
            noise = torch.rand_like(scores).clamp(min=1e-9).log().neg().log().neg()
            scores = scores / temperature + noise
        first = scores.argmax(-1)
        is_frame = row >= begin
        ended |= is_frame & (first == CODE_0_SIZE)
        said = is_frame & ~ended
        first = first.clamp(max=CODE_0_SIZE - 1)
        frame = torch.cat([first[:, None], predict_codes(model, hidden, first)], 1)
        frame = torch.where(said[:, None], frame, -1)
        made.append(frame[:, 0])
        if row % 16 == 15 and bool(ended.all()):
            break
    return [codes[codes >= 0] for codes in torch.stack(made, 1).cpu().numpy()]


@dataclass(frozen=True, slots=True)
class Found:
    """The phonemes of a text in the units of its codes."""

    phonemes: int
    missing: int
    is_lost: bool  # the end is missing


def find(possible: np.ndarray) -> Found:
    """Align phonemes with units in order; possible [phonemes,units]: whether a unit may be the phoneme."""
    found = [0]  # of the first phonemes, in all units
    best = np.zeros(possible.shape[1] + 1, np.int64)  # of the phonemes so far, in the units before each one
    for row in possible:
        best[1:] = np.maximum.accumulate(np.maximum(best[1:], (best[:-1] + 1) * row))
        found.append(int(best[-1]))
    count = len(possible)
    return Found(count, count - found[-1], found[-1] == found[max(0, count - LOST)])


def spoken(phonemes: np.ndarray) -> np.ndarray:
    """Phonemes without pauses, stress marks and immediate repetitions, which units do not show."""
    kept = phonemes[~np.isin(phonemes, SILENT)]
    return kept[np.diff(kept, prepend=-1) != 0]


@torch.no_grad()
def possible_phonemes(encoder: SpeechEncoder) -> np.ndarray:
    """Whether a unit of a code 0 may be a phoneme: [CODE_0_SIZE, UNITS_PER_FRAME, PHONEMES]."""
    scores = encoder.phonemes.name(encoder.first.table()).unflatten(-1, (UNITS_PER_FRAME, PHONEMES))
    return (scores.softmax(-1) >= MIN_PROBABILITY).numpy()


def report(
    model: Talker,
    config: ModelConfig,
    pool: Pool,
    phonemes: Phonemes,
    possible: np.ndarray,
    count: int,
    device: torch.device,
) -> list[dict[str, float | str]]:
    """A row for the true codes of `count` held-out texts, and one for each layout and temperature."""
    chosen = np.nonzero(pool.held_out)[0][:count]
    frames = pool.frame_count[chosen]
    length = int((row_count(pool)[chosen] + 0.5 * frames).max()) + EXTRA_FRAMES
    entries = torch.from_numpy(chosen).to(device)
    batches = Batches(pool, config, device)
    texts = [spoken(phonemes[int(text)]) for text in pool.text[chosen]]
    true = [pool.codes[pool.first_frame[one] :][: pool.frame_count[one], 0] for one in chosen]
    rows: list[dict[str, float | str]] = [{"codes": "true", **rates(true, texts, possible)}]
    for name, live in LAYOUTS.items():
        flags = torch.full((len(chosen),), live, device=device)
        batch = batches.rows(entries, flags, torch.zeros_like(flags), length)
        for temperature in TEMPERATURES:
            made = generate(model, batch, config.talker.eos_id, temperature)
            limit = MAX_LENGTH * frames + EXTRA_FRAMES
            runaway = np.array([len(codes) for codes in made]) > limit
            cut = [codes[: int(most)] for codes, most in zip(made, limit, strict=True)]
            row: dict[str, float | str] = {"codes": name, "temperature": temperature, **rates(cut, texts, possible)}
            row["runaways"] = float(runaway.mean())
            row["length"] = sum(map(len, made)) / float(frames.sum() + live * len(chosen))
            rows.append(row)
    return rows


def rates(codes: Sequence[np.ndarray], texts: Sequence[np.ndarray], possible: np.ndarray) -> dict[str, float]:
    """Rates of missing phonemes and lost ends of sequences of codes 0; texts: their phonemes."""
    found = [
        find(possible[one.astype(np.int64)].reshape(-1, PHONEMES)[:, text].T)
        for one, text in zip(codes, texts, strict=True)
    ]
    return {
        "missing": sum(one.missing for one in found) / sum(one.phonemes for one in found),
        "lost_ends": float(np.mean([one.is_lost for one in found])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "codec", "pool", "talker"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=128)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = parse_config(voice_files(SAMPLING))
    model = Talker(config)
    load_talker(model, arguments.talker)
    pool, phonemes = Pool.load(arguments.pool), Phonemes(arguments.corpus)
    possible = possible_phonemes(load_encoder(arguments.codec))
    with kernels.disabled():
        rows = report(model.to(device).eval(), config, pool, phonemes, possible, arguments.texts, device)
    for row in rows:
        shown = (
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print("  ".join(shown), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
