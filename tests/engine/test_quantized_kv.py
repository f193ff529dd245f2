# SPDX-License-Identifier: Apache-2.0
"""An engine with a quantised KV cache; tests/kernels/test_kv_quantize.py has its roundings and its kernels."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from conftest import Loaded
from engine.synthesis import read_all, request
from polyvox.engine import kv_cache
from polyvox.engine.config import PAGE, EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.kv_cache import KVCache
from polyvox.errors import InvalidRequest
from polyvox.models import registry
from polyvox.models.paged_kv import KVShape
from polyvox.models.registry import LoadOptions, default_kv_dtype, random_model
from polyvox.tts import QUANTIZED_DTYPES, load, parse_kv_dtype

kv_dtypes = pytest.mark.parametrize("kv_dtype", QUANTIZED_DTYPES.values())
TEXTS = ("hello there", "one two three four", "good morning")


@kv_dtypes
@pytest.mark.parametrize("by_head", [False, True])
def test_a_stream_in_a_batch_equals_its_solo_run(
    by_head: bool, kv_dtype: torch.dtype, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With freed pages filled with NaN, and fewer slots than streams, so that pages are reused."""
    monkeypatch.setattr(kv_cache, "is_by_head", lambda _: by_head)
    speech = loaded("custom_voice", "float64").model
    requests = [request(text, seed=seed, frames=8) for seed, text in enumerate(TEXTS)]
    with mock.patch.object(speech.generator, "kv_dtype", kv_dtype):
        engine = LocalEngine(speech, EngineConfig(max_streams=2, context=256, poison_freed=True))
        try:
            together = [read_all(stream) for stream in [engine.submit(each) for each in requests]]
            alone = [read_all(engine.submit(each)) for each in requests]
        finally:
            engine.close()
    for ours, theirs in zip(together, alone, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


@kv_dtypes
def test_a_position_has_the_bytes_that_are_planned_for_it(kv_dtype: torch.dtype) -> None:
    shape = KVShape(layers=3, kv_heads=8, head_dim=128)
    cache = KVCache(shape, 9, 2, 4, torch.device("cpu"), kv_dtype)
    assert cache.nbytes - cache.table.nbytes == 10 * PAGE * shape.position_bytes(kv_dtype)  # with the scratch page
    assert shape.position_bytes(kv_dtype) < 0.52 * shape.position_bytes(torch.bfloat16)


def test_a_model_is_loaded_with_the_kv_dtype(checkpoints: Path) -> None:
    for name, kv_dtype in (("auto", torch.float32), ("model", torch.float32), *QUANTIZED_DTYPES.items()):
        with load(checkpoints / "custom_voice", device="cpu", kv_dtype=name) as tts:
            assert tts.model.generator.kv_dtype == kv_dtype


GPU, CPU = torch.device("cuda"), torch.device("cpu")


def test_a_gpu_without_float8_has_int8_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    assert parse_kv_dtype("int8", GPU, torch.bfloat16) == torch.int8
    rule = r"'kv_dtype': must be one of auto, model, int8 on a GPU of compute capability 8\.6"
    with pytest.raises(InvalidRequest, match=rule):
        parse_kv_dtype("fp8", GPU, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert parse_kv_dtype("fp8", GPU, torch.bfloat16) == torch.float8_e4m3fn
    with pytest.raises(InvalidRequest, match="kv_dtype"):
        parse_kv_dtype("fp4", GPU, torch.bfloat16)


@pytest.mark.parametrize(
    ("device", "dtype", "kv_dtype"),
    [
        (GPU, torch.bfloat16, torch.int8),
        (GPU, torch.float32, torch.float32),
        (CPU, torch.bfloat16, torch.bfloat16),
        (CPU, torch.float32, torch.float32),
    ],
)
def test_the_default_is_int8_beside_bfloat16_on_a_gpu(
    device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    assert default_kv_dtype(device, dtype) == kv_dtype
    assert parse_kv_dtype("auto", device, dtype) is None
    assert parse_kv_dtype("model", device, dtype) == dtype


def test_random_models_have_the_default_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default_kv_dtype", lambda *_: torch.int8)
    meta = torch.device("meta")
    assert random_model("0.6B", LoadOptions(meta, torch.bfloat16)).generator.kv_dtype == torch.int8
    given = random_model("0.6B", LoadOptions(meta, torch.bfloat16, kv_dtype=torch.bfloat16))
    assert given.generator.kv_dtype == torch.bfloat16
