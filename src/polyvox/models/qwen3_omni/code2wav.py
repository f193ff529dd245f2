# SPDX-License-Identifier: Apache-2.0
"""Code2wav: the mean of the code embeddings of each frame, then the convolutional decoder (conv_decoder.py).

Its upsampling blocks trim both ends, so n frames have n · samples_per_frame - delay_samples samples (555 fewer at the
published sizes). A sample needs no frame after the one that completes it, so there is nothing to flush.
"""

from torch import Tensor, nn

from polyvox.kernels.code_sum import sum_codes
from polyvox.models.layers.conv_decoder import ConvDecoder, WindowTransformer
from polyvox.models.layers.decoder_config import ConvDecoderConfig
from polyvox.models.layers.decoder_pass import DecoderState


class Code2Wav(ConvDecoder):
    drops_first_block = True
    wide_part = "code_embedding"

    def __init__(self, config: ConvDecoderConfig) -> None:
        super().__init__(config, WindowTransformer(config))
        self.code_embedding = nn.Embedding(config.quantizers * config.codebook_size, config.latent_dim)
        self.name_states()

    def forward(self, codes: Tensor, state: DecoderState, slots: Tensor | None = None) -> tuple[Tensor, DecoderState]:
        x = sum_codes(self.code_embedding.weight, codes, self.dtype, divisor=self.config.quantizers)
        step = self.start(x.transpose(1, 2), state, slots)
        x = self.pre_transformer(x, step).transpose(1, 2)
        return self.samples(x, step), step.after
