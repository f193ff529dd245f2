"""Checkpoints: finding the folder, and its tensors straight into the model's memory, all of them or none."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyvox.errors import CheckpointError
from polyvox.models.qwen3_tts.config import ModelConfig, read_config
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.transformer import file_tensors

# What a checkpoint also holds and speaking does not need: the encoders that turn a recording into a voice.
ENCODERS = ("speaker_encoder.", "encoder.")

HUB_FILES = [
    "*.json",
    "merges.txt",
    "*.safetensors",
    "speech_tokenizer/*.json",
    "speech_tokenizer/*.safetensors",
]


def find_checkpoint(path_or_id: str | Path) -> Path:
    """A local folder as it is; otherwise a hub id, from the hub's cache or, unless it is switched off, the hub."""
    folder = Path(path_or_id).expanduser()
    if folder.is_dir():
        return folder
    name = str(path_or_id)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or folder.exists():
        raise CheckpointError(f"{name!r} is neither a folder nor a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-Base")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except RepositoryNotFoundError:
        raise CheckpointError(f"{name!r} is not on the hub, or needs a token (hf auth login)") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{name!r} is not a folder here, not in the hub's cache, and cannot be fetched: {reason}"
        ) from None


def load_model(folder: Path, device: torch.device, dtype: torch.dtype, progress: bool = False) -> Qwen3TTS:
    """The model of a checkpoint folder; a missing, extra or misshapen tensor is an error with its name."""
    model = empty_model(read_config(folder), device, dtype)
    parts = [
        (_weight_files(folder), file_tensors(model.talker, "talker.")),
        (_weight_files(folder / "speech_tokenizer"), file_tensors(model.codec, "decoder.")),
    ]
    total = sum(path.stat().st_size for paths, _ in parts for path in paths)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not progress) as bar:
        task = bar.add_task("Loading weights", total=total)
        for paths, wanted in parts:
            for size in _fill(paths, wanted, device):
                bar.advance(task, size)
    return model


def empty_model(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Qwen3TTS:
    """A model with memory but no values. The codec keeps at least float32, the type of its file."""
    with torch.device("meta"):
        model = Qwen3TTS(config)
    model.talker.to(dtype)
    model.codec.to(torch.promote_types(dtype, torch.float32))
    return model.to_empty(device=device).eval().requires_grad_(False)


def _weight_files(folder: Path) -> list[Path]:
    whole = folder / "model.safetensors"
    paths = [whole] if whole.is_file() else sorted(folder.glob("model-*-of-*.safetensors"))
    if not paths:
        raise CheckpointError(f"{whole} is missing; Polyvox reads safetensors")
    return paths


def _fill(paths: list[Path], wanted: Mapping[str, Tensor], device: torch.device) -> Iterator[int]:
    """Copies every wanted tensor from the files, yielding its size in the file; checks names and shapes first."""
    with ExitStack() as stack:
        found: dict[str, safe_open] = {}
        for path in paths:
            try:
                file = stack.enter_context(safe_open(path, framework="pt", device=str(device)))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is damaged or not safetensors: {error}") from None
            found |= dict.fromkeys(file.keys(), file)
        names = {name for name in found if not name.startswith(ENCODERS)}
        where = paths[0] if len(paths) == 1 else paths[0].parent
        for problem, group in (("missing", wanted.keys() - names), ("not known", names - wanted.keys())):
            if group:
                first = min(group)
                shape = list(wanted[first].shape) if first in wanted else found[first].get_slice(first).get_shape()
                raise CheckpointError(
                    f"{where}: tensor {first} {shape} is {problem} ({len(group)} such); expected are the "
                    f"{len(wanted)} tensors of a Qwen3-TTS checkpoint with these config files"
                )
        for name, target in wanted.items():
            shape = found[name].get_slice(name).get_shape()
            if shape != list(target.shape):
                raise CheckpointError(
                    f"{where}: tensor {name} has shape {shape}; the config files want {list(target.shape)}"
                )
        for name, target in wanted.items():
            value = found[name].get_tensor(name)
            if not value.is_floating_point():
                raise CheckpointError(f"{where}: tensor {name} is {value.dtype}; supported are floating types")
            target.copy_(value)
            yield value.nbytes
