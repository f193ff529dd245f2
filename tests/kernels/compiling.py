# SPDX-License-Identifier: Apache-2.0
"""Compile every kernel launch of an engine for GPUs that are not present; run as a separate program.

    python tests/kernels/compiling.py --gpu 80,90 --model 1.7B --streams 64

The engine's calls run on the meta device, which has shapes but no memory, and their launches are compiled instead. A
launch must fit the architecture's shared memory and registers. Prints a line per GPU and kernel.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from polyvox import kernels
from polyvox.engine.config import EngineConfig
from polyvox.engine.generator_runner import GeneratorRunner
from polyvox.engine.vocoder_runner import VocoderRunner
from polyvox.kernels.gpu import GPUS, Gpu, assume
from polyvox.kernels.lazy_triton import Kernel
from polyvox.models.registry import random_model

META = torch.device("meta")
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.bool: "*i1",
}
OPTIONS = ("num_warps", "num_stages", "launch_pdl")
REGISTERS = 1 << 16  # per multiprocessor
MAX_SPILLED = 256  # bytes per thread


@dataclass(frozen=True)
class Launch:
    """What one compilation depends on: a kernel, its argument types, its constants and its options."""

    kernel: Kernel
    key: str
    signature: dict[str, str]
    constants: dict[tuple[int], object]
    attributes: dict[tuple[int], list[list[object]]]
    options: dict[str, object]

    @classmethod
    def of(cls, kernel: Kernel, arguments: tuple[object, ...], named: dict[str, object]) -> "Launch":
        names = kernel.jit.arg_names
        values = dict(zip(names, arguments, strict=False)) | named
        options = {name: values.pop(name) for name in OPTIONS if name in values}
        signature: dict[str, str] = {}
        constants: dict[tuple[int], object] = {}
        attributes: dict[tuple[int], list[list[object]]] = {}
        for index, name in enumerate(names):
            value, specialised = values[name], name not in kernel.do_not_specialize
            if name.isupper() or (isinstance(value, int) and value == 1 and specialised):
                signature[name], constants[(index,)] = "constexpr", value
                continue
            if isinstance(value, Tensor):
                signature[name] = POINTERS[value.dtype]
            else:
                signature[name] = "i32" if isinstance(value, int) else "fp32"
            if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0 and specialised):
                attributes[(index,)] = [["tt.divisibility", 16]]
        key = repr((kernel.function.__qualname__, signature, constants, attributes, options))
        return cls(kernel, key, signature, constants, attributes, options)

    @property
    def name(self) -> str:
        return self.kernel.function.__name__


def engine_launches(gpu: Gpu, model: str, streams: int) -> list[Launch]:
    """The distinct launches of all calls of an engine with a model of this size."""
    launches: dict[str, Launch] = {}

    def record(self: Kernel, _grid: tuple[int, ...]) -> object:
        def launch(*arguments: object, **named: object) -> None:
            made = Launch.of(self, arguments, named)
            launches.setdefault(made.key, made)

        return launch

    Kernel.__getitem__ = record  # type: ignore[method-assign]
    with kernels.enabled_on_cpu(), assume(gpu), torch.inference_mode():
        speech = random_model(model, META, torch.bfloat16)
        config = EngineConfig(max_streams=streams)
        generator = GeneratorRunner(speech.generator, config, fixed_sizes=True)
        vocoder = VocoderRunner(
            speech.vocoder, generator.state.codes, streams, small_model=False, fixed_sizes=True, pcm=True
        )
        assert generator.graphs is not None
        assert vocoder.graphs is not None
        for call in (*generator.graphs.calls(), *vocoder.graphs.calls()):
            call(*call.inputs)
    return list(launches.values())


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a compiled launch; registers and spilled bytes are per thread."""

    shared: int
    registers: int
    spilled: int
    threads: int


def compile_for(launch: Launch, gpu: Gpu) -> Usage:
    source = ASTSource(launch.kernel.jit, launch.signature, launch.constants, launch.attributes)
    made: Any = triton.compile(source, target=GPUTarget("cuda", gpu.architecture, 32), options=launch.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        report = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert found, report
    return Usage(made.metadata.shared, int(found[1]), int(found[2]), 32 * made.metadata.num_warps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="90", help=f"architectures, of {', '.join(map(str, GPUS))}")
    parser.add_argument("--model", default="1.7B,omni", help="published sizes")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--first", action="store_true", help="one launch of each kernel only")
    arguments = parser.parse_args()
    failed = False
    for gpu in (GPUS[int(name)] for name in arguments.gpu.split(",")):
        launches = {
            launch.key: launch
            for model in arguments.model.split(",")
            for launch in engine_launches(gpu, model, arguments.streams)
        }
        if arguments.first:
            launches = {launch.name: launch for launch in launches.values()}
        usages: dict[str, list[Usage]] = defaultdict(list)
        for launch in launches.values():
            usage = compile_for(launch, gpu)
            usages[launch.name].append(usage)
            fits = usage.shared <= gpu.shared and usage.registers * usage.threads <= REGISTERS
            if not fits or usage.spilled > MAX_SPILLED:
                failed = True
                sys.stderr.write(f"sm_{gpu.architecture} {usage}: {launch.key}\n")
        for name, all_usages in sorted(usages.items()):
            summary = {
                "gpu": gpu.architecture,
                "kernel": name,
                "compiled": len(all_usages),
                "shared": max(usage.shared for usage in all_usages),
                "registers": max(usage.registers for usage in all_usages),
                "spilled": max(usage.spilled for usage in all_usages),
            }
            sys.stdout.write(json.dumps(summary) + "\n")
            sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
