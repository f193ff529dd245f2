# SPDX-License-Identifier: Apache-2.0
"""Norm and rotation of heads, write to the KV cache and attention over it: which kernels compute them.

    the inputs of rotary.py -> [N,H,D] as in attention.py; k and v are in the cache

Rows of one slot each are one launch, of the first kernel of DECODE_KERNELS that supports them, or two: rotary.py and
attention.py. Prompts are two launches: rotary.py and prefill_attention.py. One stream's code predictor has its output
projection in the same launch (attention_output.py), which `Attention.attend_add_fused` chooses before this.

Roundings: those of rotary.py, then those of attention.py or of the kernel.
"""

from typing import Protocol

from torch import Tensor

from polyvox import kernels
from polyvox.kernels import (
    decode_attention,
    large_batch_attention,
    page_attention,
    pair_attention,
    prefill_attention,
    warp_attention,
)
from polyvox.kernels.attention import paged_attention
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.rotary import HeadRotation, rotary_store


class DecodeAttention(Protocol):
    """A module that computes all of it in one launch, where no two rows share a slot."""

    def supports(self, qkv: Tensor, rotation: HeadRotation, cache: PagedRows, /) -> bool:
        """Whether the kernel runs for rows [N, (H + 2·KVH)·D], and is faster than those after it."""
        ...

    def launch(self, qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
        """Attention of one or more rows that `supports` accepts: [N,H,D]."""
        ...


DECODE_KERNELS: tuple[DecodeAttention, ...] = (
    page_attention,  # bfloat16 on sm_90: one page, as in the code predictor, up to 128 rows
    warp_attention,  # bfloat16 on sm_90: a talker with 8 KV heads, any type of the cache
    large_batch_attention,  # Triton, from 17 rows on: one page, or a quantised cache
    decode_attention,  # Triton, up to 128 rows
)


def attend(
    qkv: Tensor, rotation: HeadRotation, cache: PagedRows, decode_only: bool, is_first_pair: bool = False
) -> Tensor:
    """Store k and v of rows in the cache, and attend over the rows' slots up to their positions.

    decode_only: no two rows share a slot. is_first_pair: rows 2i and 2i + 1 are positions 0 and 1 of one slot, and the
    only ones of its page.
    """
    if decode_only:
        return attend_decode(qkv, rotation, cache)
    if is_first_pair and pair_attention.supports(qkv, rotation, cache):
        return pair_attention.launch(qkv, rotation, cache)
    if cache.is_single_page:
        return paged_attention(rotary_store(qkv, rotation, cache), cache)
    return prefill_attention.prompt_attention(qkv, rotation, cache)


def attend_decode(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """`attend` where no two rows share a slot."""
    if not kernels.active(qkv):
        return rotary_attention_reference(qkv, rotation, cache)
    if not len(qkv):
        return qkv.new_empty(0, cache.num_heads(qkv), cache.dim)
    kernel = choose(qkv, rotation, cache)
    if kernel is None:
        return paged_attention(rotary_store(qkv, rotation, cache), cache)
    assert qkv.stride(1) == 1
    assert not rotation.by_row
    return kernel.launch(qkv, rotation, cache)


def choose(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> DecodeAttention | None:
    """The kernel for rows of one slot each; None if two launches are faster."""
    return next((kernel for kernel in DECODE_KERNELS if kernel.supports(qkv, rotation, cache)), None)
