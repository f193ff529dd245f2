"""What the voice says of a list, through the engine as anyone runs it, kept in files to be scored elsewhere.

    python -m training.recordings OUT [--checkpoint FOLDER] [--device cuda] [--dtype bfloat16] [--layouts whole]

One file for each layout and voice, such as whole-heart.npz. A sentence has its place in the list as its seed, so that
two devices, or two ways of sampling, are compared by the same draws. Needs no speech recogniser.
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
CROWD = 16
# Nobody listens, so nobody is in a hurry; half of the slots are for those who listen.
ENGINE = EngineConfig(
    max_streams=2 * CROWD, max_queue=8 * CROWD, max_queue_seconds=3600, buffer_seconds=300, reader_timeout=3600
)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One sentence as it came out."""

    text: str
    samples: np.ndarray
    reason: str  # why it ended


def speak(
    tts: TTS, texts: Sequence[str], voice: str, layout: Layout, sampling: Sampling | None = None
) -> list[Recording]:
    """Each text with its place in the list as its seed."""
    requests = (
        Request(text, voice, seed=seed, layout=layout, sampling=sampling, whole_file=True)
        for seed, text in enumerate(texts)
    )
    return list(spoken(tts, requests))


def spoken(tts: TTS, requests: Iterable[Request]) -> Iterator[Recording]:
    """In the order of the requests; twice as many as run at once are submitted, so that no slot stays empty."""
    waiting: deque[tuple[str, Stream]] = deque()
    for request in requests:
        if len(waiting) == 2 * CROWD:
            yield _heard(*waiting.popleft())
        waiting.append((request.text, tts.engine.submit(request)))
    while waiting:
        yield _heard(*waiting.popleft())


def keep(path: Path, recordings: Sequence[Recording], rate: int) -> None:
    """All of a list in one file, as 16-bit samples."""
    pieces = [to_pcm(one.samples) for one in recordings]
    np.savez_compressed(
        path,
        texts=np.array([one.text for one in recordings]),
        reasons=np.array([one.reason for one in recordings]),
        lengths=np.array([len(piece) for piece in pieces]),
        samples=np.concatenate(pieces),
        rate=np.array(rate),
    )


def read(path: Path) -> tuple[list[Recording], int]:
    """What `keep` wrote: the recordings, and their sample rate."""
    with np.load(path) as file:
        pieces = np.split(from_pcm(file["samples"]), np.cumsum(file["lengths"])[:-1])
        texts, reasons, rate = file["texts"].tolist(), file["reasons"].tolist(), int(file["rate"])
    return [Recording(*one) for one in zip(texts, pieces, reasons, strict=True)], rate


def _heard(text: str, stream: Stream) -> Recording:
    samples = np.concatenate([chunk.samples for chunk in stream.chunks()])
    assert stream.result is not None
    return Recording(text, samples, stream.result.finish_reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="by default the embedded voice")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--sentences", type=int, default=len(TEST))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with load(arguments.checkpoint, arguments.device, arguments.dtype, config=ENGINE) as tts:
        for layout in arguments.layouts:
            for voice in tts.voices:
                made = speak(tts, TEST[: arguments.sentences], voice, layout)
                path = arguments.out / f"{layout}-{voice}.npz"
                keep(path, made, tts.sample_rate)
                seconds = sum(len(one.samples) for one in made) / tts.sample_rate
                print(f"{path}: {len(made)} sentences, {seconds:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
