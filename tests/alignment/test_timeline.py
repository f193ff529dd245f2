# SPDX-License-Identifier: Apache-2.0
"""Times of characters and words: invariants for any text, audio and fragmentation, and times of synthetic speech."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvox.alignment import SegmentTime, SpeechTimeline, TimedText, WordTime
from polyvox.alignment.aligner import SegmentAligner
from polyvox.alignment.sound_model import symbol_of
from polyvox.server.synthesis.segments import SegmentQueue
from polyvox.text import TextRules
from polyvox.text.segment_text import SegmentText

RATE = 24_000
PHRASES = [
    "Hello there.",
    "It is 15 km.",
    "你好，世界。",
    "Dr. Lee said: “Yes!”",
    "привет",
    "ok",
    "a",
    "don't",
    "—",
    "2025",
]
PHRASES += ["**bold**", "<think>no</think>", "🙂", "x" * 30, "Été.", "[pause:1s]", "1. one\n2. two", "東京タワー"]
TEXTS = st.lists(st.sampled_from(PHRASES), min_size=1, max_size=4).map(" ".join)


def segment_of(text: str) -> SegmentText:
    """A text that is spoken as it is written."""
    return SegmentText(0, text, text, [float(index) for index in range(len(text))], complete=True)


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.1, 0.1, round(seconds * RATE)).astype(np.float32)


def run(queue: SegmentQueue, sizes: list[int], streaming: bool, seconds: float) -> list[TimedText]:
    """The times of all segments of a text, with audio of a length in chunks of these sizes."""
    timeline, found = SpeechTimeline(RATE, streaming), list[TimedText]()
    number = seed = 0
    while (segment := queue.next_ready()) is not None:
        assert segment.source is not None
        timeline.begin(segment.source, segment.rate)
        found.append(timeline.silence(round(segment.silence * RATE)))
        samples, at, seed = noise(seconds, seed), 0, seed + 1
        while at < len(samples):
            size = sizes[number % len(sizes)]
            found.append(timeline.push(samples[at : at + size], at + size >= len(samples)))
            at, number = at + size, number + 1
    rest = queue.rest_of_text()
    assert rest is not None
    return [*found, timeline.finish(rest)]


def check(found: list[TimedText], text: str, streaming: bool = True) -> None:
    """What holds for every text and audio."""
    assert "".join(char for timed in found for char in timed.written.chars) == text
    for parts in ([timed.written for timed in found], [timed.spoken for timed in found]):
        sent = last = 0.0
        for timed, times in zip(found, parts, strict=True):
            assert len(times.chars) == len(times.starts) == len(times.ends)
            assert times.ends[:-1] == times.starts[1:]
            if times.chars:
                bounds = [last, *times.starts, times.ends[-1]]
                assert bounds == sorted(bounds)
                last = times.ends[-1]
                assert not times.chars[0].strip() or times.starts[0] >= (sent if streaming else 0.0)
            sent = timed.end
        assert last >= found[-1].end
    last = 0.0
    words = [word for timed in found for word in timed.words]
    for word in words:
        assert text[word.text_start : word.text_end] == word.word
        assert last <= word.start <= word.end
        last = word.end
    assert [word.text_start for word in words] == sorted({word.text_start for word in words})


def pieces_of(parts: list[list[str]]) -> list[str]:
    return [piece for chars in parts for piece in "".join(chars).split()]


@given(text=TEXTS, sizes=st.lists(st.sampled_from([480, 1920, 9600]), min_size=1, max_size=4), cut=st.integers(1, 80))
@settings(max_examples=15, deadline=None)
def test_no_word_is_divided_between_pieces_of_audio(text: str, sizes: list[int], cut: int) -> None:
    queue = SegmentQueue(TextRules(), track_positions=True)
    queue.append(text[:cut])
    queue.append(text[cut:])
    queue.finish()
    found = run(queue, sizes, True, 0.4)
    if any("\u3040" <= char <= "\u9fff" for char in text):  # each character is a word
        return
    assert pieces_of([timed.written.chars for timed in found]) == text.split()
    spoken = [timed.spoken.chars for timed in found]
    assert pieces_of(spoken) == "".join(char for chars in spoken for char in chars).split()


def test_the_end_of_a_word_that_is_still_spoken_is_predicted() -> None:
    timeline = SpeechTimeline(RATE)
    timeline.begin(segment_of("Lighthouses, and"))
    first = timeline.push(vowel(0.12), final=False)
    assert "".join(first.written.chars) == "Lighthouses, "
    assert first.written.ends[-1] == first.words[0].end > first.end
    assert first.written.starts[0] < first.written.starts[5] < first.written.starts[10]
    second = timeline.push(vowel(0.08), final=False)
    assert not second.written.chars
    last = timeline.push(vowel(0.8), final=True)
    assert "".join(last.written.chars) == "and"
    assert last.written.starts[0] >= first.written.ends[-1]


@given(
    text=TEXTS,
    sizes=st.lists(st.sampled_from([480, 1920, 9600, 100_000]), min_size=1, max_size=4),
    streaming=st.booleans(),
    seconds=st.sampled_from([0.0001, 0.05, 0.4]),
)
@settings(max_examples=15, deadline=None)
def test_times_ascend_cover_the_text_once_and_end_with_the_audio(
    text: str, sizes: list[int], streaming: bool, seconds: float
) -> None:
    queue = SegmentQueue(TextRules(), track_positions=True)
    queue.append(text)
    queue.finish()
    check(run(queue, sizes, streaming, seconds), text, streaming)


@given(text=TEXTS, pieces=st.lists(st.integers(1, 9), min_size=1, max_size=30))
@settings(max_examples=15, deadline=None)
def test_text_that_arrives_during_its_audio_is_covered_once(text: str, pieces: list[int]) -> None:
    queue = SegmentQueue(TextRules(), "token", track_positions=True)
    timeline, found, current, at = SpeechTimeline(RATE), list[TimedText](), None, 0
    for size in [*pieces, len(text), *[0] * 20]:
        queue.append(text[at : at + size])
        at += size
        if at >= len(text):
            queue.finish()
        if current is None and (segment := queue.next_ready()) is not None:
            current = segment.source
            assert current is not None
            timeline.begin(current)
        if current is not None:
            found.append(timeline.push(noise(0.1), final=current.complete))
            current = None if current.complete else current
    rest = queue.rest_of_text()
    assert rest is not None
    check([*found, timeline.finish(rest)], text)


@given(text=TEXTS, sizes=st.lists(st.integers(400, 5000), min_size=1, max_size=5))
@settings(max_examples=6, deadline=None)
def test_times_of_whole_speech_do_not_depend_on_the_chunks(text: str, sizes: list[int]) -> None:
    def words(sizes: list[int]) -> list[WordTime]:
        queue = SegmentQueue.from_text("Go. " + text, TextRules(), track_positions=True)
        return [word for timed in run(queue, sizes, False, 0.7) for word in timed.words]

    expected = words([100_000])
    found = words(sizes)
    assert [word.word for word in found] == [word.word for word in expected]
    assert [word.start for word in found] == pytest.approx([word.start for word in expected], abs=0.021)


def vowel(seconds: float) -> np.ndarray:
    """A sound like "ah": harmonics of 120 Hz with two formants."""
    at = np.arange(round(seconds * RATE)) / RATE
    sound = np.zeros(len(at))
    for number in range(1, 40):
        first, second = (120 * number - 650) / 150, (120 * number - 1200) / 200
        level = 1 / (1 + first**2) + 0.5 / (1 + second**2) + 0.1 / number
        sound += level * np.sin(2 * np.pi * 120 * number * at + number**2)
    return (0.05 * sound).astype(np.float32)


def test_a_pause_in_the_audio_is_at_the_punctuation() -> None:
    audio = np.concatenate([vowel(0.5), 0.01 * noise(0.5), vowel(0.5)])
    timeline = SpeechTimeline(RATE, streaming=False)
    timeline.begin(segment_of("Ah, ah"))
    first, second = timeline.push(audio, final=True).words
    assert (first.word, second.word) == ("Ah,", "ah")
    assert first.start < 0.1
    assert first.end == pytest.approx(0.5, abs=0.1)
    assert second.start == pytest.approx(1.0, abs=0.1)


def test_speed_and_silence_move_the_times() -> None:
    audio = noise(1.0)
    timeline = SpeechTimeline(RATE, streaming=False, speed=2.0)
    timeline.begin(segment_of("Anna Anna"), rate=0.5)
    timeline.silence(RATE)
    plain = timeline.push(audio, final=True)
    timeline.begin(segment_of("Anna Anna"))
    fast = timeline.push(audio, final=True)
    assert plain.segment == SegmentTime(0, "Anna Anna", 1.0, 2.0, 0, 9)
    assert fast.segment == SegmentTime(1, "Anna Anna", 2.0, 2.5, 0, 9)
    for slow_word, fast_word in zip(plain.words, fast.words, strict=True):
        assert fast_word.start - 2.0 == pytest.approx((slow_word.start - 1.0) / 2, abs=0.001)


def test_words_are_as_written_with_what_is_spoken_for_them() -> None:
    text = "“Hi” **15 km** — $5! 你好。 <b>end</b>, x_y"
    queue = SegmentQueue.from_text(text, TextRules("english"), track_positions=True)
    found = [word for timed in run(queue, [1920], True, 1.0) for word in timed.words]
    assert [word.word for word in found] == ["“Hi”", "15", "km", "$5!", "你", "好。", "end", "x_y"]


def test_phonemes_in_the_text_have_no_times_of_their_own() -> None:
    queue = SegmentQueue.from_text('A <phoneme ph="ˈliː">Lee</phoneme> b.', TextRules(phonemes=True), True)
    found = run(queue, [1920], True, 1.0)
    assert "".join(char for timed in found for char in timed.spoken.chars) == "A Lee b."


def test_the_spoken_text_of_segments_is_separated_by_spaces() -> None:
    queue = SegmentQueue.from_text("One.  Two 2.", TextRules(), track_positions=True)
    found = run(queue, [1920], True, 1.0)
    assert "".join(char for timed in found for char in timed.spoken.chars) == "One. Two two."


@pytest.mark.parametrize(("char", "symbol"), list(zip("Aéж中か한7ع ,。'*", [*"aez___0? ,,", None, None], strict=True)))
def test_every_script_has_symbols(char: str, symbol: str | None) -> None:
    assert symbol_of(char) == symbol


def test_the_memory_of_an_alignment_grows_with_the_audio_only() -> None:
    aligner = SegmentAligner(RATE)
    aligner.extend("word " * 80, complete=True)
    for _ in range(20):
        aligner.push(noise(0.5))
    assert aligner._decisions.shape[0] <= 2 * aligner.num_frames
    assert len(aligner._frames) < 10
