# SPDX-License-Identifier: Apache-2.0
"""Word times: train the sound model of `polyvox.alignment`, and measure how exact word times are.

    python -m training.word_times speak --teacher DIR --texts development|test --out FILE [--sentences N]
    python -m training.word_times train FILE
    python -m training.word_times check FILE

`speak` lets the teacher and the embedded voice speak the same sentences. The teacher's word times are known from its
phoneme durations. Those of the embedded voice are found by dynamic time warping of its audio to the teacher's; between
the teacher's two voices, whose times are both known, this method has a median error of 5 ms and a p95 of 25 ms.
`train` alternates between a network for the symbols of frames and the alignment with it; only the first alignment uses
the known word times. `check` prints the error of word starts and ends for streamed and for whole speech.
"""

import argparse
import pickle
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from polyvox import load
from polyvox.alignment import SpeechTimeline
from polyvox.alignment.aligner import SegmentAligner
from polyvox.alignment.features import FRAME_SECONDS, SpeechFeatures
from polyvox.alignment.sound_model import MAX_FRAMES, MODEL_FILE, TRAINED, load_sound_model, with_context
from polyvox.audio.silence import find_onset
from polyvox.text.phonemes import phonemize
from polyvox.text.segment_text import SegmentText
from training.corpus import VOICES
from training.reconstruction import SentenceTeacher
from training.sentences import DEVELOPMENT, TEST
from training.units import SAMPLE_RATE, UNIT, first_unit

HIDDEN = 64  # units of the network
EPOCHS, BATCH, RATE = 12, 256, 4e-3
ROUNDS = 4  # of alignment and training
CHUNK = 1920  # samples: a frame of the engine
PUNCTUATION = '.,;:!?…"“”—'
MEL_BANDS, CEPSTRA, HOP, WINDOW, FFT_SIZE = 24, 13, 240, 600, 1024


@dataclass(slots=True)
class TimedSpeech:
    """Speech with the true times of its words, in seconds."""

    text: str
    source: str  # "teacher" or "embedded", and the voice
    samples: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def speak(teacher: Path, texts: list[str]) -> Iterator[TimedSpeech]:
    """Each text by the teacher and by the embedded voice, in both voices."""
    speaker = SentenceTeacher(teacher)
    with load(None, "cpu") as tts:
        for seed, text in enumerate(texts):
            for voice, name in enumerate(VOICES):
                ids, timed, kept = speaker(text, voice)
                ends = (np.cumsum(timed.durations) - first_unit(timed.durations[0])) * UNIT / SAMPLE_RATE
                samples = kept.numpy()
                found = teacher_times(text, phonemize(text), len(ids), ends)
                if found is None:
                    continue
                known = trimmed(TimedSpeech(text, f"teacher {name}", samples, *found))
                yield known
                stream = tts.stream(text, tts.voices[voice], seed=seed, trim_silence=True)
                yield warped(known, np.concatenate(list(stream)), f"embedded {name}")


def teacher_times(text: str, phonemes: str, num_ids: int, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Starts and ends of words; None if words and phonemes do not correspond. ends: of start, phonemes, end."""
    words = list(re.finditer(r"\S+", phonemes))
    if len(words) != len(text.split()) or num_ids != len(phonemes):
        return None
    last = [word.start() + len(word[0].rstrip(PUNCTUATION)) for word in words]
    return np.array([ends[word.start()] for word in words]), ends[last]


def trimmed(speech: TimedSpeech) -> TimedSpeech:
    """Without silence at both ends, as the engine trims it."""
    start = find_onset(speech.samples, SAMPLE_RATE) or 0
    end = len(speech.samples) - (find_onset(speech.samples[::-1], SAMPLE_RATE) or 0)
    offset, seconds = start / SAMPLE_RATE, (end - start) / SAMPLE_RATE
    times = (np.clip(values - offset, 0, seconds) for values in (speech.starts, speech.ends))
    return TimedSpeech(speech.text, speech.source, speech.samples[start:end], *times)


def warped(known: TimedSpeech, samples: np.ndarray, source: str) -> TimedSpeech:
    """The same text in other speech, with word times by dynamic time warping."""
    path = warping_path(cepstra(known.samples), cepstra(samples))
    seconds = np.arange(len(path)) * HOP / SAMPLE_RATE
    times = (np.interp(values, seconds, path * HOP / SAMPLE_RATE) for values in (known.starts, known.ends))
    return TimedSpeech(known.text, source, samples, *times)


def cepstra(samples: np.ndarray) -> np.ndarray:
    """Normalised mel cepstra and their slopes, [frames of 10 ms, 2 CEPSTRA]."""
    low_mel, high_mel = (float(2595 * np.log10(1 + hz / 700)) for hz in (80, 8000))
    edges = 700 * (10 ** (np.linspace(low_mel, high_mel, MEL_BANDS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(FFT_SIZE, 1 / SAMPLE_RATE)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bands = np.maximum(0, np.minimum((frequencies - low) / (middle - low), (high - frequencies) / (high - middle)))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (0, WINDOW)), WINDOW)[::HOP]
    powers = np.log(np.abs(np.fft.rfft(windows * np.hanning(WINDOW), FFT_SIZE)) ** 2 @ bands.T + 1e-3)
    found = powers @ np.cos(np.pi / MEL_BANDS * (np.arange(MEL_BANDS)[:, None] + 0.5) * np.arange(CEPSTRA))
    found[:, 0] *= 0.3  # loudness matters less than the sound
    found = (found - found.mean(0)) / found.std(0).mean()
    return np.concatenate([found, 2 * np.gradient(found, axis=0)], 1)


def warping_path(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """For each frame of the first, the mean frame of the second that it is aligned with."""
    costs = np.sqrt(np.maximum(0, (first**2).sum(1)[:, None] + (second**2).sum(1) - 2 * first @ second.T))
    total = np.concatenate([[0.0], np.full(len(second), np.inf)])
    moves = np.zeros(costs.shape, np.int8)  # 0: both advance, 1: the first, 2: the second
    for row, cost in enumerate(costs):
        both, one = total[:-1] + cost, total[1:] + cost
        best, sums = np.minimum(both, one), np.cumsum(cost)
        reached = np.minimum.accumulate(best - sums) + sums
        moves[row] = np.where(reached < best - 1e-9, 2, np.where(both <= one, 0, 1))
        total = np.concatenate([[np.inf], reached])
    frames: list[list[int]] = [[] for _ in first]
    row, column = len(first) - 1, len(second) - 1
    while row >= 0 and column >= 0:
        frames[row].append(column)
        move = moves[row, column]
        row, column = row - (move != 2), column - (move != 1)
    return np.array([np.mean(found) if found else 0.0 for found in frames])


@dataclass(slots=True)
class Example:
    """Features of speech, the symbols of its text and the state of each frame."""

    frames: np.ndarray
    symbols: np.ndarray
    path: np.ndarray


def first_example(speech: TimedSpeech) -> Example:
    """The letters of a word last equally long."""
    features = SpeechFeatures(SAMPLE_RATE)
    frames = with_context(np.concatenate([features.push(speech.samples), features.finish()]))
    aligner = SegmentAligner(SAMPLE_RATE)
    aligner.extend(speech.text, complete=True)
    starts = np.full(aligner.num_states, np.nan)
    starts[0], starts[-1] = 0.0, speech.ends[-1]
    for word, start, end in zip(re.finditer(r"\S+", speech.text), speech.starts, speech.ends, strict=True):
        for index in range(word.start(), word.end()):
            state = aligner.char_states[index]
            if np.isnan(starts[state]):
                starts[state] = start + (end - start) * (index - word.start()) / len(word[0])
        if word.end() < len(speech.text):
            starts[aligner.char_states[word.end()]] = end
    starts = np.maximum.accumulate(np.where(np.isnan(starts), 0.0, starts))
    times = (np.arange(len(frames)) + 0.5) * FRAME_SECONDS
    return Example(frames, aligner.symbols, np.searchsorted(starts, times, "right") - 1)


def realign(speech: TimedSpeech, example: Example) -> None:
    aligner = SegmentAligner(SAMPLE_RATE)
    aligner.extend(speech.text, complete=True)
    aligner.push(speech.samples)
    aligner.finish_audio()
    starts = aligner.final_starts(0)
    if len(starts):
        example.path = np.searchsorted(starts, np.arange(len(example.frames)), "right") - 1


def fit(examples: list[Example]) -> None:
    """Train the network and the durations, and write them to the model file."""
    torch.manual_seed(0)
    inputs = np.concatenate([example.frames for example in examples])
    targets = torch.from_numpy(np.concatenate([example.symbols[example.path] for example in examples]))
    mean, scale = inputs.mean(0), 1 / (inputs.std(0) + 0.1)
    normalised = torch.from_numpy(((inputs - mean) * scale).astype(np.float32))
    network = torch.nn.Sequential(
        torch.nn.Dropout(0.1),
        torch.nn.Linear(inputs.shape[1], HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(HIDDEN, len(TRAINED)),
    )
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-3)
    num_steps = len(normalised) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, EPOCHS * num_steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(normalised))[: num_steps * BATCH].view(num_steps, BATCH):
            noisy = normalised[chosen] + 0.1 * torch.randn(BATCH, normalised.shape[1])
            loss = F.cross_entropy(network(noisy), targets[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    print(f"cross-entropy {loss.item():.3f}", flush=True)  # noqa: T201
    counts = np.bincount(targets.numpy(), minlength=len(TRAINED)) + 20.0
    linear = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    arrays = {"mean": mean, "scale": scale, "prior": np.log(counts / counts.sum()), "durations": durations(examples)}
    for index, layer in enumerate(linear):
        arrays |= {f"weight_{index}": layer.weight.detach().numpy().T, f"bias_{index}": layer.bias.detach().numpy()}
    np.savez_compressed(MODEL_FILE, **{name: value.astype(np.float16) for name, value in arrays.items()})
    load_sound_model.cache_clear()


def durations(examples: list[Example]) -> np.ndarray:
    """Smoothed log-probabilities of the number of frames of each symbol."""
    counts = np.zeros((len(TRAINED), MAX_FRAMES + 1))
    for example in examples:
        frames = np.bincount(example.path, minlength=len(example.symbols))
        np.add.at(counts, (example.symbols, np.minimum(frames, MAX_FRAMES)), 1)
    counts += 6 * counts.sum(0) / counts.sum() + 0.02
    padded = np.pad(counts[:, 1:], ((0, 0), (1, 1)))
    counts[:, 1:] = 0.25 * padded[:, :-2] + 0.5 * padded[:, 1:-1] + 0.25 * padded[:, 2:]
    return np.log(counts / counts.sum(1, keepdims=True))


def train(speech: list[TimedSpeech]) -> None:
    if not MODEL_FILE.exists():  # the aligner needs one to build its states
        empty = np.zeros((1, len(TRAINED)), np.float16)
        np.savez_compressed(
            MODEL_FILE,
            durations=np.zeros((len(TRAINED), MAX_FRAMES + 1), np.float16),
            **dict.fromkeys(("mean", "scale", "prior", "weight_0", "bias_0", "weight_1", "bias_1"), empty),  # type: ignore[arg-type]
        )
    examples = [first_example(one) for one in speech]
    for round_number in range(ROUNDS):
        fit(examples)
        if round_number + 1 < ROUNDS:
            for one, example in zip(speech, examples, strict=True):
                realign(one, example)


def estimate(speech: TimedSpeech, streaming: bool) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the words, as a client gets them."""
    timeline = SpeechTimeline(SAMPLE_RATE, streaming)
    positions = [float(index) for index in range(len(speech.text))]
    timeline.begin(SegmentText(0, speech.text, speech.text, positions, complete=True))
    words = []
    for start in range(0, len(speech.samples), CHUNK):
        words += timeline.push(speech.samples[start : start + CHUNK], start + CHUNK >= len(speech.samples)).words
    return np.array([word.start for word in words]), np.array([word.end for word in words])


def check(speech: list[TimedSpeech]) -> None:
    """Print the errors in milliseconds."""
    print("| speech | mode | words | start: median | p95 | mean signed | end: median | p95 |")  # noqa: T201
    print("|---|---|---|---|---|---|---|---|")  # noqa: T201
    for source in sorted({one.source for one in speech}):
        chosen = [one for one in speech if one.source == source]
        for mode in ("streamed", "whole"):
            found = [estimate(one, mode == "streamed") for one in chosen]
            starts = np.concatenate([a - one.starts for (a, _), one in zip(found, chosen, strict=True)]) * 1000
            # The teacher's last word ends with its phoneme, which includes silence that is trimmed.
            ends = np.concatenate([b[:-1] - one.ends[:-1] for (_, b), one in zip(found, chosen, strict=True)]) * 1000
            row = [source, mode, len(starts), *(f"{np.percentile(np.abs(starts), q):.0f}" for q in (50, 95))]
            row += [f"{starts.mean():+.0f}", *(f"{np.percentile(np.abs(ends), q):.0f}" for q in (50, 95))]
            print(f"| {' | '.join(map(str, row))} |", flush=True)  # noqa: T201
    began = time.process_time()
    for one in speech[:20]:
        estimate(one, streaming=True)
    frames = sum(len(one.samples) for one in speech[:20]) / CHUNK
    print(f"{(time.process_time() - began) / frames * 1e6:.0f} µs of CPU time for 80 ms")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speaking = commands.add_parser("speak")
    speaking.add_argument("--teacher", type=Path, required=True)
    speaking.add_argument("--texts", choices=("development", "test"), required=True)
    speaking.add_argument("--out", type=Path, required=True)
    speaking.add_argument("--sentences", type=int, default=100)
    for name in ("train", "check"):
        commands.add_parser(name).add_argument("file", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "speak":
        texts = (TEST if arguments.texts == "test" else DEVELOPMENT)[: arguments.sentences]
        arguments.out.write_bytes(pickle.dumps(list(speak(arguments.teacher, texts))))
        return
    speech = pickle.loads(arguments.file.read_bytes())
    (train if arguments.command == "train" else check)(speech)


if __name__ == "__main__":
    main()
