# SPDX-License-Identifier: Apache-2.0
"""Attribute word errors to codec and talker: reconstruct the teacher's speech from codes and transcribe it.

    python -m training.reconstruction --teacher DIR --codec DIR --asr DIR [--talker DIR --tokenizer DIR] [--samples DIR]

Without a talker, this measures the codec alone. With a talker, also code 2 and all codes by the talker, teacher-forced.
Teacher-forced codes 1 do not continue each other's phase, so all codes by the talker have more noise than its speech.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyvox.bench.wer import WordErrors, word_errors
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from polyvox.text.phonemes import phonemize
from training.asr import Recogniser
from training.batches import Batches, row_count
from training.codec import encode, load_encoder
from training.corpus import VOICES, Timings, read_styles, timed
from training.export import load_decoder
from training.layout import CODE_0_SIZE, SAMPLING, voice_files
from training.losses import predict_codes, read
from training.pool import Packing, Utterance
from training.rates import error_rate
from training.sentences import TEST
from training.speech_data import make_frames
from training.symbols import to_ids
from training.talker import load_talker
from training.teacher import Teacher
from training.tokens import load_tokenizer
from training.units import SAMPLE_RATE, cut, first_unit, without_tones


class SentenceTeacher:
    """The teacher on the CPU, for single texts."""

    def __init__(self, folder: Path) -> None:
        self._teacher = Teacher(folder, torch.device("cpu"))
        self._styles = read_styles(folder)

    def __call__(self, text: str, voice: int) -> tuple[np.ndarray, Timings, Tensor]:
        """Phonemes, their timing and the samples."""
        ids = to_ids(phonemize(text))
        style = self._styles[voice, len(ids)][None]
        timing = self._teacher.time(torch.tensor([ids]), style)
        durations = timing.durations[0].numpy()
        start = int(first_unit(durations[0]))
        rows = torch.from_numpy(np.repeat(np.arange(len(durations)), durations))[None]
        known = [part[0].t() for part in timing.known]
        given = known, rows, style, torch.tensor([start]), torch.tensor([voice])
        advance, loudness = self._teacher.prosody(*given)
        samples = self._teacher.sound(*given, advance)[0]
        timings = Timings.single(timed(0, durations, advance[0].numpy(), loudness[0].numpy()))
        return np.array(ids), timings, without_tones(cut(samples, start, int(timings.frames[0])))


class TeacherForcedTalker:
    """The talker with teacher forcing."""

    def __init__(self, talker: Path, tokenizer: Path) -> None:
        self._config = parse_config(voice_files(SAMPLING))
        self._talker = Talker(self._config)
        load_talker(self._talker, talker)
        self._talker.eval()
        self._cutter = load_tokenizer(tokenizer, None)

    def __call__(self, text: str, voice: int, codes: Tensor) -> dict[str, Tensor]:
        """Codes [frames,NUM_CODEBOOKS] by the source of each code."""
        talker, packing = self._talker, Packing([self._cutter])
        frames = np.zeros(len(codes), np.int16)  # positions of phonemes are for training only
        packing.add(Utterance(phonemize(text), codes.numpy().astype(np.uint16), frames, voice, 0, True))
        pool = packing.pool()
        live = torch.zeros(1, dtype=torch.bool)
        batches = Batches(pool, self._config, torch.device("cpu"))
        batch = batches.rows(torch.zeros(1, dtype=torch.int64), live, ~live, int(row_count(pool)[0]))
        hidden = read(talker, batch, batch.frames)[batch.following[..., 0] >= 0]
        first = talker.codec_head(hidden)[:, :CODE_0_SIZE].argmax(-1)
        own = torch.cat([first[:, None], predict_codes(talker, hidden, first)], 1)

        def draw(book: int, scores: Tensor) -> Tensor:  # book 0 is that of code 1
            return scores.argmax(-1) if book else codes[:, 1]

        inputs = talker.code_predictor.inputs(hidden, talker.model.codec_embedding(codes[:, 0]))
        last = talker.code_predictor(inputs, draw)
        return {"code 2 by talker": torch.stack([codes[:, 0], *last], 1), "all by talker": own}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("teacher", "codec", "asr"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--talker", type=Path, help="folder of the talker's weights")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer")
    parser.add_argument("--samples", type=Path, help="save the audio in this folder")
    parser.add_argument("--sentences", type=int, default=len(TEST))
    arguments = parser.parse_args()
    if (arguments.talker is None) != (arguments.tokenizer is None):
        parser.error("--talker and --tokenizer must be given together")
    torch.set_num_threads(2)
    teacher, recogniser = SentenceTeacher(arguments.teacher), Recogniser(arguments.asr)
    encoder, decoder = load_encoder(arguments.codec), load_decoder(arguments.codec).eval()
    prompted = TeacherForcedTalker(arguments.talker, arguments.tokenizer) if arguments.talker else None
    found: dict[str, list[WordErrors]] = {}
    for number, text in enumerate(TEST[: arguments.sentences]):
        voice = number % 2
        phonemes, timings, kept = teacher(text, voice)
        codes = encode(encoder, make_frames(phonemes, np.array([voice]), timings, torch.device("cpu")))
        ways = {"codec": codes} | (prompted(text, voice, codes) if prompted else {})
        made = {name: decoder(way[None], decoder.initial_state(1))[0][0] for name, way in ways.items()}
        for name, sound in ({"teacher": kept} | made).items():
            transcript = recogniser(sound.numpy(), SAMPLE_RATE)
            errors = word_errors(text, transcript)
            for kind in (name, f"{name}, {VOICES[voice]}"):
                found.setdefault(kind, []).append(errors)
            if errors.errors:
                print(f"  {name}, {VOICES[voice]}: {text} | {transcript}", flush=True)  # noqa: T201
            if arguments.samples:
                arguments.samples.mkdir(parents=True, exist_ok=True)
                np.save(arguments.samples / f"{name}-{number:03}.npy", sound.numpy())
    for kind, each in found.items():
        print(f"{kind:28} {error_rate(each).percent} of {sum(e.words for e in each)} words", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
