# SPDX-License-Identifier: Apache-2.0
"""External recognisers and the word error rate."""

import random
import shlex
import sys
from pathlib import Path

import pytest

from bench.fake_server import RATE, tone
from polyvox.audio import read_audio
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.prompts import prompts
from polyvox.bench.summary import summarise
from polyvox.bench.transcription import Recogniser, transcribe
from polyvox.bench.wer import WordErrors, normalise, spell_out, word_errors
from polyvox.errors import PolyvoxError

TEXTS = ("The bread is warm.", "Nothing came.")


def program(body: str) -> str:
    return shlex.join([sys.executable, "-c", "import sys, time\n" + body])


def recorded(index: int, prompt: int, pcm: bytes | None = None) -> RequestTrace:
    samples = len(pcm or b"") // 2 or 1
    kept = None if pcm is None else bytearray(pcm)
    return RequestTrace(index, prompt, 2, True, 0.0, arrivals=[(0.1, samples)], ended=0.2, pcm=kept)


@pytest.mark.parametrize(("number", "words"), [(0, "zero"), (40, "forty"), (999, "nine hundred ninety nine")])
def test_integers_are_spelled_out(number: int, words: str) -> None:
    assert spell_out(number) == words


def test_spelling_and_compounds_are_not_word_errors() -> None:
    assert normalise("It's 10:30, $5!") == ["it's", "ten", "thirty", "five", "dollars"]
    assert normalise("The 1st and the 22nd") == ["the", "first", "and", "the", "twenty", "second"]
    assert word_errors("The bath tub is full.", "the bathtub is full") == WordErrors(0, 5)
    assert word_errors("We ran out of milk.", "we ran out off milk today") == WordErrors(2, 5)


def test_a_missing_transcript_counts_every_word_and_an_empty_text_every_insertion() -> None:
    assert word_errors("We ran out of milk.", "") == WordErrors(5, 5)
    assert word_errors("...", "one two") == WordErrors(2, 0)
    assert word_errors("...", "") == WordErrors(0, 0)


def test_word_errors_are_the_edit_distance_between_word_lists() -> None:
    rng = random.Random(0)
    vocabulary = [word for text in prompts()[:50] for word in normalise(text)]
    for _ in range(200):
        reference = rng.choices(vocabulary, k=rng.randint(1, 20))
        transcript = [word for word in reference if rng.random() > 0.2] + rng.choices(vocabulary, k=rng.randint(0, 3))
        if "".join(reference) != "".join(transcript):
            expected = edit_distance(reference, transcript)
            assert word_errors(" ".join(reference), " ".join(transcript)).errors == expected


def edit_distance(a: list[str], b: list[str]) -> int:
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


def test_recorded_audio_is_transcribed_and_the_rate_is_over_all_words(tmp_path: Path) -> None:
    copy = tmp_path / "received.wav"
    body = f"""
import shutil
for number, line in enumerate(sys.stdin):
    shutil.copy(line.strip(), {str(copy)!r})
    print(["the bread is cold", "nothing came"][number], flush=True)
"""
    traces = [recorded(0, 0, tone(100)), recorded(1, 1), recorded(2, 1, tone(200))]
    progress: list[int] = []
    transcribe(program(body), traces, TEXTS, progress.append)
    assert [trace.word_errors for trace in traces] == [(1, 4), None, (0, 2)]
    assert traces[0].transcript == "the bread is cold"
    assert progress == [1, 2]
    assert len(read_audio(copy, RATE)) == RATE // 5
    summary = summarise(traces)
    assert summary.transcribed == 2
    assert summary.wer == pytest.approx(1 / 6)
    assert summarise([recorded(0, 0)]).wer is None


def test_no_recogniser_is_started_without_recorded_audio() -> None:
    transcribe("no-such-program", [recorded(0, 0)], TEXTS)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("sys.exit(3)", "status 3"),
        ("print('one', flush=True); sys.exit(0)", "status 0"),
        ("time.sleep(60)", "timed out after 0.2 s"),
    ],
)
def test_a_recogniser_that_fails_raises_an_error_and_is_stopped(body: str, part: str) -> None:
    recogniser = Recogniser(program(body), timeout=20 if "exit" in body else 0.2)
    with pytest.raises(PolyvoxError, match=part), recogniser:  # noqa: PT012
        for _ in range(2):
            recogniser.transcribe(Path("x.wav"))
    assert recogniser._process.returncode is not None
