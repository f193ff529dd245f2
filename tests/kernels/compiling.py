# SPDX-License-Identifier: Apache-2.0
"""Compile kernels, as they are launched on CPU tensors, for a GPU that is not present; run as a separate program."""

import sys

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from polyvox import kernels
from polyvox.kernels.attention import paged_attention
from polyvox.kernels.decode_attention import SMALL_BATCH_ROWS, rotary_attention
from polyvox.kernels.experts import combine, multiply, route
from polyvox.kernels.frame_end import FrameRecord, finish_frame
from polyvox.kernels.lazy_triton import Kernel
from polyvox.kernels.next_inputs import next_inputs
from polyvox.kernels.norm import add_rms_norm, rms_norm
from polyvox.kernels.rotary import rotary_store
from polyvox.kernels.sampler import DrawInputs, FirstCodeRules, draw_keyed
from polyvox.kernels.silu_mul import silu_mul
from polyvox.kernels.small_batch_linear import MAX_ROWS, VECTOR_ROWS, Norm, project

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024  # per block
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.bool: "*i1",
}
OPTIONS = ("num_warps", "num_stages")


def compile_instead(self: Kernel, _grid: tuple[int, ...]) -> object:
    def launch(*arguments: object, **named: object) -> None:
        names = self.jit.arg_names
        values = dict(zip(names, arguments, strict=False)) | named
        options = {name: values.pop(name) for name in OPTIONS if name in values}
        if "OVERLAP" in values:
            values["OVERLAP"] = options["launch_pdl"] = True
        signature, constants, aligned = {}, {}, {}
        for index, name in enumerate(names):
            value = values[name]
            if name.isupper() or (isinstance(value, int) and value == 1):
                signature[name], constants[(index,)] = "constexpr", value
                continue
            if isinstance(value, Tensor):
                signature[name] = POINTERS[value.dtype]
            else:
                signature[name] = "i32" if isinstance(value, int) else "fp32"
            if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
                aligned[(index,)] = [["tt.divisibility", 16]]
        made = triton.compile(ASTSource(self.jit, signature, constants, aligned), target=HOPPER, options=options)
        assert made.metadata.shared <= SHARED_MEMORY, made.metadata.shared
        assert made.asm["cubin"]
        sys.stdout.write(f"{self.function.__name__}\n")

    return launch


def launch_all() -> None:
    """Each kernel as the 1.7B model launches it."""
    heads, kv_heads, dim, page = 16, 8, 128, 16

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.bfloat16)

    whole = torch.zeros(2, dtype=torch.int64)
    qkv, norms, turns = zeros(2, (heads + 2 * kv_heads) * dim), (zeros(dim), zeros(dim)), (zeros(page, dim),) * 2
    for width in (1, 64):
        keys, values = zeros(3, page, kv_heads, dim), zeros(3, page, kv_heads, dim)
        where = torch.zeros(2, width, dtype=torch.int64), whole, whole
        paged_attention(zeros(2, heads, dim), keys, values, *where)
        rotary_store(qkv, norms, 1e-6, *turns, keys, values, *where)
        for rows in (2, SMALL_BATCH_ROWS + 1):
            at = torch.zeros(rows, dtype=torch.int64)
            rotary_attention(zeros(rows, qkv.shape[1]), norms, 1e-6, *turns, keys, values, where[0], at, at)
    for size in (1024, 2048):
        rms_norm(zeros(2, size), zeros(size), 1e-6)
        add_rms_norm(zeros(2, size), zeros(2, size), zeros(size), 1e-6)
        silu_mul(zeros(2, 6 * size))
    tables = zeros(3072, 2048), zeros(15, 2048, 2048)
    slots = whole, zeros(2, 64, 2048), whole, whole, zeros(2048), zeros(2, 2048)
    next_inputs(torch.zeros(2, 16, dtype=torch.int64), *tables, *slots)
    draws = DrawInputs(whole, torch.zeros(2, 4), torch.zeros(2, 2, dtype=torch.int64), whole, whole)
    rules = FirstCodeRules(torch.zeros(2, 3072, dtype=torch.bool), whole, whole, 0.05, 2150, 2048)
    draw_keyed(zeros(2, 3072), 0, draws, rules)
    for book in (1, 2):
        draw_keyed(zeros(2, 2048), book, draws)
    record = FrameRecord(torch.zeros(2, 32, 16, dtype=torch.int64), rules.seen, whole, whole, whole)
    finish_frame(torch.zeros(2, 16, dtype=torch.int64), whole, record, 2150)
    for rows in (1, VECTOR_ROWS, MAX_ROWS):
        for inputs, inner in ((2048, 6144), (1024, 3072)):
            norm = Norm(zeros(inputs), 1e-6)
            project(zeros(rows, inputs), zeros(4096, inputs), norm)
            project(zeros(rows, inputs), zeros(2 * inner, inputs), norm, gated=True)
            project(zeros(rows, inner), zeros(inputs, inner), add=zeros(rows, inputs))
    gate_up, down = zeros(128, 768, 1024), zeros(128, 1024, 384)
    for rows in (1, 8, 64):  # Qwen3-Omni, each with another tile
        scores = zeros(rows, 129)
        outputs = multiply(zeros(rows, 1024), route(scores[:, :128], 6, True), gate_up, down)
        combine(outputs, zeros(rows, 1024), scores[:, 128:], zeros(rows, 1024))


if __name__ == "__main__":
    Kernel.__getitem__ = compile_instead  # type: ignore[method-assign]
    with kernels.enabled_on_cpu(), torch.no_grad():
        launch_all()
