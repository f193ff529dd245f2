"""Checkpoints: finding the folder, and its tensors straight into the model's memory, all of them or none."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyvox.errors import CheckpointError
from polyvox.models.qwen3_tts.config import ModelConfig, read_config
from polyvox.models.qwen3_tts.model import Qwen3TTS

# The encoders that turn a recording into a voice. Every codec file has one; only Base models clone, so that only they
# load it (250 MB): at once and not when it is first used, as memory may be gone by then and files may have changed.
ENCODERS = ("speaker_encoder.", "encoder.")


def load_weights(folder: Path, device: torch.device, dtype: torch.dtype, progress: bool = False) -> Qwen3TTS:
    """The model of a checkpoint folder; a missing, extra or misshapen tensor is an error with its name.

    Names and shapes are compared before any memory is taken.
    """
    config = read_config(folder)
    with ExitStack() as stack:
        passed_over = () if config.encoders else ENCODERS
        files = [_open(place, stack, device, passed_over) for place in (folder, folder / "speech_tokenizer")]
        with torch.device("meta"):
            expected = Qwen3TTS(config).files()
        for found, wanted in zip(files, expected, strict=True):
            _compare(found, wanted)
        try:
            model = empty_model(config, device, dtype)
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"{folder}: not enough memory on {device} for this model: {error}") from None
        total = sum(path.stat().st_size for found in files for path in found.paths)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not progress) as bar:
            task = bar.add_task("Loading weights", total=total)
            for found, wanted in zip(files, model.files(), strict=True):
                for size in _fill(found, wanted):
                    bar.advance(task, size)
    return model


def empty_model(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Qwen3TTS:
    """A model with memory but no values. Codec and encoders keep at least float32, the type of their file.

    On a GPU with a narrow type the codec's layers are float16, which loses 18 dB less than bfloat16; and the table of
    text, of which a request needs a few rows and which is a third of the 0.6B model, stays with the host.
    """
    with torch.device("meta"):
        model = Qwen3TTS(config)
    model.talker.to(dtype)
    for part in (model.codec, model.encoders):
        if part is not None:
            part.to(torch.promote_types(dtype, torch.float32))
    if device.type == "cuda" and dtype.itemsize < torch.float32.itemsize:
        model.codec.narrow(torch.float16)
    model.to_empty(device=device)
    if device.type == "cuda":
        model.talker.model.text_embedding.to_empty(device="cpu")
    return model.eval().requires_grad_(False)


@dataclass(frozen=True, slots=True)
class _Found:
    """The tensors of one set of weight files, by name, and where they are."""

    paths: list[Path]
    files: dict[str, safe_open]

    @property
    def where(self) -> Path:
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent

    def shape(self, name: str) -> list[int]:
        return list(self.files[name].get_slice(name).get_shape())


def _open(folder: Path, stack: ExitStack, device: torch.device, passed_over: tuple[str, ...]) -> _Found:
    whole = folder / "model.safetensors"
    paths = [whole] if whole.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not paths:
        raise CheckpointError(f"{whole} is missing; Polyvox reads safetensors")
    files: dict[str, safe_open] = {}
    for path in paths:
        try:
            file = stack.enter_context(safe_open(path, framework="pt", device=str(device)))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or not safetensors: {error}") from None
        files |= {name: file for name in file.keys() if not name.startswith(passed_over)}  # noqa: SIM118
    return _Found(paths, files)


def _compare(found: _Found, wanted: Mapping[str, Tensor]) -> None:
    """Names and shapes must be those that the config files lead to."""
    names = found.files.keys()
    for problem, group in (("missing", wanted.keys() - names), ("not known", names - wanted.keys())):
        if group:
            first = min(group)
            shape = list(wanted[first].shape) if first in wanted else found.shape(first)
            raise CheckpointError(
                f"{found.where}: tensor {first} {shape} is {problem} ({len(group)} such); expected are the "
                f"{len(wanted)} tensors of a Qwen3-TTS checkpoint with these config files"
            )
    for name, target in wanted.items():
        if found.shape(name) != list(target.shape):
            raise CheckpointError(
                f"{found.where}: tensor {name} has shape {found.shape(name)}; "
                f"the config files want {list(target.shape)}"
            )


def _fill(found: _Found, wanted: Mapping[str, Tensor]) -> Iterator[int]:
    """Copies every tensor to its place, yielding its size in the file."""
    for name, target in wanted.items():
        value = found.files[name].get_tensor(name)
        if not value.is_floating_point():
            raise CheckpointError(f"{found.where}: tensor {name} is {value.dtype}; supported are floating types")
        target.copy_(value)
        if not torch.isfinite(target).all():
            raise CheckpointError(f"{found.where}: tensor {name} holds NaN or infinity; the file is damaged")
        yield value.nbytes
