# SPDX-License-Identifier: Apache-2.0
"""polyvox doctor: one line per check, and what to fix."""

import importlib.util
import json
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from polyvox import kernels
from polyvox.audio import ffmpeg_encoder
from polyvox.cli import machine_checks
from polyvox.cli.findings import Finding
from polyvox.cli.main import main
from polyvox.errors import CheckpointError
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.plain_paths import FAST_PATHS

FREE = 24_000_000_000
# source in CUDA C++: the path that a GPU has only with it
PATHS_OF_FILES = {
    "attention_output": "linear layers of one row in CUDA C++",
    "code_draw": "sampling in CUDA C++",
    "history": "codec's histories in one launch",
    "mid_batch_linear": "linear layers of 9 to 64 rows in CUDA C++",
    "page_attention": "decode attention in CUDA C++",
    "pair_attention": "decode attention in CUDA C++",
    "prefetch_linear": "linear layers of 2 to 8 rows in CUDA C++",
    "prefetch_vector": "linear layers of one row in CUDA C++",
    "register_linear": "codec's linear layers of few rows in CUDA C++",
    "sample_conv": "codec's last layer in CUDA C++",
    "warp_attention": "decode attention in CUDA C++",
    "wgmma_conv": "vocoder's wgmma kernels",
    "wgmma_linear": "linear layers of large batches with norms and gates",
}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["polyvox", "doctor", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def one(check: str) -> Finding:
    (finding,) = getattr(machine_checks, check)()
    return finding


def test_this_machine_passes_all_checks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--json") == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["ok"] is True
    found = {finding["subject"]: finding for finding in report["findings"]}
    for subject in (
        "Python",
        "torch",
        "CPU",
        "embedded voice",
        "audio formats",
        "model 0.6B",
        "model 1.7B",
        "model omni",
        "hub",
    ):
        assert found[subject]["state"] in ("ok", "warn"), found[subject]
    assert "× real time" in found["embedded voice"]["message"]
    assert "mp3" in found["audio formats"]["message"]
    assert "streams" in found["model 0.6B"]["message"] or "does not fit" in found["model 0.6B"]["message"]
    assert found["hub"]["message"].startswith(
        ("downloads are allowed (not tried); in ", "offline (HF_HUB_OFFLINE); in ")
    )
    assert "Traceback" not in err


def test_each_finding_is_one_line_and_an_essential_failure_sets_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def well() -> Iterator[Finding]:
        yield Finding("one", "ok", "[x] " + "long " * 60)

    def odd() -> Iterator[Finding]:
        yield Finding("two", "warn", "not so well", "do this")

    def broken() -> Iterator[Finding]:
        yield from ()
        raise CheckpointError("the embedded voice is damaged")

    def crashed() -> Iterator[Finding]:
        yield from ()
        raise ImportError("no such library\nand more")

    monkeypatch.setattr(machine_checks, "CHECKS", (well, odd))
    assert run(monkeypatch) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["ok one: [x] " + "long " * 60, "!  two: not so well → do this"]
    assert "Polyvox is ready" in err
    for check, line in (
        (broken, "✗  broken: the embedded voice is damaged"),
        (crashed, "✗  crashed: ImportError: no such"),
    ):
        monkeypatch.setattr(machine_checks, "CHECKS", (well, check, odd))
        assert run(monkeypatch) == 1
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 3
        assert line in out
        assert "cannot run on this machine" in err


def test_memory_needs_match_the_published_files() -> None:
    # bytes of bfloat16 weights; the codec's decoder in float16, as on a GPU, but for its codebooks
    small, large, omni, on_gpu = (
        machine_checks.model_needs(size, torch.bfloat16, gpu)
        for size, gpu in (("0.6B", False), ("1.7B", False), ("omni", False), ("omni", True))
    )
    codec = 114_323_137 * 2 + 17_937_792
    small_table, large_table, omni_table = 151_936 * 1024 * 2, 151_936 * 2048 * 2, 152_064 * 1024 * 2  # text rows
    assert small.weights - small_table == pytest.approx(1_811_577_344 + codec, rel=0.01)
    assert large.weights - large_table == pytest.approx(3_833_352_704 + codec, rel=0.01)
    table = 152064 * 2048 * 2  # of text embeddings, which stays on the host of a GPU
    assert omni.weights - on_gpu.weights == table
    assert on_gpu.weights - omni_table == pytest.approx(7.15e9, rel=0.01)
    assert small.position == 2 * 28 * 8 * 128 * 2
    assert 0 < small.slot < 20e6


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An H200 with 24 GB free, on which NVRTC compiles all sources."""
    device = SimpleNamespace(name="A GPU", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (FREE, 2 * FREE))
    monkeypatch.setattr(CudaSource, "available", lambda _: True)
    return device


def plain_paths(message: str) -> list[str]:
    """The names of the plain paths in a message."""
    listed = message.partition("; plain paths: ")[2]
    return [path.name for path in FAST_PATHS if f"{path.name} (needs {path.requirement}; instead: " in listed]


def test_a_gpu_without_bfloat16_is_a_warning(gpu: SimpleNamespace) -> None:
    gpu.major, gpu.minor = 7, 5
    finding = one("gpus")
    assert finding.state == "warn"
    assert "A GPU, 24.0 GB of 48.0 GB free, compute capability 7.5" in finding.message


def test_the_plain_paths_of_a_gpu_are_named_with_what_they_need(gpu: SimpleNamespace) -> None:
    finding = one("gpus")
    assert finding.state == "ok"
    assert "all kernels on their fast paths" in finding.message
    gpu.major, gpu.minor = 8, 6
    message = one("gpus").message
    assert "plain paths: overlap of kernel launches (needs compute capability 9.0; instead: a launch starts" in message
    assert "KV cache and weights in fp8 (needs compute capability 8.9; instead: fp8 is rejected; int8" in message
    assert "not checked" not in message
    gpu.minor = 7
    assert "the kernels are not checked for sm_87" in one("gpus").message


def test_a_gpu_with_few_multiprocessors_has_no_small_linear_layers_in_cuda(gpu: SimpleNamespace) -> None:
    gpu.multi_processor_count = 114  # an H100 PCIe
    message = one("gpus").message
    assert plain_paths(message) == [
        f"linear layers of {rows} in CUDA C++" for rows in ("one row", "2 to 8 rows", "9 to 64 rows")
    ]
    assert message.count("needs compute capability 9.0 exactly, 128 multiprocessors and NVRTC") == 3


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("file", "path"), PATHS_OF_FILES.items())
def test_a_source_that_nvrtc_does_not_compile_makes_its_path_plain(
    file: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaSource, "available", lambda source: source.file != f"{file}.cu")
    assert plain_paths(one("gpus").message) == [path]


def test_every_source_in_cuda_has_a_path() -> None:
    assert {file.stem for file in Path(kernels.__file__).parent.glob("*.cu")} == set(PATHS_OF_FILES)


@pytest.mark.usefixtures("gpu")
def test_without_nvrtc_all_paths_in_cuda_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaSource, "available", lambda _: False)
    message = one("gpus").message
    assert set(plain_paths(message)) == set(PATHS_OF_FILES.values())
    assert "plain paths: vocoder's wgmma kernels (needs compute capability 9.0 exactly, and NVRTC; instead: Triton" in (
        message
    )
    assert "codec's linear layers of few rows in CUDA C++ (needs compute capability 9.0, 10.0 or 12.0" in message
    assert "sampling in CUDA C++ (needs NVRTC" in message


@pytest.mark.usefixtures("gpu")
def test_the_number_of_streams_follows_from_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large, omni = machine_checks.models()
    plan = machine_checks.model_needs("1.7B", torch.bfloat16, gpu=True).plan(FREE).config
    assert (small.state, large.state, omni.state) == ("ok", "ok", "ok")
    assert f"memory for {plan.max_streams} streams of {plan.context} positions" in large.message
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5_000_000_000, FREE))
    small, large, omni = machine_checks.models()
    assert (small.state, large.state, omni.state) == ("ok", "warn", "warn")
    assert "does not fit" in large.message
    assert large.fix is not None


def test_a_model_that_fits_into_the_memory_of_a_cpu_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine_checks, "_memory", lambda: (24_000_000_000, 64_000_000_000))
    small = next(machine_checks.models())
    assert small.state == "ok"
    assert re.fullmatch(r"memory for \d+ streams? of .* in float32; speed not measured", small.message)
    assert small.fix == "polyvox bench engine --model 0.6B"
    monkeypatch.setattr(machine_checks, "_memory", lambda: (3_000_000_000, 64_000_000_000))
    assert next(machine_checks.models()).state == "warn"


@pytest.mark.parametrize(
    ("size", "gigabytes", "min_streams"),
    [("0.6B", 8, 64), ("0.6B", 12, 128), ("1.7B", 12, 64), ("1.7B", 16, 128), ("1.7B", 24, 256), ("omni", 24, 64)],
)
def test_small_gpus_have_memory_for_streams(size: str, gigabytes: int, min_streams: int) -> None:
    needs = machine_checks.model_needs(size, torch.bfloat16, gpu=True)
    plan = needs.plan(gigabytes * 1_000_000_000)
    assert plan.limited_by == "memory"
    assert plan.config.max_streams >= min_streams
    assert plan.config.context >= needs.default_context / 4


def test_a_port_in_use_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(machine_checks, "PORT", taken.getsockname()[1])
        assert one("port").state == "warn"
    assert one("port").state == "ok"


def test_missing_packages_are_reported_with_a_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    finding = one("player")
    assert finding.state == "warn"
    assert finding.fix is not None
    assert "sounddevice, or install one of paplay" in finding.fix
    assert {finding.state for finding in machine_checks.packages()} == {"warn"}
    player = tmp_path / "aplay"
    player.write_text("#!/bin/sh\n")
    player.chmod(0o700)
    assert one("player").message == "aplay for --play"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert one("player").message == "sounddevice for --play"
    monkeypatch.setenv("POLYVOX_HOME", str(player))
    assert one("voice_library").state == "warn"


def test_formats_are_checked_by_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert one("audio_formats").message.startswith("wav, flac, mp3, opus, aac, m4a, pcm, ulaw, alaw (PyAV")
    monkeypatch.setitem(ffmpeg_encoder.CODECS, "mp3", replace(ffmpeg_encoder.CODECS["mp3"], encoder="no_such_codec"))
    finding = one("audio_formats")
    assert finding.state == "warn"
    assert "missing: mp3" in finding.message
