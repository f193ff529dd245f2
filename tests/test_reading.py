"""Long texts: order, times, loudness, seams, and going on where it was interrupted."""

from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from conftest import Loaded
from polyvox.audio.clip import Samples
from polyvox.audio.loudness import integrated_loudness
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.models.request import Request
from polyvox.reading import Line, Reading, ResumeStore, Spoken, subtitles
from polyvox.tts import TTS

HOW = Request("", "serena", "english", seed=3, max_frames=12)
TEXTS = ("hello there", "a", "on and on", "the line", "b c")
LINES = [Line(text, pause) for text, pause in zip(TEXTS, (0.3, 0, 0.1, 0.5, 0), strict=True)]


@pytest.fixture
def engine(loaded: Loaded) -> Iterator[LocalEngine]:
    engine = LocalEngine(loaded("custom_voice", "float64").speech, EngineConfig(max_streams=4))
    yield engine
    engine.close()


def whole(spoken: list[Spoken]) -> Samples:
    """The lines where they say they are, silence between them."""
    samples = np.zeros(spoken[-1].end, np.float32)
    for one in spoken:
        assert not samples[one.start : one.end].any()
        samples[one.start : one.end] = one.samples
    return samples


def test_lines_come_in_order_at_exact_times_and_say_the_same_however_many_at_once(engine: LocalEngine) -> None:
    one_by_one, together = (list(Reading(engine, LINES, HOW, at_once)) for at_once in (1, 4))
    assert [one.line for one in together] == LINES
    for before, after in pairwise(together):
        assert after.start == before.end + round(before.line.pause * engine.sample_rate)
    assert np.array_equal(whole(one_by_one), whole(together))


def test_lines_are_equally_loud_and_no_seam_clicks(embedded: TTS) -> None:
    lines = [Line("Good morning."), Line("The train to the harbour leaves at nine."), Line("Yes, please.")]
    spoken = list(Reading(embedded.engine, lines, Request("", "heart", seed=3), 2))
    levels = [integrated_loudness(one.samples, embedded.sample_rate) or 0.0 for one in spoken]
    assert max(levels) - min(levels) < 1
    for one in spoken:
        assert abs(one.samples[0]) < 1e-3
        assert abs(one.samples[-1]) < 1e-3


def test_a_reading_goes_on_where_it_was_interrupted(engine: LocalEngine, tmp_path: Path) -> None:
    settings: dict[str, object] = {"seed": 3}
    uninterrupted = whole(list(Reading(engine, LINES, HOW, 2)))
    reading = iter(Reading(engine, LINES, HOW, 2, ResumeStore(tmp_path / "parts", settings)))
    first = list(islice(reading, 2))
    reading.close()  # type: ignore[attr-defined]
    (tmp_path / "parts" / "000004.partial").write_bytes(b"half of it")
    shelf = ResumeStore(tmp_path / "parts", settings)
    assert len(shelf) == 2
    with mock.patch.object(engine, "submit", wraps=engine.submit) as submit:
        spoken = list(Reading(engine, LINES, HOW, 2, shelf))
    assert submit.call_count == 3
    assert np.array_equal(whole(spoken), uninterrupted)
    assert np.array_equal(spoken[1].samples, first[1].samples)
    assert len(ResumeStore(tmp_path / "parts", {"seed": 4})) == 0
    shelf.clear()
    assert not (tmp_path / "parts").exists()


def test_a_reading_waits_for_a_place_and_leaves_none_taken(loaded: Loaded) -> None:
    engine = LocalEngine(loaded("custom_voice", "float64").speech, EngineConfig(max_streams=1, max_queue=0))
    try:
        held = engine.submit(Request("hello", "serena", live=True, max_frames=200))
        reading = Reading(engine, LINES[:2], HOW, 2)
        with mock.patch("polyvox.reading.time.sleep", side_effect=lambda _: held.cancel()):
            assert [one.line for one in reading] == LINES[:2]
        assert engine.stats()["streams"] == 0
    finally:
        engine.close()


def test_one_line_that_fails_is_told_and_the_others_are_cancelled(engine: LocalEngine) -> None:
    with (
        mock.patch.object(engine._stepper.rows, "decode", side_effect=RuntimeError("injected")),
        pytest.raises(Exception, match="injected"),
    ):
        list(Reading(engine, LINES, HOW, 4))
    with engine.lock:
        assert engine._work.wait_for(lambda: not engine._crowd.streams, 60)


def test_subtitles_tell_the_times() -> None:
    cues = [(0, 24_000, "One."), (36_000, 24_000 * 3661 + 24, "Two.")]
    assert subtitles(cues, 24_000, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,000\nOne.\n\n2\n00:00:01,500 --> 01:01:01,001\nTwo.\n"
    )
    assert subtitles(cues, 24_000, "vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nOne.\n")
