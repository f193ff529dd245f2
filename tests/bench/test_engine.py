"""The three calls alone: what they must read and multiply is what the model's sizes say."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from conftest import Loaded
from polyvox.bench.engine import Crowd, Timing, measure_calls, plain, plots, row, streams
from polyvox.bench.floor import Device, Work, measure_device, work_of
from polyvox.bench.inprocess import EngineClient, engine_client
from polyvox.bench.load import Load, run_here
from polyvox.bench.weights import CountedTokens, random_tts
from polyvox.engine.config import EngineConfig
from polyvox.models.qwen3_tts import synthetic

FAST = Device("a device", 1e9, {torch.float32: 1e9})


def test_a_call_reads_each_weight_as_often_as_it_must(loaded: Loaded) -> None:
    model = loaded("custom_voice", "float32").speech.model
    crowd = Crowd(model, 3, 20, 8, 2)
    with torch.inference_mode():
        frame = work_of(crowd.frame, model, crowd.state("frame"))
        prefill = work_of(crowd.prefill, model, crowd.state("prefill"))
        codec = work_of(crowd.codec, model, crowd.state("codec"))
    matrices = {name: value.nbytes for name, value in model.named_parameters() if value.dim() >= 2}
    layers = sum(size for name, size in matrices.items() if name.startswith("talker.model.layers."))
    shape = model.config.talker.transformer
    position = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
    assert prefill.bytes == layers + 3 * 20 * position
    head = matrices["talker.codec_head.weight"]
    predictor = sum(size for name, size in matrices.items() if name.startswith("talker.code_predictor.model.layers."))
    passes = model.config.talker.code_groups - 1
    least = layers + head + passes * predictor + 3 * 21 * position
    assert least <= frame.bytes <= 1.2 * least  # the rest: heads, and the projection between the two
    # Two operations for each weight and row that meets it.
    assert prefill.flops >= 2 * layers / 4 * 3 * 20
    assert frame.flops >= 2 * (layers + head + passes * predictor) / 4 * 3
    assert codec.flops > 0
    assert min(frame.operations, prefill.operations, codec.operations) > 20


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_counted_also_where_heads_share_keys(masked: bool) -> None:
    q, k = torch.randn(2, 8, 3, 16), torch.randn(2, 2, 5, 16)
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool) if masked else None

    def attend() -> None:
        F.scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True)

    with torch.no_grad():
        assert work_of(attend, torch.nn.Identity(), 0).flops == 2 * (2 * 8) * (3 * 5) * (16 + 16)


def test_a_codec_says_what_it_computes_in_and_not_what_its_codebooks_are() -> None:
    files = synthetic.tiny_files("custom_voice")
    codec = synthetic.random_model(files, torch.device("cpu"), torch.float32).codec
    codec.narrow(torch.float16)
    assert codec.dtype == torch.float16
    assert next(codec.parameters()).dtype == torch.float32


def test_the_floor_is_the_slower_of_reading_and_multiplying() -> None:
    assert Work(2_000_000, 1_000_000, 1).floor(FAST, torch.float32) == pytest.approx(2e-3)
    assert Work(2_000_000, 9_000_000, 1).floor(FAST, torch.float32) == pytest.approx(9e-3)


def test_a_device_is_measured() -> None:
    device = measure_device(torch.device("cpu"), {torch.float32})
    assert device.bandwidth > 1e8
    assert device.rates[torch.float32] > 1e8
    assert "GB/s" in str(device)


def test_calls_are_timed_at_each_size(loaded: Loaded) -> None:
    model = loaded("custom_voice", "float32").speech.model
    found = list(measure_calls(model, [1, 2], [16, 32], 3, 2, FAST))
    assert [(t.call, t.batch, t.context) for t in found] == [
        ("prefill", 1, 16), ("frame", 1, 16), ("codec", 1, 16), ("prefill", 2, 16), ("frame", 2, 16), ("codec", 2, 16),
        ("prefill", 1, 32), ("frame", 1, 32), ("prefill", 2, 32), ("frame", 2, 32),
    ]  # fmt: skip
    assert all(0 < t.p10 <= t.p50 <= t.p90 for t in found)
    drawn = plots(found)
    assert [len(plot.lines) for plot in drawn] == [4, 4, 2]
    told = plain(found, FAST)
    assert told["device"]["rates"] == {"float32": 1e9}
    assert len(told["calls"]) == 10


def test_the_floor_of_a_codec_is_by_its_own_type() -> None:
    model = synthetic.random_model(synthetic.tiny_files("custom_voice"), torch.device("cpu"), torch.float32)
    model.codec.narrow(torch.bfloat16)
    slow = replace(FAST, rates={torch.float32: 1e30, torch.bfloat16: 1.0})
    floors = {t.call: (t.floor, t.flops) for t in measure_calls(model, [1], [16], 1, 2, slow)}
    assert floors["codec"][0] == floors["codec"][1] > 0
    assert floors["frame"][0] < floors["frame"][1]


def test_streams_that_could_be_fed_follow_from_both_steps() -> None:
    frame = Timing("frame", 4, 64, 0.01, 0.03, 0.05, 1, 1, 1, 0.003)
    codec = Timing("codec", 4, 64, 0.01, 0.04, 0.05, 1, 1, 1, 0.001)
    ((batch, context, fed),) = streams([frame, codec], 0.08, 4)
    assert (batch, context) == (4, 64)
    assert fed == pytest.approx(4 * 0.08 / 0.04)
    assert row(frame)[-2:] == ["3.000", "10.0%"]
    assert row(codec)[2] == "–"


def test_a_tokenizer_that_is_not_there_counts(loaded: Loaded) -> None:
    config = loaded("custom_voice", "float32").speech.config
    assert len(CountedTokens(config, None).text("four words are here")) == 4
    assert len(CountedTokens(config, 30).text("any text")) == 30
    assert CountedTokens(config, 30).text("one") != CountedTokens(config, 30).text("two")
    assert len(CountedTokens(config, None).role) == 3


def test_random_weights_speak_for_as_long_as_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "published_files", lambda _size, kind: synthetic.tiny_files(kind))
    with random_tts("1.7B", "cpu", "float32", EngineConfig(max_streams=4, max_queue_seconds=60), tokens=30) as tts:
        client = EngineClient(tts.engine, tts.speech.config.sampling, frames=20)
        texts = ("One text.", "Another one.")
        out = run_here(partial(engine_client, client), Load("closed", 4, warmup=0.0, requests=8, seconds=60), texts)
        assert [trace.error for trace in out.traces] == [None] * 8
        assert {trace.samples for trace in out.traces} == {20 * tts.speech.samples_per_frame}
        result = tts.engine.submit(client.request("One text.", 1))
        list(result.chunks(60))
        assert result.result is not None
        assert result.result.text_tokens == 30
