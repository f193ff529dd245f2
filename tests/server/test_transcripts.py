# SPDX-License-Identifier: Apache-2.0
"""Transcripts of earlier answers: found by their owner until they expire."""

import pytest

from polyvox.errors import InvalidRequest
from polyvox.server.conversation import transcripts
from polyvox.server.conversation.transcripts import LIFETIME, TranscriptStore


def test_a_transcript_is_found_only_by_its_owner() -> None:
    store = TranscriptStore()
    store.put("a", "audio_1", "Hello.")
    assert (store.get("a", "audio_1"), store.get("b", "audio_1")) == ("Hello.", None)


def test_a_transcript_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(transcripts, "monotonic", lambda: now)
    store = TranscriptStore()
    store.put("", "audio_1", "Hello.")
    now += LIFETIME - 1
    assert store.get("", "audio_1") == "Hello."
    now += 2
    assert store.get("", "audio_1") is None
    store.put("", "audio_2", "Bye.")
    assert store.num_chars == len("Bye.")


def test_the_oldest_transcripts_are_dropped_at_the_limit() -> None:
    store = TranscriptStore(max_chars=10)
    for index in range(5):
        store.put("", f"audio_{index}", "1234")
    found = [index for index in range(5) if store.get("", f"audio_{index}")]
    assert found == [3, 4]
    assert store.num_chars == 8


def test_the_oldest_of_many_short_transcripts_are_dropped() -> None:
    store = TranscriptStore(max_transcripts=2)
    for index in range(5):
        store.put("", f"audio_{index}", "")
    assert [store.get("", f"audio_{index}") for index in range(5)] == [None, None, None, "", ""]


@pytest.mark.parametrize("audio", [{"id": 5}, {}, "audio_1", {"id": "audio_9"}])
def test_an_audio_that_is_not_known_is_rejected_with_a_hint(audio: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\].audio"):
        TranscriptStore().resolve("", [{"role": "user"}, {"role": "assistant", "audio": audio}])
