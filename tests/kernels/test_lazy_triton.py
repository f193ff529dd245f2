# SPDX-License-Identifier: Apache-2.0
"""What a kernel says of its compilation."""

import pytest

from polyvox.kernels.lazy_triton import Kernel, intercepting_launches


def double(x):  # type: ignore[no-untyped-def]
    return x + x


def copy_doubled(source, out):  # type: ignore[no-untyped-def]
    tl.store(out, doubled(tl.load(source)))  # type: ignore[name-defined] # noqa: F821


doubled = Kernel(double, fuse=False)


def test_only_a_kernel_that_is_launched_decides_what_is_fused() -> None:
    with pytest.raises(TypeError, match="doubled has fuse=False, but the kernel that calls it decides"):
        _ = Kernel(copy_doubled).jit


def test_a_launch_has_the_kernels_setting() -> None:
    found: list[dict[str, object]] = []
    with intercepting_launches(lambda _kernel, _arguments, named: found.append(named)):
        for kernel in (Kernel(double), Kernel(double, fuse=False)):
            kernel[(1,)](num_warps=1)
    assert found == [{"num_warps": 1}, {"num_warps": 1, "enable_fp_fusion": False}]
