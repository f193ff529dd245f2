# SPDX-License-Identifier: Apache-2.0
"""Kernels that must wait before they let the next launch start: launch_overlap.py says why."""

from pathlib import Path

import pytest

from polyvox import kernels

FOLDER = Path(kernels.__file__).parent


@pytest.mark.parametrize("name", ["code_draw.cu", "pair_attention.cu", "warp_attention.cu"])
def test_the_next_launch_starts_after_the_wait(name: str) -> None:
    source = (FOLDER / name).read_text()
    assert source.count("wait_for_previous();") == source.count("start_next();") == 1
    assert source.index("wait_for_previous();") < source.index("start_next();")


def test_tritons_sampler_waits_first() -> None:
    source = (FOLDER / "sampler.py").read_text()
    assert "    if OVERLAP:\n        wait()\n" in source
    assert "start_next" not in source
