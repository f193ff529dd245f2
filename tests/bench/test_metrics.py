# SPDX-License-Identifier: Apache-2.0
"""The metrics, on traces with known results."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.bench.metrics import DROPPED, RequestTrace, gaps, measure, needed_buffer, peak_in_flight, play
from polyvox.bench.onset import OnsetDetector
from polyvox.bench.summary import distribution, metric, percentile, summarise
from polyvox.errors import InvalidRequest

RATE = 24_000
TENTH = RATE // 10  # samples in 100 ms


def trace(
    arrivals: list[tuple[float, int]], sent: float = 0.0, ended: float | None = None, **more: object
) -> RequestTrace:
    last = arrivals[-1][0] if arrivals else sent
    made = RequestTrace(0, 0, 4, True, sent, sent, arrivals=arrivals, ended=last if ended is None else ended, onset=0)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_packets_on_time_or_early_cause_no_underrun() -> None:
    real_time = [(0.1 * i, TENTH) for i in range(20)]
    burst = [(0.2, 10 * TENTH), (0.2, TENTH), (1.3, TENTH)]
    for arrivals in (real_time, burst):
        played = play(arrivals, RATE, arrivals[-1][0])
        assert played is not None
        assert played.stalls == ()
        assert needed_buffer(arrivals, RATE) == 0


def test_each_late_packet_is_one_underrun_and_playback_resumes_with_it() -> None:
    arrivals = [(0.5, TENTH), (0.65, TENTH), (0.75, TENTH), (1.05, TENTH), (1.10, TENTH)]
    played = play(arrivals, RATE, 1.1)
    assert played is not None
    assert [round(stall.seconds, 9) for stall in played.stalls] == [0.05, 0.2]
    assert [stall.before for stall in played.stalls] == [TENTH, 3 * TENTH]
    assert (played.count, round(played.longest, 9), round(played.total, 9)) == (2, 0.2, 0.25)
    # It stalled for 0.25 s in total before the fourth packet; starting 0.25 s later avoids both stalls.
    assert needed_buffer(arrivals, RATE) == pytest.approx(0.25)
    assert gaps(arrivals) == pytest.approx([0.15, 0.1, 0.3, 0.05])


def test_a_long_stall_is_counted_once() -> None:
    arrivals = [(0.0, TENTH), (1.0, TENTH), (1.1, TENTH), (1.2, TENTH)]
    played = play(arrivals, RATE, 1.2)
    assert played is not None
    assert played.count == 1
    assert needed_buffer(arrivals, RATE) == pytest.approx(0.9)


def test_a_start_buffer_hides_stalls_up_to_its_length() -> None:
    arrivals = [(0.0, TENTH), (0.15, TENTH), (0.3, TENTH), (0.7, TENTH)]
    unbuffered = play(arrivals, RATE, 0.7)
    assert unbuffered is not None
    assert unbuffered.count == 3
    with_200 = play(arrivals, RATE, 0.7, 0.2)
    assert with_200 is not None
    assert with_200.start == 0.15  # the second packet fills it
    assert [round(stall.seconds, 9) for stall in with_200.stalls] == [0.25]
    long = play(arrivals, RATE, 0.8, 10.0)  # never full: playback starts when the stream has ended
    assert long is not None
    assert (long.start, long.count) == (0.8, 0)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 4800)), min_size=1, max_size=30),
    st.integers(0, 3),
)
def test_the_needed_buffer_is_the_smallest_that_avoids_underruns(steps: list[tuple[int, int]], extra: int) -> None:
    """Starting that much later avoids every underrun; starting slightly earlier does not."""
    arrivals, now = [], 0.0
    for milliseconds, samples in steps:
        now += milliseconds / 1e3
        arrivals.append((now, samples))
    need = needed_buffer(arrivals, RATE)

    def stalls_when_started(at: float) -> int:
        # To a player that starts at this time, all earlier packets are one first packet.
        early = sum(count for when, count in arrivals if when <= at)
        later = [(when, count) for when, count in arrivals if when > at]
        played = play([(at, early), *later], RATE, now)
        assert played is not None
        return played.count

    first = arrivals[0][0]
    assert stalls_when_started(first + need + 1e-5 + extra) == 0
    if need > 1e-4:
        assert stalls_when_started(first + need - 1e-4) > 0


def test_times_are_relative_to_the_request_and_a_header_is_not_audio() -> None:
    found = measure(trace([(10.3, TENTH), (10.4, TENTH)], sent=10.0, first_byte=10.05, ended=10.6), 0.2)
    assert found is not None
    assert found.ttfb == pytest.approx(0.05)  # the header
    assert found.ttfp == pytest.approx(0.3)
    assert found.e2e == pytest.approx(0.6)
    assert found.audio == pytest.approx(0.2)
    assert found.rtf == pytest.approx(3.0)
    assert found.per_word == pytest.approx(0.05)


def test_ttfa_includes_leading_silence_and_stalls_before_the_onset() -> None:
    burst = measure(trace([(0.1, 5 * TENTH)], onset=3 * TENTH), 0.2)
    assert burst is not None
    assert burst.ttfp == pytest.approx(0.1)
    assert burst.silence == pytest.approx(0.3)
    assert burst.ttfa == pytest.approx(0.4)
    # The same silence, but the second packet is 150 ms late.
    late = measure(trace([(0.1, TENTH), (0.35, 4 * TENTH)], onset=3 * TENTH), 0.2)
    assert late is not None
    assert late.ttfa == pytest.approx(0.1 + 0.3 + 0.15)
    # A stall after the onset changes nothing.
    after = measure(trace([(0.1, 4 * TENTH), (0.9, TENTH)], onset=3 * TENTH), 0.2)
    assert after is not None
    assert after.ttfa == pytest.approx(0.4)


def test_a_single_packet_has_no_gap_and_no_underrun() -> None:
    found = measure(trace([(0.4, 20 * TENTH)]), 0.2)
    assert found is not None
    assert (found.gaps, found.stalls, found.needed) == ((), (), 0.0)
    assert found.e2e == found.ttfp == found.ttfa == 0.4


def test_a_failed_request_is_counted_but_has_no_metrics() -> None:
    cut = trace([(0.1, TENTH)], error="truncated")
    assert measure(cut, 0.2) is None
    summary = summarise([cut, trace([(0.1, TENTH)]), trace([], error="http 503"), trace([], error=DROPPED)])
    assert (summary.requests, summary.succeeded, summary.failed, summary.dropped) == (4, 1, 2, 1)
    assert summary.errors == {"truncated": 1, "http 503": 1}
    assert metric(summary, "success") == 0.25
    with pytest.raises(ValueError, match="without audio"):
        measure(trace([]), 0.2)


def test_an_empty_run_has_no_values_instead_of_zeros() -> None:
    summary = summarise([])
    assert summary.ttfa is None
    assert metric(summary, "ttfa_p95") is None
    assert summary.requests == 0


def test_silent_streams_are_counted_and_have_no_ttfa() -> None:
    summary = summarise([trace([(0.1, TENTH)], onset=None), trace([(0.2, TENTH)])])
    assert summary.silent == 1
    assert summary.ttfa is not None
    assert summary.ttfa.count == 1


def test_a_summary_aggregates_all_requests() -> None:
    good = trace([(0.1, TENTH), (0.2, TENTH)], ended=0.2)
    stalled = trace([(0.1, TENTH), (0.32, TENTH), (0.6, TENTH)], sent=0.0, ended=1.0)
    warmup = trace([(0.0, 10 * TENTH), (9.0, TENTH)], sent=-1.0, ended=9.5, measured=False)
    summary = summarise([warmup, good, stalled])
    assert (summary.requests, summary.succeeded) == (2, 2)
    assert summary.wall == 1.0
    assert summary.audio == pytest.approx(0.5)
    assert summary.throughput == pytest.approx(0.5)
    assert summary.peak == 3  # the warm-up is part of the load
    assert (summary.underruns.count, summary.underruns.streams, summary.underruns.rate) == (2, 1, 0.5)
    assert summary.underruns.total == pytest.approx(0.12 + 0.18)
    assert summary.underruns.longest == pytest.approx(0.18)
    assert summary.underruns.per_minute == pytest.approx(2 / 0.5 * 60)
    assert summary.buffered.count == 1  # starts at 0.32 with 200 ms: the last packet is 80 ms late
    assert summary.buffered.longest == pytest.approx(0.08)
    assert summary.continuity == {50: 0.5, 100: 0.5, 200: 0.5}  # the second needs 300 ms
    assert summary.e2e is not None
    assert summary.e2e.max == 1.0


def test_received_audio_is_counted_while_requests_are_started() -> None:
    first = trace([(1.0, TENTH), (2.5, TENTH)], sent=0.0, ended=2.5)
    last = trace([(2.2, TENTH)], sent=2.0, ended=3.0)
    summary = summarise([first, last])
    assert summary.received == pytest.approx(0.1 / 2.0)
    assert summarise([first]).received is None


def test_percentiles_are_measured_values() -> None:
    values = [float(i) for i in range(1, 101)]
    found = distribution(values[::-1])
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99, found.mean) == (50, 90, 95, 99, 50.5)
    assert (percentile([7.0], 50), percentile([7.0], 99)) == (7.0, 7.0)
    assert percentile([1.0, 2.0], 50) == 1.0
    assert distribution([]) is None


def test_the_peak_counts_concurrent_requests() -> None:
    spans = [(0, 2), (1, 3), (2, 4), (5, 6)]
    traces = [trace([(end, TENTH)], sent=begin, ended=end) for begin, end in spans]
    assert peak_in_flight(traces) == 2
    traces += [trace([], sent=1.5, ended=1.5, error=DROPPED)]
    assert peak_in_flight(traces) == 2
    assert peak_in_flight([]) == 0


def test_metrics_are_found_by_name_and_unknown_names_are_rejected() -> None:
    summary = summarise([trace([(0.1, TENTH)])])
    assert metric(summary, "ttfa_p95") == pytest.approx(0.1)
    assert metric(summary, "underrun") == 0
    assert metric(summary, "continuity_100") == 1
    for name in ("ttfa", "ttfa_p42", "speed", ""):
        with pytest.raises(InvalidRequest, match="metric"):
            metric(summary, name)


def tone(samples: int, level: float) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    wave = np.sin(2 * np.pi * 440 * np.arange(samples) / RATE) * level * 2**0.5
    return np.rint(wave * 32767).astype(np.int16)


def found_at(samples: np.ndarray[tuple[int], np.dtype[np.int16]]) -> int | None:
    onset = OnsetDetector(RATE)
    onset.push(samples)
    return onset.position


def test_the_onset_is_the_first_of_two_consecutive_loud_windows() -> None:
    quiet, loud = 10 ** (-46 / 20), 10 ** (-44 / 20)
    assert found_at(tone(TENTH, loud)) == 0
    assert found_at(tone(RATE, quiet)) is None
    assert found_at(np.zeros(RATE, np.int16)) is None
    assert found_at(np.full(RATE, 9000, np.int16)) is None  # a constant offset is silent
    # 300 ms of silence: half of the window from 290 ms on is a tone at -20 dBFS.
    assert found_at(np.concatenate([np.zeros(3 * TENTH, np.int16), tone(TENTH, 0.1)])) == 29 * TENTH // 10
    assert found_at(tone(int(0.029 * RATE), loud)) is None  # less than two windows


def test_a_weak_click_is_not_an_onset() -> None:
    samples = np.zeros(RATE, np.int16)
    samples[405 * RATE // 1000] = 32767  # a full-scale sample is in two overlapping windows …
    assert found_at(samples) == 39 * TENTH // 10  # … and so is an onset by the definition
    samples[405 * RATE // 1000] = 1000
    assert found_at(samples) is None


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(0, 12_000))
def test_the_onset_does_not_depend_on_the_packet_sizes(sizes: list[int], silence: int) -> None:
    samples = np.concatenate([np.zeros(silence, np.int16), tone(4000, 0.05)])
    onset, at = OnsetDetector(RATE), 0
    for size in sizes:
        onset.push(samples[at : at + size])
        at += size
    onset.push(samples[at:])
    assert onset.position == found_at(samples)
