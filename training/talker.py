# SPDX-License-Identifier: Apache-2.0
"""Train talker and code predictor on the pool of texts and codes, in both text layouts.

    python -m training.talker --pool pool.npz --out DIR --minutes 6.5

--out receives the best weights so far (talker-*.safetensors) and talker.jsonl. A run that
finds weights there resumes from them. The learning rate falls to zero over --minutes; a run ends early when none of
codes 0 to 2 improves on held-out speech.

All entries are drawn equally often, synthesised or only timed, so that little speech is not memorised before the texts
are learnt.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.models.layers.mlp import MLP
from polyvox.models.layers.norm import LayerScale, RMSNorm
from polyvox.models.layers.transformer import Attention, TransformerLayer
from polyvox.models.qwen3_tts.config import ModelConfig, parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batches, row_count
from training.files import load_parts, save_parts
from training.graph import CapturedStep, half_precision
from training.history import frames_to_read, own_history
from training.layout import CODE_0_SIZE, SAMPLING, initialise, voice_files
from training.losses import code_0_loss, read, residual_loss
from training.optimizer import adam, set_learning_rate, synchronize
from training.pool import Pool
from training.schedule import BestValue, Clock, Log, rate
from training.word_frequency import classes

ROWS = 24_576  # per step
LENGTHS = (64, 96, 144, 256)
LAYOUTS = {"whole": False, "live": True}
LIVE, AUTO = 0.5, 0.25  # share of entries in the live layout; without a language
DROPOUT = {"talker": 0.1, "predictor": 0.1}
PREDICTED = 0.5  # frames on which the code predictor is trained, relative to the rows of synthesised entries
PEAK_RATE, AVERAGE, CLIP = 1.2e-3, 0.999, 1.0
# Of code 0 (and end of speech) after own codes, and of codes 1 and 2.
SELECTION_WEIGHTS = {"own": 1.0, "1": 0.5, "2": 0.25}
MAX_STALE = 0.3  # share of a run without improvement after which it ends
LOG_SECONDS, CHECK = 20.0, 10


@dataclass(frozen=True, slots=True)
class Bucket:
    """Training entries of similar length, which share a captured step."""

    length: int  # maximum rows of an entry
    spoken: np.ndarray  # indices of synthesised entries
    timed: np.ndarray  # indices of entries that have only code 0

    @property
    def weight(self) -> float:
        """Rows of all entries: the probability of the bucket, not scaled."""
        return self.length * (len(self.spoken) + len(self.timed))

    def num_spoken(self, count: int) -> int:
        """How many of `count` entries of a step are synthesised: at least one, if there are any."""
        if not len(self.timed) or not len(self.spoken):
            return count if len(self.spoken) else 0
        share = len(self.spoken) / (len(self.spoken) + len(self.timed))
        return min(count - 1, max(1, round(share * count)))


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
        add_dropout(self.model)
        fuse_norms(self.model)
        self.parameters = list(self.model.parameters())
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = adam(self.parameters, PEAK_RATE, device, mean=0.9, decay=0.02)
        self.seen = {name: torch.zeros((), device=device) for name in ("first", "rest", "right")}
        rows = row_count(pool)
        self.buckets = buckets(pool, rows)
        weights = np.array([bucket.weight for bucket in self.buckets])
        self.shares = weights / weights.sum()
        held_out = np.nonzero(pool.held_out & pool.spoken & (rows <= LENGTHS[2]))[0]
        self.held_out = _on(held_out[: arguments.validation], device)
        self.rare = _on(rare_held_out(pool, rows), device)
        self.word_counts = torch.from_numpy(pool.word_counts).to(device)

    def step(self, length: int, spoken: Tensor, timed: Tensor, num_spoken: int) -> None:
        """One update on entries of up to `length` rows."""
        count = self._count(length)
        entry = torch.cat([self._some(spoken, num_spoken), self._some(timed, count - num_spoken)])
        live, auto = (torch.rand(count, device=self.device) < part for part in (LIVE, AUTO))
        batch = self.batches.rows(entry, live, auto, length)
        self.optimizer.zero_grad(set_to_none=True)
        with half_precision(self.device):
            hidden = read(self.model, batch, frames_to_read(self.model, batch))
            first, right = code_0_loss(self.model, hidden, batch, self.config.talker.eos_id)
            predicted = max(1, int(PREDICTED * num_spoken * length))
            rest = residual_loss(self.model, hidden, batch, predicted).sum()
        (first + rest).backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - AVERAGE)
        for name, value in (("first", first), ("rest", rest), ("right", right)):
            self.seen[name].copy_(value.detach())

    def captured(self, bucket: Bucket) -> CapturedStep:
        """The step of a bucket."""
        spoken, timed = _on(bucket.spoken, self.device), _on(bucket.timed, self.device)
        num_spoken = bucket.num_spoken(self._count(bucket.length))
        return CapturedStep(lambda: self.step(bucket.length, spoken, timed, num_spoken), self.device)

    def _count(self, length: int) -> int:
        return max(2, self.arguments.rows // length)

    def _some(self, entries: Tensor, count: int) -> Tensor:
        if not count:
            return entries[:0]
        return entries[torch.randint(len(entries), (count,), device=self.device)]

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Losses of the averaged weights on held-out speech, in both layouts.

        "first" and "right" are loss and accuracy of code 0 after true frames; "own" and "own_right" after frames whose
        codes 1 and up are the talker's.
        """
        self._swap()
        self.model.eval()
        found: dict[str, float] = {}
        for name, live in LAYOUTS.items():
            flags = torch.full((len(self.held_out),), live, device=self.device)
            batch = self.batches.rows(self.held_out, flags, torch.zeros_like(flags), LENGTHS[2])
            with half_precision(self.device):
                hidden = read(self.model, batch, batch.frames)
                first, right = code_0_loss(self.model, hidden, batch, self.config.talker.eos_id)
                rest = residual_loss(self.model, hidden, batch, None)
                hidden = read(self.model, batch, own_history(self.model, batch))
                own, own_right = code_0_loss(self.model, hidden, batch, self.config.talker.eos_id)
            found |= {f"{name}_first": float(first), f"{name}_right": float(right)}
            found |= {f"{name}_own": float(own), f"{name}_own_right": float(own_right)}
            found |= {f"{name}_{book + 1}": float(value) for book, value in enumerate(rest)}
        self.model.train()
        self._swap()
        return found

    @torch.no_grad()
    def by_frequency(self, count: int = 256) -> dict[str, float]:
        """Accuracy of code 0 with the averaged weights, by how often the frame's word occurs in the training texts."""
        self._swap()
        self.model.eval()
        right: dict[str, int] = {}
        total: dict[str, int] = {}
        for first in range(0, len(self.rare), count):
            some = self.rare[first : first + count]
            whole = torch.zeros(len(some), dtype=torch.bool, device=self.device)
            batch = self.batches.rows(some, whole, whole, LENGTHS[2])
            with half_precision(self.device):
                scores = self.model.codec_head(read(self.model, batch, batch.frames))[..., :CODE_0_SIZE]
            said = batch.following[..., 0] >= 0
            # Frames in pool order, which is also row order.
            starts, lengths = self.batches.entries[some, 2], self.batches.entries[some, 3]
            position = torch.cat(
                [torch.arange(a, a + n, device=a.device) for a, n in zip(starts, lengths, strict=True)]
            )
            hit = (scores.argmax(-1) == batch.target)[said].cpu().numpy()
            for name, chosen in classes(self.word_counts[position].cpu().numpy()).items():
                right[name] = right.get(name, 0) + int(hit[chosen].sum())
                total[name] = total.get(name, 0) + int(chosen.sum())
        self.model.train()
        self._swap()
        return {name: right[name] / total[name] for name in total if total[name]}

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
        steps = [self.captured(bucket) for bucket in self.buckets]
        spoken = [
            f"{bucket.num_spoken(self._count(bucket.length))}/{self._count(bucket.length)}" for bucket in self.buckets
        ]
        log(
            phase="data",
            parameters=str(sum(p.numel() for p in self.parameters)),
            shares=str(self.shares.round(2)),
            spoken=" ".join(spoken),
        )
        clock, number, logged = Clock(minutes), 0, 0.0
        while not clock.over and not best.is_stale(clock.part):
            set_learning_rate(self.optimizer, rate(PEAK_RATE, number, clock.part, floor=0.0))
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
        log(phase="done", step=number, best=best.score.value, **valid, **self.by_frequency())


def compared(valid: dict[str, float]) -> float:
    """The validation score for model selection; lower is better."""
    return sum(weight * valid[f"{layout}_{name}"] for layout in LAYOUTS for name, weight in SELECTION_WEIGHTS.items())


def buckets(pool: Pool, rows: np.ndarray) -> list[Bucket]:
    """The training entries by length; longer ones than the last of LENGTHS are left out."""
    made = []
    for low, length in zip((0, *LENGTHS), LENGTHS, strict=False):
        fits = ~pool.held_out & (rows > low) & (rows <= length)
        spoken, timed = np.nonzero(fits & pool.spoken)[0], np.nonzero(fits & ~pool.spoken)[0]
        if len(spoken) or len(timed):
            made.append(Bucket(length, spoken, timed))
    return made


def rare_held_out(pool: Pool, rows: np.ndarray, count: int = 2048) -> np.ndarray:
    """Held-out entries that are grouped by word frequency."""
    return np.nonzero(pool.held_out & pool.spoken & (rows <= LENGTHS[2]))[0][:count]


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


def add_dropout(model: Talker) -> None:
    """Add dropout to each residual branch by hooks; the served modules have none."""
    for stack, part in ((model.model, DROPOUT["talker"]), (model.code_predictor.model, DROPOUT["predictor"])):

        def drop(module: nn.Module, _: object, made: Tensor, part: float = part) -> Tensor:
            return F.dropout(made, part, module.training)

        for layer in stack.layers:
            assert isinstance(layer, TransformerLayer)
            layer.self_attn.register_forward_hook(drop)
            layer.mlp.register_forward_hook(drop)


def fuse_norms(model: Talker) -> None:
    """Compute RMS norms by one operation with a backward pass; a training step is limited by memory bandwidth."""
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.forward = partial(_norm, module)  # type: ignore[method-assign]
            module.add_and_norm = partial(_add_and_norm, module)  # type: ignore[method-assign]
        elif isinstance(module, Attention):
            module._norm_heads = partial(_norm_heads, module)  # type: ignore[method-assign]


def _norm(norm: RMSNorm, x: Tensor) -> Tensor:
    return F.rms_norm(x.to(norm.weight.dtype), norm.weight.shape, norm.weight, norm.eps)


def _add_and_norm(norm: RMSNorm, x: Tensor, residual: Tensor, scale: LayerScale | None = None) -> tuple[Tensor, Tensor]:
    assert scale is None
    total = residual + x
    return total, _norm(norm, total)


def _norm_heads(attention: Attention, qk: Tensor, queries: int, keys: int) -> Tensor:
    q, k = qk.split([queries, keys], dim=-2)
    assert isinstance(attention.q_norm, RMSNorm)
    assert isinstance(attention.k_norm, RMSNorm)
    return torch.cat([_norm(attention.q_norm, q), _norm(attention.k_norm, k)], dim=-2)


def load_talker(model: Talker, folder: Path) -> None:
    model.load_state_dict(load_parts(folder, "talker"))


def _on(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=6.5)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--validation", type=int, default=256)
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
