# SPDX-License-Identifier: Apache-2.0
"""The model calls alone: their counted work follows from the sizes of the model."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from conftest import Loaded
from polyvox.bench import model_calls
from polyvox.bench.clients import live_tokens
from polyvox.bench.engine_client import EngineClient, engine_client
from polyvox.bench.load import Load
from polyvox.bench.load_generator import run_in_process
from polyvox.bench.model_calls import (
    CallTiming,
    SyntheticBatch,
    call_plots,
    fill_cache,
    measure_calls,
    real_time_streams,
    row,
    to_json,
)
from polyvox.bench.prompts import prompts
from polyvox.bench.roofline import DevicePeaks, Work, count_work, measure_peaks
from polyvox.engine import parallel_compiler
from polyvox.engine.async_engine import AsyncLocalEngine
from polyvox.engine.config import EngineConfig
from polyvox.engine.kv_cache import KVCache
from polyvox.kernels.launches import Launch
from polyvox.kernels.quantized_matrix import multiply_reference, quantize_matrix
from polyvox.models.hashing_tokenizer import HashingTokenizer
from polyvox.models.info import ModelIdentity
from polyvox.models.paged_kv import KVShape
from polyvox.models.qwen3_tts import family, synthetic
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.registry import LoadOptions, random_model
from polyvox.models.streaming_tokenizer import TextStreamTokenizer
from polyvox.tts import TTS

pytestmark = pytest.mark.slow

PEAKS = DevicePeaks("a device", 1e9, {torch.float32: 1e9})


def test_a_call_counts_each_read_of_a_weight(loaded: Loaded) -> None:
    speech = loaded("custom_voice", "float32").model
    model, weights = speech.model, [*speech.model.parameters()]
    batch = SyntheticBatch(speech, 3, 20, 8, 2)
    with torch.inference_mode():
        frame = count_work(batch.frame, weights, batch.state_bytes("frame"))
        prefill = count_work(batch.prefill, weights, batch.state_bytes("prefill"))
        codec = count_work(batch.codec, weights, batch.state_bytes("codec"))
    matrices = {name: value.nbytes for name, value in model.named_parameters() if value.dim() >= 2}
    layers = sum(size for name, size in matrices.items() if name.startswith("talker.model.layers."))
    shape = model.config.talker.transformer
    position = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
    last = f"talker.model.layers.{shape.layers - 1}."
    result = sum(size for name, size in matrices.items() if name.startswith(last) and "qkv" not in name)
    assert result > 0
    assert prefill.bytes == layers - result + 3 * 20 * position  # of the last layer, keys and values only
    head = matrices["talker.codec_head.weight"]
    predictor = sum(size for name, size in matrices.items() if name.startswith("talker.code_predictor.model.layers."))
    passes = model.config.talker.code_groups - 1
    expected = layers + head + passes * predictor + 3 * 21 * position
    assert expected <= frame.bytes <= 1.2 * expected  # the rest: heads, and the projection between the two
    # Two FLOPs per weight and row.
    assert prefill.flops >= 2 * (layers - result) / 4 * 3 * 20
    assert frame.flops >= 2 * (layers + head + passes * predictor) / 4 * 3
    assert codec.flops > 0
    assert min(frame.operations, prefill.operations, codec.operations) > 20


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8])
def test_the_context_is_filled_with_random_keys_and_values(
    kv_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_calls, "FILLED_PAGES", 4)  # of 10
    cache = KVCache(KVShape(2, 2, 32), 9, 2, 4, torch.device("cpu"), kv_dtype)
    fill_cache(cache)
    pools = torch.stack([cache.keys, cache.values]).float()
    if cache.scales is not None:
        pools *= cache.scales.transpose(3, 4)[..., None]
    heads = pools.transpose(3, 4).flatten(0, 3).flatten(1)  # [2 · layers · pages · KV heads, page · dim]
    assert len(heads) == 2 * 2 * 10 * 2
    assert ((heads.std(1) - 1).abs() < 0.15).all()
    assert len(heads.unique(dim=0)) == len(heads)


@pytest.mark.parametrize("masked", [False, True])
def test_grouped_query_attention_is_counted(masked: bool) -> None:
    q, k = torch.randn(2, 8, 3, 16), torch.randn(2, 2, 5, 16)
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool) if masked else None

    def attend() -> None:
        F.scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True)

    with torch.no_grad():
        assert count_work(attend, [], 0).flops == 2 * (2 * 8) * (3 * 5) * (16 + 16)


def test_activations_are_the_rows_and_the_results_of_products() -> None:
    weight, rows = torch.ones(3, 5), torch.ones(7, 5)
    with torch.inference_mode():
        work = count_work(lambda: torch.nn.functional.linear(rows, weight).relu(), [weight], 0)
    assert work.bytes == weight.nbytes
    assert work.activations == rows.nbytes + 7 * 3 * 4


def test_quantised_weights_are_read_as_bytes() -> None:
    rows, matrix = torch.zeros(3, 8), quantize_matrix(torch.ones(5, 8), torch.int8)
    with torch.inference_mode():
        work = count_work(lambda: multiply_reference(rows, matrix), matrix, 0)
    assert (work.bytes, work.activations) == (5 * 8, (3 * 8 + 3 * 5) * 4)


def test_the_dtype_of_a_codec_is_its_compute_dtype_not_that_of_its_codebooks() -> None:
    files = synthetic.tiny_files("custom_voice")
    codec = synthetic.random_model(files, torch.device("cpu"), torch.float32).codec
    codec.narrow(torch.float16)
    assert codec.dtype == torch.float16
    assert next(codec.quantizer.parameters()).dtype == torch.float32


def test_the_roofline_bound_is_the_larger_of_memory_and_compute_time() -> None:
    assert Work(2_000_000, 1_000_000, 1, 5_000_000).bound(PEAKS, torch.float32) == pytest.approx(2e-3)
    assert Work(2_000_000, 9_000_000, 1).bound(PEAKS, torch.float32) == pytest.approx(9e-3)


def test_the_peaks_of_a_device_are_measured() -> None:
    peaks = measure_peaks(torch.device("cpu"), {torch.float32})
    assert peaks.bandwidth > 1e8
    assert peaks.rates[torch.float32] > 1e8
    assert "GB/s" in str(peaks)


def test_calls_are_timed_at_each_size(loaded: Loaded) -> None:
    model = loaded("custom_voice", "float32").model
    found = list(measure_calls(model, [1, 2], [16, 32], 3, 2, PEAKS))
    assert [(t.call, t.batch, t.context) for t in found] == [
        ("prefill", 1, 16), ("frame", 1, 16), ("codec", 1, 16), ("prefill", 2, 16), ("frame", 2, 16), ("codec", 2, 16),
        ("prefill", 1, 32), ("frame", 1, 32), ("prefill", 2, 32), ("frame", 2, 32),
    ]  # fmt: skip
    assert all(0 < t.p10 <= t.p50 <= t.p90 for t in found)
    assert [len(plot.series) for plot in call_plots(found)] == [4, 4, 2]
    written = to_json(found, PEAKS)
    assert written["device"]["rates"] == {"float32": 1e9}
    assert len(written["calls"]) == 10


def test_a_kernel_that_the_first_call_misses_has_those_of_all_calls_compiled_before_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def run(call: str) -> None:
        from triton import knobs

        listener = knobs.compilation.listener
        assert listener is not None
        listener(src=None, metadata={}, metadata_group={}, times=None, cache_hit="compile" in done)
        done.append(call)

    def record(calls: Sequence[Callable[[], object]], _gpu: object) -> list[Launch]:
        return [Launch("module:kernel", call.args[0], 90) for call in calls if isinstance(call, partial)]

    def compile_all(launches: Sequence[Launch], _on_compiled: Callable[[int], None]) -> list[str]:
        assert [launch.specialization for launch in launches] == ["prefill", "frame", "codec"]
        done.append("compile")
        return []

    pool = mock.Mock(num_workers=2, compile=compile_all)
    monkeypatch.setattr(parallel_compiler, "CompilerPool", lambda _num_workers: pool)
    monkeypatch.setattr(parallel_compiler, "record_launches", record)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    generator = SimpleNamespace(device=torch.device("cpu"))
    calls = {call: partial(run, call) for call in ("prefill", "frame", "codec")}
    model_calls._compile(cast(SyntheticBatch, SimpleNamespace(generator=generator, **calls)))
    assert done == ["prefill", "compile", "frame", "codec"]
    pool.close.assert_called_once_with()


def test_the_bound_of_the_codec_uses_its_own_dtype() -> None:
    weights = synthetic.random_model(synthetic.tiny_files("custom_voice"), torch.device("cpu"), torch.float32)
    weights.codec.narrow(torch.bfloat16)
    model = Qwen3TTSModel(weights, HashingTokenizer(weights.config, None), ModelIdentity("tiny", "tiny"))
    slow = replace(PEAKS, rates={torch.float32: 1e30, torch.bfloat16: 1.0})
    bounds = {t.call: (t.floor, t.flops) for t in measure_calls(model, [1], [16], 1, 2, slow)}
    assert bounds["codec"][0] == bounds["codec"][1] > 0
    assert bounds["frame"][0] < bounds["frame"][1]


def test_the_number_of_real_time_streams_follows_from_both_steps() -> None:
    frame = CallTiming("frame", 4, 64, 0.01, 0.03, 0.05, 1, 1, 1, 0.003)
    codec = CallTiming("codec", 4, 64, 0.01, 0.04, 0.05, 1, 1, 1, 0.001)
    ((batch, context, streams),) = real_time_streams([frame, codec], 0.08, 4)
    assert (batch, context) == (4, 64)
    assert streams == pytest.approx(4 * 0.08 / 0.04)
    assert row(frame)[-2:] == ["3.000", "10.0%"]
    assert row(codec)[2] == "–"


def test_a_hashing_tokenizer_gives_one_id_per_word_or_a_fixed_number(loaded: Loaded) -> None:
    config = loaded("custom_voice", "float32").model.config
    assert len(HashingTokenizer(config, None).text("four words are here")) == 4
    assert len(HashingTokenizer(config, 30).text("any text")) == 30
    assert HashingTokenizer(config, 30).text("one") != HashingTokenizer(config, 30).text("two")
    assert len(HashingTokenizer(config, None).role) == 3


def test_a_hashing_tokenizer_gives_one_id_per_word_and_mark_of_live_text_in_any_fragments(loaded: Loaded) -> None:
    tokenizer = HashingTokenizer(loaded("custom_voice", "float32").model.config, 30)
    whole = tokenizer.pieces("four words aren't here.")
    assert len(whole) == 6
    stream = TextStreamTokenizer(tokenizer)
    ids = [one for piece in ("fo", "ur wor", "ds", " ", "aren", "'", "t he", "re", ".") for one in stream.append(piece)]
    assert ids + stream.finish() == whole


def test_a_hashing_tokenizer_has_the_tokens_in_which_clients_send_live_text(loaded: Loaded) -> None:
    tokenizer = HashingTokenizer(loaded("custom_voice", "float32").model.config, 30)
    for text in prompts():
        assert len(live_tokens(text)) == len(tokenizer.pieces(text))


def test_random_weights_generate_utterances_of_a_fixed_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "published_files", lambda _size, kind: synthetic.tiny_files(kind))
    model = random_model("1.7B", LoadOptions(torch.device("cpu"), torch.float32), num_tokens=30)
    with TTS(model, EngineConfig(max_streams=4, max_queue_seconds=60)) as tts:
        client = EngineClient(AsyncLocalEngine(tts.engine), tts.model.info().sampling, frames=20)
        texts = ("One text.", "Another one.")
        load = Load("closed", 4, warmup=0.0, num_prompts=8, seconds=60)
        result = run_in_process(partial(engine_client, client), load, texts)
        assert [trace.error for trace in result.traces] == [None] * 8
        assert {trace.samples for trace in result.traces} == {20 * tts.model.vocoder.samples_per_frame}
        stream = tts.engine.submit(client.request("One text.", 1))
        list(stream.chunks(60))
        assert stream.result is not None
        assert stream.result.text_tokens == 30
