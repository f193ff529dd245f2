# SPDX-License-Identifier: Apache-2.0
"""The ONNX operators of the teacher's graph as torch functions: attributes first, then operands."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 11: torch.float64}

Settings = dict[str, Any]


def _slice(
    _: Settings, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    strides = steps.tolist() if steps is not None else [1] * len(starts)
    along = axes.tolist() if axes is not None else range(len(starts))
    for start, end, axis, stride in zip(starts.tolist(), ends.tolist(), along, strides, strict=True):
        if stride == -1:
            assert start == -1
            assert end < -x.shape[axis], "only whole reversals occur"
            x = x.flip(axis)
        else:
            index = [slice(None)] * x.dim()
            index[axis] = slice(start, min(end, 2**62), stride)
            x = x[tuple(index)]
    return x


def _gather(settings: Settings, x: Tensor, index: Tensor) -> Tensor:
    axis = settings.get("axis", 0) % x.dim()
    if index.dim() == 0 and not index.is_cuda:
        return x.select(axis, int(index))
    index = index.to(x.device)
    flat = torch.where(index < 0, index + x.shape[axis], index).reshape(-1)
    return x.index_select(axis, flat).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _conv(settings: Settings, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    left, right = settings.get("pads", [0, 0])
    if left != right:
        x, left = F.pad(x, (left, right)), 0
    stride, dilation = settings.get("strides", [1])[0], settings.get("dilations", [1])[0]
    return F.conv1d(x, weight, bias, stride, left, dilation, settings.get("group", 1))


def _conv_transpose(settings: Settings, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    left, right = settings.get("pads", [0, 0])
    assert left == right
    return F.conv_transpose1d(
        x, weight, bias, settings.get("strides", [1])[0], left, settings.get("output_padding", [0])[0],
        settings.get("group", 1), settings.get("dilations", [1])[0],
    )  # fmt: skip


def _gemm(settings: Settings, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a, b = a.t() if settings.get("transA") else a, b.t() if settings.get("transB") else b
    product = settings.get("alpha", 1.0) * (a @ b)
    return product if c is None else product + settings.get("beta", 1.0) * c


def _divide(_: Settings, a: Tensor, b: Tensor) -> Tensor:
    if not a.is_floating_point() and not b.is_floating_point():
        return torch.div(a, b, rounding_mode="trunc")
    return a / b


def _arc_tangent(_: Settings, x: Tensor) -> Tensor:
    # In silence, 0 / 0 has no defined phase.
    return torch.nan_to_num(x, nan=0.0, posinf=torch.inf, neginf=-torch.inf).atan()


def _power(_: Settings, a: Tensor, b: Tensor) -> Tensor:
    return a * a if b.numel() == 1 and not b.is_cuda and float(b) == 2 else a**b


def _reduce(how: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(settings: Settings, x: Tensor, axes: Tensor | None = None) -> Tensor:
        dims = axes.tolist() if axes is not None else settings.get("axes") or list(range(x.dim()))
        return how(x, dim=dims, keepdim=bool(settings.get("keepdims", 1)))

    return reduce


def _reshape(_: Settings, x: Tensor, shape: Tensor) -> Tensor:
    return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape.tolist())])


def _unsqueeze(_: Settings, x: Tensor, axes: Tensor) -> Tensor:
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes.tolist()):
        x = x.unsqueeze(axis)
    return x


def _squeeze(_: Settings, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze([axis % x.dim() for axis in axes.tolist()])


def _layer_norm(settings: Settings, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    shape = x.shape[settings.get("axis", -1) % x.dim() :]
    bias = None if bias is None else bias.expand(shape)
    return F.layer_norm(x, shape, weight.expand(shape), bias, settings.get("epsilon", 1e-5))


def _constant(settings: Settings, shape: Tensor) -> Tensor:
    value = settings.get("value", [0.0])[0]
    return torch.full(shape.tolist(), value, dtype=torch.int64 if isinstance(value, int) else torch.float32)


def _expand(_: Settings, x: Tensor, shape: Tensor) -> Tensor:
    sizes = shape.tolist()
    sizes = [1] * (x.dim() - len(sizes)) + sizes
    own = [1] * (len(sizes) - x.dim()) + list(x.shape)
    return x.expand([max(pair) for pair in zip(own, sizes, strict=True)])


def _resize(settings: Settings, x: Tensor, _: Tensor | None, scales: Tensor) -> Tensor:
    if settings["mode"] == "nearest":
        return F.interpolate(x, scale_factor=scales.tolist()[-1], mode="nearest")
    return F.interpolate(x, scale_factor=scales.tolist()[-1], mode="linear", align_corners=False)


def _pad(settings: Settings, x: Tensor, pads: Tensor, *_: Tensor | None) -> Tensor:
    widths, rank = pads.tolist(), x.dim()
    pairs = [size for axis in reversed(range(rank)) for size in (widths[axis], widths[axis + rank])]
    while len(pairs) > 2 and pairs[-2:] == [0, 0]:
        del pairs[-2:]
    mode = settings.get("mode", "constant")
    if mode == "constant":
        return F.pad(x, pairs)
    return F.pad(x[None], pairs, mode=mode)[0] if rank == 1 else F.pad(x, pairs, mode=mode)


def _clip(_: Settings, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x.clamp(None if low is None else low.item(), None if high is None else high.item())


def _stft(_: Settings, x: Tensor, hop: Tensor, window: Tensor, *rest: Tensor | None) -> Tensor:
    del rest
    size = window.numel()
    window = window.to(x.device)
    x = x.reshape(len(x), -1)
    spectrum = torch.stft(x, size, int(hop), size, window, center=False, onesided=True, return_complex=True)
    return torch.view_as_real(spectrum.transpose(1, 2))


ON_HOST = {
    "Shape", "Slice", "Gather", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Resize", "Pad", "Clip", "STFT", "CumSum",
    "ReduceMean", "ReduceSum", "Range", "ConstantOfShape", "Normed",
}  # fmt: skip
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Pow", "Greater", "GreaterOrEqual", "Less", "Equal", "Where"}
OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Add": lambda _, a, b: a + b,
    "Sub": lambda _, a, b: a - b,
    "Mul": lambda _, a, b: a * b,
    "Div": _divide,
    "Pow": _power,
    "Sqrt": lambda _, x: x.sqrt(),
    "Exp": lambda _, x: x.exp(),
    "Sin": lambda _, x: x.sin(),
    "Cos": lambda _, x: x.cos(),
    "Atan": _arc_tangent,
    "Tanh": lambda _, x: x.tanh(),
    "Sigmoid": lambda _, x: x.sigmoid(),
    "Floor": lambda _, x: x.floor(),
    "Round": lambda _, x: x.round(),
    "LeakyRelu": lambda s, x: F.leaky_relu(x, s.get("alpha", 0.01)),
    "Softmax": lambda s, x: x.softmax(s.get("axis", -1)),
    "Equal": lambda _, a, b: a == b,
    "Greater": lambda _, a, b: a > b,
    "GreaterOrEqual": lambda _, a, b: a >= b,
    "Less": lambda _, a, b: a < b,
    "And": lambda _, a, b: a & b,
    "Where": lambda _, c, a, b: torch.where(c, a, b),
    "MatMul": lambda _, a, b: a @ b,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "LayerNormalization": _layer_norm,
    "Normed": lambda _, x, least: F.instance_norm(x, eps=float(least)),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "Transpose": lambda s, x: x.permute(s["perm"]),
    "Concat": lambda s, *parts: torch.cat(parts, s["axis"]),
    "Slice": _slice,
    "Gather": _gather,
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Expand": _expand,
    "Shape": lambda s, x: torch.tensor(list(x.shape)[s.get("start", 0) : s.get("end")]),
    "ConstantOfShape": _constant,
    "Cast": lambda s, x: x.to(TYPES[s["to"]]),
    "CumSum": lambda _, x, axis: x.cumsum(int(axis)),
    "Range": lambda _, a, b, c: torch.arange(a.item(), b.item(), c.item()),
    "Resize": _resize,
    "Pad": _pad,
    "Clip": _clip,
    "STFT": _stft,
    "Identity": lambda _, x: x,
}
