# SPDX-License-Identifier: Apache-2.0
"""Finds launches that read, before they wait, what a launch that may still run writes (launch_overlap.py).

The launches of a call are recorded on the meta device. Which tensors a Triton kernel writes, and which it reads before
it waits, follows from its Python source; of kernels in CUDA C++ from the parameters' types and from the tables below,
which tests/conformance/test_races_on_cpu.py checks.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polyvox import kernels
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import Gpu, assume
from polyvox.kernels.launches import OnMetaDevice
from polyvox.kernels.lazy_triton import Kernel, intercepting_launches
from polyvox.kernels.tensor_map import TensorMap

FOLDER = Path(kernels.__file__).parent
WAITS, START_NEXT = ("wait", "wait_for_previous"), "start_next"
LOADS, STORES = ("load",), ("store", "atomic_add", "atomic_max", "atomic_cas", "atomic_xchg")

# Files in CUDA C++ whose kernels let the next launch start only after their own wait.
WAIT_FIRST = ("code_draw.cu", "pair_attention.cu", "warp_attention.cu", "wgmma_linear.cu")
# Parameters that kernels in CUDA C++ read only after their wait; the other constant ones may be read before it.
READ_LATE = ("x", "qkv", "logits", "add", "squares", "table")
# Parameters that they write, but read before their wait, too.
READ_AND_WRITTEN = {
    "page_attention.cu": ("keys", "values"),
    "attention_output.cu": ("keys", "values"),
    "warp_attention.cu": ("keys", "values", "key_scales", "value_scales"),
}
# Parameters that they write only if the tensors exist. Of Triton kernels, that follows from the constants.
OPTIONAL = {"warp_attention.cu": ("key_scales", "value_scales")}
# It writes at addresses in a table, which are not known: the histories of the vocoder, which no launch reads early.
WRITES_BY_TABLE = "history.cu"


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of a storage."""

    storage: int
    first: int
    end: int

    def overlaps(self, other: "Region") -> bool:
        return self.storage == other.storage and self.first < other.end and other.first < self.end


@dataclass(frozen=True, slots=True)
class Event:
    """A launch, or an operation of PyTorch."""

    name: str
    written: tuple[Region, ...]
    early: tuple[tuple[str, Region], ...] = ()  # parameters that are read before the wait
    overlaps: bool = False  # it may start before the launch before has ended
    starts_next: bool = False  # before its own wait


def hazards(events: Sequence[Event]) -> Iterator[str]:
    """Reads before a wait of what a launch wrote that may still run, or whose writes may not be visible yet."""
    completed = -1  # the last event that has certainly ended when events[i] starts
    for i, event in enumerate(events):
        before = events[i - 1] if i > 0 else None
        if before is not None and not (before.overlaps and before.starts_next):
            completed = i - 2
        for j in range(completed + 1, i):
            for parameter, region in event.early:
                if any(region.overlaps(written) for written in events[j].written):
                    yield f"{event.name} (launch {i}) reads {parameter} before {events[j].name} (launch {j}) has ended"


@dataclass(frozen=True, slots=True)
class Effects:
    """Names of a kernel's parameters."""

    written: frozenset[str]
    early: frozenset[str]
    starts_next: bool


class _Reader:
    """Reads the source of a Triton function whose constants are known."""

    def __init__(self, function: Callable[..., Any], constants: Mapping[str, object]) -> None:
        self.scope, self.constants = function.__globals__, constants
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        # Constants are annotated.
        self.pointers = {each.arg: {each.arg} for each in tree.args.args if each.annotation is None}
        self.loaded: set[str] = set()
        self.written: set[str] = set()
        self.early: set[str] | None = None  # what was loaded before the wait
        self.starts_next = False
        self._read(tree.body)

    def _read(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.If):
                known = self._value(statement.test)
                self._calls(statement.test)
                before = dict(self.pointers)
                self._read(statement.body if known in (True, None) else [])
                if known is None:
                    after, self.pointers = self.pointers, before
                    self._read(statement.orelse)
                    for name, bases in after.items():
                        self.pointers[name] = self.pointers.get(name, set()) | bases
                elif not known:
                    self._read(statement.orelse)
            elif isinstance(statement, ast.For | ast.While):
                self._calls(statement.iter if isinstance(statement, ast.For) else statement.test)
                self._read(statement.body)
            else:
                self._calls(statement)
                if isinstance(statement, ast.Assign):
                    for target in statement.targets:
                        self._assign(target, statement.value)
                elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                    self._assign(statement.target, statement.value)

    def _value(self, test: ast.expr) -> bool | None:
        """Of a condition that follows from constants."""
        try:
            return bool(eval(compile(ast.Expression(test), "", "eval"), {}, dict(self.constants)))
        except (NameError, TypeError, AttributeError):
            return None

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            for each, of in zip(target.elts, values, strict=True):
                self._assign(each, of)
        elif isinstance(target, ast.Name):
            self.pointers[target.id] = self._bases(value)

    def _bases(self, value: ast.expr) -> set[str]:
        """The parameters that an address may be computed from. Of calls, `where` and `to` return addresses."""
        if isinstance(value, ast.Name):
            return set(self.pointers.get(value.id, ()))
        if isinstance(value, ast.BinOp):
            return self._bases(value.left) | self._bases(value.right)
        if isinstance(value, ast.IfExp):
            return self._bases(value.body) | self._bases(value.orelse)
        if isinstance(value, ast.Subscript):
            return self._bases(value.value)
        if isinstance(value, ast.Call) and _name(value.func) == "where":
            return self._bases(value.args[1]) | self._bases(value.args[2])
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
            return self._bases(value.func.value)
        return set()

    def _calls(self, tree: ast.AST) -> None:
        for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
            name = _name(call.func)
            if name in WAITS:
                assert self.early is not None or not self.written, f"{sorted(self.written)} written before the wait"
                self.early = set(self.loaded)
            elif name == START_NEXT:
                self.starts_next |= self.early is None
            elif name in LOADS:
                self.loaded |= self._bases(call.args[0])
            elif name in STORES:
                self.written |= self._bases(call.args[0])
            elif isinstance(call.func, ast.Name) and (function := _function(self.scope.get(name))) is not None:
                self._helper(function, call)

    def _helper(self, function: Callable[..., Any], call: ast.Call) -> None:
        names = list(inspect.signature(function).parameters)
        given = dict(zip(names, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}
        constants = {
            name: self.constants[value.id] if isinstance(value, ast.Name) else value.value
            for name, value in given.items()
            if isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id in self.constants)
        }
        helper = _Reader(function, constants)
        for own, of_helper in ((self.loaded, helper.loaded), (self.written, helper.written)):
            for name in of_helper:
                own |= self._bases(given[name])


def _name(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _function(found: Any) -> Callable[..., Any] | None:
    """The Python function of a kernel, which Triton may have replaced by its own object."""
    return found.function if isinstance(found, Kernel) else getattr(found, "fn", None)


@cache
def triton_effects(function: Callable[..., Any], constants: tuple[tuple[str, object], ...]) -> Effects:
    """What a Triton kernel does with these constants."""
    read = _Reader(function, dict(constants))
    assert read.early is not None, f"{function.__name__} does not wait"
    return Effects(frozenset(read.written), frozenset(read.early), read.starts_next)


@cache
def triton_written(function: Callable[..., Any], constants: tuple[tuple[str, object], ...]) -> frozenset[str]:
    return frozenset(_Reader(function, dict(constants)).written)


@dataclass(frozen=True, slots=True)
class CudaSignature:
    parameters: tuple[str, ...]
    effects: Effects


@cache
def cuda_signature(file: str, name: str) -> CudaSignature:
    """The parameters of a kernel in CUDA C++, and what it does with them."""
    text = (FOLDER / file).read_text().replace("\\\n", " ")
    for found in re.finditer(r'extern "C" __global__ (.*?)\) \{', text, re.DOTALL):
        head, depth = found[1], 1
        start = next(i for i in range(len(head) - 1, -1, -1) if (depth := depth + _depth(head[i])) == 0)
        pattern = re.search(r"[\w#]+$", head[:start].rstrip())
        assert pattern is not None, head
        if not re.fullmatch(re.sub(r"#*##\w+?(?=#|$)", r"\\w+", pattern[0]), name):
            continue
        parameters = [" ".join(each.split()) for each in head[start + 1 :].split(",")]
        names = tuple(re.sub(r".*[ *]", "", each) for each in parameters)
        tensors = {n: each for n, each in zip(names, parameters, strict=True) if "*" in each or "TensorMap" in each}
        written = frozenset(n for n, each in tensors.items() if not each.startswith("const "))
        early = (tensors.keys() - written - set(READ_LATE)) | (written & set(READ_AND_WRITTEN.get(file, ())))
        return CudaSignature(names, Effects(written, frozenset(early), file not in WAIT_FIRST))
    raise AssertionError(f"{file} has no kernel {name}")


def _depth(character: str) -> int:
    return {")": 1, "(": -1}.get(character, 0)


class Recorder(TorchDispatchMode):
    """The launches of kernels and of PyTorch, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self._kept: list[Tensor] = []  # so that no other storage gets the address of one that was seen

    def region(self, tensor: Tensor) -> Region:
        self._kept.append(tensor)
        size = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        first = int(tensor.storage_offset()) * tensor.itemsize
        end = first + int(size) * tensor.itemsize if tensor.numel() else first
        return Region(tensor.untyped_storage()._cdata, first, end)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = operation(*args, **(kwargs or {})), operation.overloadpacket.__name__
        made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        given = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        values = dict(zip((each.name for each in operation._schema.arguments), args, strict=False)) | (kwargs or {})
        changed = [
            values.get(each.name)
            for each in operation._schema.arguments
            if each.alias_info and each.alias_info.is_write
        ]
        new = [each for each in tree_leaves(changed) if isinstance(each, Tensor)]
        new += [each for each in made if each.untyped_storage()._cdata not in given]
        if "empty" not in name and new:
            self.events.append(Event(f"PyTorch {name}", tuple(map(self.region, new))))
        return result

    def record(self, launched: Kernel | CudaSource, arguments: Sequence[Any], named: dict[str, Any]) -> None:
        if isinstance(launched, CudaSource):
            file = launched.file
            signature, overlaps = cuda_signature(file, named["name"]), bool(named["overlaps"])
            effects = signature.effects
            given = dict(zip(signature.parameters, arguments, strict=True))
        else:
            file, function = launched.function.__name__, launched.function
            given = dict(zip(inspect.signature(function).parameters, arguments, strict=False)) | named
            overlaps = bool(named.get("launch_pdl"))
            constants = tuple(sorted((n, v) for n, v in named.items() if isinstance(v, bool | int | str | None)))
            if overlaps:
                effects = triton_effects(function, constants)
            else:
                effects = Effects(triton_written(function, constants), frozenset(), False)
        tensors: dict[str, Tensor] = {}
        for n, each in given.items():
            tensor = each.matrix if isinstance(each, TensorMap) else each
            # Launchers pass another argument again in place of a tensor that does not exist.
            is_again = any(tensor is other for other in tensors.values())
            is_absent = is_again and (n not in effects.written or n in OPTIONAL.get(file, ()))
            if isinstance(tensor, Tensor) and not is_absent:
                tensors[n] = tensor
        written = tuple(self.region(tensors[n]) for n in effects.written if n in tensors)
        assert written or file == WRITES_BY_TABLE, f"{file} writes nothing"
        early = tuple((n, self.region(tensors[n])) for n in effects.early if overlaps and n in tensors)
        self.events.append(Event(file, written, early, overlaps, effects.starts_next))


@torch.inference_mode()
def events_of(call: Callable[[], object], gpu: Gpu) -> list[Event]:
    """What a call launches on this GPU, without running it."""
    recorder = Recorder()
    with OnMetaDevice(), assume(gpu), intercepting_launches(recorder.record), recorder:
        call()
    return recorder.events
