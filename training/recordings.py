# SPDX-License-Identifier: Apache-2.0
"""Synthesise the test sentences through the engine and save the audio for scoring on another machine.

    python -m training.recordings OUT [--checkpoint FOLDER] [--device cuda] [--dtype bfloat16] [--kv-dtype int8]
        [--weight-dtype int8] [--layouts whole]

One file per layout and voice, such as whole-heart.npz. The seed of a sentence is its index, so that devices and
sampling settings are compared on the same draws. No speech recogniser is needed.
"""

import argparse
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyvox import load
from polyvox.audio.pcm import from_pcm, to_pcm
from polyvox.engine.config import EngineConfig
from polyvox.engine.interface import Stream
from polyvox.models.request import Layout, Request, Sampling
from polyvox.tts import TTS
from training.sentences import TEST

LAYOUTS: tuple[Layout, ...] = ("whole", "streaming")
MAX_CONCURRENT = 16
# Batch requests without deadlines may use half of the slots.
ENGINE = EngineConfig(
    max_streams=2 * MAX_CONCURRENT,
    max_queue=8 * MAX_CONCURRENT,
    max_queue_seconds=3600,
    buffer_seconds=300,
    reader_timeout=3600,
)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One synthesised sentence."""

    text: str
    samples: np.ndarray
    reason: str  # finish reason


def speak(
    tts: TTS, texts: Sequence[str], voice: str, layout: Layout, sampling: Sampling | None = None
) -> list[Recording]:
    """Synthesise each text with its index as the seed."""
    requests = (
        Request(text, voice, seed=seed, layout=layout, sampling=sampling, whole_file=True)
        for seed, text in enumerate(texts)
    )
    return list(spoken(tts, requests))


def spoken(tts: TTS, requests: Iterable[Request]) -> Iterator[Recording]:
    """Results in request order; twice as many requests as slots are submitted, so that no slot is idle."""
    waiting: deque[tuple[str, Stream]] = deque()
    for request in requests:
        if len(waiting) == 2 * MAX_CONCURRENT:
            yield _recording(*waiting.popleft())
        waiting.append((request.text, tts.engine.submit(request)))
    while waiting:
        yield _recording(*waiting.popleft())


def save_recordings(path: Path, recordings: Sequence[Recording], rate: int) -> None:
    """Write recordings to one file, as 16-bit samples."""
    pieces = [to_pcm(one.samples) for one in recordings]
    np.savez_compressed(
        path,
        texts=np.array([one.text for one in recordings]),
        reasons=np.array([one.reason for one in recordings]),
        lengths=np.array([len(piece) for piece in pieces]),
        samples=np.concatenate(pieces),
        rate=np.array(rate),
    )


def load_recordings(path: Path) -> tuple[list[Recording], int]:
    """The recordings of a file and their sample rate."""
    with np.load(path) as file:
        pieces = np.split(from_pcm(file["samples"]), np.cumsum(file["lengths"])[:-1])
        texts, reasons, rate = file["texts"].tolist(), file["reasons"].tolist(), int(file["rate"])
    return [Recording(*one) for one in zip(texts, pieces, reasons, strict=True)], rate


def _recording(text: str, stream: Stream) -> Recording:
    samples = np.concatenate([chunk.samples for chunk in stream.chunks()])
    assert stream.result is not None
    return Recording(text, samples, stream.result.finish_reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="by default the embedded voice")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-dtype", default="auto", help="type of the KV cache: auto, model, int8 or fp8")
    parser.add_argument("--weight-dtype", default="auto", help="type of the generator's matrices: auto, int8 or fp8")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--sentences", type=int, default=len(TEST))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    types = {"dtype": arguments.dtype, "kv_dtype": arguments.kv_dtype, "weight_dtype": arguments.weight_dtype}
    with load(arguments.checkpoint, arguments.device, config=ENGINE, **types) as tts:
        for layout in arguments.layouts:
            for voice in tts.voices:
                made = speak(tts, TEST[: arguments.sentences], voice, layout)
                path = arguments.out / f"{layout}-{voice}.npz"
                save_recordings(path, made, tts.sample_rate)
                seconds = sum(len(one.samples) for one in made) / tts.sample_rate
                print(f"{path}: {len(made)} sentences, {seconds:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
