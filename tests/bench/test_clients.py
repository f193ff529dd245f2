# SPDX-License-Identifier: Apache-2.0
"""The clients measure what the server was scripted to do, over every protocol."""

import asyncio
from typing import Any

import pytest

from bench.fake_server import TEXT, Script, run_virtual, scripted_traces, silence, tone, wav_header
from polyvox.bench.clients import ServerTarget, WireProtocol, connect, live_tokens
from polyvox.bench.load import Load, LoadShard
from polyvox.bench.load_generator import run_shard
from polyvox.bench.metrics import RequestMetrics, RequestTrace, measure
from polyvox.bench.receiver import AudioReceiver, RequestFailed
from polyvox.bench.summary import NETWORK_AND_CLIENT, summarise
from polyvox.errors import InvalidRequest

pytestmark = pytest.mark.slow

PROTOCOLS: tuple[WireProtocol, ...] = ("http", "sse", "ws")


def single_trace(script: Script, protocol: WireProtocol, **target: Any) -> RequestTrace:
    (trace,), _ = scripted_traces(script, protocol, **target)
    return trace


def metrics(script: Script, protocol: WireProtocol, **target: Any) -> RequestMetrics:
    trace = single_trace(script, protocol, **target)
    assert trace.error is None, trace.detail
    found = measure(trace, 0.2)
    assert found is not None
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_delays_gaps_and_leading_silence_are_measured_as_scripted(protocol: WireProtocol) -> None:
    pieces = [
        (0.25, silence(80)),
        (0.05, silence(40) + tone(60)),
        (0.30, tone(100)),
        (0.10, tone(500)),
        (0.1, tone(20)),
    ]
    found = metrics(Script(pieces, end_after=0.07), protocol)
    assert found.ttfp == pytest.approx(0.25, abs=1e-5)
    assert found.silence == pytest.approx(0.11)  # the window from 110 ms on contains 10 ms of the tone
    assert found.ttfa == pytest.approx(0.25 + 0.11, abs=1e-5)
    # 180 ms of audio have been played when the third piece arrives, 350 ms after the first.
    assert found.stalls == pytest.approx([0.17], abs=1e-5)
    assert found.buffered_stalls == pytest.approx([], abs=1e-5)  # playback starts with the third piece
    assert found.needed == pytest.approx(0.17, abs=1e-5)
    assert found.gaps == pytest.approx([0.05, 0.30, 0.10, 0.1], abs=1e-5)
    assert found.audio == pytest.approx(0.8)
    assert found.e2e == pytest.approx(0.87, abs=1e-5)
    assert found.rtf == pytest.approx(0.87 / 0.8, abs=1e-4)
    assert found.ttfb == pytest.approx(0.0 if protocol == "ws" else 0.25, abs=1e-5)  # audio.start is sent at once


def test_a_header_sets_the_first_byte_but_is_not_audio() -> None:
    script = Script([(0.1, wav_header()), (0.2, tone(100)), (0.05, tone(100))])
    found = metrics(script, "http", audio_format="wav")
    assert found.ttfb == pytest.approx(0.1, abs=1e-5)
    assert found.ttfp == found.ttfa == pytest.approx(0.3, abs=1e-5)
    assert found.audio == pytest.approx(0.2)


@pytest.mark.parametrize("protocol", ["http", "sse"])
def test_stages_of_the_first_packet_come_from_the_server(protocol: WireProtocol) -> None:
    header = {"server-timing": 'queue;dur=20.5, cache;desc="hit", decode;desc=vocoder;dur=30, broken;dur=x'}
    (trace,), _ = scripted_traces(Script([(0.25, tone(200))], headers=header), protocol)
    assert trace.stages == pytest.approx({"queue": 0.0205, "decode": 0.03})
    stages = summarise([trace]).stages
    assert list(stages) == ["queue", "decode", NETWORK_AND_CLIENT]
    assert stages[NETWORK_AND_CLIENT].p95 == pytest.approx(0.25 - 0.0505, abs=1e-4)


def test_a_wav_header_declares_rate_and_length() -> None:
    audio = tone(200)
    header = wav_header(len(audio), 48_000)
    script = Script([(0.1, header[:20]), (0.1, header[20:] + audio + b"LIST")])
    found = metrics(script, "http", audio_format="wav")
    assert found.audio == pytest.approx(0.1)
    assert found.ttfp == pytest.approx(0.2, abs=1e-5)
    short = single_trace(Script([(0.1, wav_header(len(audio) + 2) + audio)]), "http", audio_format="wav")
    assert short.error == "truncated"


def test_an_unexpected_wav_file_is_an_invalid_response() -> None:
    audio = tone(200)
    file = wav_header(len(audio)) + audio
    script = Script([(0.1, file), (0.1, file[:2]), (0.1, file[2:])])
    twice = single_trace(script, "http", audio_format="wav")
    assert (twice.error, "second WAV file" in (twice.detail or "")) == ("invalid response", True)
    unexpected = single_trace(Script([(0.1, file)]), "http")
    assert (unexpected.error, "--format" in (unexpected.detail or "")) == ("invalid response", True)


def test_the_audio_of_the_first_requests_is_recorded() -> None:
    load = Load("closed", 1, warmup=0.0, num_prompts=3, timeout=2, record=2)
    found, _ = scripted_traces(Script([(0.1, tone(100)), (0.1, tone(50))]), "sse", load)
    assert [trace.pcm for trace in found] == [bytearray(tone(100) + tone(50))] * 2 + [None]


def test_the_pcm_sample_rate_comes_from_the_response_or_the_option() -> None:
    script = Script([(0.1, tone(200))], content_type="audio/pcm;rate=48000;channels=1")
    assert metrics(script, "http").audio == pytest.approx(0.1)
    assert metrics(Script([(0.1, tone(200))]), "http", sample_rate=12_000).audio == pytest.approx(0.4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script(end="cut"), "truncated"),
        (Script([]), "no audio"),
        (Script([(0.1, tone(100) + b"x")]), "truncated"),
        (Script(end="never"), "timeout"),
    ],
)
def test_failures_are_counted_by_kind(script: Script, kind: str, protocol: WireProtocol) -> None:
    trace = single_trace(script, protocol)
    assert trace.error == kind, trace.detail
    if kind == "timeout":
        assert trace.ended - trace.sent == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("protocol", ["http", "sse"])
def test_a_rejected_request_is_counted_by_its_status(protocol: WireProtocol) -> None:
    trace = single_trace(Script(status=503), protocol)
    assert trace.error == "http 503"
    assert "scripted" in (trace.detail or "")


@pytest.mark.parametrize("protocol", ["sse", "ws"])
def test_an_error_inside_the_stream_is_a_server_error(protocol: WireProtocol) -> None:
    trace = single_trace(Script(end="error"), protocol)
    assert trace.error == "server error"
    assert "scripted" in (trace.detail or "")


@pytest.mark.parametrize("content_type", ["application/json", "audio/mpeg", "audio/ogg"])
def test_another_content_type_is_an_invalid_response(content_type: str) -> None:
    for protocol in PROTOCOLS[:2]:
        assert single_trace(Script(content_type=content_type), protocol).error == "invalid response"


def test_a_refused_connection_fails_the_request() -> None:
    async def unreachable() -> RequestTrace:
        load = Load("closed", 1, warmup=0.0, num_prompts=1)
        target = ServerTarget("http://127.0.0.1:9")
        result = await run_shard(lambda: connect(target, 1), LoadShard(load, (TEXT,)), [0, 0])
        return result.traces[0]

    assert run_virtual(unreachable()).error == "connect"


def test_the_body_has_the_common_fields_and_extra_overrides_them() -> None:
    extra = {"stream": None, "language": "en"}
    _, server = scripted_traces(Script(), "http", model="m", voice="v", send_seeds=True, extra=extra)
    (body,) = server.bodies
    assert isinstance(body.pop("seed"), int)
    expected = {"input": TEXT, "model": "m", "voice": "v", "language": "en"}
    assert body == expected | {"response_format": "pcm", "stream_format": "audio"}
    _, server = scripted_traces(Script(), "ws", voice="v")
    assert server.bodies == [{"type": "session.config", "response_format": "pcm", "stream_audio": True, "voice": "v"}]


def test_the_base_url_is_checked_and_may_end_in_v1() -> None:
    assert ServerTarget("http://h:1/v1").url == ServerTarget("http://h:1/").url == "http://h:1/v1/audio/speech"
    assert ServerTarget("http://h:1", endpoint="say").url == "http://h:1/say"
    for wrong in (ServerTarget("h:1"), ServerTarget("ftp://h"), ServerTarget("http://h", "ws", audio_format="wav")):
        with pytest.raises(InvalidRequest):
            wrong.check()


def test_a_receiver_gives_the_same_result_for_pieces_of_any_size() -> None:
    data = wav_header() + silence(50) + tone(100)
    for size in (1, 3, 44, 45, 1000):
        trace = RequestTrace(0, 0, 1, True, 0.0)
        receiver = AudioReceiver(trace, lambda: 1.0, "wav")
        for at in range(0, len(data), size):
            receiver.push(data[at : at + size])
        receiver.finish()
        assert (trace.samples, trace.onset) == (3600, 960)


def test_a_receiver_rejects_every_format_but_16_bit_mono_wav() -> None:
    receiver = AudioReceiver(RequestTrace(0, 0, 1, True, 0.0), lambda: 0.0, "wav")
    with pytest.raises(RequestFailed, match="not a WAV file"):
        receiver.push(b"ID3" + bytes(40))
    stereo = bytearray(wav_header())
    stereo[22] = 2
    with pytest.raises(RequestFailed, match="16-bit mono"):
        AudioReceiver(RequestTrace(0, 0, 1, True, 0.0), lambda: 0.0, "wav").push(bytes(stereo))


def test_the_virtual_clock_does_not_wait() -> None:
    async def long() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - began

    assert run_virtual(long()) == pytest.approx(3600, abs=0.01)


def test_live_text_is_sent_in_tokens_at_its_rate() -> None:
    found, server = scripted_traces(Script([(0.0, tone(500))]), "ws", text_rate=4.0)
    tokens = live_tokens(TEXT)
    assert "".join(tokens) == TEXT
    assert len(tokens) == 3
    assert server.bodies[0]["split_granularity"] == "token"
    assert server.texts == [TEXT]
    assert found[0].first_byte is not None
    assert found[0].first_byte - found[0].sent == pytest.approx((len(tokens) - 1) / 4.0, abs=1e-3)


def test_stages_over_a_websocket_begin_with_the_connection() -> None:
    found, _ = scripted_traces(Script([(0.0, tone(500))]), "ws")
    assert found[0].stages == pytest.approx({"connect": 0.0, "words": 0.25}, abs=1e-3)


def test_a_token_of_live_text_is_a_word_or_a_mark() -> None:
    assert live_tokens("It wasn't extraordinary: a day! ") == [
        "It", " wasn", "'t", " extraordinary", ":", " a", " day", "!", " "
    ]  # fmt: skip
    with pytest.raises(InvalidRequest, match="text-rate"):
        ServerTarget("http://h", "http", text_rate=5.0).check()
    with pytest.raises(InvalidRequest, match="text-rate"):
        ServerTarget("http://h", "ws", text_rate=0.0).check()
