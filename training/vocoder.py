# SPDX-License-Identifier: Apache-2.0
"""Train the decoder on audio: acoustic features to samples.

    python -m training.vocoder --work DIR --codec DIR --minutes 15 [--run-minutes 7]

The convolutional layers are trained on the features of the teacher's audio (features.py): first with the spectral loss
only, then with discriminators. They read no channels that only codes have, and sharpen what they read (contrast.py).
When training diverges, it continues from earlier weights at half of the learning rate (recovery.py).

--work holds the corpus, --codec the output of training.codec; it receives the new decoder, vocoder.jsonl (losses) and
state-*.safetensors, from which a later run resumes; diverged weights are never written. Without a state,
--spectral-steps 0 continues a trained decoder with new discriminators. The codes do not change. training.finetune then
trains the whole decoder on codes.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyvox import kernels
from training.adversarial import AdversarialLoss
from training.codec import read_codes
from training.contrast import Flattening
from training.export import load_decoder
from training.fast_decoder import features, waveform
from training.features import COLUMNS, AcousticFeatures, LogMel, ignore_free_channels
from training.files import load_parts, save_parts
from training.graph import CapturedStep
from training.optimizer import adam, restart, set_learning_rate, synchronize
from training.recovery import Recovery
from training.schedule import DONE, Clock, Log, rate
from training.speech_data import MARGIN, Segments, load_sound, without_margin
from training.units import FRAME

SEGMENT = 8  # frames
SKIPPED = 2  # frames at the start of a segment without spectral and adversarial loss: their history is missing
SPECTRAL_STEPS = 6_500  # steps before the discriminators start
LEAD = 300  # steps of new discriminators before the decoder receives their gradient
RISE = 600  # steps until their gradient has its full weight
START_ROWS, START = 2, 240  # segments at the start of an utterance, and their samples that have a loss of their own
START_WEIGHT = 20.0  # of this loss; its gradient then has a seventh of the norm of the spectral one
SPECTRAL_RATE, ADVERSARIAL_RATE, FLOOR_RATE = 1e-3, 3e-4, 0.1
AVERAGE = 0.999  # of the decoder's weights
RESUMED_STEP = 1000.0  # of an optimizer whose second moments are kept
STATE = "state"
LOG_SECONDS, SAVE_SECONDS, CHECK = 15.0, 60.0, 20


class VocoderTraining:
    """The decoder, its discriminators and their steps; the state is saved and resumed."""

    name, state_name = "vocoder", STATE
    adversarial_rate = ADVERSARIAL_RATE
    first_part = 0.0  # of the schedule of the shares of gradients (adversarial.py)
    seen: tuple[str, ...] = ("start",)  # losses in the log beside those of adversarial.py

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self._began = time.monotonic()
        self.arguments, self.device, self.batch = arguments, device, arguments.batch
        self.sound = load_sound(arguments.work, SEGMENT, device)
        if not len(self.sound.utterances):
            raise ValueError("The corpus has no utterance at whose start a training segment can begin.")
        self.segments = Segments(self.sound, SEGMENT)
        codes = read_codes(arguments.codec, self.sound.index)
        self.codes = torch.from_numpy(codes.astype(np.int64)).to(device)  # [frames, NUM_CODEBOOKS]
        self.mel, self.acoustic = LogMel().to(device), AcousticFeatures().to(device)
        self.flatten = Flattening().to(device)
        self.decoder = load_decoder(arguments.codec).to(device)
        ignore_free_channels(self.decoder, self.acoustic.num_channels)
        self.adversarial = AdversarialLoss(device)
        self.parameters = self.trained()
        self.optimizer = adam(self.parameters, SPECTRAL_RATE, device)
        self.average = [p.detach().clone() for p in self.parameters]
        self.recovery = Recovery([*self.average, *self.adversarial.discriminators.parameters()])
        self.distances = {name: torch.zeros((), device=device) for name in self.seen}
        self.valid: dict[str, float] = {}  # distances of the last validation
        self.steps, self.seconds = 0, 0.0
        self.log = Log(arguments.codec / f"{self.name}.jsonl")

    def trained(self) -> list[nn.Parameter]:
        """The parameters that change."""
        return list(self.decoder.decoder.parameters())

    def true_features(self, starts: Tensor) -> Tensor:
        """Features of the teacher's audio [B,channels,columns]."""
        mel = self.mel(self.segments.samples(starts))[..., MARGIN * COLUMNS : -MARGIN * COLUMNS]
        return self.acoustic(mel, self.segments.source(starts))

    def coded_features(self, starts: Tensor) -> Tensor:
        """Features that the decoder makes of codes, without the free channels."""
        codes = self.codes[starts[:, None] + torch.arange(SEGMENT, device=self.device)]
        return features(self.decoder, self.decoder.quantizer(codes))[:, : self.acoustic.num_channels]

    def decode(self, x: Tensor) -> Tensor:
        """All samples of a segment; the free channels are zero."""
        return waveform(self.decoder, nn.functional.pad(x, (0, 0, 0, self.decoder.config.latent_dim - x.shape[1])))

    def target(self, starts: Tensor) -> Tensor:
        return without_margin(self.segments.samples(starts))

    def spectral_step(self) -> None:
        """Without discriminators."""
        self.step(adversarial=False)

    def step(self, adversarial: bool = True) -> None:
        starts = self.segments.draw(self.batch, START_ROWS)
        self.update(starts, self.flatten(self.true_features(starts)), adversarial)

    def update(
        self,
        starts: Tensor,
        x: Tensor,
        adversarial: bool,
        other_losses: Sequence[Tensor] = (),
        spectral_factors: Tensor | None = None,
    ) -> None:
        """Update the weights by the losses of the samples that the decoder makes of features x [B,channels,columns].

        The first START_ROWS segments begin where utterances do, as streams do: their first samples are near silence.
        spectral_factors: see AdversarialLoss.gradient.
        """
        self.optimizer.zero_grad(set_to_none=True)
        made, target = self.decode(x), self.target(starts)
        gradient = torch.zeros_like(made)
        gradient[:, SKIPPED * FRAME :] = self.adversarial.gradient(
            made[:, SKIPPED * FRAME :], target[:, SKIPPED * FRAME :], adversarial, spectral_factors
        )
        first = nn.functional.l1_loss(made[:START_ROWS, :START], target[:START_ROWS, :START])
        losses = [START_WEIGHT * first, *other_losses]
        torch.autograd.backward([made, *losses], [gradient, *[None] * len(losses)])
        nn.utils.clip_grad_norm_(self.parameters, 2.0)
        self.optimizer.step()
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - AVERAGE)
        self.distances["start"].copy_(first.detach())

    def train(self, minutes: float, run_minutes: float) -> None:
        """Train for `minutes` in all; save the state from time to time.

        This run ends `run_minutes` after its start; loading and capture, which `minutes` hardly counts, are included.
        """
        before, began, spectral_steps = self.seconds, self.steps, self.arguments.spectral_steps
        run: CapturedStep | None = None
        self.check()  # divergence is measured against the weights at the start, too
        clock, logged, saved = Clock(minutes, before), 0.0, 0.0
        while time.monotonic() - self._began < 60 * run_minutes and not clock.over:
            if self.steps == spectral_steps:
                began = self.steps  # the learning rate rises again
            fall = rate(self.recovery.rate_factor, self.steps - began, clock.part, floor=FLOOR_RATE)
            set_learning_rate(self.optimizer, (SPECTRAL_RATE if self.spectral else self.adversarial_rate) * fall)
            rise = min(1.0, max(0.0, (self.steps - spectral_steps - LEAD) / RISE))
            self.adversarial.schedule(fall, max(self.first_part, clock.part), rise)
            if run is None or self.steps == spectral_steps:
                run = self._captured()  # its first steps have the rates above
            run()
            self.steps += 1
            if self.steps % CHECK == 0:
                synchronize(self.device)
                if clock.seconds - before - logged > LOG_SECONDS:
                    logged, self.seconds = clock.seconds - before, clock.seconds
                    if self.check():
                        began = self.steps  # the learning rate rises again
                    elif logged - saved > SAVE_SECONDS:
                        saved = logged
                        self.save()
        synchronize(self.device)
        self.seconds = clock.seconds
        self.check()
        self.save()
        if clock.over:
            self.log(phase=DONE, step=self.steps, **self.valid)

    def _captured(self) -> CapturedStep:
        """The step of the current stage."""
        step = CapturedStep(self.spectral_step if self.spectral else self.step, self.device)
        self.log(phase="captured", step=self.steps)
        return step

    @property
    def spectral(self) -> bool:
        """Whether the discriminators have not started."""
        return bool(self.steps < self.arguments.spectral_steps)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Spectral distance of the averaged decoder on held-out speech, from the teacher's features and from codes."""
        starts = self.sound.validation
        target = self.target(starts)[:, SKIPPED * FRAME :]
        found: dict[str, float] = {}
        self.swap()
        inputs = {"true": self.flatten(self.true_features(starts)), "coded": self.coded_features(starts)}
        for name, x in inputs.items():
            made = self.decode(x)[:, SKIPPED * FRAME :]
            found[f"valid_{name}"] = float(self.adversarial.spectral(made, target))
        self.swap()
        return found

    def check(self) -> bool:
        """Log losses and validation distances; if training has diverged, continue from earlier weights."""
        self.valid, seen = self.validate(), self.adversarial.values()
        distances = {name: float(value) for name, value in self.distances.items()}
        self.log(phase=self.name, step=self.steps, **self.valid, **distances, **seen)
        diverged = self.recovery.has_diverged(sum(self.valid.values()))
        if diverged:
            self._continue_from_average()
            self.log(phase="diverged", step=self.steps, best=self.recovery.best, rate=self.recovery.rate_factor)
        return diverged

    @torch.no_grad()
    def _continue_from_average(self) -> None:
        for parameter, mean in zip(self.parameters, self.average, strict=True):
            parameter.copy_(mean)
        for optimizer in self._optimizers().values():
            restart(optimizer)
        self.adversarial.restart()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the decoder's weights and their running average."""
        for parameter, mean in zip(self.parameters, self.average, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(mean)
            mean.copy_(kept)

    def save(self) -> None:
        """Write the averaged decoder and the state of training."""
        self.swap()
        save_parts(self.decoder.state_dict(), self.arguments.codec, "decoder")
        self.swap()
        save_parts(self.state(), self.arguments.codec, self.state_name)
        self.log(phase="saved", step=self.steps)

    def state(self) -> dict[str, Tensor]:
        """What a later run resumes from besides the averaged decoder; of the optimizers only the squared gradients."""
        critics = self.adversarial.discriminators
        found = {f"discriminators.{name}": value for name, value in critics.state_dict().items()}
        for name, optimizer in self._optimizers().items():
            for index, moments in optimizer.state_dict()["state"].items():
                found[f"{name}.{index}"] = moments["exp_avg_sq"].to(torch.bfloat16)
        progress = [self.steps, self.seconds, self.recovery.rate_factor]
        return found | {"progress": torch.tensor(progress, dtype=torch.float64)}

    def start(self) -> None:
        """Continue from the saved state, if there is one."""
        state = load_parts(self.arguments.codec, self.state_name)
        if state:
            self.resume(state)
            torch.manual_seed(self.steps)  # other segments than those of the earlier run

    @torch.no_grad()
    def resume(self, state: dict[str, Tensor], optimizers: Sequence[str] = ("generator", "critic")) -> None:
        """Continue from this state with the moments of these optimizers."""

        def part(prefix: str) -> dict[str, Tensor]:
            chosen = {name: value for name, value in state.items() if name.startswith(prefix + ".")}
            return {name.removeprefix(prefix + "."): value.to(self.device) for name, value in chosen.items()}

        self.adversarial.discriminators.load_state_dict(part("discriminators"))
        for name, optimizer in self._optimizers().items():
            if name not in optimizers:
                continue
            given = optimizer.state_dict()
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for index, squares in part(name).items():
                given["state"][int(index)] = {
                    "step": torch.tensor(RESUMED_STEP, device=self.device),
                    # Fused Adam needs the strides of the parameter, which may be channels last.
                    "exp_avg": torch.zeros_like(parameters[int(index)]),
                    "exp_avg_sq": torch.empty_like(parameters[int(index)]).copy_(squares),
                }
            optimizer.load_state_dict(given)
        steps, self.seconds, self.recovery.rate_factor = state["progress"].tolist()
        self.steps = int(steps)

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"generator": self.optimizer, "critic": self.adversarial.optimizer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, minutes=15.0)
    parser.add_argument("--spectral-steps", type=int, default=SPECTRAL_STEPS, help="before the discriminators start")
    arguments = parser.parse_args()
    device = set_up()
    with kernels.disabled():  # kernels have no backward pass
        training = VocoderTraining(arguments, device)
        training.start()
        training.train(arguments.minutes, arguments.run_minutes)


def add_arguments(parser: argparse.ArgumentParser, minutes: float) -> None:
    """The options of a training of the decoder, by default of this length."""
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--codec", type=Path, required=True, help="output of training.codec")
    parser.add_argument("--minutes", type=float, default=minutes, help="of training, earlier runs included")
    parser.add_argument("--run-minutes", type=float, default=math.inf, help="maximum minutes of this run")
    parser.add_argument("--batch", type=_batch, default=16)


def _batch(text: str) -> int:
    if int(text) < START_ROWS:
        raise argparse.ArgumentTypeError(f"must be at least {START_ROWS} (got {text})")
    return int(text)


def set_up() -> torch.device:
    """Precision, convolution algorithms and seed of a training of the decoder, and its device."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    torch.manual_seed(1)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
