# SPDX-License-Identifier: Apache-2.0
"""Every kernel, in Triton and in CUDA C++, has a reference implementation, and a test compares the two."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from polyvox import kernels

pytestmark = pytest.mark.slow

# kernel: its launcher, its reference implementation (of which module, if not its own), and the test that compares them
REFERENCES = {
    "attention.attention_kernel": ("paged_attention", "paged_attention_reference", "test_attention_kernel.py"),
    "code_sum.sum_codes_kernel": ("sum_codes", "sum_codes_reference", "test_codec_inputs_kernel.py"),
    "conv.conv_kernel": ("causal_conv", "causal_conv_reference", "test_conv_kernel.py"),
    "conv.update_history_kernel": ("update_history", "update_history_reference", "test_conv_kernel.py"),
    "decode_attention.decode_kernel": (
        "cache_attention.attend_decode",
        "rotary_attention_reference",
        "test_layer_kernels.py",
    ),
    "decode_attention.combine_splits_kernel": (
        "cache_attention.attend_decode",
        "rotary_attention_reference",
        "test_layer_kernels.py",
    ),
    "depthwise.depthwise_kernel": ("depthwise_norm", "depthwise_norm_reference", "test_codec_kernels.py"),
    "experts.combine_kernel": ("combine", "combine_reference", "test_experts_kernel.py"),
    "experts.down_kernel": ("multiply_experts", "multiply_experts_reference", "test_experts_kernel.py"),
    "experts.gate_up_kernel": ("multiply_experts", "multiply_experts_reference", "test_experts_kernel.py"),
    "experts.route_kernel": ("route", "route_reference", "test_experts_kernel.py"),
    "frame_end.finish_kernel": ("finish_frame", "finish_frame_reference", "test_frame_end_kernel.py"),
    "large_batch_attention.large_batch_kernel": (
        "launch",
        "decode_attention.rotary_attention_reference",
        "test_large_batch_attention_kernel.py",
    ),
    "silu_mul.silu_mul_kernel": ("silu_mul", "silu_mul_reference", "test_layer_kernels.py"),
    "next_inputs.inputs_kernel": ("next_inputs", "next_inputs_reference", "test_next_inputs_kernel.py"),
    "norm.norm_kernel": ("add_rms_norm", "add_rms_norm_reference", "test_layer_kernels.py"),
    "prefill_attention.prefill_kernel": (
        "prompt_attention",
        "decode_attention.rotary_attention_reference",
        "test_prefill_attention_kernel.py",
    ),
    "pre_norm.pair_pre_norm_kernel": ("pair_pre_norm", "pre_norm_reference", "test_small_batch_linear_kernel.py"),
    "pre_norm.pre_norm_kernel": ("pre_norm", "pre_norm_reference", "test_small_batch_linear_kernel.py"),
    "quantized_matrix.dequantize_kernel": (
        "dequantize_matrix",
        "dequantize_matrix_reference",
        "test_quantized_matrix.py",
    ),
    "quantize.quantize_kernel": ("quantize", "quantize_reference", "test_quantize_kernel.py"),
    "ring_attention.ring_kernel": (
        "RingAttention",
        "ring_attention.RingAttention.attend_reference",
        "test_codec_kernels.py",
    ),
    "rotary.rotary_kernel": ("rotary_store", "rotary_store_reference", "test_layer_kernels.py"),
    "small_batch_linear.matrix_kernel": (
        "fused_linear.project",
        "fused_linear.project_reference",
        "test_small_batch_linear_kernel.py",
    ),
    "small_batch_linear.add_splits_kernel": (
        "fused_linear.project_add",
        "fused_linear.project_add_reference",
        "test_small_batch_linear_kernel.py",
    ),
    "small_batch_linear.vector_kernel": (
        "fused_linear.project",
        "fused_linear.project_reference",
        "test_small_batch_linear_kernel.py",
    ),
    "window_positions.positions_kernel": (
        "next_positions",
        "next_positions_reference",
        "test_codec_inputs_kernel.py",
    ),
    "sampler.draw_kernel": ("draw_keyed", "draw_keyed_reference", "test_sampler_kernel.py"),
}
# part of a kernel: the kernel that calls it
PARTS = {
    "prefill_attention.load_scales": "prefill_attention.prefill_kernel",
    "pre_norm.store_gained": "pre_norm.pre_norm_kernel",
    "conv.store_tile": "conv.conv_kernel",
    "conv.saturating_cast": "conv.conv_kernel",
    "attention_blocks.load_kv_block": "decode_attention.decode_kernel",
    "attention_blocks.attend_block": "decode_attention.decode_kernel",
    "decode_attention.norm_and_rotate": "decode_attention.decode_kernel",
    "attention_blocks.load_scale_block": "decode_attention.decode_kernel",
    "experts.find_tile": "experts.gate_up_kernel",
    "kv_quantize.quantize_heads": "rotary.rotary_kernel",
    "large_batch_attention.find_pages": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.load_block": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.load_positions": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.unpack": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.unpack_halves": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.attend_pair": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.score_positions": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.join_lanes": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.rotate_head": "large_batch_attention.large_batch_kernel",
    "large_batch_attention.round_product": "large_batch_attention.large_batch_kernel",
    "launch_overlap.start_next": "small_batch_linear.vector_kernel",
    "launch_overlap.wait_for_previous": "small_batch_linear.vector_kernel",
    "launch_overlap.wait": "small_batch_linear.vector_kernel",
    "ring_attention.attend_block": "ring_attention.ring_kernel",
    "ring_attention.rotated": "ring_attention.ring_kernel",
    "quantized_matrix.convert": "small_batch_linear.matrix_kernel",
    "sampler.rank_of_largest": "sampler.draw_kernel",
    "sampler.rank_of_mass": "sampler.draw_kernel",
    "small_batch_linear.store_output": "small_batch_linear.vector_kernel",
    "small_batch_linear.load_scales": "small_batch_linear.vector_kernel",
    "small_batch_linear.load_gain": "small_batch_linear.vector_kernel",
    "small_batch_linear.load_residual": "small_batch_linear.vector_kernel",
    "small_batch_linear.load_norm_scale": "small_batch_linear.vector_kernel",
    "small_batch_linear.load_weights": "small_batch_linear.vector_kernel",
    "snake.apply_snake": "conv.conv_kernel",
}
# launcher of a kernel in CUDA C++, in the module of the same name as its file: what defines its result, and the test in
# tests/conformance that compares the two on a CPU
CUDA_REFERENCES = {
    "attention_output.launch": (
        ("decode_attention.rotary_attention_reference", "fused_linear.project_add_reference"),
        "test_attention_output_on_cpu.py",
    ),
    "code_draw.launch": (("sampler.draw_keyed_reference",), "test_code_draw_on_cpu.py"),
    "code_draw.launch_embedded": (
        ("sampler.draw_keyed_reference", "pre_norm.pre_norm_reference"),
        "test_code_draw_on_cpu.py",
    ),
    "history.HistoryUpdates": (("conv.update_history_reference",), "test_history_on_cpu.py"),
    "mid_batch_linear.launch": (("fused_linear.project_reference",), "test_mid_batch_linear_on_cpu.py"),
    "mid_batch_linear.launch_add": (("fused_linear.project_add_reference",), "test_mid_batch_linear_on_cpu.py"),
    "page_attention.launch": (("decode_attention.rotary_attention_reference",), "test_decode_attention_on_cpu.py"),
    "pair_attention.launch": (
        ("rotary.rotary_store_reference", "attention.paged_attention_reference"),
        "test_decode_attention_on_cpu.py",
    ),
    "prefetch_linear.launch": (("fused_linear.project_reference",), "test_prefetch_linear_on_cpu.py"),
    "prefetch_linear.launch_add": (("fused_linear.project_add_reference",), "test_prefetch_linear_on_cpu.py"),
    "prefetch_vector.launch": (("fused_linear.project_reference",), "test_prefetch_vector_on_cpu.py"),
    "prefetch_vector.launch_add": (("fused_linear.project_add_reference",), "test_prefetch_vector_on_cpu.py"),
    "register_linear.launch": (("fused_linear.project_reference",), "test_register_linear_on_cpu.py"),
    "register_linear.launch_add": (("fused_linear.project_add_reference",), "test_register_linear_on_cpu.py"),
    "sample_conv.sample_conv": (("sample_conv.sample_conv_reference",), "test_sample_conv_on_cpu.py"),
    "warp_attention.launch": (("decode_attention.rotary_attention_reference",), "test_warp_attention_on_cpu.py"),
    "wgmma_conv.residual_unit": (("wgmma_conv.residual_unit_reference",), "test_wgmma_on_cpu.py"),
    "wgmma_conv.convolution": (
        ("conv.causal_conv_reference", "conv.causal_upsample_reference"),
        "test_wgmma_on_cpu.py",
    ),
    "wgmma_conv.upsample": (("conv.causal_upsample_reference",), "test_wgmma_on_cpu.py"),
    "wgmma_linear.launch_tile": (("fused_linear.project_reference",), "test_wgmma_linear_on_cpu.py"),
    "wgmma_linear.launch_add_tile": (("fused_linear.project_add_reference",), "test_wgmma_linear_on_cpu.py"),
}
HERE, SOURCE = Path(__file__).parent, Path(kernels.__file__).parent
CONFORMANCE = HERE.parent / "conformance"


def found() -> set[str]:
    names = set()
    for file in SOURCE.glob("*.py"):
        marked = re.findall(r"^@(?:Kernel|partial\(Kernel\b.*\))\ndef (\w+)", file.read_text(), re.MULTILINE)
        names |= {f"{file.stem}.{name}" for name in marked}
    return names


def test_every_kernel_is_in_the_inventory() -> None:
    assert found() == set(REFERENCES) | set(PARTS)
    assert set(PARTS.values()) <= set(REFERENCES)


def test_every_cuda_file_is_in_the_inventory() -> None:
    stems = {launcher.split(".")[0] for launcher in CUDA_REFERENCES}
    assert {file.stem for file in SOURCE.glob("*.cu")} == stems
    for stem in stems:
        assert f'CudaSource("{stem}.cu"' in (SOURCE / f"{stem}.py").read_text(), f"{stem}.py does not launch {stem}.cu"


def uses_of_tests(file: Path) -> Iterator[set[str]]:
    """What each test of a file uses, also through functions and fixtures of the file.

    A name imported from polyvox.kernels is 'module.name'; an attribute of anything else, its name alone.
    """
    tree = ast.parse(file.read_text())
    imported = {
        alias.asname or alias.name: f"{(node.module or '').removeprefix('polyvox.kernels')}.{alias.name}".lstrip(".")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polyvox.kernels")
        for alias in node.names
    }
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for test in (name for name in functions if name.startswith("test_")):
        uses: set[str] = set()
        reached, left = {test}, [test]
        while left:
            for node in ast.walk(functions[left.pop()]):
                if isinstance(node, ast.Attribute):
                    owner = imported.get(node.value.id) if isinstance(node.value, ast.Name) else None
                    uses.add(f"{owner}.{node.attr}" if owner else node.attr)
                elif isinstance(node, ast.Name) and node.id in imported:
                    uses.add(imported[node.id])
                name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
                if name in functions and name not in reached:
                    reached.add(name)
                    left.append(name)
        yield uses


def assert_compared(launcher: str, references: set[str], test: Path) -> None:
    """One test of this file uses the launcher and the reference implementations."""
    for name in {launcher} | references:
        module, _, attribute = name.partition(".")
        function = attrgetter(attribute)(importlib.import_module(f"polyvox.kernels.{module}"))
        assert function.__module__ == f"polyvox.kernels.{module}", f"{name} is defined in {function.__module__}"
    # of a method, the test has its name only
    needed = {launcher} | {each if each.count(".") == 1 else each.rpartition(".")[2] for each in references}
    assert any(needed <= uses for uses in uses_of_tests(test)), f"no test of {test.name} uses {sorted(needed)}"


def test_every_kernel_has_a_reference_and_a_test_of_both() -> None:
    for kernel, (public, reference, test) in REFERENCES.items():
        module = kernel.split(".")[0]
        public, reference = (name if "." in name else f"{module}.{name}" for name in (public, reference))
        assert_compared(public, {reference}, HERE / test)


def test_every_launch_in_cuda_has_a_reference_and_a_test_of_both() -> None:
    for launcher, (references, test) in CUDA_REFERENCES.items():
        assert_compared(launcher, set(references), CONFORMANCE / test)


def test_every_header_states_its_contract() -> None:
    for module in {name.split(".")[0] for name in (*REFERENCES, *CUDA_REFERENCES)}:
        header = importlib.import_module(f"polyvox.kernels.{module}").__doc__ or ""
        for part in ("Types:", "Roundings:", "Bytes:"):
            assert part in header, f"{module}: its header has no {part}"


def test_kernels_import_no_other_package_of_polyvox() -> None:
    for file in SOURCE.glob("*.py"):
        others = re.findall(r"^\s*(?:from|import) (polyvox\.(?!kernels\b)[\w.]+)", file.read_text(), re.MULTILINE)
        assert not others, f"{file.name} imports {others}"


def test_speech_works_on_a_cpu_without_triton() -> None:
    spoken = "import sys; sys.modules['triton'] = None; import polyvox; polyvox.load(device='cpu').say('Hi.')"
    subprocess.run([sys.executable, "-c", spoken], check=True, timeout=120)
