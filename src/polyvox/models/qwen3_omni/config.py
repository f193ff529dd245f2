# SPDX-License-Identifier: Apache-2.0
"""The config files of a Qwen3-Omni checkpoint as frozen values: everything but the thinker's own layers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from polyvox.models.config_fields import ConfigFields, read_json
from polyvox.models.layers.decoder_config import ConvDecoderConfig
from polyvox.models.layers.talker_config import CONTROL_IDS, TalkerShape
from polyvox.models.layers.transformer_config import CodePredictorConfig, ExpertsConfig
from polyvox.models.request import Sampling
from polyvox.models.transformer_fields import check_full_attention, parse_transformer

MODEL_FILE = "config.json"
SAMPLE_RATE = 24_000  # of code2wav; config files do not say it
# As the reference implementation samples codes after the first.
PREDICTOR_TEMPERATURE, PREDICTOR_TOP_K, PREDICTOR_TOP_P = 1.0, 50, 0.8
MAX_NEW_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniTalkerConfig(TalkerShape):
    """The talker, and the ids of its control vocabulary."""

    pad_id: int
    bos_id: int
    nothink_id: int
    think_bos_id: int
    think_eos_id: int
    speakers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class OmniConfig:
    """The speech side of one checkpoint, and the ids of the thinker's vocabulary that it reads."""

    im_start_id: int
    im_end_id: int
    user_id: int
    assistant_id: int
    tts_pad_id: int
    tts_bos_id: int
    tts_eos_id: int
    audio_id: int
    image_id: int
    video_id: int
    talker: OmniTalkerConfig
    predictor: CodePredictorConfig
    code2wav: ConvDecoderConfig
    sampling: Sampling
    max_frames: int

    @property
    def phoneme_alphabet(self) -> None:
        """The text of these models is not phonemes."""
        return None


def read_config(folder: Path) -> OmniConfig:
    """Reads config.json of a checkpoint folder; raises CheckpointError with file, field and what is supported."""
    return parse_config(read_json(folder, MODEL_FILE))


def parse_config(content: object) -> OmniConfig:
    """The configuration of a parsed config.json."""
    top = ConfigFields(MODEL_FILE, content)
    top.expect("model_type", "qwen3_omni_moe")
    top.expect("enable_audio_output", True)
    thinker, talker_fields = top.section("thinker_config"), top.section("talker_config")
    text = thinker.section("text_config")
    talker = _talker(talker_fields, text)
    predictor_fields = talker_fields.section("code_predictor_config")
    check_full_attention(predictor_fields)
    predictor_fields.expect("num_code_groups", talker.code_groups)
    predictor = CodePredictorConfig(parse_transformer(predictor_fields), predictor_fields.size("vocab_size"))
    if predictor.transformer.hidden_size != talker.transformer.hidden_size:
        required = f"the talker's hidden_size, {talker.transformer.hidden_size}"
        raise predictor_fields.unsupported("hidden_size", predictor.transformer.hidden_size, required)
    config = OmniConfig(
        im_start_id=top.id("im_start_token_id"),
        im_end_id=top.id("im_end_token_id"),
        user_id=top.id("user_token_id"),
        assistant_id=top.id("assistant_token_id"),
        tts_pad_id=top.id("tts_pad_token_id"),
        tts_bos_id=top.id("tts_bos_token_id"),
        tts_eos_id=top.id("tts_eos_token_id"),
        audio_id=thinker.id("audio_token_id"),
        image_id=thinker.id("image_token_id"),
        video_id=thinker.id("video_token_id"),
        talker=talker,
        predictor=predictor,
        code2wav=_code2wav(top.section("code2wav_config")),
        sampling=Sampling(
            predictor_temperature=PREDICTOR_TEMPERATURE,
            predictor_top_k=PREDICTOR_TOP_K,
            predictor_top_p=PREDICTOR_TOP_P,
            min_frames=0,
        ),
        # The last new token never becomes a frame.
        max_frames=MAX_NEW_TOKENS - 1,
    )
    _check_agreement(config, top)
    return config


def _talker(fields: ConfigFields, thinker_text: ConfigFields) -> OmniTalkerConfig:
    text = fields.section("text_config")
    check_full_attention(text)
    if text.values.get("mlp_only_layers"):
        raise text.unsupported("mlp_only_layers", text.values["mlp_only_layers"], "an empty list")
    text.expect("decoder_sparse_step", 1)
    vocab_size = text.size("vocab_size")
    if vocab_size <= CONTROL_IDS:
        raise text.unsupported("vocab_size", vocab_size, f"more than the {CONTROL_IDS} control ids")
    experts = ExpertsConfig(
        num_experts=text.size("num_experts"),
        num_chosen=text.size("num_experts_per_tok", max_value=text.size("num_experts")),
        intermediate_size=text.size("moe_intermediate_size"),
        shared_size=text.size("shared_expert_intermediate_size"),
        normalize=text.flag("norm_topk_prob", False),
    )
    fields.expect("thinker_hidden_size", thinker_text.size("hidden_size"))
    return OmniTalkerConfig(
        transformer=replace(parse_transformer(text), experts=experts),
        vocab_size=vocab_size,
        text_vocab_size=thinker_text.size("vocab_size"),
        text_hidden_size=thinker_text.size("hidden_size"),
        projection_size=text.size("intermediate_size"),
        code_groups=fields.size("num_code_groups", 2),
        max_positions=text.size("max_position_embeddings"),
        eos_id=fields.id("codec_eos_token_id"),
        rotary_axes=_rotary_axes(text),
        pad_id=fields.id("codec_pad_id"),
        bos_id=fields.id("codec_bos_id"),
        nothink_id=fields.id("codec_nothink_id"),
        think_bos_id=fields.id("codec_think_bos_id"),
        think_eos_id=fields.id("codec_think_eos_id"),
        speakers=fields.ids("speaker_id"),
    )


def _rotary_axes(fields: ConfigFields) -> tuple[int, ...]:
    """The axis (time, height, width) of each pair of dimensions of a head: interleaved, then the rest is time."""
    rope = fields.section("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    sections, pairs = rope.integers("mrope_section"), fields.size("head_dim") // 2
    if len(sections) != 3 or sum(sections) != pairs:
        raise rope.unsupported("mrope_section", list(sections), f"three sizes with the sum {pairs}")
    axes = [0] * pairs
    for axis in (1, 2):
        for pair in range(axis, 3 * sections[axis], 3):
            axes[pair] = axis
    return tuple(axes)


def _code2wav(fields: ConfigFields) -> ConvDecoderConfig:
    transformer = parse_transformer(fields)
    config = ConvDecoderConfig(
        transformer=transformer,
        latent_dim=transformer.hidden_size,
        decoder_dim=fields.size("decoder_dim"),
        window=fields.size("sliding_window", min_value=2, max_value=100_000),
        upsampling_ratios=fields.integers("upsampling_ratios"),
        upsample_rates=fields.integers("upsample_rates"),
        sample_rate=SAMPLE_RATE,
        codebook_size=fields.size("codebook_size"),
        quantizers=fields.size("num_quantizers", 2),
    )
    halvings = 2 ** len(config.upsample_rates)
    if config.decoder_dim % halvings:
        raise fields.unsupported("decoder_dim", config.decoder_dim, f"a multiple of {halvings}")
    # Then the samples that a stream lacks at its start all belong to its first frame.
    if prod(config.upsampling_ratios) < 2 or min(config.upsample_rates) < 2:
        raise fields.unsupported("upsample_rates", list(config.upsample_rates), "rates and ratios of 2 or more")
    return config


def _check_agreement(config: OmniConfig, top: ConfigFields) -> None:
    """Raises unless talker, predictor and code2wav have the same codes, and every id is in its vocabulary."""
    talker, code2wav = config.talker, config.code2wav
    if code2wav.quantizers != talker.code_groups:
        required = f"the talker's num_code_groups, {talker.code_groups}"
        raise top.unsupported("code2wav_config.num_quantizers", code2wav.quantizers, required)
    codes = max(talker.vocab_size - CONTROL_IDS, config.predictor.vocab_size)
    if code2wav.codebook_size < codes:
        required = f"at least {codes}, the talker's codes"
        raise top.unsupported("code2wav_config.codebook_size", code2wav.codebook_size, required)
    if not talker.speakers:
        raise top.unsupported("talker_config.speaker_id", {}, "at least one speaker")
    ids = {f"codec_{name}_id": getattr(talker, f"{name}_id") for name in ("pad", "bos", "nothink")}
    ids |= {f"codec_think_{name}_id": getattr(talker, f"think_{name}_id") for name in ("bos", "eos")}
    ids["codec_eos_token_id"] = talker.eos_id
    ids |= {f"speaker_id.{name}": value for name, value in talker.speakers.items()}
    for name, value in ids.items():
        if not 0 <= value < talker.vocab_size:
            raise top.unsupported(f"talker_config.{name}", value, f"below {talker.vocab_size}")
    for name in ("im_start", "im_end", "user", "assistant", "tts_pad", "tts_bos", "tts_eos"):
        value = getattr(config, f"{name}_id")
        if value >= talker.text_vocab_size:
            raise top.unsupported(f"{name}_token_id", value, f"below {talker.text_vocab_size}")
