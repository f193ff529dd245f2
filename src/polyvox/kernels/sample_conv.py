# SPDX-License-Identifier: Apache-2.0
"""The codec's last layer in CUDA C++: the convolution of 96 channels to one sample, clamped, with its history.

    active [B,96,T], channels contiguous in memory ([B,T,96]) · state [S,96,6] likewise · slots [B] int64
    y[b,t] = clamp(bias + Σ_tap weight[tap] · active[b,:, t - (6-tap)], -1, 1)

Why not Triton: conv.py copies each column once per tap for an output of 16 channels, of which 15 are padding. Here a
column is loaded once and multiplied with the weights of all taps (sample_conv.cu). One launch instead of three: the
first program of a stream, the only one that reads its history, also updates it.

Types: active, weight and state float16; bias and y float32. Roundings: as conv.py: products summed in float32, here
each tap's first, then the bias and the taps' sums, from the oldest on. NaN stays NaN.
Bytes: active once from memory, and 6 of 240 columns again; y once. The weights, 1.5 KB, from cache.
A sample's bits depend on its own columns only. Runs on every architecture of gpu.py with NVRTC, for at least 6 columns;
elsewhere conv.py and a clamp compute the same, within rounding.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.kernels.conv import PackedConv, causal_conv_reference, channels_last
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS, gpu_of

CHANNELS, TAPS = 96, 7
THREADS, SAMPLES = 256, 240  # of a program
PADDED_TAPS, BLOCK = 8, 32


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("sample_conv.cu", str(architecture))


def supports(active: Tensor, layer: PackedConv) -> bool:
    """Whether `sample_conv` runs for these signals [B,C,T] and this layer."""
    if active.is_cpu or active.dtype != torch.float16:
        return False
    shape = (layer.inputs, layer.outputs, layer.taps, layer.dilation, layer.rate)
    if shape != (CHANNELS, 1, TAPS, 1, 1) or active.shape[2] < layer.history:
        return False
    return supports_architecture(gpu_of(active.device).architecture)


def supports_architecture(architecture: int) -> bool:
    return architecture in GPUS and source(architecture).available()


def pack_samples(layer: PackedConv) -> Tensor:
    """Weights as a product's operand, [blocks of 32 channels, 8 taps, 32]; the last tap is zero."""
    taps = layer.weight.view(TAPS, CHANNELS // BLOCK, BLOCK).transpose(0, 1)
    return F.pad(taps, (0, 0, 0, PADDED_TAPS - TAPS)).contiguous()


def sample_conv(
    active: Tensor, weights: Tensor, bias: Tensor, state: Tensor, slots: Tensor, absent: Tensor | None = None
) -> Tensor:
    """Samples [B,T] float32 in [-1, 1]; updates state in place. weights: of `pack_samples`; bias [1] float32.

    absent [B]: the first samples of each stream that are zero.
    """
    rows, past = channels_last(active), state.transpose(1, 2)
    batch, columns, _ = rows.shape
    assert past.shape[1:] == (TAPS - 1, CHANNELS)
    assert past.is_contiguous()
    y = torch.empty(batch, columns, dtype=torch.float32, device=rows.device)
    tiles = -(-columns // SAMPLES)
    source(gpu_of(rows.device).architecture).launch(
        "sample_conv_96", batch * tiles, THREADS, 0, [rows, past, slots, weights, bias, y, absent, columns, tiles]
    )
    return y


def sample_conv_reference(active: Tensor, past: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Reference implementation: weight and bias of nn.Conv1d; samples [B,T] in the type of active."""
    return causal_conv_reference(active, past, weight, bias, 1).squeeze(1).clamp(-1, 1)
