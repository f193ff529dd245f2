# SPDX-License-Identifier: Apache-2.0
"""Transcripts of earlier answers: found by their owner, in any server process, until they expire."""

import asyncio
import json
import os
import time
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from polyvox.errors import InvalidRequest
from polyvox.server.conversation.transcripts import LIFETIME, MAX_RESOLVED_CHARS, TranscriptStore
from polyvox.server.settings import Settings
from polyvox.server.shared_folder import LOCK, PREFIX, shared_folder
from server.fakes import PausableEngine
from server.multi_worker import running_workers
from server.scripted_llm import scripted_llm
from server.test_chat import MESSAGES, PATH, body


@pytest.fixture(params=["memory", "files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "files" else None


def put(store: TranscriptStore, owner: str, audio_id: str, text: str) -> None:
    asyncio.run(store.put(owner, audio_id, text))


def get(store: TranscriptStore, owner: str, audio_id: str) -> str | None:
    return asyncio.run(store.get(owner, audio_id))


def test_a_transcript_is_found_only_by_its_owner(folder: Path | None) -> None:
    store = TranscriptStore(folder)
    put(store, "a", "audio_1", "Hello\r\n\ud800.")
    assert (get(store, "a", "audio_1"), get(store, "b", "audio_1")) == ("Hello\r\n\ud800.", None)


def test_a_transcript_is_found_by_another_process(tmp_path: Path) -> None:
    put(TranscriptStore(tmp_path), "a", "audio_1", "Hello.")
    assert get(TranscriptStore(tmp_path), "a", "audio_1") == "Hello."


def test_a_transcript_expires(folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = TranscriptStore(folder), time.time()
    put(store, "", "audio_1", "Hello.")
    monkeypatch.setattr(time, "time", lambda: now + LIFETIME - 10)
    assert get(store, "", "audio_1") == "Hello."
    monkeypatch.setattr(time, "time", lambda: now + LIFETIME + 10)
    assert get(store, "", "audio_1") is None
    put(store, "", "audio_2", "Bye.")
    assert folder is None or len(list(folder.iterdir())) == 1


def test_transcripts_of_a_process_that_died_are_deleted_after_their_lifetime(tmp_path: Path) -> None:
    put(TranscriptStore(tmp_path), "", "audio_1", "Hello.")
    put(TranscriptStore(tmp_path), "", "audio_2", "Bye.")
    [old, _] = tmp_path.iterdir()
    os.utime(old, (0, time.time() - LIFETIME - 1))
    put(TranscriptStore(tmp_path), "", "audio_3", "Again.")
    assert len(list(tmp_path.iterdir())) == 2
    assert not old.exists()


def test_the_oldest_transcripts_are_deleted_at_the_limit(folder: Path | None) -> None:
    store = TranscriptStore(folder, max_chars=10)
    for index in range(5):
        put(store, "", f"audio_{index}", "1234")
    assert [index for index in range(5) if get(store, "", f"audio_{index}")] == [3, 4]


def test_the_oldest_of_many_short_transcripts_are_deleted(folder: Path | None) -> None:
    store = TranscriptStore(folder, max_transcripts=2)
    for index in range(5):
        put(store, "", f"audio_{index}", "")
    assert [get(store, "", f"audio_{index}") for index in range(5)] == [None, None, None, "", ""]


@pytest.mark.parametrize("audio", [{"id": 5}, {}, "audio_1", {"id": "audio_9"}])
def test_an_audio_that_is_not_known_is_rejected_with_a_hint(audio: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\].audio"):
        asyncio.run(TranscriptStore().resolve("", [{"role": "user"}, {"role": "assistant", "audio": audio}]))


def test_folders_of_servers_that_were_killed_are_deleted_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, other = tmp_path / f"{PREFIX}left", tmp_path / "other"
    for each in (left, other):
        each.mkdir()
        (each / LOCK).touch()
    with shared_folder() as running:
        assert left.exists()  # it may be of a server that has just started
        for each in (left, running, other):
            os.utime(each, (0, 0))
        with shared_folder():
            assert (left.exists(), running.exists(), other.exists()) == (False, True, True)
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.slow
def test_an_answer_is_found_by_the_id_of_its_audio_in_every_server_process() -> None:
    with scripted_llm() as llm:
        settings = Settings(workers=2, llm=llm.url)
        with running_workers(partial(PausableEngine, max_chunks=24), settings) as server:
            with server.client() as client:
                message = client.post(PATH, json=body()).json()["choices"][0]["message"]
            history = [*MESSAGES, {"role": "assistant", "audio": {"id": message["audio"]["id"]}}, MESSAGES[1]]
            asked: set[int] = set()
            for _ in range(100):  # each connection is accepted by any of the processes
                with closing(HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
                    connection.request("POST", PATH, json.dumps(body(messages=history)))
                    asked.add(server.worker_of(connection.sock))
                    assert connection.getresponse().status == 200
                if len(asked) == settings.workers:
                    break
            assert len(asked) == settings.workers
            assert llm.requests[-1]["messages"][2]["content"] == message["content"]


def test_the_transcripts_of_a_request_are_limited_together() -> None:
    async def resolve(num_messages: int) -> list[dict[str, Any]]:
        store = TranscriptStore()
        await store.put("", "audio_1", "x" * (MAX_RESOLVED_CHARS // 2))
        return await store.resolve("", num_messages * [{"role": "assistant", "audio": {"id": "audio_1"}}])

    assert len(asyncio.run(resolve(2))) == 2
    with pytest.raises(InvalidRequest, match=r"messages\[2\].audio.*at most 1,000,000 characters"):
        asyncio.run(resolve(10_000))
