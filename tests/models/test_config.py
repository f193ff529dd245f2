# SPDX-License-Identifier: Apache-2.0
import copy
import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from polyvox.errors import CheckpointError
from polyvox.models.layers.linear import checkpoint_tensors
from polyvox.models.qwen3_tts.checkpoint import empty_model
from polyvox.models.qwen3_tts.config import (
    CODEC_FILE,
    GENERATION_FILE,
    MODEL_FILE,
    Kind,
    ModelConfig,
    parse_config,
    read_config,
)
from polyvox.models.qwen3_tts.synthetic import published_files, tiny_files
from polyvox.models.request import Sampling
from polyvox.tts import EMBEDDED_VOICE


def changed(
    file: str, path: str, value: object = None, *, drop: bool = False, kind: Kind = "custom_voice"
) -> dict[str, Any]:
    """The files of a tiny checkpoint with one field changed or removed."""
    files = copy.deepcopy(tiny_files(kind))
    *parents, last = path.split(".")
    section = files[file]
    for name in parents:
        section = section[name]
    if drop:
        del section[last]
    else:
        section[last] = value
    return files


def test_sizes_come_from_the_files() -> None:
    config = read_config(EMBEDDED_VOICE)
    assert config.talker.code_groups == config.codec.quantizers
    assert config.codec.samples_per_frame * 12.5 == config.codec.sample_rate
    assert list(config.talker.speakers) == ["heart", "michael"]


@pytest.mark.parametrize(
    ("size", "kind", "tensors", "elements"),
    [
        ("0.6B", "custom_voice", 402, 905_788_672),
        ("1.7B", "custom_voice", 404, 1_916_676_352),
        ("1.7B", "voice_design", 404, 1_916_676_352),
    ],
)
def test_the_published_models_have_the_published_tensors(size: Any, kind: Kind, tensors: int, elements: int) -> None:
    config = parse_config(published_files(size, kind))
    model = empty_model(config, torch.device("meta"), torch.bfloat16)
    talker, decoder = checkpoint_tensors(model.talker), checkpoint_tensors(model.codec)
    assert (len(talker), sum(t.numel() for t in talker.values())) == (tensors, elements)
    assert (len(decoder), sum(t.numel() for t in decoder.values())) == (271, 114_323_137)
    assert config.codec.samples_per_frame == 1920
    assert config.max_frames == 8191


def test_generation_settings_become_sampling() -> None:
    greedy = parse_config(changed(GENERATION_FILE, "do_sample", False))
    assert greedy.sampling.temperature == 0
    assert greedy.sampling.predictor_temperature == 0.9
    bare = tiny_files("base") | {GENERATION_FILE: {}}
    config = parse_config(bare)
    assert config.sampling == Sampling()
    assert config.max_frames == 2047


@pytest.mark.parametrize("kind", get_args(Kind))
def test_voice_design_and_large_custom_voice_models_take_instructions(kind: Kind) -> None:
    small = copy.deepcopy(tiny_files(kind))
    small[MODEL_FILE]["tts_model_size"] = "0b6"
    assert parse_config(tiny_files(kind)).takes_instructions == (kind != "base")
    assert parse_config(small).takes_instructions == (kind == "voice_design")


@pytest.mark.parametrize(
    ("file", "path"),
    [
        (MODEL_FILE, "tts_pad_token_id"),
        (MODEL_FILE, "talker_config"),
        (MODEL_FILE, "talker_config.hidden_size"),
        (MODEL_FILE, "talker_config.codec_eos_token_id"),
        (MODEL_FILE, "talker_config.spk_id"),
        (MODEL_FILE, "talker_config.code_predictor_config.num_hidden_layers"),
        (CODEC_FILE, "decoder_config"),
        (CODEC_FILE, "decoder_config.sliding_window"),
        (CODEC_FILE, "output_sample_rate"),
    ],
)
def test_a_missing_field_is_named_with_its_file(file: str, path: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^{file}: {path} is missing"):
        parse_config(changed(file, path, drop=True))


@pytest.mark.parametrize(
    ("file", "path", "value", "supported"),
    [
        (MODEL_FILE, "model_type", "llama", "qwen3_tts"),
        (MODEL_FILE, "architectures", ["LlamaForCausalLM"], "Qwen3TTSForConditionalGeneration"),
        (MODEL_FILE, "tokenizer_type", "qwen3_tts_tokenizer_25hz", "12hz"),
        (MODEL_FILE, "tts_model_type", "singing", "custom_voice"),
        (MODEL_FILE, "talker_config.hidden_size", "48", "an integer"),
        (MODEL_FILE, "talker_config.hidden_size", 0, "from 1 to"),
        (MODEL_FILE, "talker_config.hidden_act", "gelu", "silu"),
        (MODEL_FILE, "talker_config.layer_types", ["sliding_attention"] * 3, "full_attention"),
        (MODEL_FILE, "talker_config.code_predictor_config.layer_types", ["sliding_attention"] * 2, "full_attention"),
        (MODEL_FILE, "talker_config.code_predictor_config.rope_scaling", {"rope_type": "yarn"}, "default"),
        (MODEL_FILE, "talker_config.rope_theta", 10**400, "1e+12"),
        (CODEC_FILE, "decoder_config.sliding_window", 2**31 - 1, "100000"),
        (CODEC_FILE, "decoder_config.sliding_window", 1, "from 2 to"),
        (MODEL_FILE, "talker_config.num_key_value_heads", 3, "a divisor"),
        (MODEL_FILE, "talker_config.rope_scaling.rope_type", "yarn", "default"),
        (MODEL_FILE, "talker_config.vocab_size", 1000, "1024"),
        (MODEL_FILE, "talker_config.codec_eos_id", 5, ""),
        (MODEL_FILE, "talker_config.codec_bos_id", 5000, "below"),
        (MODEL_FILE, "talker_config.codec_eos_token_id", 5000, "below"),
        (GENERATION_FILE, "subtalker_temperature", 11, "between 0 and 10"),
        (MODEL_FILE, "talker_config.spk_id.serena", 5000, "below"),
        (MODEL_FILE, "talker_config.spk_is_dialect.eric", "klingon", "codec_language_id"),
        (MODEL_FILE, "talker_config.code_predictor_config.num_code_groups", 4, "6"),
        (MODEL_FILE, "im_start_token_id", 10**6, "below"),
        (GENERATION_FILE, "temperature", "hot", "a number"),
        (GENERATION_FILE, "temperature", 11, "between 0 and 10"),
        (GENERATION_FILE, "top_p", 0, "and 1"),
        (GENERATION_FILE, "max_new_tokens", 1, "from 2"),
        (CODEC_FILE, "model_type", "dac", "12hz"),
        (CODEC_FILE, "decode_upsample_rate", 7, "48"),
        (CODEC_FILE, "decoder_config.upsample_rates", [], "positive"),
        (CODEC_FILE, "decoder_config.num_quantizers", 4, "num_code_groups, 6"),
        (CODEC_FILE, "decoder_config.codebook_size", 8, "at least 64"),
    ],
)
def test_an_unsupported_value_is_named_with_what_is_supported(
    file: str, path: str, value: object, supported: str
) -> None:
    if not supported:  # a field that is not read
        assert isinstance(parse_config(changed(file, path, value)), ModelConfig)
        return
    with pytest.raises(CheckpointError) as caught:
        parse_config(changed(file, path, value))
    for part in (file, path.rsplit(".", 1)[-1].replace("rope_scaling", "rope_type"), supported):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("file", "path", "value", "supported"),
    [
        (MODEL_FILE, "speaker_encoder_config", None, "missing"),
        (MODEL_FILE, "speaker_encoder_config.enc_dim", 47, "hidden_size, 48"),
        (MODEL_FILE, "speaker_encoder_config.mel_dim", 80, "128"),
        (MODEL_FILE, "speaker_encoder_config.sample_rate", 16000, "24000"),
        (MODEL_FILE, "speaker_encoder_config.enc_channels", [16, 16], "the sum of the blocks"),
        (MODEL_FILE, "speaker_encoder_config.enc_channels", [16, 16, 16, 16, 64], "the sum of the blocks"),
        (MODEL_FILE, "speaker_encoder_config.enc_res2net_scale", 3, "multiples of 3"),
        (MODEL_FILE, "speaker_encoder_config.enc_dilations", [1, 2], "as many as enc_channels, 5"),
        (MODEL_FILE, "speaker_encoder_config.enc_kernel_sizes", [4, 3, 3, 3, 1], "odd"),
        (CODEC_FILE, "encoder_config", None, "missing"),
        (CODEC_FILE, "encoder_config.hidden_act", "relu", "gelu"),
        (CODEC_FILE, "encoder_config.pad_mode", "reflect", "constant"),
        (CODEC_FILE, "encoder_config.num_semantic_quantizers", 2, "1"),
        (CODEC_FILE, "encoder_config.num_attention_heads", 3, "a divisor"),
        (CODEC_FILE, "encoder_config.num_quantizers", 5, "6 codes per frame"),
        (CODEC_FILE, "encoder_config.codebook_size", 32, "vocab_size, 64"),
        (CODEC_FILE, "encoder_config.frame_rate", 12.5, "500"),
        (CODEC_FILE, "encoder_config.upsampling_ratios", [2, 2], "strides, 8"),
        (CODEC_FILE, "encoder_valid_num_quantizers", 5, "num_code_groups, 6"),
        (CODEC_FILE, "encode_downsample_rate", 24, "strides, 48"),
        (CODEC_FILE, "input_sample_rate", 16000, "24000"),
    ],
)
def test_an_unsupported_encoder_is_rejected(file: str, path: str, value: object, supported: str) -> None:
    if path == "encoder_config.upsampling_ratios":
        # Its frame rate is the first to disagree.
        files = changed(file, path, value, kind="base")
        del files[CODEC_FILE]["encoder_config"]["frame_rate"]
    else:
        files = changed(file, path, value, kind="base")
    with pytest.raises(CheckpointError) as caught:
        parse_config(files)
    assert file in str(caught.value)
    assert supported in str(caught.value)
    if file == CODEC_FILE:
        assert isinstance(parse_config(changed(file, path, value)), ModelConfig)


def test_a_disabled_sliding_window_is_ignored() -> None:
    files = changed(MODEL_FILE, "talker_config.sliding_window", 4096)
    assert isinstance(parse_config(files), ModelConfig)
    files[MODEL_FILE]["talker_config"]["use_sliding_window"] = True
    with pytest.raises(CheckpointError, match="sliding_window is 4096"):
        parse_config(files)


def test_a_file_that_is_nested_too_deeply_is_rejected(tmp_path: Path) -> None:
    (tmp_path / MODEL_FILE).write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=MODEL_FILE):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"config"'])
def test_a_file_that_is_not_a_json_object_is_rejected(text: str, checkpoints: Path, tmp_path: Path) -> None:
    for name in (MODEL_FILE, GENERATION_FILE, CODEC_FILE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((checkpoints / "base" / name).read_text())
    (tmp_path / GENERATION_FILE).write_text(text)
    with pytest.raises(CheckpointError, match=GENERATION_FILE):
        read_config(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=MODEL_FILE):
        read_config(tmp_path)


def leaves(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))] + [path]
    return [path]


JUNK: tuple[object, ...] = (
    None,
    True,
    -5,
    0,
    1,
    10**7,
    10**400,
    -1.5,
    0.5,
    math.inf,
    math.nan,
    "",
    "text",
    [],
    [-1, 3],
    {},
    {"a": 1},
)


@pytest.mark.parametrize("kind", get_args(Kind)[::2])
def test_a_wrong_value_anywhere_in_a_file_only_raises_checkpoint_errors(kind: Kind) -> None:
    for path in leaves(tiny_files(kind)):
        for value in JUNK if path else ():
            files: Any = json.loads(json.dumps(tiny_files(kind)))
            section = files
            for name in path[:-1]:
                section = section[name]
            section[path[-1]] = value
            try:
                assert isinstance(parse_config(files), ModelConfig)
            except CheckpointError:
                pass
            except Exception as error:
                raise AssertionError(f"{'.'.join(path)} = {value!r}") from error
