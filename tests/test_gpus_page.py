# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/gpus.md and docs/kernels.md have the values of the code."""

import re
from pathlib import Path

import pytest
import torch

from polyvox.cli.machine_checks import model_needs
from polyvox.engine.config import EngineConfig
from polyvox.engine.memory import ModelNeeds
from polyvox.errors import InvalidRequest
from polyvox.kernels import prefill_attention, quantized_rows
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS
from polyvox.kernels.plain_paths import FAST_PATHS
from polyvox.models.registry import published_sizes

GB = 1_000_000_000


def table(heading: str, page_name: str = "gpus.md") -> dict[str, list[str]]:
    """The first table of a section: cells by first column; the header is the first entry."""
    page = (Path(__file__).parents[1] / "docs" / page_name).read_text()
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.M)]
    return {first: cells for first, *cells in rows if first != "---"}


@pytest.fixture(scope="module")
def needs() -> dict[str, ModelNeeds]:
    return {size: model_needs(size, torch.bfloat16, gpu=True) for size in published_sizes()}


def marks(supported: list[bool]) -> list[str]:
    return ["yes" if found else "–" for found in supported]


def test_the_paths_of_an_architecture_are_those_of_the_predicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaSource, "available", lambda _: True)
    rows = table("Paths by architecture", "kernels.md")
    assert [int(cell.partition(":")[0].removeprefix("sm_")) for cell in rows.pop("path")[:-1]] == list(GPUS)
    expected = {
        path.name: [*marks([path.supports(architecture) for architecture in GPUS]), path.otherwise]
        for path in FAST_PATHS
    }
    int8 = [quantized_rows.supports(torch.int8, architecture) for architecture in GPUS]
    expected["Triton kernels"] = [*marks([True] * len(GPUS)), "PyTorch"]
    expected["KV cache and weights in int8"] = [*marks(int8), ""]
    expected["shared memory per program, KB"] = [*(str(gpu.shared >> 10) for gpu in GPUS.values()), ""]
    blocks = [prefill_attention.BLOCKS.get(architecture, prefill_attention.OTHER_BLOCK) for architecture in GPUS]
    float32 = prefill_attention.FLOAT32_BLOCK
    expected[f"positions per block in prefill attention (float32: {float32})"] = [*map(str, blocks), ""]
    assert rows == expected


def test_the_short_table_of_paths_agrees_with_the_full_one() -> None:
    short, full = table("What a GPU runs"), table("Paths by architecture", "kernels.md")
    *_, merged = short
    only_on_sm_90 = marks([architecture == 90 for architecture in GPUS])
    assert short.pop(merged) == [*only_on_sm_90, "Triton kernels, and cuBLAS for large batches"]
    assert sum(cells[:-1] == only_on_sm_90 for cells in full.values()) >= 5
    assert short == {name: full[name] for name in short}


def test_each_architecture_of_the_paths_has_a_line() -> None:
    names = [cell.partition(":") for cell in table("What a GPU runs")["path"][:-1]]
    states = table("Supported GPUs")
    for architecture, _, gpus in names:
        assert states[architecture][0] == gpus.strip()


def test_the_streams_of_a_gpu_are_those_of_the_plan(needs: dict[str, ModelNeeds]) -> None:
    rows = table("Streams by memory")
    sizes = [int(cell.split()[0]) * GB for cell in rows.pop("")]
    assert set(rows) == set(needs)
    for size, cells in rows.items():
        for free, cell in zip(sizes, cells, strict=True):
            if cell == "–":
                with pytest.raises(InvalidRequest):
                    needs[size].plan(free)
            else:
                planned = needs[size].plan(free).config.max_streams
                assert planned == pytest.approx(int(cell.replace(",", "")), rel=0.1)


def test_the_memory_of_streams_is_what_the_plan_needs_for_them(needs: dict[str, ModelNeeds]) -> None:
    rows = table("Memory by streams")
    counts = [int(cell.replace(",", "")) for cell in rows.pop("streams")]
    assert set(rows) == set(needs)
    for size, cells in rows.items():
        for num_streams, cell in zip(counts, cells, strict=True):
            needed = needs[size].min_bytes(num_streams)
            assert needed / GB == pytest.approx(float(cell), rel=0.05)
            assert needs[size].plan(needed + GB // 1000).config.max_streams >= num_streams
            with pytest.raises(InvalidRequest):
                needs[size].plan(int(0.97 * needed), EngineConfig(max_streams=num_streams))
