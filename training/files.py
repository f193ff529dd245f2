# SPDX-License-Identifier: Apache-2.0
"""Tensors in several files of limited size, NAME-0.safetensors and so on."""

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

FILE_BYTES = 15_000_000


def save_parts(tensors: dict[str, Tensor], folder: Path, name: str) -> None:
    """Write the tensors as float16, or in their own type if it is not float32; earlier files are replaced."""
    kept = {key: _narrow(value.detach()).cpu().contiguous() for key, value in tensors.items()}
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, value in kept.items():
        size += value.nbytes
        if size > FILE_BYTES and parts[-1]:
            parts.append({})
            size = value.nbytes
        parts[-1][key] = value
    for number, part in enumerate(parts):
        save_file(part, folder / f".{name}-{number}")
    written = [folder / f"{name}-{number}.safetensors" for number in range(len(parts))]
    for number, path in enumerate(written):  # replaced one by one: a killed process leaves no part missing
        (folder / f".{name}-{number}").replace(path)
    for path in set(folder.glob(f"{name}-*.safetensors")).difference(written):
        path.unlink()


def load_parts(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors that save_parts wrote, with half precision as float32; empty without files."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"{name}-*.safetensors")):
        found |= load_file(path)
    return {key: value.float() if value.is_floating_point() else value for key, value in found.items()}


def _narrow(value: Tensor) -> Tensor:
    return value.half() if value.element_size() == 4 and value.is_floating_point() else value
