# SPDX-License-Identifier: Apache-2.0
"""Long texts: order, times, loudness, joins, resuming and retries."""

from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from conftest import Loaded
from ipc.engine_processes import eventually
from polyvox import long_form
from polyvox.audio.loudness import integrated_loudness
from polyvox.audio.samples import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.errors import InvalidRequest, Overloaded
from polyvox.long_form import LongFormReader, ResumeStore, Sentence, SpokenSentence
from polyvox.models.request import Request
from polyvox.tts import TTS

pytestmark = pytest.mark.slow

REQUEST = Request("", "serena", "english", seed=3, max_frames=12)
TEXTS = ("hello there", "a", "on and on", "the line", "b c")
SENTENCES = [Sentence(text, pause) for text, pause in zip(TEXTS, (0.3, 0, 0.1, 0.5, 0), strict=True)]


@pytest.fixture
def engine(loaded: Loaded) -> Iterator[LocalEngine]:
    engine = LocalEngine(loaded("custom_voice", "float64").model, EngineConfig(max_streams=4))
    yield engine
    engine.close()


def joined(spoken: list[SpokenSentence]) -> Samples:
    """The sentences at their positions, with silence between them."""
    samples = np.zeros(spoken[-1].end, np.float32)
    for one in spoken:
        assert not samples[one.start : one.end].any()
        samples[one.start : one.end] = one.samples
    return samples


def test_sentences_come_in_order_at_exact_times_for_any_concurrency(engine: LocalEngine) -> None:
    sequential, concurrent = (list(LongFormReader(engine, SENTENCES, REQUEST, number)) for number in (1, 4))
    assert [one.sentence for one in concurrent] == SENTENCES
    for before, after in pairwise(concurrent):
        assert after.start == before.end + round(before.sentence.pause * engine.sample_rate)
    assert np.array_equal(joined(sequential), joined(concurrent))


def test_sentences_have_one_loudness_and_no_clicks(embedded: TTS) -> None:
    texts = [Sentence("Good morning."), Sentence("The train to the harbour leaves at nine."), Sentence("Yes, please.")]
    spoken = list(LongFormReader(embedded.engine, texts, Request("", "heart", seed=3), 2))
    levels = [integrated_loudness(one.samples, embedded.sample_rate) or 0.0 for one in spoken]
    assert max(levels) - min(levels) < 1
    for one in spoken:
        assert abs(one.samples[0]) < 1e-3
        assert abs(one.samples[-1]) < 1e-3


def test_words_have_times_within_their_sentence_at_any_speed(embedded: TTS) -> None:
    text = "The shop is 5 km away, and it opens at noon. Is it?"
    ends = []
    for speed in (1.0, 1.5):
        for spoken in embedded.read(text, seed=1, speed=speed, word_times=True):
            rate = embedded.sample_rate
            assert [text[word.text_start : word.text_end] for word in spoken.words] == [w.word for w in spoken.words]
            times = [time for word in spoken.words for time in (word.start, word.end)]
            assert times == sorted(times)
            assert spoken.start / rate <= times[0] < spoken.start / rate + 0.2
            assert times[-1] <= spoken.end / rate
            ends.append(times[-1])
    assert [word.word for word in spoken.words] == ["Is", "it?"]
    assert ends[2] == pytest.approx(ends[0] / 1.5, abs=0.3)


def test_an_interrupted_text_is_resumed(engine: LocalEngine, tmp_path: Path) -> None:
    settings: dict[str, object] = {"seed": 3}
    uninterrupted = joined(list(LongFormReader(engine, SENTENCES, REQUEST, 2)))
    reader = iter(LongFormReader(engine, SENTENCES, REQUEST, 2, ResumeStore(tmp_path / "parts", settings)))
    first = list(islice(reader, 2))
    reader.close()  # type: ignore[attr-defined]
    (tmp_path / "parts" / f".polyvox-{0:016x}.partial").write_bytes(b"half of it")
    store = ResumeStore(tmp_path / "parts", settings)
    assert len(store) == 2
    with mock.patch.object(engine, "submit", wraps=engine.submit) as submit:
        spoken = list(LongFormReader(engine, SENTENCES, REQUEST, 2, store))
    assert submit.call_count == 3
    assert np.array_equal(joined(spoken), uninterrupted)
    assert np.array_equal(spoken[1].samples, first[1].samples)
    assert len(ResumeStore(tmp_path / "parts", {"seed": 4})) == 0
    store.clear()
    assert not (tmp_path / "parts").exists()


def test_a_folder_with_other_files_is_refused_and_keeps_them(embedded: TTS, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("the only copy")
    for manifest in (None, "no JSON", "[]", '{"title": "another program\'s"}'):
        if manifest is not None:
            (tmp_path / "reading.json").write_text(manifest)
        with pytest.raises(InvalidRequest, match="'keep': must be a new or empty folder, or one of an earlier run"):
            embedded.read("Hello.", keep=str(tmp_path))
    with pytest.raises(InvalidRequest, match="'keep': cannot be used: File exists"):
        embedded.read("Hello.", keep=tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "the only copy"


def test_a_store_deletes_only_its_own_files(tmp_path: Path) -> None:
    store = ResumeStore(tmp_path, "one text")
    for index in (0, 1_000_000):
        store.save(index, np.zeros(1, np.int16), "stop")
    (tmp_path / "results.npz").write_bytes(b"of another program")
    assert len(ResumeStore(tmp_path, "one text")) == 2
    other = ResumeStore(tmp_path, "another text")
    assert len(other) == 0
    other.clear()
    assert [file.name for file in tmp_path.iterdir()] == ["results.npz"]


@pytest.fixture
def full_engine(loaded: Loaded) -> Iterator[LocalEngine]:
    """One stream and no queue."""
    engine = LocalEngine(loaded("custom_voice", "float64").model, EngineConfig(max_streams=1, max_queue=0))
    yield engine
    engine.close()


def test_a_rejected_sentence_is_retried_until_capacity_is_free(full_engine: LocalEngine) -> None:
    other = full_engine.submit(Request("hello", "serena", live=True, max_frames=200))
    reader = LongFormReader(full_engine, SENTENCES[:2], REQUEST, 2)
    with mock.patch("time.sleep", side_effect=lambda _: other.cancel()):
        assert [one.sentence for one in reader] == SENTENCES[:2]
    eventually(lambda: full_engine.stats()["streams"] == 0)


def test_a_sentence_that_is_never_admitted_fails_after_the_retry_timeout(full_engine: LocalEngine) -> None:
    other = full_engine.submit(Request("hello", "serena", live=True, max_frames=200))
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    reader = LongFormReader(full_engine, SENTENCES, REQUEST, 2)
    with (
        mock.patch.object(long_form, "time", mock.Mock(monotonic=lambda: now, sleep=sleep)),
        mock.patch.object(full_engine, "submit", side_effect=Overloaded("no capacity", 1.0)) as submit,
        pytest.raises(Overloaded, match="no capacity"),
    ):
        list(reader)
    assert now == pytest.approx(long_form.RETRY_TIMEOUT, abs=1)
    assert submit.call_count == pytest.approx(long_form.RETRY_TIMEOUT / long_form.RETRY_INTERVAL, abs=5)
    other.cancel()


def test_a_sentence_that_fails_raises_and_the_others_are_cancelled(engine: LocalEngine) -> None:
    with (
        mock.patch.object(engine._runner.vocoder.state, "decode", side_effect=RuntimeError("injected")),
        pytest.raises(Exception, match="injected"),
    ):
        list(LongFormReader(engine, SENTENCES, REQUEST, 4))
    with engine.lock:
        assert engine._work.wait_for(lambda: not engine.streams, 60)
