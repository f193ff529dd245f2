# SPDX-License-Identifier: Apache-2.0
"""The safetensors files of a checkpoint: names and shapes are compared before any tensor is read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyvox import progress
from polyvox.errors import CheckpointError

# Experts are stored one by one, or stacked: [experts, 2 · inner, hidden] and [experts, hidden, inner].
STACKED_GATE_UP, STACKED_DOWN = ".experts.gate_up_proj", ".experts.down_proj"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file, or a part of it."""

    file: safe_open
    name: str
    shape: tuple[int, ...]
    part: tuple[int | slice, ...] = ()

    def read(self) -> Tensor:
        return self.file.get_slice(self.name)[self.part] if self.part else self.file.get_tensor(self.name)


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The tensors of one set of weight files by name."""

    paths: list[Path]
    tensors: dict[str, StoredTensor]

    @property
    def location(self) -> Path:
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent

    def compare(self, wanted: Mapping[str, Tensor], family: str) -> None:
        """Raises unless the files have the names and shapes that the config files imply."""
        names = self.tensors.keys()
        for problem, group in (("missing", wanted.keys() - names), ("not known", names - wanted.keys())):
            if group:
                first = min(group)
                shape = list(wanted[first].shape if first in wanted else self.tensors[first].shape)
                raise CheckpointError(
                    f"{self.location}: tensor {first} {shape} is {problem} ({len(group)} such); expected are the "
                    f"{len(wanted)} tensors of a {family} checkpoint with these config files"
                )
        for name, target in wanted.items():
            if self.tensors[name].shape != tuple(target.shape):
                raise CheckpointError(
                    f"{self.location}: tensor {name} has shape {list(self.tensors[name].shape)}; "
                    f"the config files require {list(target.shape)}"
                )


def open_weights(folder: Path, stack: ExitStack, device: torch.device, wanted: Callable[[str], bool]) -> WeightFiles:
    """The files of a folder; of their tensors those with a wanted name."""
    single = folder / "model.safetensors"
    paths = [single] if single.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not paths:
        raise CheckpointError(f"{single} is missing; Polyvox reads safetensors")
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        try:
            file = stack.enter_context(safe_open(path, framework="pt", device=str(device)))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or not safetensors: {error}") from None
        for name in file.keys():  # noqa: SIM118
            if wanted(name):
                shape = tuple(file.get_slice(name).get_shape())
                tensors |= _unstacked(StoredTensor(file, name, shape))
    return WeightFiles(paths, tensors)


def fill(parts: Iterable[tuple[WeightFiles, Mapping[str, Tensor]]]) -> None:
    """Copies every tensor to the model and reports progress."""
    parts = list(parts)
    done = 0
    total = sum(target.numel() for _, wanted in parts for target in wanted.values())
    progress.report("load", 0, total)
    for found, wanted in parts:
        for size in _copy(found, wanted):
            done += size
            progress.report("load", done, total)


def _copy(found: WeightFiles, wanted: Mapping[str, Tensor]) -> Iterator[int]:
    """Copies every tensor and yields its number of elements."""
    for name, target in wanted.items():
        value = found.tensors[name].read()
        if not value.is_floating_point():
            raise CheckpointError(f"{found.location}: tensor {name} is {value.dtype}; supported are floating types")
        target.copy_(value)
        # Of a model on a GPU the text embedding is on the host, where this would take half a second.
        checked = value if value.is_cuda and not target.is_cuda else target
        if not torch.isfinite(checked).all():
            raise CheckpointError(f"{found.location}: tensor {name} has NaN or infinity; the file is damaged")
        yield target.numel()


def _unstacked(stored: StoredTensor) -> dict[str, StoredTensor]:
    """Stacked experts as one tensor per expert and matrix; anything else as it is."""
    name, shape = stored.name, stored.shape
    if len(shape) != 3 or not name.endswith((STACKED_GATE_UP, STACKED_DOWN)):
        return {name: stored}
    prefix, count = name.rpartition(".")[0], shape[0]
    if name.endswith(STACKED_DOWN):
        parts = {"down_proj": slice(0, shape[1])}
    else:
        half = shape[1] // 2
        parts = {"gate_proj": slice(0, half), "up_proj": slice(half, shape[1])}
    return {
        f"{prefix}.{index}.{matrix}.weight": StoredTensor(
            stored.file, name, (rows.stop - rows.start, shape[2]), (index, rows)
        )
        for index in range(count)
        for matrix, rows in parts.items()
    }
