# SPDX-License-Identifier: Apache-2.0
"""Compile every kernel launch of an engine for GPUs that are not present; run as a separate program.

    cd tests && python -m kernels.compiling --gpu 80,90 --model 1.7B --streams 64

A launch must fit the architecture's shared memory and registers, and add in the order that order_of_sums.py requires.
The loop of attention of large batches has no more shuffles than loop_shuffles.py allows.
Prints a line per GPU and kernel.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
import triton
from torch import Tensor

from kernels.loop_shuffles import assert_few_shuffles
from kernels.order_of_sums import RotaryOrders, assert_order_of_loops
from kernels.rounded_products import assert_rounded
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.generator_runner import GeneratorRunner
from polyvox.engine.graphs import GraphedSizes, largest_first
from polyvox.engine.vocoder_runner import VocoderRunner
from polyvox.kernels.compiler_pool import CompilerPool
from polyvox.kernels.gpu import GPUS, Gpu
from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.launches import META, Launch, absent_gpu, compile_launch, record_launches
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.prefill_attention import prompt_attention
from polyvox.kernels.quantized_rows import LARGEST, supports
from polyvox.kernels.rotary import HeadRotation
from polyvox.models.registry import LoadOptions, random_model

MODEL_DTYPE = torch.bfloat16
DEFAULT_KV_DTYPE = torch.int8  # on a GPU
KV_HEADS, WIDE = 8, 256  # of wide heads
REGISTERS = 1 << 16  # per multiprocessor
MAX_SPILLED = 256  # bytes per thread
# Multiprocessors of small GPUs, and of parts of large ones, for which other tiles of the vocoder's convolutions are
# chosen than for the architecture's common GPU. Other numbers of multiprocessors add no tile.
SMALL_GPUS = (14, 20, 28)


def engine_launches(
    gpu: Gpu, model: str, streams: int, dtypes: Sequence[torch.dtype], all_calls: bool = True
) -> list[Launch]:
    """The distinct launches of engines with a model of this size: with matrices of each of these types.

    all_calls: also with a KV cache of each type, those of a deterministic engine, and the vocoder's of GPUs with fewer
    multiprocessors. Kernels in CUDA C++ are compiled by their own tests.
    """
    launches: dict[Launch, None] = {}
    with torch.inference_mode(), absent_gpu(gpu.architecture):
        for weight_dtype in dtypes:
            speech = random_model(model, LoadOptions(META, MODEL_DTYPE))
            if weight_dtype != MODEL_DTYPE:
                speech.generator.quantize(weight_dtype)
            # A quantised KV cache has launches of its own, whatever the type of the matrices.
            kv_dtypes = dtypes if all_calls and weight_dtype == MODEL_DTYPE else [DEFAULT_KV_DTYPE]
            for kv_dtype, deterministic in product(kv_dtypes, (False, True) if all_calls else (False,)):
                speech.generator.kv_dtype = kv_dtype
                config = EngineConfig(streams, speech.generator.default_context, deterministic=deterministic)
                generator = GeneratorRunner(speech.generator, config, fixed_sizes=True)
                assert generator.graphs is not None
                launches.update(dict.fromkeys(_recorded(generator.graphs.families, gpu)))
        for deterministic in (False, True) if all_calls else (False,):
            vocoder = VocoderRunner(
                speech.vocoder,
                generator.state.codes,
                streams,
                small_model=False,
                deterministic=deterministic,
                fixed_sizes=True,
                pcm=True,
            )
            assert vocoder.graphs is not None
            for multiprocessors in (gpu.multiprocessors, *(SMALL_GPUS if all_calls else ())):
                smaller = replace(gpu, multiprocessors=multiprocessors)
                launches.update(dict.fromkeys(_recorded(vocoder.graphs.families, smaller)))
    return [launch for launch in launches if launch.specialization]


def wide_head_launches(gpu: Gpu) -> list[Launch]:
    """Attention over prompts with heads of twice the published size, in each type, for few and for many rows.

    They must fit; how many bytes they spill is not checked.
    """

    def call(rows: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
        def integers(*size: int) -> Tensor:
            return torch.empty(*size, dtype=torch.int64, device=META)

        pool = torch.empty(8, KV_HEADS, PAGE, WIDE, dtype=kv_dtype, device=META).transpose(1, 2)
        scales = torch.empty(8, KV_HEADS, PAGE, device=META)
        cache = PagedRows(
            pool, pool, integers(1, 8), integers(rows), integers(rows),
            KVScales(scales, scales) if kv_dtype != dtype else None,
        )  # fmt: skip
        gain, angles = (torch.empty(*size, dtype=dtype, device=META) for size in ((WIDE,), (128, WIDE)))
        qkv = torch.empty(rows, 4 * KV_HEADS * WIDE, dtype=dtype, device=META)
        prompt_attention(qkv, HeadRotation(angles, angles, (gain, gain), 1e-6), cache)

    sizes = product((64, 2048), (MODEL_DTYPE, torch.float32), (False, True))
    calls = [partial(call, rows, dtype, torch.int8 if quantized else dtype) for rows, dtype, quantized in sizes]
    with torch.inference_mode(), absent_gpu(gpu.architecture):
        return [launch for launch in record_launches(calls, gpu) if launch.name == "prefill_kernel"]


def _recorded(families: list[GraphedSizes], gpu: Gpu) -> list[Launch]:
    return record_launches([call.run for call in largest_first(families)], gpu)


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a compiled launch; registers and spilled bytes are per thread."""

    shared: int
    registers: int
    spilled: int
    threads: int

    def fits(self, gpu: Gpu) -> bool:
        return self.shared <= gpu.shared and self.registers * self.threads <= REGISTERS


def compile_for(launch: Launch, rotary: RotaryOrders) -> Usage:
    made = compile_launch(launch)
    if launch.name == "prefill_kernel":
        assert_order_of_loops(launch, made.asm["ttgir"])
    elif launch.name == "rotary_kernel":
        rotary.add(launch, made.asm["ttgir"])
    elif launch.name == "large_batch_kernel":
        assert_few_shuffles(launch, made.asm["ptx"])
    assert_rounded(launch, made.asm["ptx"])
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


def compile_in_processes(launches: list[Launch], num_processes: int) -> None:
    """Compiles launches as an engine does, and checks that this process then finds them in the cache."""
    pool = CompilerPool(num_processes)
    try:
        errors = pool.compile(launches, lambda _: None)
    finally:
        pool.close()
    assert not errors, errors
    hits: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    for launch in launches:
        compile_launch(launch)
    triton.knobs.compilation.listener = None
    assert hits == [True] * len(launches), f"{hits.count(False)} of {len(hits)} launches are not in the cache"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="90", help=f"architectures, of {', '.join(map(str, GPUS))}")
    parser.add_argument("--model", default="1.7B,omni", help="published sizes")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--first", action="store_true", help="one launch of each kernel only")
    parser.add_argument(
        "--processes", type=int, default=0, help="number of processes that compile first, as at the start of an engine"
    )
    arguments = parser.parse_args()
    failed = False
    for gpu in (GPUS[int(name)] for name in arguments.gpu.split(",")):
        dtypes = [dtype for dtype in (*LARGEST, MODEL_DTYPE) if supports(dtype, gpu.architecture)]
        if arguments.first:
            dtypes = [torch.int8, MODEL_DTYPE]
        launches = [
            launch
            for model in arguments.model.split(",")
            for launch in engine_launches(gpu, model, arguments.streams, dtypes, not arguments.first)
        ]
        if arguments.first:
            launches = list({launch.name: launch for launch in launches}.values())
        launches = list(dict.fromkeys(launches))
        if arguments.processes:
            compile_in_processes(launches, arguments.processes)
        usages: dict[str, list[Usage]] = defaultdict(list)
        rotary = RotaryOrders()
        for launch in launches:
            usage = compile_for(launch, rotary)
            usages[launch.name].append(usage)
            if not usage.fits(gpu) or usage.spilled > MAX_SPILLED:
                failed = True
                sys.stderr.write(f"sm_{gpu.architecture} {usage}: {launch.name} {launch.specialization}\n")
        for launch in wide_head_launches(gpu):
            if not (usage := compile_for(launch, rotary)).fits(gpu):
                failed = True
                sys.stderr.write(f"sm_{gpu.architecture} {usage}: wide heads {launch.specialization}\n")
        if differing := rotary.differing():
            failed = True
            sys.stderr.write(f"sm_{gpu.architecture} rotary_kernel adds in several orders: {differing}\n")
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
