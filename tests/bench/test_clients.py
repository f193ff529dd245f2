"""The clients find exactly what a server was scripted to do, over every protocol."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bench.fake_server import FakeServer, SegmentQueue, run_virtual, silence, tone, wav_header
from polyvox.bench.clients import Protocols, Target, connected
from polyvox.bench.ear import Ear, Failure
from polyvox.bench.load import Load, Part, drive
from polyvox.bench.metrics import Measures, Trace, measure
from polyvox.bench.summary import Summary, summarise
from polyvox.errors import InvalidRequest

PROTOCOLS: tuple[Protocols, ...] = ("http", "sse", "ws")
TEXT = "Say it."


async def heard(server: FakeServer, target: Target, load: Load, texts: tuple[str, ...]) -> list[Trace]:
    async with server.running():
        here = replace(target, base_url=server.address)
        out = await drive(lambda: connected(here, 100), Part(load, texts), [0, 0])
    return out.traces


def traces(
    script: SegmentQueue, protocol: Protocols, load: Load | None = None, **target: Any
) -> tuple[list[Trace], FakeServer]:
    server = FakeServer(standard=script)
    load = load or Load("closed", 1, warmup=0.0, requests=1, timeout=2)
    asked = Target("", protocol=protocol, **target)
    return run_virtual(heard(server, asked, load, (TEXT,))), server


def measures(script: SegmentQueue, protocol: Protocols, **target: Any) -> Measures:
    (trace,), _ = traces(script, protocol, **target)
    assert trace.error is None, trace.detail
    found = measure(trace, 0.2)
    assert found is not None
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_delays_gaps_and_leading_silence_are_found_as_they_were_scripted(protocol: Protocols) -> None:
    pieces = [
        (0.25, silence(80)),
        (0.05, silence(40) + tone(60)),
        (0.30, tone(100)),
        (0.10, tone(500)),
        (0.1, tone(20)),
    ]
    found = measures(SegmentQueue(pieces, end_after=0.07), protocol)
    assert found.ttfp == pytest.approx(0.25, abs=1e-5)
    assert found.silence == pytest.approx(0.11)  # the window from 110 ms on holds 10 ms of the tone
    assert found.ttfa == pytest.approx(0.25 + 0.11, abs=1e-5)
    # 180 ms are played when the third piece comes, 350 ms after the first.
    assert found.stalls == pytest.approx([0.17], abs=1e-5)
    assert found.buffered_stalls == pytest.approx([], abs=1e-5)  # begun with the third piece, never dry again
    assert found.needed == pytest.approx(0.17, abs=1e-5)
    assert found.gaps == pytest.approx([0.05, 0.30, 0.10, 0.1], abs=1e-5)
    assert found.audio == pytest.approx(0.8)
    assert found.e2e == pytest.approx(0.87, abs=1e-5)
    assert found.rtf == pytest.approx(0.87 / 0.8, abs=1e-4)
    assert found.ttfb == pytest.approx(0.0 if protocol == "ws" else 0.25, abs=1e-5)  # audio.start comes at once


def test_a_header_alone_is_a_byte_and_no_audio() -> None:
    found = measures(SegmentQueue([(0.1, wav_header()), (0.2, tone(100)), (0.05, tone(100))]), "http", form="wav")
    assert found.ttfb == pytest.approx(0.1, abs=1e-5)
    assert found.ttfp == found.ttfa == pytest.approx(0.3, abs=1e-5)
    assert found.audio == pytest.approx(0.2)


def test_a_wav_file_tells_its_rate_and_its_length() -> None:
    sound = tone(200)
    header = wav_header(len(sound), 48_000)
    half = measures(SegmentQueue([(0.1, header[:20]), (0.1, header[20:] + sound + b"LIST")]), "http", form="wav")
    assert half.audio == pytest.approx(0.1)
    assert half.ttfp == pytest.approx(0.2, abs=1e-5)
    (short,), _ = traces(SegmentQueue([(0.1, wav_header(len(sound) + 2) + sound)]), "http", form="wav")
    assert short.error == "early end"


def test_a_sound_file_in_the_wrong_place_is_not_taken_for_sound() -> None:
    sound = tone(200)
    file = wav_header(len(sound)) + sound
    (twice,), _ = traces(SegmentQueue([(0.1, file), (0.1, file[:2]), (0.1, file[2:])]), "http", form="wav")
    assert (twice.error, "second WAV file" in (twice.detail or "")) == ("told", True)
    (unasked,), _ = traces(SegmentQueue([(0.1, file)]), "http")
    assert (unasked.error, "--format" in (unasked.detail or "")) == ("told", True)


def test_the_sound_of_the_first_requests_is_kept_where_it_is_wanted() -> None:
    load = Load("closed", 1, warmup=0.0, requests=3, timeout=2, keep=2)
    found, _ = traces(SegmentQueue([(0.1, tone(100)), (0.1, tone(50))]), "sse", load)
    assert [trace.sound for trace in found] == [bytearray(tone(100) + tone(50))] * 2 + [None]


def test_the_rate_of_pcm_is_what_the_answer_says_or_the_option() -> None:
    script = SegmentQueue([(0.1, tone(200))], content_type="audio/pcm;rate=48000;channels=1")
    assert measures(script, "http").audio == pytest.approx(0.1)
    assert measures(SegmentQueue([(0.1, tone(200))]), "http", sample_rate=12_000).audio == pytest.approx(0.4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (SegmentQueue(end="cut"), "early end"),
        (SegmentQueue([]), "no audio"),
        (SegmentQueue([(0.1, tone(100) + b"x")]), "early end"),
        (SegmentQueue(end="never"), "timeout"),
    ],
)
def test_what_goes_wrong_is_counted_by_its_kind(script: SegmentQueue, kind: str, protocol: Protocols) -> None:
    (trace,), _ = traces(script, protocol)
    assert trace.error == kind, trace.detail
    if kind == "timeout":
        assert trace.ended - trace.sent == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("protocol", ["http", "sse"])
def test_a_refusal_is_counted_by_its_status(protocol: Protocols) -> None:
    (trace,), _ = traces(SegmentQueue(status=503), protocol)
    assert trace.error == "http 503"
    assert "scripted" in (trace.detail or "")


@pytest.mark.parametrize("protocol", ["sse", "ws"])
def test_an_error_inside_the_stream_is_a_failure(protocol: Protocols) -> None:
    (trace,), _ = traces(SegmentQueue(end="error"), protocol)
    assert trace.error == "told"
    assert "scripted" in (trace.detail or "")


def test_a_stream_that_is_refused_does_not_ask_again_at_once() -> None:
    found, server = traces(SegmentQueue(status=503), "http", Load("closed", 2, seconds=2, warmup=0.5, timeout=2))
    assert [trace.sent for trace in found] == pytest.approx([0, 0, 1, 1, 2, 2], abs=0.05)
    assert len(server.bodies) == len(found)


@pytest.mark.parametrize("kind", ["application/json", "audio/mpeg", "audio/ogg"])
def test_an_answer_of_another_kind_is_not_taken_for_sound(kind: str) -> None:
    for protocol in PROTOCOLS[:2]:
        (trace,), _ = traces(SegmentQueue(content_type=kind), protocol)
        assert trace.error == "told"


def test_nobody_at_the_address_is_a_failure_of_each_request() -> None:
    async def nobody() -> Trace:
        load = Load("closed", 1, warmup=0.0, requests=1)
        target = Target("http://127.0.0.1:9")
        out = await drive(lambda: connected(target, 1), Part(load, (TEXT,)), [0, 0])
        return out.traces[0]

    assert run_virtual(nobody()).error == "connect"


def test_the_body_is_what_servers_of_the_field_take_and_can_be_changed() -> None:
    _, server = traces(
        SegmentQueue(), "http", model="m", voice="v", seeds=True, extra={"stream": None, "language": "en"}
    )
    (body,) = server.bodies
    seed = body.pop("seed")
    assert isinstance(seed, int)
    asked = {"input": TEXT, "model": "m", "voice": "v", "language": "en"}
    assert body == asked | {"response_format": "pcm", "stream_format": "audio"}
    _, server = traces(SegmentQueue(), "ws", voice="v")
    assert server.bodies == [{"type": "session.config", "response_format": "pcm", "stream_audio": True, "voice": "v"}]


def test_an_address_is_checked_and_may_end_in_v1() -> None:
    assert Target("http://h:1/v1").url == Target("http://h:1/").url == "http://h:1/v1/audio/speech"
    assert Target("http://h:1", endpoint="say").url == "http://h:1/say"
    for wrong in (Target("h:1"), Target("ftp://h"), Target("http://h", "ws", form="wav")):
        with pytest.raises(InvalidRequest):
            wrong.check()


def test_an_ear_hears_the_same_in_pieces_of_any_size() -> None:
    data = wav_header() + silence(50) + tone(100)
    for size in (1, 3, 44, 45, 1000):
        trace = Trace(0, 0, 1, True, 0.0)
        ear = Ear(trace, lambda: 1.0, "wav")
        for at in range(0, len(data), size):
            ear.hear(data[at : at + size])
        ear.end()
        assert (trace.samples, trace.onset) == (3600, 960)


def test_an_ear_refuses_what_is_not_16_bit_mono() -> None:
    ear = Ear(Trace(0, 0, 1, True, 0.0), lambda: 0.0, "wav")
    with pytest.raises(Failure, match="not a WAV file"):
        ear.hear(b"ID3" + bytes(40))
    stereo = bytearray(wav_header())
    stereo[22] = 2
    with pytest.raises(Failure, match="16-bit mono"):
        Ear(Trace(0, 0, 1, True, 0.0), lambda: 0.0, "wav").hear(bytes(stereo))


def told(script: SegmentQueue, load: Load, protocol: Protocols = "http") -> tuple[Summary, list[Trace]]:
    found, _ = traces(script, protocol, load)
    return summarise(found), found


def test_a_closed_loop_keeps_its_streams_under_way() -> None:
    script = SegmentQueue([(0.1, tone(300)), (0.3, tone(100))], end_after=0.1)  # half a second each
    summary, found = told(script, Load("closed", 4, seconds=2.9, warmup=0.9))
    assert summary.peak == 4
    assert summary.requests == 24
    assert sum(not trace.measured for trace in found) == 8
    assert sorted(trace.index for trace in found if trace.measured) == list(range(24))
    assert summary.throughput == pytest.approx(4 * 0.4 / 0.5, rel=1e-3)
    assert summary.underruns.count == 0
    assert summary.late is not None
    assert summary.late.most == pytest.approx(0, abs=1e-6)


def test_a_ramp_spreads_the_first_streams_and_requests_bound_a_run() -> None:
    _, found = told(SegmentQueue([(3.0, tone(100))]), Load("closed", 4, seconds=60, warmup=2.0, ramp=2.0, requests=6))
    first = sorted(trace.sent for trace in found)[:4]
    assert first == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=1e-5)
    assert sum(trace.measured for trace in found) == 6


def test_each_stream_of_a_closed_loop_is_measured_however_slow_the_server_is() -> None:
    summary, found = told(SegmentQueue([(7.0, tone(100))]), Load("closed", 3, seconds=1.0, warmup=1.0, timeout=60))
    assert (summary.requests, len(found)) == (3, 6)


def test_an_open_loop_begins_when_requests_are_due_whatever_the_server_does() -> None:
    slow = SegmentQueue(accept_after=5.0)
    summary, found = told(slow, Load("open", 10.0, seconds=5.0, warmup=1.0))
    assert summary.late is not None
    assert summary.late.most == pytest.approx(0, abs=1e-5)
    assert summary.peak > 40
    assert all(1.0 <= trace.scheduled < 6.0 for trace in found if trace.measured)
    assert summary.ttfp is not None
    assert summary.ttfp.p50 == pytest.approx(5.1, abs=1e-4)


def test_an_open_loop_drops_what_is_too_much_and_tells_it() -> None:
    summary, _ = told(SegmentQueue(accept_after=5.0), Load("open", 10.0, seconds=5.0, warmup=0.0, max_in_flight=7))
    assert summary.peak == 7
    assert summary.dropped == summary.requests - 7 > 20
    assert summary.failed == 0


def test_parts_of_a_load_make_up_the_whole() -> None:
    load, texts = Load("open", 20.0, seconds=2.0, warmup=0.5), ("One.", "Two.", "Three.")
    server = FakeServer()

    async def part(number: int, of: int) -> list[Trace]:
        async with server.running():
            mine, target = Part(load, texts, number, of), Target(server.address)
            return (await drive(lambda: connected(target, 100), mine, [0, 0])).traces

    whole = run_virtual(part(0, 1))
    pieces = [trace for number in range(3) for trace in run_virtual(part(number, 3))]
    key = [(trace.index, trace.prompt, round(trace.scheduled, 6)) for trace in sorted(whole, key=lambda t: t.scheduled)]
    assert key == [
        (trace.index, trace.prompt, round(trace.scheduled, 6)) for trace in sorted(pieces, key=lambda t: t.scheduled)
    ]


def test_loads_that_cannot_be_are_refused() -> None:
    for load in (Load("closed", 1.5), Load("open", 0), Load("closed", 1, ramp=9, warmup=1), Load("open", 1, seconds=0)):
        with pytest.raises(InvalidRequest):
            load.check()


def test_more_streams_take_more_processes() -> None:
    assert Load("closed", 64).processes(16) == 1
    assert Load("closed", 512).processes(16) == 8
    assert Load("open", 40).processes(16) == 3
    assert Load("closed", 4096).processes(2) == 2


def test_the_clock_of_these_tests_does_not_wait() -> None:
    async def long() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - began

    assert run_virtual(long()) == pytest.approx(3600, abs=0.01)
