# SPDX-License-Identifier: Apache-2.0
"""/v1/realtime when the LLM, the engine or the client fails: clear events, nothing leaks, other sessions go on."""

import socket as sockets
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import product

import pytest
from websockets.exceptions import ConnectionClosed

from ipc.engine_processes import eventually
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.realtime_client import PATH, RealtimeClient, audio, realtime, texts
from server.scripted_llm import MODEL, Script, ScriptedLLM
from server.scripted_server import Action
from server.websocket_clients import connect_websocket

pytestmark = pytest.mark.slow

TIMEOUT = 0.2  # seconds, of the LLM
MAX_TEXT_CHARS = 3000
WORDS = [f"Word {index} of it. " for index in range(50)]


@pytest.fixture(scope="module")
def server_settings(shared_llm: ScriptedLLM) -> Settings:
    return Settings(llm=shared_llm.url, llm_model=MODEL, max_text_chars=MAX_TEXT_CHARS)


@pytest.fixture
def client(server: RunningServer, llm: ScriptedLLM) -> Iterator[RealtimeClient]:  # noqa: ARG001
    with realtime(server) as client:
        yield client


def failure(client: RealtimeClient, **response: object) -> dict[str, str]:
    """The error of a response that fails."""
    done = client.respond(**response)[-1]["response"]
    assert (done["status"], done["status_details"]["type"]) == ("failed", "failed")
    error: dict[str, str] = done["status_details"]["error"]
    assert error["message"]
    return error


def check_works(client: RealtimeClient, llm: ScriptedLLM) -> None:
    llm.script = Script(["Fine."])
    events = client.respond()
    assert (texts(events), events[-1]["response"]["status"]) == ("Fine.", "completed")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (Script(["One two. Thr", Action.DISCONNECT]), "llm_failed"),
        (Script(["One two. Thr"], finish_reason=None), "llm_failed"),
        (Script(status=500, error={"error": {"message": "Out of memory."}}), "llm_failed"),
        (Script(status=400, error={"error": {"message": "Too long."}}), "llm_rejected"),
        (Script(status=429, error={"error": {"message": "Slow down."}}), "llm_overloaded"),
        (Script([*WORDS, b'data: {"error": {"message": "It broke"}}\n\n']), "llm_failed"),
        (Script([b"data: nonsense\n\n"]), "llm_failed"),
    ],
)
def test_an_llm_that_fails_ends_the_response_and_not_the_session(
    script: Script, code: str, client: RealtimeClient, llm: ScriptedLLM, engine: PausableEngine
) -> None:
    llm.script = script
    client.say("Hi!")
    assert failure(client)["code"] == code
    eventually(lambda: engine.streams == 0 and llm.num_active == 0)
    check_works(client, llm)


def test_an_llm_that_is_too_slow_ends_the_response_and_not_the_session(
    llm: ScriptedLLM, engine: PausableEngine
) -> None:
    settings = Settings(llm=llm.url, llm_token_timeout=TIMEOUT, llm_first_token_timeout=TIMEOUT)
    with serving(engine, settings) as server, realtime(server) as client:
        silent, started = Script([Action.SILENCE, Action.WAIT]), Script(["One two. Thr", Action.WAIT])
        for llm.script, modality in product((silent, started), ("audio", "text")):
            assert failure(client, output_modalities=[modality])["code"] == "llm_timeout"
            eventually(lambda: engine.streams == 0 and llm.num_active == 0)
        llm.script = Script(["Fine."])
        eventually(lambda: client.respond()[-1]["response"]["status"] == "completed")


def test_an_llm_that_fails_ends_a_response_of_text(client: RealtimeClient, llm: ScriptedLLM) -> None:
    for script in (Script(["One two. Thr", Action.DISCONNECT]), Script([b"data: nonsense\n\n"])):
        llm.script = script
        client.say("Hi!")
        assert failure(client, output_modalities=["text"])["code"] == "llm_failed"
        eventually(lambda: llm.num_active == 0)
    check_works(client, llm)


def test_a_failed_answer_keeps_the_text_whose_audio_was_sent(client: RealtimeClient, llm: ScriptedLLM) -> None:
    llm.script = Script(["One two."])
    num_bytes = len(audio(client.respond()))
    llm.script = Script(["One two. ", "Three four. ", "Five", Action.WAIT, Action.DISCONNECT])
    client.send("response.create")
    events = client.until("response.output_audio.delta")
    while len(audio(events)) < num_bytes:
        events.append(client.receive())
    llm.release()
    response = client.next("response.done")["response"]
    assert response["status"] == "failed"
    (item,) = response["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["transcript"].startswith("One two.")
    assert "Five" not in item["content"][0]["transcript"]


@pytest.mark.parametrize("modality", ["audio", "text"])
def test_an_answer_without_end_is_cut_at_the_limit(modality: str, client: RealtimeClient, llm: ScriptedLLM) -> None:
    llm.script = Script(["ten chars " * 1000] * 100)
    kind = "output_audio_transcript" if modality == "audio" else "output_text"
    events = client.respond(output_modalities=[modality])
    assert len(texts(events, kind)) == MAX_TEXT_CHARS
    assert events[-1]["response"]["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    eventually(lambda: llm.num_active == 0)


def test_endless_function_calls_fail(client: RealtimeClient, llm: ScriptedLLM) -> None:
    function = {"name": "look", "arguments": "x" * 100_000}
    llm.script = Script([{"tool_calls": [{"index": 0, "id": "a", "function": function}]}] * 12)
    assert "arguments" in failure(client)["message"]
    llm.script = Script(
        [{"tool_calls": [{"index": index, "id": str(index), "function": {"name": "f"}}]} for index in range(80)]
    )
    assert "function calls" in failure(client)["message"]


def test_an_engine_without_capacity_fails_the_response_before_the_llm_is_asked(
    client: RealtimeClient, llm: ScriptedLLM, engine: PausableEngine
) -> None:
    engine.max_streams = 0
    client.say("Hi!")
    error = failure(client)
    assert (error["code"], error["type"]) == ("overloaded", "overloaded")
    assert not llm.requests
    engine.max_streams = 100
    eventually(lambda: client.respond()[-1]["response"]["status"] == "completed")


def test_an_engine_that_fails_ends_the_response_and_cancels_the_llm(
    client: RealtimeClient, llm: ScriptedLLM, engine: PausableEngine
) -> None:
    engine.resume(2)
    llm.script = Script(["One two three four five six.", Action.WAIT])
    client.send("response.create")
    client.next("response.output_audio.delta")
    for stream in list(engine._streams):
        stream.cancel()
    engine.resume()
    done = client.next("response.done")["response"]
    assert done["status_details"]["error"]["code"] == "stream_failed"
    check_works(client, llm)


def test_a_client_that_leaves_frees_everything_and_disturbs_no_other_session(
    server: RunningServer, llm: ScriptedLLM, engine: PausableEngine
) -> None:
    llm.script = Script(["One two. Three", Action.WAIT])
    sessions = server.state.metrics.realtime_sessions._value
    with realtime(server) as other:
        with realtime(server) as client:
            client.say("Hi!")
            client.send("response.create")
            client.next("response.output_audio.delta")
            client.socket.connection.socket.shutdown(sockets.SHUT_RDWR)
        eventually(lambda: engine.streams == 0 and llm.num_cancelled == 1 and sessions.get() == 1)
        check_works(other, llm)
    eventually(lambda: sessions.get() == 0 and not server.state.synthesis.active)


def test_a_client_that_closes_during_a_response_ends_it(
    server: RunningServer, llm: ScriptedLLM, engine: PausableEngine
) -> None:
    llm.script = Script([Action.SILENCE, Action.WAIT])
    with realtime(server) as client:
        client.send("response.create")
        eventually(lambda: llm.num_active == 1)
    eventually(lambda: llm.num_cancelled == 1 and engine.streams == 0)


def test_sessions_end_when_they_are_idle_or_expire_or_are_too_many(engine: PausableEngine, llm: ScriptedLLM) -> None:
    settings = Settings(llm=llm.url, realtime_idle_timeout=0.2)
    with serving(engine, settings) as server, realtime(server) as client:
        assert client.next("error")["error"]["code"] == "timeout"
        assert client.socket.closed() == 1008
    settings = Settings(llm=llm.url, realtime_session_timeout=0.2, max_realtime_sessions=1)
    with serving(engine, settings) as server, realtime(server) as client:
        assert client.next("error")["error"]["code"] == "session_expired"
        assert client.socket.closed() == 1000
        llm.script = Script(["Hello.", Action.WAIT])
        with realtime(server) as running:  # a response does not prolong the session
            with suppress(ConnectionClosed):  # it may have expired
                running.send("response.create")
            assert running.next("error")["error"]["code"] == "session_expired"
    eventually(lambda: llm.num_active == 0)


def test_sessions_beyond_the_limit_are_rejected(engine: PausableEngine, llm: ScriptedLLM) -> None:
    settings = Settings(llm=llm.url, max_realtime_sessions=1)
    with serving(engine, settings) as server:
        with realtime(server), connect_websocket(server, PATH) as second:
            error = second.receive_json()["error"]
            assert error["code"] == "overloaded"
            assert "max_realtime_sessions" in error["message"]
            assert second.closed() == 1013
        eventually(lambda: server.state.conversation.realtime_sessions._num_sessions == 0)
        with realtime(server):
            pass


def test_a_key_has_its_limit_of_responses(engine: PausableEngine, llm: ScriptedLLM) -> None:
    settings = Settings(llm=llm.url, api_keys=["k1"], max_streams_per_key=1)
    headers = {"Authorization": "Bearer k1"}
    with (
        serving(engine, settings) as server,
        realtime(server, additional_headers=headers) as first,
        realtime(server, additional_headers=headers) as second,
    ):
        llm.script = Script(["One two.", Action.WAIT])
        first.send("response.create")
        first.next("response.output_audio.delta")
        assert failure(second)["code"] == "too_many_requests"
        llm.release()
        assert first.next("response.done")["response"]["status"] == "completed"


def test_responses_run_beside_each_other_in_sessions(server: RunningServer, llm: ScriptedLLM) -> None:
    llm.script = Script(["One two.", Action.WAIT])
    with realtime(server) as first, realtime(server) as second:
        for client in (first, second):
            client.send("response.create")
            client.next("response.output_audio.delta")
        llm.release()
        assert all(client.next("response.done")["response"]["status"] == "completed" for client in (first, second))


def test_an_llm_that_is_down_fails_the_response() -> None:
    with sockets.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = Settings(llm=f"http://127.0.0.1:{port}/v1")
    with closing(PausableEngine()) as engine, serving(engine, settings) as server, realtime(server) as client:
        error = failure(client)
        assert (error["code"], "cannot be reached" in error["message"]) == ("llm_failed", True)
