# SPDX-License-Identifier: Apache-2.0
"""Training of codec and vocoder on a small corpus: what each stage changes, and what a later run resumes from."""

import argparse
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polyvox.models.layers.conv_layers import CausalConv
from training import layout
from training.adversarial import SHARES
from training.codec import CodecTraining, encode, feature_parameters, read_codes
from training.corpus import TimedUtterance
from training.files import load_parts
from training.finetune import CODED_SPECTRAL_FACTOR, PEAK_RATE, DecoderFinetuning
from training.held_out import reconstruct
from training.layout import CODE_0_SIZE, NUM_CODEBOOKS, RESIDUAL_SIZE
from training.pool import CODES_FILE
from training.schedule import DONE, WARM_UP_STEPS
from training.units import FRAME, UNITS_PER_FRAME
from training.vocoder import (
    ADVERSARIAL_RATE,
    CHECK,
    SAVE_SECONDS,
    SEGMENT,
    SKIPPED,
    START_ROWS,
    STATE,
    VocoderTraining,
    add_arguments,
)

CPU = torch.device("cpu")
FRAMES = 30  # of an utterance


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """The other tests run without gradients."""
    with torch.enable_grad():
        yield


@pytest.fixture(scope="module", autouse=True)
def small_decoder() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small = layout.decoder_config() | {"decoder_dim": 256}
        patch.setattr(layout, "decoder_config", lambda: small)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise with the timing of three utterances, of which the first is held out."""
    folder, draw = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    counts = [4, 4, 4]

    def prosody(frames: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.integers(31, 79, frames), draw.integers(0, 256, frames * UNITS_PER_FRAME)

    np.savez(folder / "phonemes.npz", ids=np.arange(1, 13, dtype=np.uint8), counts=counts, voices=[0, 1, 0])
    rows = [TimedUtterance(index, np.full(6, 15), *prosody(FRAMES)).record() for index in range(3)]
    (folder / "speech-00.i32").write_bytes(b"".join(rows))
    (folder / "durations-00.i32").write_bytes(b"".join(rows[::-1]))
    draw.integers(-3000, 3000, 3 * FRAMES * FRAME).astype(np.int16).tofile(folder / "speech-00.i16")
    return folder


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the codec after one step of each kind."""
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("codec")
    with torch.enable_grad():
        training = CodecTraining(argparse.Namespace(work=corpus, out=out, batch=2, start_batches=1), CPU)
        vocoder = [p.clone() for p in training.decoder.decoder.parameters()]
        training.plain_step()
        training.encoder.initialise_codebooks(*training.segments.inputs(training.segments.draw(4)))
        training.step()
    assert all(torch.equal(a, b) for a, b in zip(vocoder, training.decoder.decoder.parameters(), strict=True))
    assert all(value > 0 for name, value in training.seen.items() if name != "named")
    training.save(out)
    np.savez(out / CODES_FILE, **training.encode())  # type: ignore[arg-type]
    spoken = encode(training.encoder, training.sound.inputs).numpy()
    assert np.array_equal(read_codes(out, training.sound.index), spoken)
    return out


def vocoder(corpus: Path, trained: Path, spectral_steps: int = 1) -> VocoderTraining:
    torch.manual_seed(0)
    given = {"spectral_steps": spectral_steps, "batch": 2}
    return VocoderTraining(argparse.Namespace(work=corpus, codec=trained, **given), CPU)


def finetuning(corpus: Path, folder: Path) -> DecoderFinetuning:
    torch.manual_seed(0)
    return DecoderFinetuning(argparse.Namespace(work=corpus, codec=folder, spectral_steps=0, batch=4), CPU)


def phases(path: Path) -> list[str]:
    return [json.loads(line)["phase"] for line in path.read_text().splitlines()]


class CountingClock:
    """Each reading of the time is SAVE_SECONDS later: each validation between steps is followed by saving; about 4."""

    total = 4 * CHECK * SAVE_SECONDS

    def __init__(self, _minutes: float, before: float) -> None:
        self._seconds = before

    @property
    def seconds(self) -> float:
        self._seconds += SAVE_SECONDS
        return self._seconds

    @property
    def part(self) -> float:
        return min(1.0, self._seconds / self.total)

    @property
    def over(self) -> bool:
        return self.seconds >= self.total


def test_every_frame_has_codes_within_their_codebooks(trained: Path) -> None:
    with np.load(trained / CODES_FILE) as arrays:
        codes, phonemes = arrays["codes"], arrays["phonemes"]
        assert arrays["texts"].tolist() == [2, 1, 0]
        assert arrays["frames"].tolist() == [FRAMES] * 3
    assert phonemes.shape == (3 * FRAMES,)
    assert set(phonemes.tolist()) == set(range(4))
    assert codes.shape == (3 * FRAMES, NUM_CODEBOOKS)
    assert codes[:, 0].max() < CODE_0_SIZE
    assert codes[:, 1:].max() < RESIDUAL_SIZE


def test_held_out_speech_is_reconstructed_in_its_length(corpus: Path, trained: Path, tmp_path: Path) -> None:
    (corpus / "texts.txt").write_text("One.\nTwo.\nThree.\n")
    reconstruct(argparse.Namespace(work=corpus, codec=trained, out=tmp_path, count=1, codebooks=[2, 3]), CPU)
    assert {folder.name for folder in tmp_path.iterdir()} == {"teacher", "features", "codec-2", "codec-3"}
    for folder in tmp_path.iterdir():
        with np.load(folder / "whole-heart.npz") as arrays:
            assert arrays["texts"].tolist() == ["One."]
            assert arrays["lengths"].tolist() == [FRAMES * FRAME]


@pytest.mark.parametrize("adversarial", [False, True])
def test_the_vocoder_changes_the_convolutional_layers_only(corpus: Path, trained: Path, adversarial: bool) -> None:
    training = vocoder(corpus, trained)
    first = feature_parameters(training.decoder)
    before = [p.clone() for p in first], [p.clone() for p in training.decoder.decoder.parameters()]
    training.adversarial.schedule(1.0, 0.0, float(adversarial))
    training.step(adversarial)
    assert all(torch.equal(a, b) for a, b in zip(before[0], first, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before[1], training.decoder.decoder.parameters(), strict=True))


@pytest.mark.parametrize("make", [vocoder, finetuning])
def test_the_convolutional_layers_read_no_free_channels(
    corpus: Path, trained: Path, make: Callable[[Path, Path], VocoderTraining]
) -> None:
    training = make(corpus, trained)
    training.adversarial.schedule(1.0, 0.0, 1.0)
    training.step()
    first = training.decoder.decoder[0]
    assert isinstance(first, CausalConv)
    known = training.acoustic.num_channels
    assert not first.conv.weight[:, known:].any()
    assert first.conv.weight[:, :known].any()
    starts = training.sound.validation[:2]
    codes = training.codes[starts[:, None] + torch.arange(SEGMENT)]
    served = training.decoder(codes, training.decoder.initial_state(2))[0]
    assert torch.allclose(training.decode(training.coded_features(starts)), served, atol=1e-4)


def test_the_first_segments_begin_where_utterances_do(corpus: Path, trained: Path) -> None:
    training = vocoder(corpus, trained)
    assert training.sound.utterances.tolist() == [2 * FRAMES]  # the first is held out, the second is its neighbour
    starts = training.segments.draw(40, START_ROWS)
    assert len(starts) == 40
    assert starts[:START_ROWS].tolist() == [2 * FRAMES] * START_ROWS
    assert len(set(starts[START_ROWS:].tolist())) > 5


def test_a_batch_smaller_than_the_starts_of_utterances_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, minutes=1.0)
    given = ["--work", "corpus", "--codec", "codec", "--batch"]
    assert parser.parse_args([*given, str(START_ROWS)]).batch == START_ROWS
    with pytest.raises(SystemExit):
        parser.parse_args([*given, str(START_ROWS - 1)])
    assert f"must be at least {START_ROWS}" in capsys.readouterr().err


def test_the_start_of_a_stream_is_trained(corpus: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = vocoder(corpus, trained)
    monkeypatch.setattr(training, "target", lambda starts: torch.zeros(len(starts), SEGMENT * FRAME))
    nothing = torch.zeros(training.batch, (SEGMENT - SKIPPED) * FRAME)
    monkeypatch.setattr(training.adversarial, "gradient", lambda *_: nothing)
    losses = []
    for _ in range(8):
        training.step()
        losses.append(float(training.distances["start"]))
    assert losses[-1] < 0.5 * losses[0]


def test_a_later_run_resumes_from_the_averaged_decoder_and_the_state(corpus: Path, trained: Path) -> None:
    training = vocoder(corpus, trained)
    training.adversarial.schedule(1.0, 0.0, 1.0)
    training.step()
    training.steps, training.seconds, training.recovery.rate_factor = 7, 3.0, 0.25
    training.save()
    later = vocoder(corpus, trained)
    later.resume(load_parts(trained, STATE))
    assert (later.steps, later.seconds, later.recovery.rate_factor) == (7, 3.0, 0.25)
    for mean, parameter in zip(training.average, later.parameters, strict=True):
        assert torch.allclose(mean, parameter, atol=2e-3)
    critics = training.adversarial.discriminators.state_dict()
    for name, value in later.adversarial.discriminators.state_dict().items():
        assert torch.allclose(value, critics[name], atol=1e-3)
    for optimizer, earlier in zip(later._optimizers().values(), training._optimizers().values(), strict=True):
        for parameter, other in zip(*(one.param_groups[0]["params"] for one in (optimizer, earlier)), strict=True):
            squares = optimizer.state[parameter]["exp_avg_sq"]
            assert squares.stride() == parameter.stride()  # fused Adam requires it
            assert torch.allclose(squares, earlier.state[other]["exp_avg_sq"], rtol=0.01, atol=1e-12)


def test_a_decoder_without_state_continues_with_new_discriminators_at_once(
    corpus: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.vocoder.Clock", CountingClock)
    monkeypatch.setattr("training.vocoder.LEAD", 10)
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(f"{STATE}-*"))
    training = vocoder(corpus, tmp_path, spectral_steps=0)
    step, rates, shares, distances = training.step, [], [], iter((1.0, 1.0, math.nan))

    def first_step_only() -> None:
        rates.append(training.optimizer.param_groups[0]["lr"])
        shares.append(float(training.adversarial.shares["adversarial"]))
        if len(rates) == 1:
            step()

    monkeypatch.setattr(training, "step", first_step_only)
    monkeypatch.setattr(training, "spectral_step", lambda: pytest.fail("the spectral stage has run"))
    monkeypatch.setattr(training, "validate", lambda: {"valid_true": next(distances, 1.0)})
    training.train(minutes=1.0, run_minutes=math.inf)
    assert training.adversarial.values()["discriminators"] > 0
    assert rates[0] == pytest.approx(ADVERSARIAL_RATE / WARM_UP_STEPS, rel=0.01)
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.01)
    assert not any(shares[:11])  # the discriminators learn first
    assert shares[11] > 0
    assert shares[:40] == sorted(shares[:40])
    assert training.recovery.rate_factor == 0.5  # after the third validation
    assert rates[2 * CHECK] < rates[0]
    assert load_parts(tmp_path, STATE)["progress"][0] == len(rates)


def test_a_run_ends_in_time_and_a_later_one_completes_the_training(
    corpus: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.vocoder.time", SimpleNamespace(monotonic=itertools.count().__next__))
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(f"{STATE}-*"))
    drawn: list[list[int]] = []
    for run_minutes in (0.5, math.inf):
        monkeypatch.setattr("training.vocoder.Clock", CountingClock)
        training = vocoder(corpus, tmp_path, spectral_steps=0)
        training.start()
        drawn.append([])

        def draw(training: VocoderTraining = training) -> None:
            drawn[-1] += training.segments.draw(4).tolist()

        monkeypatch.setattr(training, "step", draw)
        monkeypatch.setattr(training, "validate", lambda: {"valid_true": 1.0})
        training.train(minutes=1.0, run_minutes=run_minutes)
        assert (DONE in phases(tmp_path / "vocoder.jsonl")) == (run_minutes == math.inf)
    assert len(drawn[0]) == 4 * 29  # a reading of the time before each step, the first at the start
    assert training.steps == len(drawn[0] + drawn[1]) // 4
    assert drawn[0][:20] != drawn[1][:20]  # other segments


def test_finetuning_trains_the_whole_decoder_on_codes_and_on_features(
    corpus: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = finetuning(corpus, trained)
    before = [p.clone() for p in training.parameters]
    assert len(before) > len(list(training.decoder.decoder.parameters()))
    gradient, seen = training.adversarial.gradient, []

    def record(made: torch.Tensor, target: torch.Tensor, adversarial: bool, factors: torch.Tensor) -> torch.Tensor:
        seen.append(factors.tolist())
        return gradient(made, target, adversarial, factors)

    monkeypatch.setattr(training.adversarial, "gradient", record)
    training.adversarial.schedule(1.0, 1.0, 1.0)
    training.step()
    assert seen == [pytest.approx([CODED_SPECTRAL_FACTOR, 1, CODED_SPECTRAL_FACTOR, 1])]
    assert not any(torch.equal(a, b) for a, b in zip(before, training.parameters, strict=True))
    assert training.distances["features"] > 0


def test_finetuning_continues_with_the_discriminators_of_the_vocoder_and_then_with_its_own(
    corpus: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.vocoder.Clock", CountingClock)
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(f"{STATE}-*"))
    before = vocoder(corpus, tmp_path)
    before.steps, before.seconds = 5_000, 900.0
    critics = list(before.adversarial.discriminators.parameters())
    with torch.no_grad():
        critics[0].fill_(0.25)
    before.save()

    training = finetuning(corpus, tmp_path)
    training.start()
    assert (training.steps, training.seconds) == (5_000, 0.0)
    assert bool((next(training.adversarial.discriminators.parameters()) == 0.25).all())
    rates, shares = [], []

    def step() -> None:
        rates.append(training.optimizer.param_groups[0]["lr"])
        shares.append(float(training.adversarial.shares["adversarial"]))

    monkeypatch.setattr(training, "step", step)
    monkeypatch.setattr(training, "validate", lambda: {"valid_true": 1.0})
    training.train(minutes=1.0, run_minutes=math.inf)
    assert rates[0] == pytest.approx(PEAK_RATE / WARM_UP_STEPS, rel=0.01)
    assert set(shares) == {SHARES["adversarial"][1]}
    assert phases(tmp_path / "finetune.jsonl")[-1] == DONE

    later = finetuning(corpus, tmp_path)
    later.start()
    assert (later.steps, later.seconds) == (5_000 + len(rates), training.seconds)
    assert load_parts(tmp_path, STATE)["progress"][0] == 5_000


def test_diverged_training_continues_from_good_weights_and_never_saves_diverged_ones(
    corpus: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.vocoder.Clock", CountingClock)
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    training = vocoder(corpus, tmp_path, spectral_steps=10_000)
    first = [mean.clone() for mean in training.average]
    saved: list[bool] = []

    def diverge() -> None:
        """A step after which all weights are invalid, once one state has been saved."""
        if len(saved) == 1 and training.recovery.rate_factor == 1.0:
            for weight in (*training.parameters, *training.average):
                weight.detach().fill_(math.nan)

    def validate() -> dict[str, float]:
        return {"valid_true": float(training.average[0].sum() - first[0].sum())}

    def write(tensors: dict[str, torch.Tensor], _folder: Path, name: str) -> None:
        if name == "decoder":
            saved.append(all(bool(value.isfinite().all()) for value in tensors.values()))

    monkeypatch.setattr(training, "spectral_step", diverge)
    monkeypatch.setattr(training, "validate", validate)
    monkeypatch.setattr("training.vocoder.save_parts", write)
    training.train(minutes=1.0, run_minutes=math.inf)
    assert training.recovery.rate_factor == 0.5
    assert len(saved) > 1
    assert all(saved)
    for mean, parameter, start in zip(training.average, training.parameters, first, strict=True):
        assert torch.equal(mean, start)
        assert torch.equal(parameter, start)
