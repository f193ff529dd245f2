# SPDX-License-Identifier: Apache-2.0
"""Loads the tensors of a checkpoint into the model's memory, all of them or none."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyvox import progress
from polyvox.errors import CheckpointError
from polyvox.models.qwen3_tts.config import ModelConfig, read_config
from polyvox.models.qwen3_tts.model import Qwen3TTS

# Prefixes of the encoders' tensors. Every codec file has a codec encoder, but only Base models can clone, so only they
# load it (250 MB): at once and not on first use, when memory may be short and the files may have changed.
ENCODERS = ("speaker_encoder.", "encoder.")


def load_weights(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    vocoder_device: torch.device | None = None,
) -> Qwen3TTS:
    """Loads a checkpoint folder; raises CheckpointError that names a missing, unknown or misshapen tensor.

    Names and shapes are compared before memory is allocated.
    """
    config = read_config(folder)
    with ExitStack() as stack:
        skipped = () if config.encoders else ENCODERS
        files = [_open(part, stack, device, skipped) for part in (folder, folder / "speech_tokenizer")]
        with torch.device("meta"):
            expected = Qwen3TTS(config).files()
        for found, wanted in zip(files, expected, strict=True):
            _compare(found, wanted)
        try:
            model = empty_model(config, device, dtype, vocoder_device)
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"{folder}: not enough memory on {device} for this model: {error}") from None
        done, total = 0, sum(path.stat().st_size for found in files for path in found.paths)
        for found, wanted in zip(files, model.files(), strict=True):
            for size in _fill(found, wanted):
                done += size
                progress.report("load", done, total)
        progress.report("load", total, total)  # the headers of the files are not tensors
    return model


def empty_model(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, vocoder_device: torch.device | None = None
) -> Qwen3TTS:
    """A model with uninitialised weights. Codec and encoders keep at least float32, the type of their file.

    On a GPU with a 16-bit dtype the codec's layers are float16, which loses 18 dB less than bfloat16. On a GPU the text
    embedding, of which a request needs a few rows and which is a third of the 0.6B model, stays on the host.
    """
    vocoder_device = vocoder_device or device
    with torch.device("meta"):
        model = Qwen3TTS(config)
    model.talker.to(dtype)
    for part in (model.codec, model.encoders):
        if part is not None:
            part.to(torch.promote_types(dtype, torch.float32))
    if vocoder_device.type == "cuda" and dtype.itemsize < torch.float32.itemsize:
        model.codec.narrow(torch.float16)
    model.to_empty(device=device)
    if vocoder_device != device:
        model.codec.to_empty(device=vocoder_device)
    if device.type == "cuda":
        model.talker.model.text_embedding.to_empty(device="cpu")
    return model.eval().requires_grad_(False)


@dataclass(frozen=True, slots=True)
class _WeightFiles:
    """The tensors of one set of weight files by name."""

    paths: list[Path]
    files: dict[str, safe_open]

    @property
    def location(self) -> Path:
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent

    def shape(self, name: str) -> list[int]:
        return list(self.files[name].get_slice(name).get_shape())


def _open(folder: Path, stack: ExitStack, device: torch.device, skipped: tuple[str, ...]) -> _WeightFiles:
    single = folder / "model.safetensors"
    paths = [single] if single.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not paths:
        raise CheckpointError(f"{single} is missing; Polyvox reads safetensors")
    files: dict[str, safe_open] = {}
    for path in paths:
        try:
            file = stack.enter_context(safe_open(path, framework="pt", device=str(device)))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or not safetensors: {error}") from None
        files |= {name: file for name in file.keys() if not name.startswith(skipped)}  # noqa: SIM118
    return _WeightFiles(paths, files)


def _compare(found: _WeightFiles, wanted: Mapping[str, Tensor]) -> None:
    """Raises unless the files have the names and shapes that the config files imply."""
    names = found.files.keys()
    for problem, group in (("missing", wanted.keys() - names), ("not known", names - wanted.keys())):
        if group:
            first = min(group)
            shape = list(wanted[first].shape) if first in wanted else found.shape(first)
            raise CheckpointError(
                f"{found.location}: tensor {first} {shape} is {problem} ({len(group)} such); expected are the "
                f"{len(wanted)} tensors of a Qwen3-TTS checkpoint with these config files"
            )
    for name, target in wanted.items():
        if found.shape(name) != list(target.shape):
            raise CheckpointError(
                f"{found.location}: tensor {name} has shape {found.shape(name)}; "
                f"the config files require {list(target.shape)}"
            )


def _fill(found: _WeightFiles, wanted: Mapping[str, Tensor]) -> Iterator[int]:
    """Copies every tensor to the model and yields its size in the file."""
    for name, target in wanted.items():
        value = found.files[name].get_tensor(name)
        if not value.is_floating_point():
            raise CheckpointError(f"{found.location}: tensor {name} is {value.dtype}; supported are floating types")
        target.copy_(value)
        if not torch.isfinite(target).all():
            raise CheckpointError(f"{found.location}: tensor {name} has NaN or infinity; the file is damaged")
        yield value.nbytes
