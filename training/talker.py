# SPDX-License-Identifier: Apache-2.0
"""Train talker and code predictor on the pool of texts and codes, in both text layouts.

    python -m training.talker --pool pool.npz --out DIR --minutes 6

--out receives the best weights so far (talker-*.safetensors) and talker.jsonl. A run that finds weights there resumes
from them, with the full learning rate again. The learning rate falls to zero over --minutes; a run ends early when none
of codes 0 to 2 improves on held-out texts.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyvox import kernels
from polyvox.models.layers.linear import Linear, PackedLinear
from polyvox.models.layers.mlp import MLP
from polyvox.models.layers.transformer import TransformerLayer
from polyvox.models.qwen3_tts.config import ModelConfig, parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batches, row_count
from training.files import load_parts, save_parts
from training.graph import CapturedStep, half_precision
from training.guide import GuidedAttention
from training.history import frames_to_read, in_phase, own_history
from training.layers import replace_layers
from training.layout import SAMPLING, initialise, voice_files
from training.losses import code_0_loss, read, residual_loss
from training.optimizer import Muon, adam, set_learning_rate, synchronize
from training.pool import Pool
from training.schedule import BestValue, Clock, Log, rate

ROWS = 23_040  # per step: a multiple of all lengths
LENGTHS = (48, 64, 80, 96, 120, 160, 256)
VALIDATION_LENGTH = 120
LAYOUTS = {"whole": False, "live": True}
LIVE, AUTO = 0.5, 0.25  # share of entries in the live layout; without a language
PREDICTED = 0.15  # frames on which the code predictor is trained, relative to all rows
MATRIX_RATE, OTHER_RATE = 3e-3, 3e-3  # peaks: of Muon for the matrices of the layers, of AdamW for the rest
AVERAGE, CLIP = 0.999, 1.0
GUIDE, GUIDED = 0.5, 0.6  # weight of the guide at the start; share of the run after which it is zero
OWN_RISE = 0.3  # share of the run after which half of the entries read own frames
# Of code 0 (and end of speech) after own codes, and of codes 1 and 2.
SELECTION_WEIGHTS = {"own": 1.0, "1": 0.5, "2": 0.25}
MAX_STALE = 0.3  # share of a run without improvement after which it ends
LOG_SECONDS, CHECK = 20.0, 10


@dataclass(frozen=True, slots=True)
class Bucket:
    """Training entries of similar length, which share a captured step."""

    length: int  # maximum rows of an entry
    entries: np.ndarray

    @property
    def weight(self) -> int:
        """Rows of all entries: the probability of the bucket, not scaled."""
        return self.length * len(self.entries)


class ModelSelection:
    """The best validation score so far, and whether any of its codes still improves."""

    def __init__(self, max_stale: float) -> None:
        self.score = BestValue(max_stale)
        self._codes = {name: BestValue(max_stale) for name in SELECTION_WEIGHTS}

    def improved(self, valid: dict[str, float], part: float) -> bool:
        """Record validation losses at this share of the run; true if their score is the best."""
        for name, best in self._codes.items():
            best.improved(sum(valid[f"{layout}_{name}"] for layout in LAYOUTS), part)
        return self.score.improved(compared(valid), part)

    def is_stale(self, part: float) -> bool:
        """Whether no code has improved for too long; one that is overfitted does not end a run."""
        return all(best.is_stale(part) for best in self._codes.values())


class TalkerTraining:
    def __init__(self, pool: Pool, config: ModelConfig, device: torch.device, arguments: argparse.Namespace) -> None:
        self.config, self.device, self.arguments = config, device, arguments
        self.batches = Batches(pool, config, device)
        self.model = Talker(config)
        initialise(self.model)
        scale_for_depth(self.model)
        self.model.to(device)
        replace_layers(self.model)
        self.parameters = list(self.model.parameters())
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizers = optimizers(self.model, device)
        self.guide, self.own = torch.zeros((), device=device), torch.zeros((), device=device)  # see `schedule`
        names = ("first", "rest", "right", "guide", "guide_right")
        self.seen = {name: torch.zeros((), device=device) for name in names}
        rows = row_count(pool)
        self.buckets = buckets(pool, rows)
        weights = np.array([bucket.weight for bucket in self.buckets])
        self.shares = weights / weights.sum()
        held_out = np.nonzero(pool.held_out & (rows <= VALIDATION_LENGTH))[0]
        self.held_out = _on(held_out[: arguments.validation], device)

    def step(self, length: int, entries: Tensor) -> None:
        """One update on entries of up to `length` rows."""
        count = self._count(length)
        entry = entries[torch.randint(len(entries), (count,), device=self.device)]
        live, auto = (torch.rand(count, device=self.device) < part for part in (LIVE, AUTO))
        batch = self.batches.rows(entry, live, auto, length)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        attention = GuidedAttention(self.model.config.layers, batch.spoken_row)
        with half_precision(self.device):
            frames = frames_to_read(self.model, batch, self.own)
            batch = replace(batch, following=in_phase(batch.following, frames))
            hidden = read(self.model, batch, frames, attention)
            first, right = code_0_loss(self.model, hidden, batch, self.config.talker.eos_id)
            rest = residual_loss(self.model, hidden, batch, max(1, int(PREDICTED * count * length))).sum()
        (first + rest + self.guide * attention.loss).backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        for optimizer in self.optimizers:
            optimizer.step()
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - AVERAGE)
        values = (first, rest, right, attention.loss, attention.right)
        for seen, value in zip(self.seen.values(), values, strict=True):
            seen.copy_(value.detach())

    def captured(self, bucket: Bucket) -> CapturedStep:
        """The step of a bucket."""
        entries = _on(bucket.entries, self.device)
        return CapturedStep(lambda: self.step(bucket.length, entries), self.device)

    def schedule(self, number: int, part: float) -> None:
        """Set learning rates, the guide's weight and the share of own frames for a step at this share of the run."""
        for optimizer, peak in zip(self.optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
            set_learning_rate(optimizer, rate(peak, number, part, floor=0.0))
        self.guide.fill_(GUIDE * max(0.0, 1 - part / GUIDED))
        self.own.fill_(min(1.0, part / OWN_RISE))

    def captured_steps(self, log: Log) -> list[CapturedStep]:
        """The steps of all buckets; where compilation fails, layers stay as they are, and steps are slower."""
        self.schedule(0, 0.0)  # capturing makes steps
        if self.arguments.compile:
            replace_layers(self.model, compiled=True)
            try:
                steps = [self.captured(bucket) for bucket in self.buckets]
                log(phase="captured", compiled="yes")
                return steps
            except Exception as error:  # torch.compile raises many types
                log(phase="not compiled", error=f"{type(error).__name__}: {error}"[:500])
                replace_layers(self.model)
        steps = [self.captured(bucket) for bucket in self.buckets]
        log(phase="captured", compiled="no")
        return steps

    def _count(self, length: int) -> int:
        return max(2, self.arguments.rows // length)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Losses of the averaged weights on held-out texts, in both layouts.

        "first" and "right" are loss and accuracy of code 0 after true frames; "own" and "own_right" after frames whose
        codes 1 and up are the talker's; "guide_right" is the accuracy of the guided attention.
        """
        self._swap()
        self.model.eval()
        found: dict[str, float] = {}
        for name, live in LAYOUTS.items():
            flags = torch.full((len(self.held_out),), live, device=self.device)
            batch = self.batches.rows(self.held_out, flags, torch.zeros_like(flags), VALIDATION_LENGTH)
            batch = replace(batch, following=in_phase(batch.following, batch.frames))
            attention = GuidedAttention(self.model.config.layers, batch.spoken_row)
            with half_precision(self.device):
                hidden = read(self.model, batch, batch.frames, attention)
                first, right = code_0_loss(self.model, hidden, batch, self.config.talker.eos_id)
                rest = residual_loss(self.model, hidden, batch, None)
                hidden = read(self.model, batch, own_history(self.model, batch))
                own, own_right = code_0_loss(self.model, hidden, batch, self.config.talker.eos_id)
            found |= {f"{name}_first": float(first), f"{name}_right": float(right)}
            found[f"{name}_guide_right"] = float(attention.right)
            found |= {f"{name}_own": float(own), f"{name}_own_right": float(own_right)}
            found |= {f"{name}_{book + 1}": float(value) for book, value in enumerate(rest)}
        self.model.train()
        self._swap()
        return found

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, mean in zip(self.parameters, self.average, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(mean)
            mean.copy_(kept)

    def save(self, out: Path) -> None:
        """Write the averaged weights."""
        names = [name for name, _ in self.model.named_parameters()]
        save_parts(dict(zip(names, self.average, strict=True)), out, "talker")

    def run(self, minutes: float, out: Path) -> None:
        log, best = Log(out / "talker.jsonl"), ModelSelection(MAX_STALE)
        if (out / "talker-0.safetensors").exists():
            load_talker(self.model, out)
            self.average = [parameter.detach().clone() for parameter in self.parameters]
            best = ModelSelection(max_stale=1.0)  # with a high rate again, the first improvement comes late
            best.improved(self.validate(), 0.0)
        pick = np.random.default_rng(1)
        steps = self.captured_steps(log)
        count = sum(parameter.numel() for parameter in self.parameters)
        log(phase="data", parameters=str(count), shares=str(self.shares.round(2)))
        clock, number, logged = Clock(minutes), 0, 0.0
        while not clock.over and not best.is_stale(clock.part):
            self.schedule(number, clock.part)
            steps[pick.choice(len(steps), p=self.shares)]()
            number += 1
            if number % CHECK == 0:
                synchronize(self.device)
                if clock.seconds - logged > LOG_SECONDS:
                    logged = clock.seconds
                    seen = {name: float(value) for name, value in self.seen.items()}
                    valid = self.validate()
                    log(phase="talker", step=number, **seen, **valid)
                    if best.improved(valid, clock.part):
                        self.save(out)
        valid = self.validate()
        if best.improved(valid, clock.part):
            self.save(out)
        log(phase="done", step=number, best=best.score.value, **valid)


def compared(valid: dict[str, float]) -> float:
    """The validation score for model selection; lower is better."""
    return sum(weight * valid[f"{layout}_{name}"] for layout in LAYOUTS for name, weight in SELECTION_WEIGHTS.items())


def buckets(pool: Pool, rows: np.ndarray) -> list[Bucket]:
    """The training entries by length; longer ones than the last of LENGTHS are left out."""
    made = []
    for low, length in zip((0, *LENGTHS), LENGTHS, strict=False):
        entries = np.nonzero(~pool.held_out & (rows > low) & (rows <= length))[0]
        if len(entries):
            made.append(Bucket(length, entries))
    return made


def optimizers(model: Talker, device: torch.device) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices of the layers, AdamW for all other parameters."""
    layers = [*model.model.layers, *model.code_predictor.model.layers]
    linears = [module for layer in layers for module in layer.modules() if isinstance(module, Linear)]
    matrices = [(module.weight, _packed_rows(module)) for module in linears]
    chosen = {parameter for parameter, _ in matrices}
    others = [parameter for parameter in model.parameters() if parameter not in chosen]
    return Muon(matrices, MATRIX_RATE, device), adam(others, OTHER_RATE, device, mean=0.9, decay=0.02)


def _packed_rows(linear: Linear) -> list[int]:
    return list(linear.outputs.values()) if isinstance(linear, PackedLinear) else [len(linear.weight)]


@torch.no_grad()
def scale_for_depth(model: Talker) -> None:
    """Scale residual branches by depth; text and code embeddings start at the same scale."""
    for stack in (model.model, model.code_predictor.model):
        for layer in stack.layers:
            assert isinstance(layer, TransformerLayer)
            assert isinstance(layer.mlp, MLP)
            for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                weight.mul_((2 * len(stack.layers)) ** -0.5)
    nn.init.normal_(model.text_embedding.weight, std=1.0)
    nn.init.normal_(model.model.codec_embedding.weight, std=0.1)
    nn.init.normal_(model.code_predictor.model.codec_embedding.weight, std=0.1)


def load_talker(model: Talker, folder: Path) -> None:
    model.load_state_dict(load_parts(folder, "talker"))


def _on(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--validation", type=int, default=256)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = parse_config(voice_files(SAMPLING))
    with kernels.disabled():  # kernels have no backward pass and no mixed precision
        TalkerTraining(Pool.load(arguments.pool), config, device, arguments).run(arguments.minutes, arguments.out)


if __name__ == "__main__":
    main()
