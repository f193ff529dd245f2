# SPDX-License-Identifier: Apache-2.0
"""Which entries the talker is trained on, when training ends, and one training step."""

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polyvox import kernels
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from toy_pool import random_pool
from training import layers
from training.batches import row_count
from training.graph import CapturedStep
from training.layout import SAMPLING, voice_files
from training.schedule import Log
from training.talker import (
    GUIDE,
    GUIDED,
    LENGTHS,
    MAX_STALE,
    ROWS,
    Bucket,
    ModelSelection,
    TalkerTraining,
    buckets,
    compared,
    optimizers,
)

CONFIG = parse_config(voice_files(SAMPLING))
LOSSES = {f"{layout}_{name}": 1.0 for layout in ("whole", "live") for name in ("own", "1", "2", "right")}


def test_held_out_and_very_long_entries_are_in_no_bucket() -> None:
    pool = random_pool([3, 3, 3, 3, 3], [10, 10, 60, 300, 10], held_out=1)
    short, longer = buckets(pool, row_count(pool))
    assert (short.entries.tolist(), longer.entries.tolist()) == ([1, 4], [2])
    assert (short.weight, longer.weight) == (2 * LENGTHS[0], 80)


def test_all_buckets_and_their_halves_have_the_same_number_of_rows() -> None:
    assert [ROWS % (2 * length) for length in LENGTHS] == [0] * len(LENGTHS)


def test_model_selection_depends_on_codes_0_to_2_only() -> None:
    assert compared(LOSSES | {"whole_right": 9.0}) == compared(LOSSES)
    worse = [compared(LOSSES | {f"live_{name}": 1.5}) for name in ("own", "1", "2")]
    assert worse[0] > worse[1] > worse[2] > compared(LOSSES)


def test_training_continues_while_code_0_improves_although_code_1_is_overfitted() -> None:
    selection = ModelSelection(MAX_STALE)
    assert selection.improved(LOSSES, 0.0)
    for step in range(1, 10):
        overfitted = LOSSES | {"whole_own": 1 - 0.01 * step, "whole_1": 1.0 + step}
        assert not selection.improved(overfitted, 0.1 * step)
        assert not selection.is_stale(0.1 * step)
    assert selection.score.value == compared(LOSSES)
    assert selection.is_stale(0.91 + MAX_STALE)


def test_each_parameter_has_one_optimizer() -> None:
    model = Talker(CONFIG)
    groups = [
        group["params"] for optimizer in optimizers(model, torch.device("cpu")) for group in optimizer.param_groups
    ]
    assert sum(map(len, groups)) == len({p for group in groups for p in group}) == len(list(model.parameters()))
    assert all(parameter.dim() == 2 for parameter in groups[0])
    assert all(table not in set(groups[0]) for table in (model.codec_head.weight, model.text_embedding.weight))


def test_a_step_trains_all_parameters() -> None:
    torch.manual_seed(0)
    arguments = Namespace(rows=192, validation=4, compile=False)
    with kernels.disabled(), torch.enable_grad():
        training = TalkerTraining(random_pool([3] * 4, [10] * 4), CONFIG, torch.device("cpu"), arguments)
        before = [parameter.detach().clone() for parameter in training.parameters]
        training.schedule(100, 0.0)
        training.captured(training.buckets[0])()
    assert all(float(training.seen[name]) > 1 for name in ("first", "rest", "guide"))
    assert all(not torch.equal(a, b) for a, b in zip(before, training.parameters, strict=True))


class HostSynchronisation(TorchDispatchMode):
    """Fails at operations that a CUDA graph cannot capture: they read values on the host or copy from it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "lift_fresh_copy"), name
        if name in ("index", "index_put", "index_put_"):
            assert all(index is None or index.dtype != torch.bool for index in args[1])
        return func(*args, **(kwargs or {}))


def test_a_step_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = Namespace(rows=192, validation=4, compile=False)
    with kernels.disabled(), torch.enable_grad():
        training = TalkerTraining(random_pool([3] * 4, [10] * 4), CONFIG, torch.device("cpu"), arguments)
        bucket = training.buckets[0]
        entries = torch.from_numpy(bucket.entries)
        monkeypatch.setattr(training.optimizers[1], "step", lambda: None)  # AdamW reads its step count on a CPU
        with HostSynchronisation():  # type: ignore[no-untyped-call]
            training.step(bucket.length, entries)
    assert training.seen["first"] > 1


def test_all_layers_and_buckets_share_compiled_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile gives up after eight variants of a function."""
    seen: dict[str, set[object]] = {}

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            tensors = [(x.shape, x.stride(), x.dtype, x.requires_grad) if torch.is_tensor(x) else x for x in args]
            seen.setdefault(function.__name__, set()).add((torch.is_grad_enabled(), *tensors))
            return function(*args)

        return call

    monkeypatch.setattr(layers, "_compiled", lambda: (recorded(layers.heads), recorded(layers.residual_branches)))
    half = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
    monkeypatch.setattr("training.talker.half_precision", lambda _: half)
    arguments = Namespace(rows=480, validation=4, compile=True)
    with kernels.disabled(), torch.enable_grad():
        training = TalkerTraining(random_pool([3] * 4, [10, 10, 60, 60]), CONFIG, torch.device("cpu"), arguments)
        layers.replace_layers(training.model, compiled=True)
        assert [bucket.length for bucket in training.buckets] == [48, 80]
        for bucket in training.buckets:
            training.captured(bucket)()
    # The talker with and without gradients; the predictor with gradients, and without them its two passes.
    assert {name: len(found) for name, found in seen.items()} == {"heads": 5, "residual_branches": 5}


def test_training_continues_where_layers_cannot_be_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(layers, "_compiled", failing)
    arguments = Namespace(rows=96, validation=1, compile=True)
    training = TalkerTraining(random_pool([3] * 2, [10] * 2), CONFIG, torch.device("cpu"), arguments)
    original = training.captured

    def captured(bucket: Bucket) -> CapturedStep:
        step = original(bucket)
        step()  # on a GPU, capturing makes steps
        return step

    monkeypatch.setattr(training, "captured", captured)
    with kernels.disabled(), torch.enable_grad():
        training.captured_steps(Log(tmp_path / "talker.jsonl"))
    logged = [json.loads(line) for line in (tmp_path / "talker.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in logged] == ["not compiled", "captured"]
    assert "no compiler" in logged[0]["error"]
    assert training.seen["first"] > 1


def test_the_guide_ends_and_own_frames_begin_during_training() -> None:
    training = TalkerTraining(
        random_pool([3], [10]), CONFIG, torch.device("cpu"), Namespace(rows=64, validation=1, compile=False)
    )
    found = []
    for part in (0.0, GUIDED / 2, GUIDED, 1.0):
        training.schedule(1000, part)
        found.append((float(training.guide), float(training.own)))
    weights, own = zip(*found, strict=True)
    assert weights == (GUIDE, pytest.approx(GUIDE / 2), 0, 0)
    assert own[0] == 0 < own[1]
    assert own[-1] == 1
