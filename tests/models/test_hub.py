# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the hub that cannot be downloaded."""

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from polyvox.errors import CheckpointError
from polyvox.models.hub import find_checkpoint

NAME = "Qwen/Qwen3-TTS-12Hz-1.7B-Base"


def download_error(monkeypatch: pytest.MonkeyPatch) -> str:
    def fail(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("Got: ConnectError") from ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError) as error:
        find_checkpoint(NAME)
    return str(error.value)


def test_without_a_network_the_error_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example.com/models")
    assert download_error(monkeypatch) == (
        f"Cannot download {NAME}: hub.example.com cannot be reached. "
        "Check the network or HF_ENDPOINT, or pass a local folder as the model."
    )


def test_in_offline_mode_the_error_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download_error(monkeypatch) == (
        f"Cannot download {NAME}: HF_HUB_OFFLINE is set, and the hub's cache does not have it. "
        "Unset HF_HUB_OFFLINE, or pass a local folder as the model."
    )
