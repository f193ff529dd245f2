# SPDX-License-Identifier: Apache-2.0
"""Train the decoder on audio: acoustic features to samples.

    python -m training.vocoder --work DIR --codec DIR --minutes 20 [--run-minutes 7]

A part of each batch has the features of the teacher's audio (features.py), the rest those that the decoder makes of
codes. The first stage has the spectral loss only and trains the convolutional layers, the second has discriminators and
trains the whole decoder. When training diverges, it continues from earlier weights at half of the learning rate
(recovery.py). --work holds the corpus, --codec the output of training.codec; it receives the new decoder, vocoder.jsonl
(losses) and state-*.safetensors, from which a later run resumes; diverged weights are never written. Without a state,
--spectral-steps 0 continues a trained decoder with new discriminators. The codes do not change. Once a talker is
trained, training.finetune trains the decoder further.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyvox import kernels
from training.adversarial import AdversarialLoss
from training.codec import read_codes, trained_parameters
from training.export import load_decoder
from training.fast_decoder import features, waveform
from training.features import COLUMNS, AcousticFeatures, LogMel
from training.files import load_parts, save_parts
from training.graph import CapturedStep
from training.optimizer import adam, restart, set_learning_rate, synchronize
from training.recovery import Recovery
from training.schedule import DONE, Clock, Log, rate
from training.speech_data import MARGIN, Segments, load_sound, without_margin
from training.units import FRAME

SEGMENT = 8  # frames
SKIPPED = 2  # frames at the start of a segment that have no loss
SPECTRAL_STEPS = 6_500  # steps before the discriminators start
LEAD = 300  # steps of new discriminators before the decoder receives their gradient
RISE = 600  # steps until their gradient has its full weight
FROM_FEATURES = 0.5  # share of a batch; the rest is from codes
SPECTRAL_RATE, ADVERSARIAL_RATE, FLOOR_RATE = 1e-3, 3e-4, 0.1
FEATURES = 5.0  # weight of the distance of features from codes
AVERAGE = 0.999  # of the decoder's weights
RESUMED_STEP = 1000.0  # of an optimizer whose second moments are kept
STATE = "state"
LOG_SECONDS, SAVE_SECONDS, CHECK = 15.0, 60.0, 20


class VocoderTraining:
    """The decoder, its discriminators and their steps; the state is saved and resumed."""

    name, state_name = "vocoder", STATE
    variants: tuple[str, ...] = ("coded",)  # of the codes, in the log
    adversarial_rate = ADVERSARIAL_RATE
    first_part = 0.0  # of the schedule of the shares of gradients (adversarial.py)

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self._began = time.monotonic()
        self.arguments, self.device, self.batch = arguments, device, arguments.batch
        self.sound = load_sound(arguments.work, SEGMENT, device)
        self.segments = Segments(self.sound, SEGMENT)
        codes = read_codes(arguments.codec, self.sound.index)
        self.codes = torch.from_numpy(codes.astype(np.int64)).to(device)[None]  # [variants, frames, NUM_CODEBOOKS]
        self.decoder = load_decoder(arguments.codec).to(device)
        self.mel, self.acoustic = LogMel().to(device), AcousticFeatures().to(device)
        self.adversarial = AdversarialLoss(device)
        self.parameters = trained_parameters(self.decoder)
        self.optimizer = adam(self.parameters, SPECTRAL_RATE, device)
        self.average = [p.detach().clone() for p in self.parameters]
        self.recovery = Recovery([*self.average, *self.adversarial.discriminators.parameters()])
        self.distance = torch.zeros((), device=device)  # of the features from codes
        self.valid: dict[str, float] = {}  # distances of the last validation
        self.steps, self.seconds = 0, 0.0
        self.log = Log(arguments.codec / f"{self.name}.jsonl")

    def true_features(self, starts: Tensor) -> Tensor:
        """Features of the teacher's audio [B,latent_dim,columns]; the free channels are zero."""
        mel = self.mel(self.segments.samples(starts))[..., MARGIN * COLUMNS : -MARGIN * COLUMNS]
        known = self.acoustic(mel, self.segments.source(starts))
        return nn.functional.pad(known, (0, 0, 0, self.decoder.config.latent_dim - known.shape[1]))

    def coded_features(self, starts: Tensor, variants: Tensor) -> Tensor:
        """Features that the decoder makes of these variants of the codes."""
        codes = self.codes[variants[:, None], starts[:, None] + torch.arange(SEGMENT, device=self.device)]
        return features(self.decoder, self.decoder.quantizer(codes))

    def decode(self, x: Tensor) -> Tensor:
        """Samples after the first frames, whose history is missing."""
        return waveform(self.decoder, x)[:, SKIPPED * FRAME :]

    def target(self, starts: Tensor) -> Tensor:
        return without_margin(self.segments.samples(starts))[:, SKIPPED * FRAME :]

    def spectral_step(self) -> None:
        """Without discriminators; the layers before the features do not change."""
        self.step(adversarial=False)

    def step(self, adversarial: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        starts, first = self.segments.draw(self.batch), int(self.batch * self.arguments.from_features)
        variants = torch.randint(len(self.codes), (self.batch - first,), device=self.device)
        wanted = self.true_features(starts)
        with torch.set_grad_enabled(adversarial):
            coded = self.coded_features(starts[first:], variants)
        made = self.decode(torch.cat([wanted[:first], coded]))
        gradient = self.adversarial.gradient(made, self.target(starts), adversarial)
        known = self.acoustic.num_channels
        distance = self.acoustic.loss(coded[..., SKIPPED * COLUMNS :], wanted[first:, :known, SKIPPED * COLUMNS :])
        if adversarial:
            torch.autograd.backward([made, FEATURES * distance], [gradient, None])
        else:
            made.backward(gradient)
        nn.utils.clip_grad_norm_(self.parameters, 2.0)
        self.optimizer.step()
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - AVERAGE)
        self.distance.copy_(distance.detach())

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
                began = self.steps  # the learning rate rises again: the first layers have not been trained yet
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
        """Spectral distance of the averaged decoder on held-out speech, from each input that it is trained on."""
        starts = self.sound.validation
        target = self.target(starts)
        found: dict[str, float] = {}
        self.swap()
        inputs = {"true": self.true_features(starts)} if self.arguments.from_features else {}
        for variant, name in enumerate(self.variants):
            inputs[name] = self.coded_features(starts, torch.full_like(starts, variant))
        for name, x in inputs.items():
            found[f"valid_{name}"] = float(self.adversarial.spectral(self.decode(x), target))
        self.swap()
        return found

    def check(self) -> bool:
        """Log losses and validation distances; if training has diverged, continue from earlier weights."""
        self.valid, seen = self.validate(), self.adversarial.values()
        self.log(phase=self.name, step=self.steps, **self.valid, features=float(self.distance), **seen)
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
    def resume(self, state: dict[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            chosen = {name: value for name, value in state.items() if name.startswith(prefix + ".")}
            return {name.removeprefix(prefix + "."): value.to(self.device) for name, value in chosen.items()}

        self.adversarial.discriminators.load_state_dict(part("discriminators"))
        for name, optimizer in self._optimizers().items():
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
    add_arguments(parser, minutes=20.0, from_features=FROM_FEATURES)
    parser.add_argument("--spectral-steps", type=int, default=SPECTRAL_STEPS, help="before the discriminators start")
    arguments = parser.parse_args()
    device = set_up()
    with kernels.disabled():  # kernels have no backward pass
        training = VocoderTraining(arguments, device)
        training.start()
        training.train(arguments.minutes, arguments.run_minutes)


def add_arguments(parser: argparse.ArgumentParser, minutes: float, from_features: float) -> None:
    """The options of a training of the decoder, with these defaults."""
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--codec", type=Path, required=True, help="output of training.codec")
    parser.add_argument("--minutes", type=float, default=minutes, help="of training, earlier runs included")
    parser.add_argument("--run-minutes", type=float, default=math.inf, help="maximum minutes of this run")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--from-features", type=float, default=from_features, help="share of a batch with the teacher's features"
    )


def set_up() -> torch.device:
    """Precision, convolution algorithms and seed of a training of the decoder, and its device."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    torch.manual_seed(1)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()
