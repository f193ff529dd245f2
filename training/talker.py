# SPDX-License-Identifier: Apache-2.0
"""Train talker and code predictor on the pool of texts and codes, in both text layouts.

    python -m training.talker --pool pool.npz --out DIR --minutes 6.5

--out receives the best weights so far (talker-*.safetensors) and talker.jsonl. A run that
finds weights there resumes from them. The learning rate falls to zero over --minutes; a run without improvement
ends early.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox import kernels
from polyvox.models.layers.mlp import MLP
from polyvox.models.layers.transformer import TransformerLayer
from polyvox.models.qwen3_tts.config import ModelConfig, parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batch, Batches, row_count
from training.files import load_parts, save_parts
from training.graph import CapturedStep, half_precision
from training.layout import CODE_0_SIZE, NUM_CODEBOOKS, RESIDUAL_SIZE, SAMPLING, initialise, voice_files
from training.losses import code_0_loss, read, residual_loss
from training.optimizer import adam, set_learning_rate, synchronize
from training.pool import Pool
from training.schedule import BestValue, Clock, Log, rate
from training.word_frequency import classes

ROWS = 24_576  # per step
LENGTHS = (64, 96, 144, 256)
LAYOUTS = {"whole": False, "live": True}
TIMED = 0.5  # share of a step's entries that have only code 0
LIVE, AUTO = 0.5, 0.25  # share of entries in the live layout; without a language
DROPOUT = {"talker": 0.1, "predictor": 0.1}
# Share of frames, of entries whose codes 2 and up are masked in the input. Code 1 stays: it has the phase.
MASKED_FRAMES, MASKED_ENTRIES = 0.25, 0.25
WRONG = (0.02, 0.01, 0.05)  # share of input codes 0, 1 and others that are replaced at random
OWN = 0.2  # share of input codes 0 that are the talker's own, drawn after the true ones
PREDICTED = 8_000  # frames per step on which the code predictor is trained
PEAK_RATE, AVERAGE, CLIP = 1.2e-3, 0.999, 1.0
BOOK_WEIGHTS = {"first": 1.0, "1": 0.5}  # for model selection: word errors depend on codes 0 and 1
MAX_STALE = 0.3  # share of a run without improvement after which it ends
LOG_SECONDS, CHECK = 20.0, 10


class TalkerTraining:
    def __init__(self, pool: Pool, config: ModelConfig, device: torch.device, arguments: argparse.Namespace) -> None:
        self.config, self.device, self.arguments = config, device, arguments
        self.batches = Batches(pool, config, device)
        self.model = Talker(config)
        initialise(self.model)
        scale_for_depth(self.model)
        self.model.to(device)
        add_dropout(self.model)
        self.parameters = list(self.model.parameters())
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = adam(self.parameters, PEAK_RATE, device, mean=0.9, decay=0.02)
        self.seen = {name: torch.zeros((), device=device) for name in ("first", "rest", "right")}
        self.wrong = torch.tensor([*WRONG[:2], *[WRONG[2]] * (NUM_CODEBOOKS - 2)], device=device)
        rows, usable = row_count(pool), ~pool.held_out
        self.choices: list[tuple[int, Tensor, Tensor]] = []
        shares = []
        for low, length in zip((0, *LENGTHS), LENGTHS, strict=False):
            fits = usable & (rows > low) & (rows <= length)
            spoken, timed = np.nonzero(fits & pool.spoken)[0], np.nonzero(fits & ~pool.spoken)[0]
            if len(spoken):
                timed = timed if len(timed) else spoken
                self.choices.append((length, _on(spoken, device), _on(timed, device)))
                shares.append(len(spoken) * length)
        self.shares = np.array(shares) / sum(shares)
        held_out = np.nonzero(pool.held_out & pool.spoken & (rows <= LENGTHS[2]))[0]
        self.held_out = _on(held_out[: arguments.validation], device)
        self.rare = _on(rare_held_out(pool, rows), device)
        self.word_counts = torch.from_numpy(pool.word_counts).to(device)

    def step(self, length: int, spoken: Tensor, timed: Tensor) -> None:
        """One update on entries of up to `length` rows."""
        count = max(2, self.arguments.rows // length)
        alone = int(TIMED * count)
        entry = torch.cat([self._some(spoken, count - alone), self._some(timed, alone)])
        live, auto = (torch.rand(count, device=self.device) < part for part in (LIVE, AUTO))
        batch = self.batches.rows(entry, live, auto, length)
        self.optimizer.zero_grad(set_to_none=True)
        with half_precision(self.device):
            hidden = read(self.model, batch, self._disturbed(self._with_own(batch)))
            first, right = code_0_loss(self.model, hidden, batch, self.config.talker.eos_id)
            rest = residual_loss(self.model, hidden, batch, min(PREDICTED, self.arguments.rows // 2)).sum()
        (first + rest).backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - AVERAGE)
        for name, value in (("first", first), ("rest", rest), ("right", right)):
            self.seen[name].copy_(value.detach())

    def _some(self, entries: Tensor, count: int) -> Tensor:
        return entries[torch.randint(len(entries), (count,), device=self.device)]

    @torch.no_grad()
    def _with_own(self, batch: Batch) -> Tensor:
        """Input frames, some with a code 0 that the talker draws after the true frames."""
        scores = self.model.codec_head(read(self.model, batch, batch.frames))[..., :CODE_0_SIZE].float()
        noise = torch.rand_like(scores).clamp(min=1e-9).log().neg().log()  # of a Gumbel distribution, negative
        own = (scores - noise).argmax(-1).roll(1, 1)
        chosen = (torch.rand(own.shape, device=self.device) < OWN) & (batch.frames[..., 0] >= 0)
        return torch.cat([torch.where(chosen, own, batch.frames[..., 0])[..., None], batch.frames[..., 1:]], -1)

    def _disturbed(self, frames: Tensor) -> Tensor:
        """Input frames with the errors of inference: some codes replaced, some masked."""
        chance = torch.rand(frames.shape, device=self.device)
        other = torch.randint(RESIDUAL_SIZE, frames.shape, device=self.device)
        other[..., 0] = torch.randint(CODE_0_SIZE, frames.shape[:-1], device=self.device)
        frames = torch.where((chance < self.wrong) & (frames >= 0), other, frames)
        masked_entry = torch.rand(len(frames), 1, device=self.device) < MASKED_ENTRIES
        masked = masked_entry | (torch.rand(frames.shape[:2], device=self.device) < MASKED_FRAMES)
        rest = torch.where(masked[..., None], -1, frames[..., 2:])
        return torch.cat([frames[..., :2], rest], -1)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Losses of the averaged weights on held-out speech, in both layouts."""
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
            found |= {f"{name}_first": float(first), f"{name}_right": float(right)}
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
        log, best = Log(out / "talker.jsonl"), BestValue(MAX_STALE)
        if (out / "talker-0.safetensors").exists():
            load_talker(self.model, out)
            self.average = [parameter.detach().clone() for parameter in self.parameters]
            best = BestValue(max_stale=1.0)  # with a high rate again, the first improvement comes late
            best.improved(compared(self.validate()), 0.0)
        pick = np.random.default_rng(1)
        steps = [CapturedStep(lambda c=choice: self.step(*c), self.device) for choice in self.choices]  # type: ignore[misc]
        log(phase="captured", parameters=str(sum(p.numel() for p in self.parameters)), shares=str(self.shares.round(2)))
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
                    if best.improved(compared(valid), clock.part):
                        self.save(out)
        valid = self.validate()
        if best.improved(compared(valid), clock.part):
            self.save(out)
        log(phase="done", step=number, best=best.value, **valid, **self.by_frequency())


def compared(valid: dict[str, float]) -> float:
    """The validation score for model selection; lower is better."""
    return sum(weight * valid[f"{layout}_{name}"] for layout in LAYOUTS for name, weight in BOOK_WEIGHTS.items())


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
