# SPDX-License-Identifier: Apache-2.0
"""The teacher, Kokoro-82M: its ONNX graph with compressed weights, executed in torch on a GPU.

Weights are quantized to 95 levels in groups of 64 and deflated: two files of about 35 MB.
The graph was exported for one text. It is executed in parts: texts with equal phoneme counts are timed in one batch,
prosody and audio of texts with equal unit counts are computed in one batch.
"""

import argparse
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training.operators import ARITHMETIC, ON_HOST, OPERATORS
from training.source import lock, locked_pitch, loudness, phase, with_noise

GROUP, LEVELS = 64, 47
FIRST_PART_BYTES = 30_000_000
# Names in the graph.
DURATIONS = "/encoder/Gather_output_0"  # durations of the phonemes of the first text, in units
TIMES = "/encoder/Cast_output_0"  # durations for all texts
KNOWN = ("/encoder/Transpose_output_0", "/encoder/text_encoder/Transpose_2_output_0")  # hidden states per phoneme
SPREAD = ("/encoder/MatMul_output_0", "/encoder/MatMul_1_output_0")  # hidden states per unit
STYLE_AS_ROWS = "/encoder/predictor/text_encoder/Expand_output_0"
SOURCE, PADDED_SOURCE = "/decoder/decoder/generator/Reshape_output_0", "/decoder/decoder/generator/Reshape_3_output_0"
FIRST_SAMPLES = "/decoder/decoder/generator/istft/stft/ScatterND_output_0"
PITCH = "/encoder/Squeeze_output_0"  # Hz, two values for each unit
ENERGY = "/encoder/Squeeze_1_output_0"  # logarithmic, two values for each unit
PHASE = "/decoder/decoder/generator/m_source/l_sin_gen/Transpose_3_output_0"  # of each harmonic at each sample
STARTS, VOICES, ADVANCE = "starts", "voices", "advance"  # added values: see source.py
ROWS = "/encoder/Constant_20_output_0"  # the shape [1, -1], replaced by [0, -1] to keep the batch dimension
AXIS = "axis"  # an added constant: the axis after the batch
WAVEFORM = "waveform"

SOURCE_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Lock": lock,
    "LockedPitch": locked_pitch,
    "Noise": with_noise,
    "Phase": lambda advance, starts, pitch: phase(advance, starts, pitch.shape[1]),
}


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
    """Write graph.json, weights-0.npz (all weights that durations and prosody need, and more) and weights-1.npz."""
    import onnx

    graph = onnx.load(onnx_file).graph
    nodes = [
        Node(node.op_type, list(node.input), list(node.output), {a.name: _setting(a) for a in node.attribute})
        for node in graph.node
    ]
    out.mkdir(parents=True, exist_ok=True)
    plain = [[node.kind, node.inputs, node.outputs, node.settings] for node in nodes]
    (out / "graph.json").write_text(json.dumps(plain))
    first = {name for node in needed(nodes, [DURATIONS, PITCH, ENERGY]) for name in node.inputs}
    weights = sorted(graph.initializer, key=lambda tensor: (tensor.name not in first, tensor.name))
    parts: list[dict[str, np.ndarray]] = [{}, {}]
    size = 0
    for tensor in weights:
        value = onnx.numpy_helper.to_array(tensor)
        entry = {tensor.name: value}
        if value.dtype == np.float32 and value.size >= 8192:
            entry = _rounded(tensor.name, value)
        size += sum(array.nbytes for array in entry.values()) * 12 // 16  # approximate size after deflate
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


def needed(nodes: list[Node], outputs: list[str], given: Collection[str] = ()) -> list[Node]:
    """The nodes that compute these outputs from the graph's inputs and the given values."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs) - set(given)
            kept.append(node)
    return kept[::-1]


def for_many(nodes: list[Node]) -> list[Node]:
    """Rewrite the graph for batches, in which each row has its own style and samples, and lock the harmonic source."""
    made: list[Node] = []
    for node in nodes:
        name = node.outputs[0]
        if name == STYLE_AS_ROWS:
            made.append(Node("Unsqueeze", [node.inputs[0], AXIS], ["style of each"], {}))
            made.append(Node(node.kind, ["style of each", *node.inputs[1:]], node.outputs, node.settings))
        elif name == SOURCE:
            made.append(Node("Unsqueeze", [node.inputs[0], AXIS], node.outputs, {}))
        elif name == PADDED_SOURCE:
            made.append(Node(node.kind, [node.inputs[0], ROWS], node.outputs, node.settings))
        elif name == PITCH:
            made.append(Node(node.kind, node.inputs, ["free pitch"], node.settings))
            made.append(Node("Lock", ["free pitch", STARTS, VOICES], [ADVANCE], {}))
            made.append(Node("LockedPitch", ["free pitch", ADVANCE, STARTS], [PITCH], {}))
        elif name == PHASE:
            made.append(Node("Phase", [ADVANCE, STARTS, PITCH], [PHASE], {}))
        elif node.kind == "STFT":
            made.append(Node(node.kind, node.inputs, ["spectrum"], node.settings))
            made.append(Node("Noise", ["spectrum", ADVANCE, STARTS], node.outputs, {}))
        elif name == FIRST_SAMPLES:  # scales the first 20 samples, which are zero
            made.append(Node("Identity", node.inputs[:1], node.outputs, {}))
        else:
            made.append(node)
    return made


def norms_in_one(nodes: list[Node]) -> list[Node]:
    """Fuse the five memory-bound operations of an instance norm into one node."""
    made = {node.outputs[0]: node for node in nodes}

    def normed(node: Node) -> Node:
        above, below = (made.get(name) for name in node.inputs[:2]) if node.kind == "Div" else (None, None)
        if above is None or below is None or (above.kind, below.kind) != ("Sub", "Sqrt"):
            return node
        return Node("Normed", [above.inputs[0], made[below.inputs[0]].inputs[1]], node.outputs, {})

    return [normed(node) for node in nodes]


@dataclass(frozen=True, slots=True)
class Steps:
    nodes: list[Node]
    outputs: list[str]
    drop: dict[int, list[str]]  # values to free after each node


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations and hidden states of a batch of texts with equal phoneme counts."""

    durations: Tensor  # [B, phonemes + 2] units: start, phonemes, end
    known: list[Tensor]  # [B, size, phonemes + 2]; without sound only those that the prosody needs


class Teacher:
    """Batched phoneme ids and voices to durations, prosody and, with all weights, audio at 24 kHz."""

    def __init__(self, folder: Path, device: torch.device, sound: bool = True) -> None:
        self.device = device
        nodes = norms_in_one(for_many([Node(*node) for node in json.loads((folder / "graph.json").read_text())]))
        self.weights: dict[str, Tensor] = {AXIS: torch.tensor([1]), ROWS: torch.tensor([0, -1])}
        for part in range(2 if sound else 1):
            with np.load(folder / f"weights-{part}.npz") as arrays:
                self._read(arrays)
        for node in nodes:
            if node.kind == "Resize" and node.inputs[2] in self.weights:  # scale factors are read on the host
                self.weights[node.inputs[2]] = self.weights[node.inputs[2]].cpu()
        self._lstms: dict[str, torch.nn.LSTM] = {}
        self._time = self._steps(nodes, [TIMES, *(KNOWN if sound else KNOWN[:1])], set())
        self._prosody = self._steps(nodes, [ADVANCE, ENERGY], {SPREAD[0], STARTS, VOICES})
        self._sound = self._steps(nodes, [WAVEFORM], {*SPREAD, STARTS, VOICES, ADVANCE})

    def _steps(self, nodes: list[Node], outputs: list[str], given: set[str]) -> Steps:
        """The nodes for these outputs, and the values to free after each node."""
        kept = needed(nodes, outputs, given)
        last = {name: index for index, node in enumerate(kept) for name in node.inputs}
        drop: dict[int, list[str]] = {}
        for name, index in last.items():
            if name not in self.weights and name not in outputs:
                drop.setdefault(index, []).append(name)
        return Steps(kept, outputs, drop)

    def _read(self, arrays: Any) -> None:
        for name in arrays.files:
            base, _, role = name.partition("|")
            if role == "steps":
                scale = torch.from_numpy(arrays[f"{base}|scale"].astype(np.float32)).to(self.device)
                steps = torch.from_numpy(arrays[name]).to(self.device).float() * scale[:, None]
                shape = arrays[f"{base}|shape"].tolist()
                self.weights[base] = steps.ravel()[: int(np.prod(shape))].view(shape)
            elif not role and name != ROWS:
                value = torch.from_numpy(np.array(arrays[name]))
                # Shapes, indices and scalars stay on the host.
                on_device = value.is_floating_point() and value.numel() > 1
                self.weights[base] = value.to(self.device) if on_device else value

    @torch.no_grad()
    def time(self, phonemes: Tensor, styles: Tensor, speed: float = 1.0) -> Timing:
        """Durations of texts with equal phoneme counts [B,N], each with its style [B,STYLES]."""
        values = {
            "input_ids": F.pad(phonemes, (1, 1)).to(self.device),
            "style": styles.to(self.device),
            "speed": torch.tensor([speed], device=self.device),
        }
        durations, *known = self._run(self._time, values)
        return Timing(durations, known)

    @torch.no_grad()
    def prosody(
        self, known: list[Tensor], rows: Tensor, styles: Tensor, starts: Tensor, voices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Phase steps of each frame [B,frames] and loudness of each unit [B,units], of texts with equal unit counts.

        known: hidden states of phonemes [N,size]; rows [B,units]: the phoneme of each unit; starts [B]: the unit at
        which frame 0 begins.
        """
        advance, energy = self._run(self._prosody, self._spread(known[:1], rows, styles, starts, voices))
        return advance, loudness(energy)

    @torch.no_grad()
    def sound(
        self, known: list[Tensor], rows: Tensor, styles: Tensor, starts: Tensor, voices: Tensor, advance: Tensor
    ) -> Tensor:
        """Samples [B, units × TEACHER_UNIT] with these phase steps; the other arguments are those of prosody()."""
        values = self._spread(known, rows, styles, starts, voices) | {ADVANCE: advance.to(self.device)}
        return self._run(self._sound, values)[0]

    def _spread(
        self, known: list[Tensor], rows: Tensor, styles: Tensor, starts: Tensor, voices: Tensor
    ) -> dict[str, Tensor]:
        units = [part[rows.to(self.device)].transpose(1, 2) for part in known]
        given = {STARTS: starts, VOICES: voices, "style": styles}
        return {name: value.to(self.device) for name, value in given.items()} | dict(zip(SPREAD, units, strict=False))

    def _run(self, steps: Steps, values: dict[str, Tensor]) -> list[Tensor]:
        for index, node in enumerate(steps.nodes):
            given = [None if not n else self.weights[n] if n in self.weights else values[n] for n in node.inputs]
            if node.kind == "LSTM":
                values[node.outputs[0]] = self._lstm(node, given)
            elif node.kind in SOURCE_OPERATORS:
                values[node.outputs[0]] = SOURCE_OPERATORS[node.kind](*given)
            else:
                values[node.outputs[0]] = OPERATORS[node.kind](node.settings, *self._together(node.kind, given))
            for name in steps.drop.get(index, ()):
                values.pop(name, None)
        return [values[name] for name in steps.outputs]

    def _together(self, kind: str, given: list[Tensor | None]) -> list[Tensor | None]:
        """Move host operands to the device, except scalars in arithmetic."""
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


if __name__ == "__main__":
    main()
