"""The three JSON files of a checkpoint as frozen values; every size comes from them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal, cast, get_args

from polyvox.errors import CheckpointError, InvalidRequest
from polyvox.models.request import Sampling

Kind = Literal["custom_voice", "voice_design", "base"]

MODEL_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
CODEC_FILE = "speech_tokenizer/config.json"

# The reference forbids the last 1,024 ids of the talker's vocabulary, its control ids, all but end of speech.
CONTROL_IDS = 1024
# The reference forbids end of speech in the first two frames (its hard-coded min_new_tokens).
MIN_FRAMES = 2


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The shape of one stack of decoder layers."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    """The talker: text in, code 0 of each frame out, and the ids of its control vocabulary."""

    transformer: TransformerConfig
    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    code_groups: int
    max_positions: int
    pad_id: int
    bos_id: int
    eos_id: int
    think_id: int
    nothink_id: int
    think_bos_id: int
    think_eos_id: int
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]  # speaker → the dialect that speaker speaks, where there is one


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """The code predictor: codes 1 and up of a frame, one after the other."""

    transformer: TransformerConfig
    vocab_size: int


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """The codec's decoder: frames of codes to samples."""

    transformer: TransformerConfig
    latent_dim: int
    codebook_dim: int
    codebook_size: int
    quantizers: int
    decoder_dim: int
    window: int
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]
    sample_rate: int

    @property
    def samples_per_frame(self) -> int:
        return prod(self.upsampling_ratios) * prod(self.upsample_rates)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """All that the files of one checkpoint say about it."""

    kind: Kind
    size: str
    im_start_id: int
    im_end_id: int
    assistant_id: int
    tts_pad_id: int
    tts_bos_id: int
    tts_eos_id: int
    talker: TalkerConfig
    predictor: PredictorConfig
    codec: CodecConfig
    sampling: Sampling
    max_frames: int

    @property
    def takes_instructions(self) -> bool:
        """VoiceDesign always, CustomVoice from 1.7B on; the small ones were not trained for them."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")


class _Fields:
    """One JSON object, read field by field; every complaint names the file and the field."""

    def __init__(self, file: str, values: object, path: str = "") -> None:
        self.file, self.path = file, path
        if not isinstance(values, dict):
            raise CheckpointError(f"{file}: {path.rstrip('.') or 'the file'} must be a JSON object")
        self.values = cast(dict[str, Any], values)

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def section(self, name: str) -> "_Fields":
        return _Fields(self.file, self._get(name, dict, "an object"), f"{self.path}{name}.")

    def id(self, name: str) -> int:
        return self.size(name, least=0)

    def size(self, name: str, least: int = 1, default: int | None = None) -> int:
        if default is not None and not self.has(name):
            return default
        value = self._get(name, int, "a whole number")
        if not least <= value < 2**31:
            raise self.unsupported(name, value, f"a whole number from {least} on")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        if default is not None and not self.has(name):
            return default
        value = float(self._get(name, (int, float), "a number"))
        if not isfinite(value) or value < 0:
            raise self.unsupported(name, value, "a number, not negative")
        return value

    def text(self, name: str) -> str:
        return str(self._get(name, str, "a string"))

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._get(name, bool, "true or false")) if self.has(name) else default

    def integers(self, name: str) -> tuple[int, ...]:
        values = self._get(name, list, "a list of whole numbers")
        if not values or not all(type(value) is int and value > 0 for value in values):
            raise self.unsupported(name, values, "a list of positive whole numbers")
        return tuple(values)

    def ids(self, name: str) -> dict[str, int]:
        values = self._get(name, dict, "an object of names and ids")
        for key, value in values.items():
            if type(value) is not int:
                raise self.unsupported(f"{name}.{key}", value, "a whole number")
        return {key.lower(): value for key, value in values.items()}

    def expect(self, name: str, *allowed: object) -> None:
        """Refuses any value but these; an absent field stands for the first."""
        value = self.values.get(name, allowed[0])
        if value not in allowed:
            raise self.unsupported(name, value, " or ".join(json.dumps(value) for value in allowed))

    def unsupported(self, name: str, value: object, supported: str) -> CheckpointError:
        shown = json.dumps(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "…"
        return CheckpointError(f"{self.file}: {self.path}{name} is {shown}; supported is {supported}")

    def _get(self, name: str, kind: type | tuple[type, ...], described: str) -> Any:
        if not self.has(name):
            raise CheckpointError(f"{self.file}: {self.path}{name} is missing; it must be {described}")
        value = self.values[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.unsupported(name, value, described)
        return value


def read_config(folder: Path) -> ModelConfig:
    """Reads a checkpoint folder's three files; raises CheckpointError with file, field and what is supported."""
    return parse_config(*(_read_json(folder, name) for name in (MODEL_FILE, GENERATION_FILE, CODEC_FILE)))


def parse_config(model: object, generation: object, codec: object) -> ModelConfig:
    """The same from objects already parsed."""
    top = _Fields(MODEL_FILE, model)
    if top.values.get("model_type") != "qwen3_tts":
        raise top.unsupported("model_type", top.values.get("model_type"), '"qwen3_tts"')
    top.expect("architectures", ["Qwen3TTSForConditionalGeneration"])
    top.expect("tokenizer_type", "qwen3_tts_tokenizer_12hz")
    top.expect("tts_model_type", *get_args(Kind))
    talker = _talker(top.section("talker_config"))
    predictor_fields = top.section("talker_config").section("code_predictor_config")
    predictor = PredictorConfig(_transformer(predictor_fields), predictor_fields.size("vocab_size"))
    predictor_fields.expect("num_code_groups", talker.code_groups)
    defaults = _Fields(GENERATION_FILE, generation)
    codec_fields = _Fields(CODEC_FILE, codec)
    config = ModelConfig(
        kind=cast(Kind, top.text("tts_model_type")),
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
        sampling=_sampling(defaults),
        # The reference completes frame k in step k + 1, so N new tokens are at most N - 1 frames.
        max_frames=defaults.size("max_new_tokens", least=2, default=2048) - 1,
    )
    _check_agreement(config, top, codec_fields.section("decoder_config"))
    return config


def _transformer(fields: _Fields) -> TransformerConfig:
    fields.expect("hidden_act", "silu")
    fields.expect("attention_bias", False)
    heads, kv_heads = fields.size("num_attention_heads"), fields.size("num_key_value_heads")
    if heads % kv_heads:
        raise fields.unsupported("num_key_value_heads", kv_heads, f"a divisor of the {heads} attention heads")
    if fields.size("head_dim") % 2:
        raise fields.unsupported("head_dim", fields.size("head_dim"), "an even number")
    return TransformerConfig(
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.size("head_dim"),
        norm_eps=fields.number("rms_norm_eps"),
        rope_theta=fields.number("rope_theta"),
    )


def _talker(fields: _Fields) -> TalkerConfig:
    fields.expect("sliding_window", None)
    fields.expect("tie_word_embeddings", False)
    if fields.has("rope_scaling"):
        # The talker gives equal positions to all three axes, so multi-axis RoPE is plain RoPE.
        fields.section("rope_scaling").expect("rope_type", "default")
    vocab_size = fields.size("vocab_size")
    if vocab_size <= CONTROL_IDS:
        raise fields.unsupported("vocab_size", vocab_size, f"more than the {CONTROL_IDS} control ids")
    languages, speakers = fields.ids("codec_language_id"), fields.ids("spk_id")
    dialects = _dialects(fields, languages, speakers)
    return TalkerConfig(
        transformer=_transformer(fields),
        vocab_size=vocab_size,
        text_vocab_size=fields.size("text_vocab_size"),
        text_hidden_size=fields.size("text_hidden_size"),
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


def _dialects(fields: _Fields, languages: Mapping[str, int], speakers: Mapping[str, int]) -> dict[str, str]:
    dialects = {}
    for speaker, dialect in fields.section("spk_is_dialect").values.items():
        if dialect is False:
            continue
        if speaker.lower() not in speakers or dialect not in list(languages):
            raise fields.unsupported(f"spk_is_dialect.{speaker}", dialect, "false or a language of codec_language_id")
        dialects[speaker.lower()] = dialect
    return dialects


def _codec(top: _Fields) -> CodecConfig:
    top.expect("model_type", "qwen3_tts_tokenizer_12hz")
    fields = top.section("decoder_config")
    transformer = _transformer(fields)
    config = CodecConfig(
        transformer=transformer,
        latent_dim=fields.size("latent_dim"),
        codebook_dim=fields.size("codebook_dim"),
        codebook_size=fields.size("codebook_size"),
        quantizers=fields.size("num_quantizers"),
        decoder_dim=fields.size("decoder_dim"),
        window=fields.size("sliding_window"),
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


def _sampling(fields: _Fields) -> Sampling:
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
        raise CheckpointError(f"{fields.file}: {error}") from None
    return sampling


def _check_agreement(config: ModelConfig, top: _Fields, decoder: _Fields) -> None:
    """Talker, predictor and codec must speak of the same codes, and every id must have its row."""
    talker, codec = config.talker, config.codec
    if codec.quantizers != talker.code_groups:
        raise decoder.unsupported(
            "num_quantizers", codec.quantizers, f"the talker's num_code_groups, {talker.code_groups}"
        )
    codes = max(talker.vocab_size - CONTROL_IDS, config.predictor.vocab_size)
    if codec.codebook_size < codes:
        raise decoder.unsupported("codebook_size", codec.codebook_size, f"at least {codes}, the talker's codes")
    for name in ("pad", "bos", "eos", "think", "nothink", "think_bos", "think_eos"):
        value = getattr(talker, f"{name}_id")
        if value >= talker.vocab_size:
            raise top.unsupported(f"talker_config.codec_{name}_id", value, f"below {talker.vocab_size}")
    for group in (talker.languages, talker.speakers):
        for name, value in group.items():
            if not 0 <= value < talker.vocab_size:
                raise top.unsupported(f"talker_config … {name}", value, f"below {talker.vocab_size}")
    for name in ("im_start", "im_end", "assistant", "tts_pad", "tts_bos", "tts_eos"):
        value = getattr(config, f"{name}_id")
        if value >= talker.text_vocab_size:
            raise top.unsupported(f"{name}_token_id", value, f"below {talker.text_vocab_size}")


def _read_json(folder: Path, name: str) -> object:
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder / name} is missing; a Qwen3-TTS checkpoint has it") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / name} cannot be read as JSON: {error}") from None
