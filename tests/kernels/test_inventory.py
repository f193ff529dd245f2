"""Every kernel stands beside its twin, and a test compares the two."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

from polyvox import kernels

# kernel: what launches it, its twin, and the file of the test that compares them
TWINS = {
    "attention.attention_kernel": ("paged_attention", "paged_attention_plain", "test_attention_kernel.py"),
    "conv.conv_kernel": ("causal_conv", "causal_conv_plain", "test_conv_kernel.py"),
    "conv.remember_kernel": ("remember", "remember_plain", "test_conv_kernel.py"),
    "decode.decode_kernel": ("rotary_attention", "rotary_attention_plain", "test_layer_kernels.py"),
    "depthwise.depthwise_kernel": ("depthwise_norm", "depthwise_norm_plain", "test_codec_kernels.py"),
    "finish.finish_kernel": ("finish_frame", "finish_frame_plain", "test_finish_kernel.py"),
    "gated.silu_mul_kernel": ("silu_mul", "silu_mul_plain", "test_layer_kernels.py"),
    "inputs.inputs_kernel": ("next_inputs", "next_inputs_plain", "test_inputs_kernel.py"),
    "norm.norm_kernel": ("add_rms_norm", "add_rms_norm_plain", "test_layer_kernels.py"),
    "ring.ring_kernel": ("Ring", "attend_plain", "test_codec_kernels.py"),
    "rotary.rotary_kernel": ("rotary_store", "rotary_store_plain", "test_layer_kernels.py"),
    "skinny.matrix_kernel": ("project", "project_plain", "test_skinny_kernel.py"),
    "skinny.vector_kernel": ("project", "project_plain", "test_skinny_kernel.py"),
    "sampler.draw_kernel": ("draw_keyed", "draw_keyed_plain", "test_sampler_kernel.py"),
}
# part of a kernel: the kernel that calls it
PARTS = {
    "conv.finish": "conv.conv_kernel",
    "conv.narrowed": "conv.conv_kernel",
    "decode.block_of": "decode.decode_kernel",
    "decode.hear": "decode.decode_kernel",
    "decode.turned": "decode.decode_kernel",
    "overlap.wait": "skinny.vector_kernel",
    "ring.attend_block": "ring.ring_kernel",
    "ring.rotated": "ring.ring_kernel",
    "sampler.rank_of_largest": "sampler.draw_kernel",
    "sampler.rank_of_mass": "sampler.draw_kernel",
    "skinny.finish": "skinny.vector_kernel",
    "skinny.normed": "skinny.vector_kernel",
    "skinny.weights": "skinny.vector_kernel",
    "snake.snaked": "conv.conv_kernel",
}
HERE, SOURCE = Path(__file__).parent, Path(kernels.__file__).parent


def found() -> set[str]:
    names = set()
    for file in SOURCE.glob("*.py"):
        marked = re.findall(r"^@(?:Kernel|partial\(Kernel\b.*\))\ndef (\w+)", file.read_text(), re.MULTILINE)
        names |= {f"{file.stem}.{name}" for name in marked}
    return names


def test_every_kernel_is_in_the_inventory() -> None:
    assert found() == set(TWINS) | set(PARTS)
    assert set(PARTS.values()) <= set(TWINS)


def test_every_kernel_has_its_twin_beside_it_and_both_in_a_test() -> None:
    for kernel, (public, twin, test) in TWINS.items():
        source, tested = (SOURCE / f"{kernel.split('.')[0]}.py").read_text(), (HERE / test).read_text()
        for name in (public, twin):
            assert re.search(rf"(def|class) {name}\b", source), f"{kernel}: no {name} beside it"
        assert re.search(rf"\b{public}\(", tested), f"{kernel}: {test} does not call {public}"
        assert re.search(rf"\b{twin}\(|kernels\.disabled\(", tested), f"{kernel}: {test} does not call {twin}"


def test_every_header_states_its_contract() -> None:
    for kernel in TWINS:
        header = importlib.import_module(f"polyvox.kernels.{kernel.split('.')[0]}").__doc__ or ""
        for part in ("Types:", "Roundings:", "Bytes:"):
            assert part in header, f"{kernel}: its header has no {part}"


def test_kernels_know_nothing_of_the_rest() -> None:
    for file in SOURCE.glob("*.py"):
        others = re.findall(r"^\s*(?:from|import) (polyvox\.(?!kernels\b)[\w.]+)", file.read_text(), re.MULTILINE)
        assert not others, f"{file.name} imports {others}"


def test_on_a_cpu_it_speaks_where_there_is_no_triton() -> None:
    spoken = "import sys; sys.modules['triton'] = None; import polyvox; polyvox.load(device='cpu').say('Hi.')"
    subprocess.run([sys.executable, "-c", spoken], check=True, timeout=120)
