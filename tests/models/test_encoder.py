# SPDX-License-Identifier: Apache-2.0
"""Codes, speaker vector and cloned speech of a recording equal those of the reference implementation."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from conftest import Loaded, LoadedTTS
from parity import TOLERANCE, golden, relative_error
from polyvox.models.layers.linear import checkpoint_tensors
from polyvox.models.qwen3_tts import codec_encoder as encoder_code
from polyvox.models.qwen3_tts import speaker_encoder as speaker_code
from polyvox.models.qwen3_tts.checkpoint import empty_model
from polyvox.models.qwen3_tts.cloning import Cloner
from polyvox.models.qwen3_tts.codec_encoder import EncoderQuantizer, EncoderQuantizerLayer, PaddedConv
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.model import Encoders
from polyvox.models.qwen3_tts.speaker_encoder import mel_bank, mel_spectrogram
from polyvox.models.qwen3_tts.synthetic import Size, published_files
from polyvox.models.request import ClonedVoice
from polyvox.models.talker_generator import TalkerGeneratorState
from reference.cases import CLONES, CODED_RECORDINGS, FRAMES, LATENTS_OF, MEL_OF, RECORDINGS, Clone
from reference.signals import signal

pytestmark = pytest.mark.slow

DTYPES = ("float32", "float64")
VECTOR_TOLERANCE = {"float32": 1e-5, "float64": 1e-9}


def encoders_of(tts: LoadedTTS) -> Encoders:
    assert tts.model.model.encoders is not None
    return tts.model.model.encoders


def row(tts: LoadedTTS, kind: str, count: int) -> Tensor:
    return torch.from_numpy(signal(kind, count)).to(encoders_of(tts).speaker.fc.weight)[None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recording", [*RECORDINGS, *CODED_RECORDINGS])
def test_a_recording_has_the_codes_of_the_reference(recording: tuple[str, int], dtype: str, loaded: Loaded) -> None:
    kind, count = recording
    expected = golden("encoders", dtype)[f"codes.{kind}.{count}"]
    if len(expected) >= 200:
        assert min(len(np.unique(codes)) for codes in expected.T) >= 24  # a golden that says something
    np.testing.assert_array_equal(loaded("base", dtype).model.cloner.codes(signal(kind, count)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_recording_has_the_vector_of_the_reference(recording: tuple[str, int], dtype: str, loaded: Loaded) -> None:
    kind, count = recording
    expected = golden("encoders", dtype)[f"vector.{kind}.{count}"]
    tts = loaded("base", dtype)
    assert relative_error(encoders_of(tts).speaker(row(tts, kind, count))[0], expected) < VECTOR_TOLERANCE[dtype]


def test_the_reference_vectors_of_recordings_differ() -> None:
    expected = golden("encoders", "float32")
    vectors = [expected[f"vector.{kind}.{count}"] for kind, count in RECORDINGS]
    for i, vector in enumerate(vectors):
        for other in vectors[:i]:
            assert relative_error(vector, other) > 100 * VECTOR_TOLERANCE["float32"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_latents_and_mel_bands_are_those_of_the_reference(dtype: str, loaded: Loaded) -> None:
    tts, expected = loaded("base", dtype), golden("encoders", dtype)
    assert (
        relative_error(encoders_of(tts).codec.latents(row(tts, *LATENTS_OF))[0], expected["latents"])
        < (VECTOR_TOLERANCE[dtype])
    )
    assert relative_error(mel_spectrogram(row(tts, *MEL_OF))[0], expected["mel"]) < VECTOR_TOLERANCE[dtype]


def test_the_mel_filters_are_bit_identical_to_librosa() -> None:
    bank = golden("encoders", "float32")["bank"]
    assert bank.shape == (128, 513)
    np.testing.assert_array_equal(mel_bank(), bank)


def voice_of(tts: LoadedTTS, case: Clone) -> ClonedVoice:
    """The voice as the reference implementation clones it: without trimming and without a pause."""
    samples, cloner = signal(*case.recording), tts.model.cloner
    codes = None if case.transcript is None else cloner.codes(samples)
    return ClonedVoice(cloner.vector(samples), codes, case.transcript)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CLONES, ids=lambda case: case.name)
def test_speech_cloned_from_a_recording_equals_the_reference(
    case: Clone, dtype: str, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From samples to samples through the engine, compared with generate_voice_clone."""
    tts, expected = loaded("base", dtype), golden(f"clone-{case.name}", dtype)
    voice = voice_of(tts, case)
    if case.transcript is not None:
        assert voice.codes is not None
        np.testing.assert_array_equal(voice.codes, expected["reference0"])
    assert tts.engine.stats()["streams"] == 0  # started, so that its own measurements are not recorded
    spoken: list[NDArray[Any]] = []
    frame = TalkerGeneratorState.frame

    def record(state: TalkerGeneratorState, slots: Tensor, *rest: Any) -> Tensor:
        at = state.frame_index[slots] % state.codes.shape[1]
        flags = frame(state, slots, *rest)
        spoken.append(state.codes[slots, at][0].cpu().numpy())
        return flags

    monkeypatch.setattr(TalkerGeneratorState, "frame", record)
    greedy = replace(tts.model.config.sampling, temperature=0.0, predictor_temperature=0.0)
    audio = tts.say(case.text, voice, case.language, layout="streaming", sampling=greedy, max_frames=FRAMES)
    frames = len(expected["codes0"])
    np.testing.assert_array_equal(np.stack(spoken)[:frames], expected["codes0"])
    # Cut after exactly as many samples as the recording's frames have, where the package may be one early.
    assert len(audio.samples) == frames * tts.model.vocoder.samples_per_frame
    early = len(expected["audio0"]) - len(audio.samples)
    assert early == (case.name == "icl-early-cut")
    assert relative_error(audio.samples, expected["audio0"][early:]) < TOLERANCE["float32"]


@pytest.mark.parametrize("count", [48, 100, 1_001, 2_400])
def test_appended_samples_change_no_earlier_frame(count: int, loaded: Loaded) -> None:
    cloner = loaded("base", "float64").model.cloner
    samples = signal("vowels", 4_800)
    whole = count // 48
    np.testing.assert_array_equal(cloner.codes(samples[:count])[:whole], cloner.codes(samples)[:whole])


# Each of these breaks one rule; a parity test that still passes would not test it.

Modification = Callable[[Encoders], AbstractContextManager[object]]


def patched(target: object, name: str, value: object) -> Modification:
    return lambda _encoders: mock.patch.object(target, name, value)


def padded_late(self: PaddedConv, x: Tensor) -> Tensor:
    """Padding of the last stride on the left."""
    mode = "replicate" if self.edges else "constant"
    return self.conv(F.pad(x, (self.before + -x.shape[-1] % self.stride, 0), mode))


def windowed(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The window of the config file."""
    ages = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(ages >= 0) & (ages < 10)).transpose(1, 2)


@contextmanager
def zeros_before_the_last_halving(encoders: Encoders) -> Iterator[None]:
    encoders.codec.downsample.edges = False
    yield
    encoders.codec.downsample.edges = True


@contextmanager
def next_codebook(encoders: Encoders) -> Iterator[None]:
    """Each stage with the entries of the next one."""
    quantizer = encoders.codec.quantizer.acoustic_residual_vector_quantizer
    layers = quantizer.layers
    quantizer.layers = layers[1:]
    yield
    quantizer.layers = layers


@contextmanager
def zeros_past_the_ends(encoders: Encoders) -> Iterator[None]:
    convs = [module for module in encoders.speaker.modules() if isinstance(module, torch.nn.Conv1d)]
    for conv in convs:
        conv.padding_mode = "zeros"
    yield
    for conv in convs:
        conv.padding_mode = "reflect"


def unscaled_entries(self: encoder_code.EncoderCodebook, x: Tensor) -> tuple[Tensor, Tensor]:
    codes = torch.cdist(x[None], self.embed_sum[None])[0].argmin(-1)
    return codes, F.embedding(codes, self.embed_sum)


def coded_once(self: EncoderQuantizer, latent: Tensor, stages: int) -> Tensor:
    """Every stage quantizes the latent instead of the residual."""
    rest = self.input_proj(latent).transpose(1, 2)[0]
    return torch.stack([layer(rest)[0] for layer in self.layers[:stages]], -1)[None]


def peaks_of_one() -> NDArray[np.float32]:
    """The filters without Slaney's normalisation."""
    bank = mel_bank()
    return bank / bank.max(1, keepdims=True)


def all_chunks_added(self: speaker_code.Res2Net, x: Tensor) -> Tensor:
    first, *rest = x.chunk(self.chunks, dim=1)
    given = [first]
    for block, chunk in zip(self.blocks, rest, strict=True):
        given.append(block(chunk + given[-1]))
    return torch.cat(given, dim=1)


SPOILED_CODES: dict[str, Modification] = {
    "the last stride filled up from the left": patched(PaddedConv, "forward", padded_late),
    "zeros before the last halving": zeros_before_the_last_halving,
    "attention in a window": patched(encoder_code, "_causal", windowed),
    "codebooks off by one": next_codebook,
    "entries not divided by their use": patched(encoder_code.EncoderCodebook, "forward", unscaled_entries),
    "stages that do not code what is left": patched(EncoderQuantizer, "forward", coded_once),
    "an activation that is not ELU": patched(torch.nn.ELU, "forward", lambda _self, x: F.silu(x)),
}
SPOILED_VECTORS: dict[str, Modification] = {
    "mel filters without normalisation": patched(speaker_code, "mel_bank", peaks_of_one),
    "a margin one hop too short": patched(speaker_code, "HOP", 255),
    "another floor under the power": patched(speaker_code, "POWER_EPS", 1e-5),
    "zeros past the ends": zeros_past_the_ends,
    "the first chunk added to the second": patched(speaker_code.Res2Net, "forward", all_chunks_added),
}


@pytest.mark.parametrize("rule", SPOILED_CODES)
def test_a_modified_codec_encoder_fails_the_comparison(rule: str, loaded: Loaded) -> None:
    tts, expected = loaded("base", "float32"), golden("encoders", "float32")["codes.tones.10007"]
    with SPOILED_CODES[rule](encoders_of(tts)):
        spoiled = Cloner(encoders_of(tts), 24_000).codes(signal("tones", 10_007))
    assert not np.array_equal(spoiled, expected)
    np.testing.assert_array_equal(tts.model.cloner.codes(signal("tones", 10_007)), expected)


@pytest.mark.parametrize("rule", SPOILED_VECTORS)
def test_a_modified_speaker_encoder_fails_the_comparison(rule: str, loaded: Loaded) -> None:
    tts, expected = loaded("base", "float32"), golden("encoders", "float32")["vector.tones.10007"]
    with SPOILED_VECTORS[rule](encoders_of(tts)):
        spoiled = encoders_of(tts).speaker(row(tts, "tones", 10_007))[0]
    assert relative_error(spoiled, expected) > 10 * VECTOR_TOLERANCE["float32"]
    assert relative_error(encoders_of(tts).speaker(row(tts, "tones", 10_007))[0], expected) < 1e-5


# The published sizes, as the reference's own modules have them (A.4 of the specification).


def conv(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def published_speaker(dim: int) -> dict[str, tuple[int, ...]]:
    shapes = conv("blocks.0.conv", 512, 128, 5)
    for block in ("blocks.1", "blocks.2", "blocks.3"):
        shapes |= conv(f"{block}.tdnn1.conv", 512, 512, 1) | conv(f"{block}.tdnn2.conv", 512, 512, 1)
        for i in range(7):
            shapes |= conv(f"{block}.res2net_block.blocks.{i}.conv", 64, 64, 3)
        shapes |= conv(f"{block}.se_block.conv1", 128, 512, 1) | conv(f"{block}.se_block.conv2", 512, 128, 1)
    shapes |= conv("mfa.conv", 1536, 1536, 1) | conv("asp.tdnn.conv", 128, 4608, 1) | conv("asp.conv", 1536, 128, 1)
    return {f"speaker_encoder.{name}": shape for name, shape in (shapes | conv("fc", dim, 3072, 1)).items()}


def published_encoder() -> dict[str, tuple[int, ...]]:
    shapes = conv("encoder.layers.0.conv", 64, 1, 7) | conv("encoder.layers.14.conv", 512, 1024, 3)
    for layer, channels, kernel in ((1, 64, 8), (4, 128, 10), (7, 256, 12), (10, 512, 16)):
        shapes |= conv(f"encoder.layers.{layer}.block.1.conv", channels // 2, channels, 3)
        shapes |= conv(f"encoder.layers.{layer}.block.3.conv", channels, channels // 2, 1)
        shapes |= conv(f"encoder.layers.{layer + 2}.conv", 2 * channels, channels, kernel)
    for i in range(8):
        layer_name = f"encoder_transformer.layers.{i}"
        shapes |= {f"{layer_name}.self_attn.{part}_proj.weight": (512, 512) for part in "qkvo"}
        shapes |= {f"{layer_name}.mlp.fc1.weight": (2048, 512), f"{layer_name}.mlp.fc2.weight": (512, 2048)}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {f"{layer_name}.{norm}.weight": (512,), f"{layer_name}.{norm}.bias": (512,)}
        shapes |= {f"{layer_name}.{part}_layer_scale.scale": (512,) for part in ("self_attn", "mlp")}
    shapes["downsample.conv.weight"] = (512, 512, 4)
    for name, stages in (("semantic", 1), ("acoustic", 31)):
        quantizer = f"quantizer.{name}_residual_vector_quantizer"
        shapes |= {f"{quantizer}.input_proj.weight": (256, 512, 1), f"{quantizer}.output_proj.weight": (512, 256, 1)}
        for i in range(stages):
            book = f"{quantizer}.layers.{i}.codebook"
            shapes |= {f"{book}.embed_sum": (2048, 256), f"{book}.cluster_usage": (2048,), f"{book}.initialized": (1,)}
    return {f"encoder.{name}": shape for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("size", "dim", "tensors", "elements", "speaker_elements"),
    [("0.6B", 1024, 478, 914_643_008, 8_854_336), ("1.7B", 2048, 480, 1_928_677_440, 12_001_088)],
)
def test_the_published_base_models_have_the_published_tensors(
    size: Size, dim: int, tensors: int, elements: int, speaker_elements: int
) -> None:
    model = empty_model(parse_config(published_files(size, "base")), torch.device("meta"), torch.bfloat16)
    talker, codec = model.files()
    speaker = {name: tuple(t.shape) for name, t in talker.items() if name.startswith("speaker_encoder.")}
    assert speaker == published_speaker(dim)
    assert sum(np.prod(shape) for shape in speaker.values()) == speaker_elements
    assert (len(speaker), len(talker), sum(t.numel() for t in talker.values())) == (76, tensors, elements)
    encoder = {name: tuple(t.shape) for name, t in codec.items() if name.startswith("encoder.")}
    assert encoder == published_encoder()
    assert (len(encoder), sum(np.prod(shape) for shape in encoder.values())) == (225, 56_234_304)
    assert len(codec) == 225 + 271
    assert model.config.encoders is not None
    assert model.config.encoders.codec.samples_per_frame == model.config.codec.samples_per_frame == 1920


def test_encoders_have_at_least_float32(loaded: Loaded) -> None:
    model = empty_model(loaded("base", "float32").model.config, torch.device("meta"), torch.bfloat16)
    assert model.encoders is not None
    assert {tensor.dtype for tensor in checkpoint_tensors(model.encoders).values()} == {torch.float32}


def test_a_stage_returns_the_nearest_entry(loaded: Loaded) -> None:
    quantizer = encoders_of(loaded("base", "float64")).codec.quantizer.semantic_residual_vector_quantizer
    layer = quantizer.layers[0]
    assert isinstance(layer, EncoderQuantizerLayer)
    entries = layer.codebook.embed_sum / layer.codebook.cluster_usage[:, None]
    codes, given = layer(entries + 1e-9)
    assert codes.tolist() == list(range(len(entries)))
    assert torch.equal(given, entries)
