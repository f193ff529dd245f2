# SPDX-License-Identifier: Apache-2.0
"""Launches are listed without running anything. test_compiling.py compiles them."""

import torch

from conftest import Loaded
from polyvox import kernels
from polyvox.engine.config import EngineConfig
from polyvox.engine.generator_runner import GeneratorRunner
from polyvox.engine.graphs import largest_first
from polyvox.kernels.launches import AbsentTensor, OnMetaDevice
from polyvox.kernels.lazy_triton import intercepting_launches
from polyvox.models.layers.weight_cache import WeightCache


def test_a_call_on_the_meta_device_changes_no_tensor() -> None:
    numbers, rows = torch.arange(4.0), torch.zeros(2, 4)
    with OnMetaDevice():
        rows[torch.tensor([1])] = numbers
        total = numbers.add_(1) + torch.ones(4, device=numbers.device)
        numbers[1:3].zero_()
        torch._foreach_add_([numbers, rows], 1)
    assert total.is_meta
    assert total.shape == (4,)
    assert numbers.tolist() == [0, 1, 2, 3]
    assert not rows.any()


def test_a_replaced_tensor_has_the_alignment_of_the_original() -> None:
    numbers = torch.arange(64, dtype=torch.bfloat16)
    with OnMetaDevice():
        offsets = [AbsentTensor(numbers[start:].view(-1)).data_ptr() for start in (0, 1, 8, 9)]
        of_a_view = AbsentTensor(numbers.view(8, 8)[1:, 2:]).data_ptr()
    assert offsets == [0, 2, 0, 2]
    assert of_a_view == 4
    assert AbsentTensor(numbers[1:]).data_ptr() == 2


def test_the_calls_of_an_engine_are_listed_without_running_them(loaded: Loaded) -> None:
    generator = loaded("custom_voice", "float32").model.generator
    generator.talker.precompute(21)
    names: set[str] = set()
    with kernels.enabled_on_cpu(), torch.inference_mode():  # as in the engine's thread: some tensors are of this mode
        runner = GeneratorRunner(generator, EngineConfig(max_streams=20, context=256), fixed_sizes=True)
        assert runner.graphs is not None
        runner.cache.keys.fill_(1)
        before = [tensor.clone() for tensor in (runner.state.codes, runner.cache.keys, runner.cache.values)]
        with OnMetaDevice(), intercepting_launches(lambda kernel, *_: names.add(kernel.function.__name__)):
            for call in largest_first(runner.graphs.families):
                call.run()
        after = [runner.state.codes, runner.cache.keys, runner.cache.values]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert names == {
        "attention_kernel", "decode_kernel", "draw_kernel", "finish_kernel", "inputs_kernel",
        "combine_splits_kernel", "large_batch_kernel", "norm_kernel", "pair_pre_norm_kernel", "pre_norm_kernel",
        "prefill_kernel", "rotary_kernel", "silu_mul_kernel", "vector_kernel",
    }  # fmt: skip


def test_values_computed_from_weights_while_calls_are_listed_are_kept_apart() -> None:
    weight, cache = torch.ones(2), WeightCache[torch.Tensor]()
    with OnMetaDevice(), intercepting_launches(lambda *_: None):
        listed = cache.get(lambda: 2 * weight, weight)
        assert listed.is_meta
        assert cache.get(lambda: 3 * weight, weight) is listed
    kept = cache.get(lambda: 2 * weight, weight)
    assert kept.tolist() == [2, 2]
    with OnMetaDevice(), intercepting_launches(lambda *_: None):
        assert cache.get(lambda: 3 * weight, weight) is kept
