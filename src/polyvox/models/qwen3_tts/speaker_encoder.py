# SPDX-License-Identifier: Apache-2.0
"""The speaker encoder (ECAPA-TDNN) and its mel spectrogram: a recording to a speaker vector."""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.models.qwen3_tts.encoder_config import MEL_BANDS, MEL_SAMPLE_RATE, SpeakerConfig

# The fixed front end of the reference implementation.
FFT_SIZE, HOP = 1024, 256
LOWEST_HZ, HIGHEST_HZ = 0.0, 12_000.0
POWER_EPS, MIN_MEL = 1e-9, 1e-5
VARIANCE_EPS = 1e-12
# Slaney's mel scale: linear up to 1 kHz (15 mel), above it 27 mel per factor of 6.4.
HZ_PER_MEL, LOG_FROM_HZ, LOG_STEP = 200.0 / 3, 1000.0, np.log(6.4) / 27.0


def _mel(hz: float) -> float:
    if hz < LOG_FROM_HZ:
        return hz / HZ_PER_MEL
    return float(LOG_FROM_HZ / HZ_PER_MEL + np.log(hz / LOG_FROM_HZ) / LOG_STEP)


def _hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    knee = LOG_FROM_HZ / HZ_PER_MEL
    return np.where(mels < knee, HZ_PER_MEL * mels, LOG_FROM_HZ * np.exp(LOG_STEP * (mels - knee)))


@cache
def mel_bank() -> NDArray[np.float32]:
    """Triangular filters of equal area, [bands, bins]; bit-identical to librosa's `mel`."""
    bins = np.fft.rfftfreq(FFT_SIZE, 1.0 / MEL_SAMPLE_RATE)
    edges = _hz(np.linspace(_mel(LOWEST_HZ), _mel(HIGHEST_HZ), MEL_BANDS + 2))
    widths, ramps = np.diff(edges)[:, None], edges[:, None] - bins
    rising, falling = -ramps[:-2] / widths[:-1], ramps[2:] / widths[1:]
    bank = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    bank *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    bank.setflags(write=False)
    return bank


def mel_spectrogram(samples: Tensor) -> Tensor:
    """Samples [B,n] to log mel bands [B, bands, ⌊n / HOP⌋]; n is at least 385."""
    margin = (FFT_SIZE - HOP) // 2
    padded = F.pad(samples[:, None], (margin, margin), "reflect")[:, 0]
    window = torch.hann_window(FFT_SIZE, dtype=samples.dtype, device=samples.device)
    spectrum = torch.stft(padded, FFT_SIZE, HOP, window=window, center=False, return_complex=True)
    size = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + POWER_EPS)
    bank = torch.tensor(mel_bank(), dtype=samples.dtype, device=samples.device)
    return torch.log((bank @ size).clamp(min=MIN_MEL))


def _same(inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> nn.Conv1d:
    """A convolution with reflection padding that keeps the length."""
    return nn.Conv1d(inputs, outputs, kernel, dilation=dilation, padding="same", padding_mode="reflect")


class TimeDelay(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _same(inputs, outputs, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """Chunks of channels: the first is unchanged, each other one adds the previous output to its input."""

    def __init__(self, channels: int, chunks: int, kernel: int, dilation: int) -> None:
        super().__init__()
        size = channels // chunks
        self.chunks = chunks
        self.blocks = nn.ModuleList(TimeDelay(size, size, kernel, dilation) for _ in range(chunks - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.chunk(self.chunks, dim=1)
        outputs = [first]
        for i, (block, chunk) in enumerate(zip(self.blocks, rest, strict=True)):
            outputs.append(block(chunk if i == 0 else chunk + outputs[-1]))
        return torch.cat(outputs, dim=1)


class SqueezeExcitation(nn.Module):
    """Squeeze and excitation: scales each channel by a function of all channel means."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1 = _same(channels, inner)
        self.conv2 = _same(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(2, keepdim=True)))))


class SpeakerBlock(nn.Module):
    def __init__(self, config: SpeakerConfig, channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(channels, channels)
        self.res2net_block = Res2Net(channels, config.chunks, kernel, dilation)
        self.tdnn2 = TimeDelay(channels, channels)
        self.se_block = SqueezeExcitation(channels, config.gate_channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x)))) + x


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation over time, [B,C] each."""
    mean = (weights * x).sum(2)
    return mean, (weights * (x - mean[..., None]).square()).sum(2).clamp(VARIANCE_EPS).sqrt()


class AttentivePooling(nn.Module):
    """Attention-weighted mean and standard deviation over time; attention reads the unweighted ones."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, inner)
        self.conv = _same(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,T] -> [B,2C,1]"""
        even = torch.ones_like(x[:1, :1]) / x.shape[2]
        seen = [x, *(part[..., None].expand_as(x) for part in _statistics(x, even))]
        weights = self.conv(torch.tanh(self.tdnn(torch.cat(seen, dim=1)))).softmax(2)
        return torch.cat(_statistics(x, weights), dim=1)[..., None]


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerConfig) -> None:
        super().__init__()
        first, *blocks, last = zip(config.channels, config.kernels, config.dilations, strict=True)
        self.blocks = nn.ModuleList([TimeDelay(MEL_BANDS, *first)])
        self.blocks.extend(SpeakerBlock(config, *block) for block in blocks)
        channels = config.channels[-1]
        self.mfa = TimeDelay(channels, *last)
        self.asp = AttentivePooling(channels, config.attention_channels)
        self.fc = _same(2 * channels, config.dim)

    def forward(self, samples: Tensor) -> Tensor:
        """Samples [B,n] at 24 kHz to vectors [B,dim]."""
        x = self.blocks[0](mel_spectrogram(samples))
        outputs = []
        for block in self.blocks[1:]:
            x = block(x)
            outputs.append(x)
        return self.fc(self.asp(self.mfa(torch.cat(outputs, dim=1))))[..., 0]
