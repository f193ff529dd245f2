"""Recognisers are programs of others: what they may do, and how words are counted."""

import shlex
import sys
from pathlib import Path

import pytest

from bench.fake_server import RATE, tone
from polyvox.audio import read_audio
from polyvox.bench.hearing import Recogniser, hear
from polyvox.bench.metrics import Trace
from polyvox.bench.summary import summarise
from polyvox.bench.words import normalised, spelled, word_errors
from polyvox.errors import PolyvoxError

TEXTS = ("The bread is warm.", "Nobody came.")


def program(body: str) -> str:
    return shlex.join([sys.executable, "-c", "import sys, time\n" + body])


def spoken(index: int, prompt: int, sound: bytes | None = None) -> Trace:
    samples = len(sound or b"") // 2 or 1
    kept = None if sound is None else bytearray(sound)
    return Trace(index, prompt, 2, True, 0.0, arrivals=[(0.1, samples)], ended=0.2, sound=kept)


@pytest.mark.parametrize(("number", "words"), [(0, "zero"), (40, "forty"), (999, "nine hundred ninety nine")])
def test_numbers_are_spelled(number: int, words: str) -> None:
    assert spelled(number) == words


def test_word_errors_ignore_how_words_are_written() -> None:
    assert normalised("It's 10:30, $5!") == ["it's", "ten", "thirty", "five", "dollars"]
    assert word_errors("The bath tub is full.", "the bathtub is full").errors == 0
    assert word_errors("We ran out of milk.", "we ran out off milk today").errors == 2


def test_each_sound_is_heard_and_the_rate_is_over_all_words(tmp_path: Path) -> None:
    copy = tmp_path / "heard.wav"
    body = f"""
import shutil
for number, line in enumerate(sys.stdin):
    shutil.copy(line.strip(), {str(copy)!r})
    print(["the bread is cold", "nobody came"][number], flush=True)
"""
    traces = [spoken(0, 0, tone(100)), spoken(1, 1), spoken(2, 1, tone(200))]
    told: list[int] = []
    hear(program(body), traces, TEXTS, told.append)
    assert [trace.misheard for trace in traces] == [(1, 4), None, (0, 2)]
    assert traces[0].heard == "the bread is cold"
    assert told == [1, 2]
    assert len(read_audio(copy, RATE)) == RATE // 5
    summary = summarise(traces)
    assert summary.heard == 2
    assert summary.wer == pytest.approx(1 / 6)
    assert summarise([spoken(0, 0)]).wer is None


def test_where_nothing_was_kept_nothing_is_started() -> None:
    hear("no-such-program", [spoken(0, 0)], TEXTS)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("sys.exit(3)", "status 3"),
        ("print('one', flush=True); sys.exit(0)", "status 0"),
        ("time.sleep(60)", "No line from the recogniser in 0.2 s"),
    ],
)
def test_a_recogniser_that_does_not_answer_is_told_and_leaves_nothing_behind(body: str, part: str) -> None:
    recogniser = Recogniser(program(body), patience=20 if "exit" in body else 0.2)
    with pytest.raises(PolyvoxError, match=part), recogniser:  # noqa: PT012
        for _ in range(2):
            recogniser.heard(Path("x.wav"))
    assert recogniser._process.returncode is not None
