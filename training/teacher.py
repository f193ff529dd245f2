"""The teacher, Kokoro-82M: its ONNX graph packed small, and run in torch so that a GPU can speak it.

Weights are rounded to 95 levels in groups of 64, which deflate well: two files of about 35 MB.
The graph is a list of plain nodes; every operator it uses is a small function in OPERATORS.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

GROUP, LEVELS = 64, 47
FIRST_PART_BYTES = 30_000_000
DURATIONS = "/encoder/Gather_output_0"  # of each phoneme, in units
WAVEFORM = "waveform"
UNIT = 600  # samples at 24 kHz
SOURCE_NOISE = 7e-4
TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 11: torch.float64}


@dataclass(frozen=True, slots=True)
class Node:
    kind: str
    inputs: list[str]
    outputs: list[str]
    settings: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", type=Path, help="kokoro-fp32.onnx")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    pack(arguments.onnx, arguments.out)


def pack(onnx_file: Path, out: Path) -> None:
    """Writes graph.json, weights-0.npz (all that durations need, and more) and weights-1.npz."""
    import onnx

    graph = onnx.load(onnx_file).graph
    nodes = [
        Node(node.op_type, list(node.input), list(node.output), {a.name: _setting(a) for a in node.attribute})
        for node in graph.node
    ]
    out.mkdir(parents=True, exist_ok=True)
    plain = [[node.kind, node.inputs, node.outputs, node.settings] for node in nodes]
    (out / "graph.json").write_text(json.dumps(plain))
    first = {name for node in needed(nodes, [DURATIONS]) for name in node.inputs}
    weights = sorted(graph.initializer, key=lambda tensor: (tensor.name not in first, tensor.name))
    parts: list[dict[str, np.ndarray]] = [{}, {}]
    size = 0
    for tensor in weights:
        value = onnx.numpy_helper.to_array(tensor)
        entry = {tensor.name: value}
        if value.dtype == np.float32 and value.size >= 8192:
            entry = _rounded(tensor.name, value)
        size += sum(array.nbytes for array in entry.values()) * 12 // 16  # what deflate leaves, roughly
        parts[0 if tensor.name in first or size < FIRST_PART_BYTES else 1] |= entry
    for index, part in enumerate(parts):
        np.savez_compressed(out / f"weights-{index}.npz", **part)  # type: ignore[arg-type]


def _rounded(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    groups = np.pad(value.ravel(), (0, -value.size % GROUP)).reshape(-1, GROUP)
    scale = np.maximum((np.abs(groups).max(1) / LEVELS).astype(np.float16), np.float16(1e-7))
    steps = np.clip(np.round(groups / scale.astype(np.float32)[:, None]), -LEVELS, LEVELS).astype(np.int8)
    return {f"{name}|steps": steps, f"{name}|scale": scale, f"{name}|shape": np.array(value.shape)}


def _setting(attribute: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.TENSOR:
        return onnx.numpy_helper.to_array(value).ravel().tolist()
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


def needed(nodes: list[Node], outputs: list[str]) -> list[Node]:
    """The nodes that lead to these outputs."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            kept.append(node)
    return kept[::-1]


class Teacher:
    """Phoneme ids and a voice to durations and, where all weights are there, to sound at 24 kHz."""

    def __init__(self, folder: Path, device: torch.device, sound: bool = True) -> None:
        self.device = device
        nodes = [Node(*node) for node in json.loads((folder / "graph.json").read_text())]
        self.outputs = [DURATIONS, WAVEFORM] if sound else [DURATIONS]
        self.nodes = needed(nodes, self.outputs)
        self.weights: dict[str, Tensor] = {}
        for part in range(2 if sound else 1):
            with np.load(folder / f"weights-{part}.npz") as arrays:
                self._read(arrays)
        self._lstms: dict[str, torch.nn.LSTM] = {}
        last = {name: index for index, node in enumerate(self.nodes) for name in node.inputs}
        self._drop: dict[int, list[str]] = {}
        for name, index in last.items():
            if name not in self.weights and name not in self.outputs:
                self._drop.setdefault(index, []).append(name)

    def _read(self, arrays: Any) -> None:
        for name in arrays.files:
            base, _, role = name.partition("|")
            if role == "steps":
                scale = torch.from_numpy(arrays[f"{base}|scale"].astype(np.float32)).to(self.device)
                steps = torch.from_numpy(arrays[name]).to(self.device).float() * scale[:, None]
                shape = arrays[f"{base}|shape"].tolist()
                self.weights[base] = steps.ravel()[: int(np.prod(shape))].view(shape)
            elif not role:
                value = torch.from_numpy(np.array(arrays[name]))
                # Shapes, indices and single numbers stay on the host, where they are read or join any operand.
                on_device = value.is_floating_point() and value.numel() > 1
                self.weights[base] = value.to(self.device) if on_device else value

    @torch.no_grad()
    def __call__(self, phonemes: list[int], voice: Tensor, speed: float = 1.0) -> list[Tensor]:
        """Durations in units of begin, each phoneme and end; and the samples."""
        values = {
            "input_ids": torch.tensor([[0, *phonemes, 0]], device=self.device),
            "style": voice[len(phonemes)].view(1, -1).to(self.device),
            "speed": torch.tensor([speed], device=self.device),
        }
        for index, node in enumerate(self.nodes):
            given = [None if not n else self.weights[n] if n in self.weights else values[n] for n in node.inputs]
            if node.kind == "LSTM":
                values[node.outputs[0]] = self._lstm(node, given)
            else:
                values[node.outputs[0]] = OPERATORS[node.kind](node.settings, *self._together(node.kind, given))
            for name in self._drop.get(index, ()):
                values.pop(name, None)
        return [values[name] for name in self.outputs]

    def _together(self, kind: str, given: list[Tensor | None]) -> list[Tensor | None]:
        """Where operands are mixed, those on the host go to the device, but for single numbers in arithmetic."""
        if kind in ON_HOST or all(value is None or not value.is_cuda for value in given):
            return given
        plain = kind in ARITHMETIC
        return [
            value
            if value is None or value.is_cuda
            else value.reshape(())
            if plain and value.numel() == 1
            else value.to(self.device)
            for value in given
        ]

    def _lstm(self, node: Node, given: list[Tensor | None]) -> Tensor:
        x, weight, recurrent, bias = given[:4]
        assert x is not None
        assert weight is not None
        assert recurrent is not None
        assert bias is not None
        if node.inputs[1] not in self._lstms:
            size = int(node.settings["hidden_size"])
            lstm = torch.nn.LSTM(weight.shape[2], size, bidirectional=True).to(self.device)

            def order(gates: Tensor) -> Tensor:  # ONNX: input, output, forget, cell; torch: input, forget, cell, output
                i, o, f, c = gates.split(size)
                return torch.cat([i, f, c, o])

            for direction, suffix in enumerate(("", "_reverse")):
                for name, value in (
                    ("weight_ih", weight[direction]),
                    ("weight_hh", recurrent[direction]),
                    ("bias_ih", bias[direction][: 4 * size]),
                    ("bias_hh", bias[direction][4 * size :]),
                ):
                    getattr(lstm, f"{name}_l0{suffix}").copy_(order(value))
            self._lstms[node.inputs[1]] = lstm
        y = self._lstms[node.inputs[1]](x.contiguous())[0]
        return y.unflatten(-1, (2, -1)).transpose(1, 2)


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
    # Silence gives 0 / 0 before an arc tangent, whose phase then means nothing.
    return torch.nan_to_num(a / b, nan=0.0, posinf=torch.inf, neginf=-torch.inf)


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
    parts = torch.view_as_real(spectrum.transpose(1, 2))
    # The source is exactly silent between voiced sounds, and so is its phase; rounding noise elsewhere is noise here.
    return parts + SOURCE_NOISE * parts.square().mean().sqrt() * torch.randn_like(parts)


def _scatter(_: Settings, x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    x = x.clone()
    x[tuple(index.unbind(-1))] = values
    return x


ON_HOST = {
    "Shape", "Slice", "Gather", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Resize", "Pad", "Clip", "STFT", "CumSum",
    "ReduceMean", "ReduceSum", "Range", "ConstantOfShape",
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
    "Atan": lambda _, x: x.atan(),
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
    "NonZero": lambda _, x: x.nonzero().t(),
    "ScatterND": _scatter,
}

if __name__ == "__main__":
    main()
