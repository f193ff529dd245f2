# SPDX-License-Identifier: Apache-2.0
"""The encoders of a Base checkpoint, which turn a recording into a voice, as frozen values of its config files.

An absent field has the default of the reference implementation: the published files omit most of the speaker encoder.
"""

from dataclasses import dataclass
from math import prod

from polyvox.models.config_fields import ConfigFields
from polyvox.models.layers.transformer_config import TransformerConfig

# The reference implementation's front end has one sample rate and one number of mel bands.
MEL_BANDS, MEL_SAMPLE_RATE = 128, 24_000
# The stride of one more convolution after the strided ones.
LAST_STRIDE = 2


@dataclass(frozen=True, slots=True)
class CodecEncoderConfig:
    """The codec's encoder: samples to frames of codes."""

    transformer: TransformerConfig
    filters: int
    kernel: int
    residual_kernel: int
    last_kernel: int
    residual_layers: int
    dilation_growth: int
    compress: int
    strides: tuple[int, ...]
    codebook_size: int
    codebook_dim: int
    quantizers: int  # in the file
    codes: int  # per frame: the first ones of the quantizers

    @property
    def samples_per_frame(self) -> int:
        return prod(self.strides) * LAST_STRIDE


@dataclass(frozen=True, slots=True)
class SpeakerConfig:
    """The speaker encoder: a recording to one vector."""

    dim: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    chunks: int  # of channels in a Res2Net block
    gate_channels: int


@dataclass(frozen=True, slots=True)
class EncodersConfig:
    codec: CodecEncoderConfig
    speaker: SpeakerConfig


def parse_encoders(top: ConfigFields, codec: ConfigFields, hidden: int, groups: int, codes: int) -> EncodersConfig:
    """The encoders of a Base model. hidden: the talker's width. groups: codes per frame. codes: values of a code."""
    codec.expect("input_sample_rate", MEL_SAMPLE_RATE)
    codec.expect("output_sample_rate", MEL_SAMPLE_RATE)
    if codec.size("encoder_valid_num_quantizers", default=16) != groups:
        value = codec.values.get("encoder_valid_num_quantizers", 16)
        raise codec.unsupported("encoder_valid_num_quantizers", value, f"the talker's num_code_groups, {groups}")
    encoder = _codec_encoder(codec.section("encoder_config"), groups, codes)
    for name in ("encode_downsample_rate", "decode_upsample_rate"):
        if codec.size(name) != encoder.samples_per_frame:
            allowed = f"the product of the encoder's strides, {encoder.samples_per_frame}"
            raise codec.unsupported(name, codec.size(name), allowed)
    return EncodersConfig(encoder, _speaker(top.section("speaker_encoder_config"), hidden))


def _codec_encoder(fields: ConfigFields, groups: int, codes: int) -> CodecEncoderConfig:
    fields.expect("hidden_act", "gelu")
    fields.expect("attention_bias", False)
    fields.expect("audio_channels", 1)
    fields.expect("use_causal_conv", True)
    fields.expect("use_conv_shortcut", False)
    fields.expect("pad_mode", "constant")
    fields.expect("num_semantic_quantizers", 1)
    # The reference implementation does not apply the window that the file has: attention is causal without a limit.
    hidden, heads = fields.size("hidden_size", default=512), fields.size("num_attention_heads", default=8)
    if hidden % heads:
        raise fields.unsupported("num_attention_heads", heads, f"a divisor of hidden_size, {hidden}")
    kv_heads = fields.size("num_key_value_heads", default=8)
    if heads % kv_heads:
        raise fields.unsupported("num_key_value_heads", kv_heads, f"a divisor of the {heads} attention heads")
    head_dim = fields.size("head_dim", default=hidden // heads)
    if head_dim % 2:
        raise fields.unsupported("head_dim", head_dim, "an even number")
    ratios = fields.integers("upsampling_ratios") if fields.has("upsampling_ratios") else (8, 6, 5, 4)
    config = CodecEncoderConfig(
        transformer=TransformerConfig(
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size", default=2048),
            layers=fields.size("num_hidden_layers", default=8),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=fields.number("norm_eps", 1e-5),
            rope_theta=fields.number("rope_theta", 10_000.0),
        ),
        filters=fields.size("num_filters", default=64),
        kernel=fields.size("kernel_size", default=7),
        residual_kernel=fields.size("residual_kernel_size", default=3),
        last_kernel=fields.size("last_kernel_size", default=3),
        residual_layers=fields.size("num_residual_layers", default=1),
        dilation_growth=fields.size("dilation_growth_rate", default=2),
        compress=fields.size("compress", default=2),
        strides=ratios[::-1],
        codebook_size=fields.size("codebook_size", default=2048),
        codebook_dim=fields.size("codebook_dim", default=256),
        quantizers=fields.size("num_quantizers", default=32),
        codes=groups,
    )
    if config.quantizers < groups:
        raise fields.unsupported("num_quantizers", config.quantizers, f"at least the talker's {groups} codes per frame")
    if config.codebook_size != codes:
        raise fields.unsupported("codebook_size", config.codebook_size, f"the predictor's vocab_size, {codes}")
    if config.filters % config.compress:
        raise fields.unsupported("compress", config.compress, f"a divisor of num_filters, {config.filters}")
    if fields.size("vector_quantization_hidden_dimension", default=256) != config.codebook_dim:
        value = fields.values.get("vector_quantization_hidden_dimension", 256)
        allowed = f"codebook_dim, {config.codebook_dim}"
        raise fields.unsupported("vector_quantization_hidden_dimension", value, allowed)
    if config.codebook_dim == hidden:
        raise fields.unsupported("codebook_dim", hidden, "other than hidden_size")
    rate = fields.size("sampling_rate", default=MEL_SAMPLE_RATE) / config.samples_per_frame
    for name in ("frame_rate", "_frame_rate"):
        if fields.has(name) and fields.number(name) != rate:
            raise fields.unsupported(name, fields.number(name), f"{rate:g}, which follows from the strides")
    return config


def _speaker(fields: ConfigFields, hidden: int) -> SpeakerConfig:
    fields.expect("mel_dim", MEL_BANDS)
    fields.expect("sample_rate", MEL_SAMPLE_RATE)

    def sizes(name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return fields.integers(name) if fields.has(name) else default

    config = SpeakerConfig(
        dim=fields.size("enc_dim", default=1024),
        channels=sizes("enc_channels", (512, 512, 512, 512, 1536)),
        kernels=sizes("enc_kernel_sizes", (5, 3, 3, 3, 1)),
        dilations=sizes("enc_dilations", (1, 2, 3, 4, 1)),
        attention_channels=fields.size("enc_attention_channels", default=128),
        chunks=fields.size("enc_res2net_scale", default=8),
        gate_channels=fields.size("enc_se_channels", default=128),
    )
    if config.dim != hidden:
        raise fields.unsupported("enc_dim", config.dim, f"the talker's hidden_size, {hidden}")
    first, *blocks, last = config.channels if len(config.channels) > 2 else (0, 1, 0)
    if any(block != first for block in blocks) or last != sum(blocks) or first % config.chunks:
        allowed = f"equal multiples of {config.chunks}, and the sum of the blocks at the end"
        raise fields.unsupported("enc_channels", list(config.channels), allowed)
    for name, values in (("enc_kernel_sizes", config.kernels), ("enc_dilations", config.dilations)):
        if len(values) != len(config.channels):
            raise fields.unsupported(name, list(values), f"as many as enc_channels, {len(config.channels)}")
    if any(kernel % 2 == 0 for kernel in config.kernels):
        raise fields.unsupported("enc_kernel_sizes", list(config.kernels), "odd numbers")
    return config
