# SPDX-License-Identifier: Apache-2.0
"""Search the codes of the spoken corpus for a checkpoint: see training.search_codes.

    python -m training.search_corpus --work DIR --checkpoint DIR --out DIR --minutes 2

--out receives the corpus files of the utterances that were searched, codes.npz and an empty timed.npz.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
import torch

from polyvox import kernels
from polyvox.models.qwen3_tts.checkpoint import load_weights
from polyvox.models.qwen3_tts.config import parse_config
from training.batches import Batches, row_count
from training.corpus import Phonemes, read_timed
from training.layout import NUM_CODEBOOKS, SAMPLING, voice_files
from training.pool import SPOKEN_FILE, TIMED_FILE, Packing, Utterance
from training.search_codes import CodeSearch
from training.speech_data import HELD_OUT
from training.tokens import load_tokenizer
from training.units import FRAME

MAX_ROWS, MAX_FRAMES = 128, 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("work", "checkpoint", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=384)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    deadline = time.monotonic() + 60 * args.minutes
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    texts, voices = (args.work / "texts.txt").read_text().splitlines(), Phonemes(args.work).voices
    found = list(read_timed(args.work, "speech"))
    samples = np.concatenate([np.fromfile(path, np.int16) for path in dict.fromkeys(path for _, path in found)])
    packing = Packing([load_tokenizer(args.checkpoint)])
    for timed, _ in found:
        codes = np.zeros((timed.span.frames, NUM_CODEBOOKS), np.uint16)
        held_out = timed.index % HELD_OUT == 0
        packing.add(Utterance(texts[timed.index], codes, int(voices[timed.index]), timed.index, True, held_out))
    pool = packing.pool()
    model = load_weights(args.checkpoint, torch.device("cpu"), torch.float32)
    batches = Batches(pool, parse_config(voice_files(SAMPLING)), device)
    rows = row_count(pool)
    fits = np.nonzero((rows <= MAX_ROWS) & (pool.frame_count <= MAX_FRAMES))[0]
    order = fits[np.argsort(rows[fits], kind="stable")]
    groups = [order[at : at + args.batch] for at in range(0, len(order), args.batch)]
    np.random.default_rng(1).shuffle(groups)
    done: list[tuple[int, np.ndarray]] = []
    with kernels.disabled():
        search = CodeSearch(
            model.talker.to(device), model.codec.to(device), batches, torch.from_numpy(samples).to(device)
        )
        for group in groups:
            began = time.monotonic()
            if began > deadline:
                break
            frames = int(pool.frame_count[group].max())
            found_codes, scores = search(torch.from_numpy(group).to(device), int(rows[group].max()), frames)
            searched = found_codes.cpu().numpy().astype(np.uint16)
            done += [(int(entry), searched[row, : pool.frame_count[entry]]) for row, entry in enumerate(group)]
            shown = {name: round(value, 3) for name, value in scores.items()}
            print(f"searched={len(done)} seconds={time.monotonic() - began:.1f} frames={frames} {shown}", flush=True)  # noqa: T201
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("texts.txt", "phonemes.npz"):
        shutil.copyfile(args.work / name, args.out / name)
    done.sort(key=lambda item: item[0])
    with (args.out / "speech-00.jsonl").open("w") as lines, (args.out / "speech-00.i16").open("wb") as audio:
        for entry, _ in done:
            timed, _ = found[entry]
            lines.write(json.dumps([timed.index, timed.span.start, timed.span.units, timed.durations.tolist()]) + "\n")
            first = int(pool.first_frame[entry])
            samples[first * FRAME : (first + timed.span.frames) * FRAME].tofile(audio)
    codes = np.concatenate([codes for _, codes in done])
    np.savez_compressed(
        args.out / SPOKEN_FILE,
        codes=codes,
        frames=np.array([len(codes) for _, codes in done]),
        texts=np.array([found[entry][0].index for entry, _ in done]),
        word_counts=np.full(len(codes), -1, np.int32),
    )
    none = np.zeros(0, np.uint16)
    np.savez_compressed(args.out / TIMED_FILE, codes=none, frames=none, texts=none)
    uses = [np.bincount(codes[:, book], minlength=2) / len(codes) for book in range(NUM_CODEBOOKS)]
    print(f"frames={len(codes)} perplexity={[round(float(np.exp(-(u * np.log(u + 1e-12)).sum()))) for u in uses]}")  # noqa: T201


if __name__ == "__main__":
    main()
