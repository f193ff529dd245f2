"""The metrics, on traces whose answers are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.bench.metrics import DROPPED, Trace, gaps, measure, needed_buffer, peak_in_flight, play
from polyvox.bench.onset import Onset
from polyvox.bench.summary import metric, percentile, spread, summarise
from polyvox.errors import InvalidRequest

RATE = 24_000
TENTH = RATE // 10  # samples of 100 ms


def trace(arrivals: list[tuple[float, int]], sent: float = 0.0, ended: float | None = None, **more: object) -> Trace:
    last = arrivals[-1][0] if arrivals else sent
    made = Trace(0, 0, 4, True, sent, sent, arrivals=arrivals, ended=last if ended is None else ended, onset=0)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_chunks_that_come_in_time_or_early_never_run_dry() -> None:
    real_time = [(0.1 * i, TENTH) for i in range(20)]
    burst = [(0.2, 10 * TENTH), (0.2, TENTH), (1.3, TENTH)]
    for arrivals in (real_time, burst):
        played = play(arrivals, RATE, arrivals[-1][0])
        assert played is not None
        assert played.stalls == ()
        assert needed_buffer(arrivals, RATE) == 0


def test_each_gap_is_one_underrun_and_the_player_goes_on_from_there() -> None:
    arrivals = [(0.5, TENTH), (0.65, TENTH), (0.75, TENTH), (1.05, TENTH), (1.10, TENTH)]
    played = play(arrivals, RATE, 1.1)
    assert played is not None
    assert [round(stall.seconds, 9) for stall in played.stalls] == [0.05, 0.2]
    assert [stall.before for stall in played.stalls] == [TENTH, 3 * TENTH]
    assert (played.count, round(played.longest, 9), round(played.total, 9)) == (2, 0.2, 0.25)
    # It stood still for 0.25 s before the fourth chunk; one that began so much later would not have.
    assert needed_buffer(arrivals, RATE) == pytest.approx(0.25)
    assert gaps(arrivals) == pytest.approx([0.15, 0.1, 0.3, 0.05])


def test_a_long_stall_is_counted_once_however_many_chunks_follow_it() -> None:
    arrivals = [(0.0, TENTH), (1.0, TENTH), (1.1, TENTH), (1.2, TENTH)]
    played = play(arrivals, RATE, 1.2)
    assert played is not None
    assert played.count == 1
    assert needed_buffer(arrivals, RATE) == pytest.approx(0.9)


def test_a_start_buffer_hides_what_it_can_and_no_more() -> None:
    arrivals = [(0.0, TENTH), (0.15, TENTH), (0.3, TENTH), (0.7, TENTH)]
    bare = play(arrivals, RATE, 0.7)
    assert bare is not None
    assert bare.count == 3
    with_200 = play(arrivals, RATE, 0.7, 0.2)
    assert with_200 is not None
    assert with_200.start == 0.15  # the second chunk fills it
    assert [round(stall.seconds, 9) for stall in with_200.stalls] == [0.25]
    long = play(arrivals, RATE, 0.8, 10.0)  # never full: it begins when the stream has ended
    assert long is not None
    assert (long.start, long.count) == (0.8, 0)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 4800)), min_size=1, max_size=30),
    st.integers(0, 3),
)
def test_the_needed_buffer_is_just_enough(steps: list[tuple[int, int]], extra: int) -> None:
    """A player that begins so much later never runs dry, and one that begins a little sooner does."""
    arrivals, now = [], 0.0
    for milliseconds, samples in steps:
        now += milliseconds / 1e3
        arrivals.append((now, samples))
    need = needed_buffer(arrivals, RATE)

    def stalls_when_begun(at: float) -> int:
        # A player that begins at a time of its own has all that came before as one first chunk.
        early = sum(count for when, count in arrivals if when <= at)
        later = [(when, count) for when, count in arrivals if when > at]
        played = play([(at, early), *later], RATE, now)
        assert played is not None
        return played.count

    first = arrivals[0][0]
    assert stalls_when_begun(first + need + 1e-5 + extra) == 0
    if need > 1e-4:
        assert stalls_when_begun(first + need - 1e-4) > 0


def test_times_are_from_the_request_and_a_header_is_not_audio() -> None:
    found = measure(trace([(10.3, TENTH), (10.4, TENTH)], sent=10.0, first_byte=10.05, ended=10.6), 0.2)
    assert found is not None
    assert found.ttfb == pytest.approx(0.05)  # the header
    assert found.ttfp == pytest.approx(0.3)
    assert found.e2e == pytest.approx(0.6)
    assert found.audio == pytest.approx(0.2)
    assert found.rtf == pytest.approx(3.0)
    assert found.per_word == pytest.approx(0.05)


def test_leading_silence_counts_until_it_is_played_and_stalls_before_it_too() -> None:
    burst = measure(trace([(0.1, 5 * TENTH)], onset=3 * TENTH), 0.2)
    assert burst is not None
    assert burst.ttfp == pytest.approx(0.1)
    assert burst.silence == pytest.approx(0.3)
    assert burst.ttfa == pytest.approx(0.4)
    # The same silence, but the second chunk is 150 ms late: heard when it is played.
    late = measure(trace([(0.1, TENTH), (0.35, 4 * TENTH)], onset=3 * TENTH), 0.2)
    assert late is not None
    assert late.ttfa == pytest.approx(0.1 + 0.3 + 0.15)
    # A stall after the onset changes nothing.
    after = measure(trace([(0.1, 4 * TENTH), (0.9, TENTH)], onset=3 * TENTH), 0.2)
    assert after is not None
    assert after.ttfa == pytest.approx(0.4)


def test_one_chunk_has_no_gap_and_no_underrun() -> None:
    found = measure(trace([(0.4, 20 * TENTH)]), 0.2)
    assert found is not None
    assert (found.gaps, found.stalls, found.needed) == ((), (), 0.0)
    assert found.e2e == found.ttfp == found.ttfa == 0.4


def test_a_failed_stream_has_no_measures_but_is_counted() -> None:
    cut = trace([(0.1, TENTH)], error="early end")
    assert measure(cut, 0.2) is None
    told = summarise([cut, trace([(0.1, TENTH)]), trace([], error="http 503"), trace([], error=DROPPED)])
    assert (told.requests, told.succeeded, told.failed, told.dropped) == (4, 1, 2, 1)
    assert told.errors == {"early end": 1, "http 503": 1}
    assert metric(told, "success") == 0.25
    with pytest.raises(ValueError, match="without audio"):
        measure(trace([]), 0.2)


def test_nothing_at_all_is_no_number_rather_than_zero() -> None:
    told = summarise([])
    assert told.ttfa is None
    assert metric(told, "ttfa_p95") is None
    assert told.requests == 0


def test_silent_streams_are_counted_and_have_no_first_audible_sample() -> None:
    told = summarise([trace([(0.1, TENTH)], onset=None), trace([(0.2, TENTH)])])
    assert told.silent == 1
    assert told.ttfa is not None
    assert told.ttfa.count == 1


def test_a_summary_adds_up() -> None:
    good = trace([(0.1, TENTH), (0.2, TENTH)], ended=0.2)
    stutters = trace([(0.1, TENTH), (0.32, TENTH), (0.6, TENTH)], sent=0.0, ended=1.0)
    warm = trace([(0.0, 10 * TENTH), (9.0, TENTH)], sent=-1.0, ended=9.5, measured=False)
    told = summarise([warm, good, stutters])
    assert (told.requests, told.succeeded) == (2, 2)
    assert told.wall == 1.0
    assert told.audio == pytest.approx(0.5)
    assert told.throughput == pytest.approx(0.5)
    assert told.peak == 3  # warm-up is load, too
    assert (told.underruns.count, told.underruns.streams, told.underruns.rate) == (2, 1, 0.5)
    assert told.underruns.total == pytest.approx(0.12 + 0.18)
    assert told.underruns.longest == pytest.approx(0.18)
    assert told.underruns.per_minute == pytest.approx(2 / 0.5 * 60)
    assert told.buffered.count == 1  # begins at 0.32 with 200 ms: the last chunk is 80 ms late
    assert told.buffered.longest == pytest.approx(0.08)
    assert told.continuity == {50: 0.5, 100: 0.5, 200: 0.5}  # the second needs 300 ms
    assert told.e2e is not None
    assert told.e2e.most == 1.0


def test_audio_received_is_what_came_while_requests_were_begun() -> None:
    first = trace([(1.0, TENTH), (2.5, TENTH)], sent=0.0, ended=2.5)
    last = trace([(2.2, TENTH)], sent=2.0, ended=3.0)
    told = summarise([first, last])
    assert told.received == pytest.approx(0.1 / 2.0)
    assert summarise([first]).received is None


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(i) for i in range(1, 101)]
    found = spread(values[::-1])
    assert found is not None
    assert (found.p50, found.p90, found.p95, found.p99, found.mean) == (50, 90, 95, 99, 50.5)
    assert (percentile([7.0], 50), percentile([7.0], 99)) == (7.0, 7.0)
    assert percentile([1.0, 2.0], 50) == 1.0
    assert spread([]) is None


def test_the_peak_counts_those_under_way_at_once() -> None:
    spans = [(0, 2), (1, 3), (2, 4), (5, 6)]
    traces = [trace([(end, TENTH)], sent=begin, ended=end) for begin, end in spans]
    assert peak_in_flight(traces) == 2
    traces += [trace([], sent=1.5, ended=1.5, error=DROPPED)]
    assert peak_in_flight(traces) == 2
    assert peak_in_flight([]) == 0


def test_a_number_is_found_by_its_name_or_refused() -> None:
    told = summarise([trace([(0.1, TENTH)])])
    assert metric(told, "ttfa_p95") == pytest.approx(0.1)
    assert metric(told, "underrun") == 0
    assert metric(told, "continuity_100") == 1
    for name in ("ttfa", "ttfa_p42", "speed", ""):
        with pytest.raises(InvalidRequest, match="metric"):
            metric(told, name)


def tone(samples: int, level: float) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    wave = np.sin(2 * np.pi * 440 * np.arange(samples) / RATE) * level * 2**0.5
    return np.rint(wave * 32767).astype(np.int16)


def found_at(samples: np.ndarray[tuple[int], np.dtype[np.int16]]) -> int | None:
    onset = Onset(RATE)
    onset.push(samples)
    return onset.position


def test_sound_begins_where_two_windows_in_a_row_are_loud() -> None:
    quiet, loud = 10 ** (-46 / 20), 10 ** (-44 / 20)
    assert found_at(tone(TENTH, loud)) == 0
    assert found_at(tone(RATE, quiet)) is None
    assert found_at(np.zeros(RATE, np.int16)) is None
    assert found_at(np.full(RATE, 9000, np.int16)) is None  # a constant is no sound
    # 300 ms of silence: the window from 290 ms on holds half a window of tone at -20 dBFS.
    assert found_at(np.concatenate([np.zeros(3 * TENTH, np.int16), tone(TENTH, 0.1)])) == 29 * TENTH // 10
    assert found_at(tone(int(0.029 * RATE), loud)) is None  # less than two windows


def test_a_click_is_not_the_beginning_of_speech() -> None:
    samples = np.zeros(RATE, np.int16)
    samples[405 * RATE // 1000] = 32767  # in two windows that overlap, as everything after 10 ms is …
    assert found_at(samples) == 39 * TENTH // 10  # … so one strong sample is heard, as the definition has it
    samples[405 * RATE // 1000] = 1000  # a weak one is not
    assert found_at(samples) is None


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(0, 12_000))
def test_any_chunking_finds_the_same_onset(sizes: list[int], silence: int) -> None:
    samples = np.concatenate([np.zeros(silence, np.int16), tone(4000, 0.05)])
    onset, at = Onset(RATE), 0
    for size in sizes:
        onset.push(samples[at : at + size])
        at += size
    onset.push(samples[at:])
    assert onset.position == found_at(samples)
