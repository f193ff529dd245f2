# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders: local ones, and those of the Hugging Face hub."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from polyvox.errors import CheckpointError, InvalidRequest

# The ids that the hub allows: no double dashes or dots, no .git at the end.
HUB_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][\w.-]*/(?!.*\.git$)[A-Za-z0-9][\w.-]*", re.ASCII)
HUB_FILES = ["*.json", "merges.txt", "speech_tokenizer/*.json"]
ALL_WEIGHTS = ["*.safetensors", "speech_tokenizer/*.safetensors"]

# choose(folder with the other files) -> the patterns of the weight files to download
ChooseWeights = Callable[[Path], list[str]]


def shown_name(folder: Path, name: str | Path) -> str:
    """How a checkpoint that was requested by this name is shown: of a path only the last part, the rest is private."""
    return folder.resolve().name if Path(name).expanduser().is_dir() else str(name)


def find_local(path_or_id: str | Path) -> Path | None:
    """The local folder of a checkpoint; None for a hub id. Raises CheckpointError for anything else."""
    if not isinstance(path_or_id, str | Path):
        raise InvalidRequest("model", path_or_id, "must be a folder or a hub id")
    name = str(path_or_id)
    folder = Path(os.path.expanduser(name))  # unlike Path.expanduser, does not raise for an unknown user
    if name and folder.is_dir():
        return folder
    if not HUB_ID.fullmatch(name) or folder.exists():
        raise CheckpointError(f"{name!r} is neither a folder nor a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-Base")
    return None


def find_checkpoint(path_or_id: str | Path, choose: ChooseWeights = lambda _: ALL_WEIGHTS) -> Path:
    """The folder of a checkpoint: a local folder, or a hub id that is downloaded unless the hub's cache has it."""
    if (folder := find_local(path_or_id)) is not None:
        return folder
    name = str(path_or_id)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, allow_patterns=HUB_FILES))
        return Path(snapshot_download(name, allow_patterns=[*HUB_FILES, *choose(folder)]))
    except RepositoryNotFoundError:
        raise CheckpointError(f"{name!r} is not on the hub, or requires a token (hf auth login)") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        if isinstance(error, LocalEntryNotFoundError) and not isinstance(error.__cause__, HfHubHTTPError):
            raise _unreachable(name) from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{name!r} is not a local folder, not in the hub's cache, and cannot be downloaded: {reason}"
        ) from None


def _unreachable(name: str) -> CheckpointError:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        reason, fix = "HF_HUB_OFFLINE is set, and the hub's cache does not have it", "Unset HF_HUB_OFFLINE"
    else:
        reason, fix = f"{urlsplit(constants.ENDPOINT).hostname} cannot be reached", "Check the network or HF_ENDPOINT"
    return CheckpointError(f"Cannot download {name}: {reason}. {fix}, or pass a local folder as the model.")
