# SPDX-License-Identifier: Apache-2.0
"""The CUDA convolutions for sm_90: which calls they support, the layout of their weights, and their compilation.

Their results are compared with the reference implementations on a GPU: POLYVOX_TEST_DEVICE=cuda.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from polyvox.kernels import cuda_source, wgmma_conv
from polyvox.kernels.conv import (
    PackedConv,
    causal_conv_reference,
    causal_upsample_reference,
    pack_conv,
    pack_upsample,
)
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launches import Launch, compile_launch, record_launches
from polyvox.kernels.snake import snake_coefficients, snake_reference
from polyvox.kernels.wgmma_conv import (
    MAX_WARPGROUPS,
    UNIT_CHANNELS,
    conv_shared,
    convolution,
    pack_convolution,
    pack_unit,
    residual_unit,
    residual_unit_reference,
    supports_conv,
    supports_unit,
    unit_shared,
)

MAX_ERROR_DB = -60.0
SLOTS = 4


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def layer(inputs: int, outputs: int, taps: int, dilation: int = 1, rate: int = 1) -> tuple[PackedConv, Tensor, Tensor]:
    """A packed convolution with its weight and bias."""
    bias = noise(outputs, seed=2)
    if rate > 1:
        weight = noise(inputs, outputs, taps * rate, seed=1, dtype=torch.float16) / (taps * inputs) ** 0.5
        return pack_upsample(weight, bias, rate), weight, bias
    weight = noise(outputs, inputs, taps, seed=1, dtype=torch.float16) / (taps * inputs) ** 0.5
    return pack_conv(weight, bias, dilation), weight, bias


def error_db(found: Tensor, expected: Tensor) -> float:
    return 10 * ((found.double() - expected).square().mean() / expected.square().mean()).log10().item()


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma_conv.SOURCE, "_available", True)


@pytest.mark.usefixtures("_nvrtc")
def test_only_sm_90_float16_and_whole_tiles_are_supported() -> None:
    def signal(channels: int, columns: int, dtype: torch.dtype = torch.float16, batch: int = 512) -> Tensor:
        return torch.empty(batch, columns, channels, device="meta", dtype=dtype).transpose(1, 2)

    wide, _, _ = layer(384, 384, 7)
    assert supports_unit(signal(96, 1920), 9)
    assert supports_unit(signal(192, 640), 9)
    assert not supports_unit(signal(384, 640), 9)
    assert not supports_unit(signal(96, 1900), 9)
    assert not supports_unit(signal(96, 1920, torch.bfloat16), 9)
    assert not supports_unit(signal(96, 1920), 30)
    assert supports_unit(signal(96, 1920, batch=1), 9)
    assert not supports_unit(signal(192, 640, batch=1), 9)
    narrow, _, _ = layer(192, 96, 2, rate=3)
    assert not supports_conv(signal(192, 640), narrow)
    assert supports_conv(signal(384, 640), wide)
    assert not supports_conv(signal(384, 640, batch=1), wide)
    assert not supports_conv(signal(384, 160), wide)
    for architecture in set(GPUS) - {90}:
        with assume(GPUS[architecture]):
            assert not supports_unit(signal(96, 1920), 9)
            assert not supports_conv(signal(384, 640), wide)


@pytest.mark.usefixtures("_nvrtc")
def test_only_the_last_upsampling_is_supported() -> None:
    last, _, _ = layer(192, 96, 2, rate=3)
    earlier, _, _ = layer(384, 192, 2, rate=4)
    divisible, _, _ = layer(192, 96, 2, rate=4)
    x = torch.empty(1, 640, 192, device="meta", dtype=torch.float16).transpose(1, 2)
    assert wgmma_conv.supports_upsample(x, last)
    assert not wgmma_conv.supports_upsample(x[..., :600], last)
    assert not wgmma_conv.supports_upsample(x.bfloat16(), last)
    assert not wgmma_conv.supports_upsample(x, earlier)
    assert not wgmma_conv.supports_upsample(x, divisible)
    for architecture in set(GPUS) - {90}:
        with assume(GPUS[architecture]):
            assert not wgmma_conv.supports_upsample(x, last)


class FailingNvrtc:
    """An NVRTC that is found, but whose compilations fail, as without its builtins library."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: int(name == "nvrtcCompileProgram")


@pytest.mark.parametrize("found", [False, True])
def test_kernels_that_cannot_be_compiled_are_not_supported(
    found: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def nvrtc() -> FailingNvrtc:
        if found:
            return FailingNvrtc()
        raise OSError("libnvrtc.so.13: cannot open shared object file")

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda_source, "_nvrtc", nvrtc)
    monkeypatch.setattr(wgmma_conv.SOURCE, "_available", None)
    for _ in range(2):
        assert not supports_unit(torch.empty(512, 96, 1920, device="meta", dtype=torch.float16), 9)
    assert [record.message.partition(" error=")[0] for record in caplog.records] == [
        "CUDA kernels cannot be compiled; using Triton kernels file=wgmma_conv.cu"
    ]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_source_is_listed_as_one_compilation_and_compiled_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda_source, "_nvrtc", FailingNvrtc)
    monkeypatch.setattr(wgmma_conv.SOURCE, "_available", None)

    def call() -> None:
        assert wgmma_conv.SOURCE.available()
        wgmma_conv.SOURCE.launch("convolution_192", 1, 128, 0, [])

    listed = record_launches([call, call], GPUS[90])
    assert listed == [Launch("wgmma_conv.cu:90a", "", 90)]
    with pytest.raises(RuntimeError, match=r"NVRTC cannot compile wgmma_conv\.cu"):
        compile_launch(listed[0])
    assert not wgmma_conv.SOURCE.available()


def test_every_program_of_the_published_codec_fits_a_multiprocessor() -> None:
    assert all(unit_shared(channels, 9, MAX_WARPGROUPS) <= GPUS[90].shared for channels in UNIT_CHANNELS)
    assert all(
        conv_shared(taps, history, MAX_WARPGROUPS) <= GPUS[90].shared for taps, history in ((7, 54), (2, 1), (1, 0))
    )
    assert wgmma_conv.upsample_shared(MAX_WARPGROUPS) <= GPUS[90].shared


def thread_columns(width: int, lane: int) -> list[int]:
    """Columns of a product that a thread has of one row, by the layout of wgmma's accumulators."""
    return [block * 8 + 2 * (lane % 4) + i for block in range(width // 8) for i in range(2)]


@pytest.mark.parametrize("width", UNIT_CHANNELS)
def test_a_thread_has_runs_of_eight_consecutive_channels(width: int) -> None:
    order = wgmma_conv._column_order(width, torch.device("cpu")).tolist()
    assert sorted(order) == list(range(width))
    for lane in range(32):
        channels = [order[column] for column in thread_columns(width, lane)]
        runs = [channels[i : i + 8] for i in range(0, len(channels), 8)]
        assert runs == [list(range(32 * q + 8 * (lane % 4), 32 * q + 8 * (lane % 4) + 8)) for q in range(width // 32)]


def test_packed_stages_multiply_as_the_kernel_reads_them() -> None:
    """The products of every stage, in the kernel's order, are the convolution."""
    packed, weight, bias = layer(64, 192, 3, dilation=2)
    stages = pack_convolution(packed, (noise(192), noise(192))).weights.flatten().view(-1, 4, 192, 8)  # of 32 inputs
    window = noise(20, 64, seed=5)
    sums = torch.zeros(16, 192)
    for i, stage in enumerate(stages.float().cpu()):
        tap, first = i // 2, i % 2 * 32
        operand = window[tap * 2 :][:16, first : first + 32].reshape(16, 4, 8).cpu()
        sums += torch.einsum("rgk,gnk->rn", operand, stage)
    found = torch.empty_like(sums)
    found[:, wgmma_conv._column_order(192, torch.device("cpu"))] = sums
    expected = causal_conv_reference(window.T[None], None, weight.float(), torch.zeros_like(bias), 2)[0].T
    torch.testing.assert_close(found, expected.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(shutil.which("nvcc") is None and not wgmma_conv.SOURCE.available(), reason="no NVRTC and no nvcc")
def test_the_source_compiles_without_a_gpu(tmp_path: Path) -> None:
    source = Path(wgmma_conv.__file__).with_suffix(".cu")
    if (nvcc := shutil.which("nvcc")) is None:
        assert wgmma_conv.SOURCE.compile()
        return
    command = [nvcc, "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v", "-std=c++17"]
    made = subprocess.run(
        [*command, "-o", str(tmp_path / "made.cubin"), str(source)], capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stderr[-2000:]
    assert made.stderr.count("Compiling entry function") == len(UNIT_CHANNELS) + 2
    assert "serialized" not in made.stderr  # products that wait for each other


@needs_gpu((wgmma_conv.ARCHITECTURE,))
@pytest.mark.parametrize("channels", UNIT_CHANNELS)
@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("batch", [1, 3, 90])
def test_a_residual_unit_equals_its_reference(channels: int, dilation: int, batch: int) -> None:
    conv1, weight1, bias1 = layer(channels, channels, 7, dilation)
    conv2, weight2, bias2 = layer(channels, channels, 1)
    snakes = [(0.3 * noise(channels, seed=3), 0.3 * noise(channels, seed=4)) for _ in range(2)]
    x, active = (noise(batch, 640, channels, seed=n, dtype=torch.float16).transpose(1, 2) for n in (5, 6))
    state = noise(batch + 1, 6 * dilation, channels, seed=7, dtype=torch.float16).transpose(1, 2)
    slots, unused = torch.arange(batch, device=DEVICE).flip(0), state[batch].clone()
    absent = torch.arange(batch, device=DEVICE) % 3
    wide_snakes = [(alpha.double(), beta.double()) for alpha, beta in snakes]
    expected, after = residual_unit_reference(
        x.double(), active.double(), state[slots].double(), (weight1.double(), bias1.double()),
        (weight2.double(), bias2.double()), wide_snakes[0], wide_snakes[1], dilation,
    )  # fmt: skip
    exists = torch.arange(640, device=DEVICE) >= absent[:, None]
    packed = pack_unit(conv1, conv2, *(snake_coefficients(*snake) for snake in snakes))
    found, found_after = residual_unit(x, active, packed, dilation, state, slots, return_sum=True, absent=absent)
    assert error_db(found, expected * exists[:, None]) < MAX_ERROR_DB
    assert error_db(found_after, after * exists[:, None]) < MAX_ERROR_DB
    assert torch.equal(state[slots], active[..., -6 * dilation :])
    assert torch.equal(state[batch], unused)


@needs_gpu((wgmma_conv.ARCHITECTURE,))
@pytest.mark.parametrize(
    ("inputs", "outputs", "taps", "dilation", "rate", "add"),
    [(384, 384, 7, 9, 1, False), (768, 768, 1, 1, 1, True), (192, 96, 2, 1, 4, False), (384, 192, 2, 1, 4, False)],
)
def test_a_large_convolution_equals_its_reference(
    inputs: int, outputs: int, taps: int, dilation: int, rate: int, add: bool
) -> None:
    batch, columns = 40, 192
    packed, weight, bias = layer(inputs, outputs, taps, dilation, rate)
    snake = 0.3 * noise(outputs, seed=3), 0.3 * noise(outputs, seed=4)
    x = noise(batch, columns, inputs, seed=5, dtype=torch.float16).transpose(1, 2)
    added = noise(batch, columns * rate, outputs, seed=6, dtype=torch.float16).transpose(1, 2) if add else None
    state = noise(batch, packed.history, inputs, seed=7, dtype=torch.float16).transpose(1, 2) if taps > 1 else None
    slots = torch.arange(batch, device=DEVICE).flip(0)
    past = None if state is None else state[slots].double()
    if rate > 1:
        expected = causal_upsample_reference(x.double(), past, weight.double(), bias.double(), rate)
    else:
        expected = causal_conv_reference(x.double(), past, weight.double(), bias.double(), dilation)
    if added is not None:
        expected = expected + added.double()
    stages = pack_convolution(packed, snake_coefficients(*snake))
    found, active = convolution(x, packed, stages, state, slots, added)
    assert error_db(found, expected) < MAX_ERROR_DB
    assert error_db(active, snake_reference(expected, *(part.double() for part in snake))) < MAX_ERROR_DB


@needs_gpu((wgmma_conv.ARCHITECTURE,))
@pytest.mark.parametrize("batch", [1, 3, 90])
def test_the_last_upsampling_equals_its_reference(batch: int) -> None:
    packed, weight, bias = layer(192, 96, 2, rate=3)
    snake = 0.3 * noise(96, seed=3), 0.3 * noise(96, seed=4)
    x = noise(batch, 640, 192, seed=5, dtype=torch.float16).transpose(1, 2)
    state = noise(batch + 1, 1, 192, seed=7, dtype=torch.float16).transpose(1, 2)
    slots, unused = torch.arange(batch, device=DEVICE).flip(0), state[batch].clone()
    expected = causal_upsample_reference(x.double(), state[slots].double(), weight.double(), bias.double(), 3)
    stages = wgmma_conv.pack_upsampling(packed, snake_coefficients(*snake))
    found, active = wgmma_conv.upsample(x, packed, stages, state, slots)
    assert error_db(found, expected) < MAX_ERROR_DB
    assert error_db(active, snake_reference(expected, *(part.double() for part in snake))) < MAX_ERROR_DB
    assert torch.equal(state[slots], x[..., -1:])
    assert torch.equal(state[batch], unused)
