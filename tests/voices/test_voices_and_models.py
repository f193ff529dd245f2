# SPDX-License-Identifier: Apache-2.0
"""Library voices and the models they are for."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import Loaded
from polyvox.errors import InvalidRequest, UnknownVoice, VoiceLibraryError
from polyvox.models.qwen3_tts.config import read_config
from polyvox.models.qwen3_tts.identity import read_identity
from polyvox.models.request import ClonedVoice
from polyvox.tts import TTS, load
from polyvox.voices import VoiceLibrary


@pytest.fixture
def base(checkpoints: Path, tmp_path: Path) -> TTS:
    return load(checkpoints / "base", "cpu", voices=VoiceLibrary(tmp_path / "voices"))


def recording(frames: int = 12) -> ClonedVoice:
    rng = np.random.default_rng(frames)
    vector = rng.standard_normal(48).astype(np.float32)
    return ClonedVoice(vector, rng.integers(0, 64, (frames, 6)), "hello there")


def test_a_base_model_speaks_with_a_library_voice_by_name(base: TTS) -> None:
    assert base.library is not None
    assert base.identity is not None
    voice = recording()
    base.library.add("Anna", voice, base.identity)
    assert base.voices == ["Anna"]
    direct = base.say("hello", voice, seed=1, max_frames=9)
    by_name = base.say("hello", "ANNA", seed=1, max_frames=9)
    streamed = np.concatenate(list(base.stream("hello", base.library.get("anna").id, seed=1, max_frames=9)))
    assert np.array_equal(direct.samples, by_name.samples)
    assert np.allclose(direct.samples, streamed, atol=1e-4)


def test_the_error_for_an_unknown_voice_lists_the_voices_for_the_model(base: TTS) -> None:
    assert base.library is not None
    assert base.identity is not None
    with pytest.raises(UnknownVoice, match=r"no voice for this model \(got 'anna'\)"):
        base.stream("hello", "anna")
    with pytest.raises(InvalidRequest, match=r"no voice for this model \(got None\)"):
        base.stream("hello")
    base.library.add("bob", recording(), base.identity)
    for voice in ("anna", None):
        with pytest.raises(InvalidRequest, match="must be one of bob"):
            base.stream("hello", voice)


def test_a_voice_of_another_model_is_rejected_with_both_names(base: TTS, checkpoints: Path, tmp_path: Path) -> None:
    assert base.library is not None
    assert base.identity is not None
    base.library.add("anna", recording(), base.identity)
    folder = shutil.copytree(checkpoints / "base", tmp_path / "Other-Base")
    codec = load_file(folder / "speech_tokenizer/model.safetensors")
    codec["decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum"] *= 2
    save_file(codec, folder / "speech_tokenizer/model.safetensors")
    other = load(folder, "cpu", voices=base.library)
    assert other.voices == []
    with pytest.raises(
        InvalidRequest, match=r"a voice for Other-Base \(base-.* this voice is for base \(base-.*'anna'"
    ):
        other.stream("hello", "anna")


def test_models_with_built_in_voices_reject_library_voices(base: TTS, checkpoints: Path) -> None:
    assert base.library is not None
    assert base.identity is not None
    base.library.add("anna", recording(), base.identity)
    base.library.add("Serena", recording(), base.identity)
    custom = load(checkpoints / "custom_voice", "cpu", voices=base.library)
    assert "anna" not in custom.voices
    with pytest.raises(InvalidRequest, match="of custom_voice, which cannot clone; this voice is for base"):
        custom.stream("hello", "anna")
    with pytest.raises(UnknownVoice, match="must be one of serena, eric, vivian"):
        custom.stream("hello", "bob")
    assert custom.say("hello", "Serena", max_frames=3).seconds > 0  # the built-in voice has precedence


def test_the_fingerprint_covers_what_voices_depend_on(checkpoints: Path, tmp_path: Path) -> None:
    def identity(folder: Path) -> str:
        return read_identity(folder, read_config(folder), folder).fingerprint

    first = identity(checkpoints / "base")
    assert first.startswith("base-48-6x64-")
    folder = shutil.copytree(checkpoints / "base", tmp_path / "copy")
    weights = load_file(folder / "model.safetensors")
    # Fine-tuning and another dtype keep the fingerprint.
    weights["talker.model.norm.weight"] *= 2
    codec = load_file(folder / "speech_tokenizer/model.safetensors")
    save_file(weights, folder / "model.safetensors")
    save_file(
        {name: value.to(torch.float64) for name, value in codec.items()}, folder / "speech_tokenizer/model.safetensors"
    )
    assert identity(folder) == first
    weights["speaker_encoder.fc.weight"] = torch.ones(3)
    save_file(weights, folder / "model.safetensors")
    assert identity(folder) != first


def test_the_identity_has_the_requested_name(loaded: Loaded, checkpoints: Path) -> None:
    config = read_config(checkpoints / "base")
    for name in ("Qwen/Qwen3-TTS-12Hz-1.7B-Base", "embedded"):
        assert read_identity(checkpoints / "base", config, name).name == name
    identity = loaded("base", "float32").identity
    assert identity is not None
    assert identity.name == "base"


def test_built_in_voices_work_without_a_usable_library(checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "voices").write_text("a file")
    library = VoiceLibrary(tmp_path / "voices")
    custom = load(checkpoints / "custom_voice", "cpu", voices=library)
    assert custom.voices == ["serena", "eric", "vivian"]
    assert custom.say("hello", "eric", max_frames=3).seconds > 0
    with pytest.raises(VoiceLibraryError):
        load(checkpoints / "base", "cpu", voices=library).stream("hello", "anna")
