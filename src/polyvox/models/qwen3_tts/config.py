# SPDX-License-Identifier: Apache-2.0
"""The three JSON files of a checkpoint as frozen values. All sizes come from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from polyvox.errors import CheckpointError, InvalidRequest
from polyvox.models.config_fields import ConfigFields, read_json
from polyvox.models.layers.decoder_config import ConvDecoderConfig
from polyvox.models.layers.talker_config import CONTROL_IDS, TalkerShape
from polyvox.models.layers.transformer_config import CodePredictorConfig
from polyvox.models.qwen3_tts.encoder_config import EncodersConfig, parse_encoders
from polyvox.models.request import Sampling
from polyvox.models.transformer_fields import check_full_attention, parse_transformer
from polyvox.text.phonemes.alphabet import ALPHABET

Kind = Literal["custom_voice", "voice_design", "base"]

MODEL_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
CODEC_FILE = "speech_tokenizer/config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig(TalkerShape):
    """The talker, and the ids of its control vocabulary."""

    pad_id: int
    bos_id: int
    think_id: int
    nothink_id: int
    think_bos_id: int
    think_eos_id: int
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]  # by speaker, for speakers with a dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig(ConvDecoderConfig):
    """The codec's decoder: frames of codes to samples."""

    codebook_dim: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of one checkpoint."""

    kind: Kind
    size: str
    im_start_id: int
    im_end_id: int
    assistant_id: int
    tts_pad_id: int
    tts_bos_id: int
    tts_eos_id: int
    talker: TalkerConfig
    predictor: CodePredictorConfig
    codec: CodecConfig
    encoders: EncodersConfig | None  # only Base models have them
    sampling: Sampling
    max_frames: int
    phoneme_alphabet: str | None = None  # of a model whose text is phonemes

    @property
    def takes_instructions(self) -> bool:
        """True for VoiceDesign and for CustomVoice from 1.7B on; smaller models were not trained for instructions."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")


def read_config(folder: Path) -> ModelConfig:
    """Reads the files of a checkpoint folder; raises CheckpointError with file, field and what is supported."""
    return parse_config({name: read_json(folder, name) for name in (MODEL_FILE, GENERATION_FILE, CODEC_FILE)})


def parse_config(files: Mapping[str, object]) -> ModelConfig:
    """The configuration of parsed files, by file name."""
    top = ConfigFields(MODEL_FILE, files[MODEL_FILE])
    if top.values.get("model_type") != "qwen3_tts":
        raise top.unsupported("model_type", top.values.get("model_type"), '"qwen3_tts"')
    top.expect("architectures", ["Qwen3TTSForConditionalGeneration"])
    top.expect("tokenizer_type", "qwen3_tts_tokenizer_12hz")
    top.expect("tts_model_type", *get_args(Kind))
    talker = _talker(top.section("talker_config"))
    predictor_fields = top.section("talker_config").section("code_predictor_config")
    check_full_attention(predictor_fields)
    predictor = CodePredictorConfig(parse_transformer(predictor_fields), predictor_fields.size("vocab_size"))
    predictor_fields.expect("num_code_groups", talker.code_groups)
    defaults = ConfigFields(GENERATION_FILE, files[GENERATION_FILE])
    codec_fields = ConfigFields(CODEC_FILE, files[CODEC_FILE])
    kind = cast(Kind, top.text("tts_model_type"))
    encoders = None
    if kind == "base":
        width, groups = talker.transformer.hidden_size, talker.code_groups
        encoders = parse_encoders(top, codec_fields, width, groups, predictor.vocab_size)
    config = ModelConfig(
        kind=kind,
        size=top.text("tts_model_size"),
        im_start_id=top.id("im_start_token_id"),
        im_end_id=top.id("im_end_token_id"),
        assistant_id=top.id("assistant_token_id"),
        tts_pad_id=top.id("tts_pad_token_id"),
        tts_bos_id=top.id("tts_bos_token_id"),
        tts_eos_id=top.id("tts_eos_token_id"),
        talker=talker,
        predictor=predictor,
        codec=_codec(codec_fields),
        encoders=encoders,
        sampling=_sampling(defaults),
        # The reference implementation completes frame k in step k + 1, so N new tokens are at most N - 1 frames.
        max_frames=defaults.size("max_new_tokens", min_value=2, default=2048) - 1,
        phoneme_alphabet=_phoneme_alphabet(top),
    )
    _check_agreement(config, top, codec_fields.section("decoder_config"))
    return config


def _phoneme_alphabet(top: ConfigFields) -> str | None:
    """The alphabet of a checkpoint whose text is phonemes. Published checkpoints have neither field."""
    top.expect("text_input", "text", "phonemes")
    if top.values.get("text_input") != "phonemes":
        return None
    if top.text("phoneme_alphabet") != ALPHABET:
        raise top.unsupported("phoneme_alphabet", top.text("phoneme_alphabet"), f'"{ALPHABET}"')
    return ALPHABET


def _talker(fields: ConfigFields) -> TalkerConfig:
    check_full_attention(fields)
    fields.expect("tie_word_embeddings", False)
    vocab_size = fields.size("vocab_size")
    if vocab_size <= CONTROL_IDS:
        raise fields.unsupported("vocab_size", vocab_size, f"more than the {CONTROL_IDS} control ids")
    languages, speakers = fields.ids("codec_language_id"), fields.ids("spk_id")
    dialects = _dialects(fields, languages, speakers)
    return TalkerConfig(
        transformer=parse_transformer(fields),
        vocab_size=vocab_size,
        text_vocab_size=fields.size("text_vocab_size"),
        text_hidden_size=fields.size("text_hidden_size"),
        projection_size=fields.size("text_hidden_size"),
        code_groups=fields.size("num_code_groups"),
        max_positions=fields.size("max_position_embeddings"),
        pad_id=fields.id("codec_pad_id"),
        bos_id=fields.id("codec_bos_id"),
        eos_id=fields.id("codec_eos_token_id"),
        think_id=fields.id("codec_think_id"),
        nothink_id=fields.id("codec_nothink_id"),
        think_bos_id=fields.id("codec_think_bos_id"),
        think_eos_id=fields.id("codec_think_eos_id"),
        languages=languages,
        speakers=speakers,
        dialects=dialects,
    )


def _dialects(fields: ConfigFields, languages: Mapping[str, int], speakers: Mapping[str, int]) -> dict[str, str]:
    dialects = {}
    for speaker, dialect in fields.section("spk_is_dialect").values.items():
        if dialect is False:
            continue
        if speaker.lower() not in speakers or dialect not in list(languages):
            raise fields.unsupported(f"spk_is_dialect.{speaker}", dialect, "false or a language of codec_language_id")
        dialects[speaker.lower()] = dialect
    return dialects


def _codec(top: ConfigFields) -> CodecConfig:
    top.expect("model_type", "qwen3_tts_tokenizer_12hz")
    fields = top.section("decoder_config")
    transformer = parse_transformer(fields)
    config = CodecConfig(
        transformer=transformer,
        latent_dim=fields.size("latent_dim"),
        codebook_dim=fields.size("codebook_dim"),
        codebook_size=fields.size("codebook_size"),
        quantizers=fields.size("num_quantizers"),
        decoder_dim=fields.size("decoder_dim"),
        window=fields.size("sliding_window", min_value=2, max_value=100_000),
        upsampling_ratios=fields.integers("upsampling_ratios"),
        upsample_rates=fields.integers("upsample_rates"),
        sample_rate=top.size("output_sample_rate"),
    )
    if top.size("decode_upsample_rate") != config.samples_per_frame:
        raise top.unsupported(
            "decode_upsample_rate",
            top.size("decode_upsample_rate"),
            f"the product of the decoder's upsampling, {config.samples_per_frame}",
        )
    if config.quantizers < 2:
        raise fields.unsupported("num_quantizers", config.quantizers, "2 or more")
    halvings = 2 ** len(config.upsample_rates)
    if config.decoder_dim % halvings:
        raise fields.unsupported("decoder_dim", config.decoder_dim, f"a multiple of {halvings}")
    if config.codebook_dim % 2:
        raise fields.unsupported("codebook_dim", config.codebook_dim, "an even number")
    return config


def _sampling(fields: ConfigFields) -> Sampling:
    default = Sampling()
    greedy, greedy_rest = not fields.flag("do_sample", True), not fields.flag("subtalker_dosample", True)
    sampling = Sampling(
        temperature=0.0 if greedy else fields.number("temperature", default.temperature),
        top_k=fields.size("top_k", 0, default.top_k),
        top_p=fields.number("top_p", default.top_p),
        repetition_penalty=fields.number("repetition_penalty", default.repetition_penalty),
        predictor_temperature=(
            0.0 if greedy_rest else fields.number("subtalker_temperature", default.predictor_temperature)
        ),
        predictor_top_k=fields.size("subtalker_top_k", 0, default.predictor_top_k),
        predictor_top_p=fields.number("subtalker_top_p", default.predictor_top_p),
    )
    try:
        sampling.check()
    except InvalidRequest as error:
        message = str(error).replace("predictor_", "subtalker_")
        raise CheckpointError(f"{fields.file}: {message}") from None
    return sampling


def _check_agreement(config: ModelConfig, top: ConfigFields, decoder: ConfigFields) -> None:
    """Raises unless talker, predictor and codec have the same codes, and every id is in its vocabulary."""
    talker, codec = config.talker, config.codec
    if codec.quantizers != talker.code_groups:
        raise decoder.unsupported(
            "num_quantizers", codec.quantizers, f"the talker's num_code_groups, {talker.code_groups}"
        )
    codes = max(talker.vocab_size - CONTROL_IDS, config.predictor.vocab_size)
    if codec.codebook_size < codes:
        raise decoder.unsupported("codebook_size", codec.codebook_size, f"at least {codes}, the talker's codes")
    if config.kind == "custom_voice" and not talker.speakers:
        raise top.unsupported("talker_config.spk_id", {}, "at least one speaker in a custom_voice model")
    ids = {f"codec_{name}_id": getattr(talker, f"{name}_id") for name in ("pad", "bos", "think", "nothink")}
    ids |= {f"codec_think_{name}_id": getattr(talker, f"think_{name}_id") for name in ("bos", "eos")}
    ids["codec_eos_token_id"] = talker.eos_id
    ids |= {f"codec_language_id.{name}": value for name, value in talker.languages.items()}
    ids |= {f"spk_id.{name}": value for name, value in talker.speakers.items()}
    for name, value in ids.items():
        if not 0 <= value < talker.vocab_size:
            raise top.unsupported(f"talker_config.{name}", value, f"below {talker.vocab_size}")
    for name in ("im_start", "im_end", "assistant", "tts_pad", "tts_bos", "tts_eos"):
        value = getattr(config, f"{name}_id")
        if value >= talker.text_vocab_size:
            raise top.unsupported(f"{name}_token_id", value, f"below {talker.text_vocab_size}")
