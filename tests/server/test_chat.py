# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: spoken answers in OpenAI's format, and text that is passed through."""

import base64
import io
import json
import wave
from contextlib import closing
from typing import Any

import httpx
import numpy as np
import pytest

from ipc.fake_engine import CHUNK_SAMPLES, SAMPLE_RATE
from polyvox.audio import read_audio
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving
from server.scripted_llm import MODEL, PROMPT_TOKENS, Script, ScriptedLLM
from server.scripted_server import Action

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
KEY = "the-key-of-the-llm"
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server_settings(shared_llm: ScriptedLLM) -> Settings:
    return Settings(llm=shared_llm.url, llm_model=MODEL, llm_key=KEY, max_text_chars=5000)


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "modalities": ["text", "audio"], "audio": {"voice": "michael"}, **fields}


def streamed(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed answer, which ends as it should."""
    response = client.post(PATH, json=body(stream=True, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def audio_of(chunks: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(delta.get("audio", {}).get("data", "")) for delta in deltas(chunks))


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(delta.get("content") or "" for delta in deltas(chunks))


def transcript_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(delta.get("audio", {}).get("transcript", "") for delta in deltas(chunks))


def test_a_streamed_answer_has_text_transcript_audio_and_usage(client: httpx.Client, llm: ScriptedLLM) -> None:
    chunks = streamed(client, stream_options={"include_usage": True})
    assert text_of(chunks) == transcript_of(chunks) == "Hello there. How are you?"
    assert deltas(chunks)[0] == {"role": "assistant", "content": ""}
    assert all(chunk["object"] == "chat.completion.chunk" and chunk["id"] == "chatcmpl-1" for chunk in chunks)
    assert {chunk["model"] for chunk in chunks} == {MODEL}
    ids = {delta["audio"]["id"] for delta in deltas(chunks) if delta.get("audio", {}).keys() & {"data", "transcript"}}
    assert len(ids) == 1
    *_, expiry, end, usage = chunks
    assert set(expiry["choices"][0]["delta"]["audio"]) == {"expires_at"}
    assert end["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    num_frames = usage["usage"]["completion_tokens_details"]["audio_tokens"]
    assert num_frames == 5  # the fake engine speaks one chunk for each word
    assert len(audio_of(chunks)) > num_frames * CHUNK_SAMPLES * 2  # with the silence between the sentences
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert usage["usage"]["total_tokens"] == PROMPT_TOKENS + 4 + num_frames
    assert "stream_options" in llm.requests[0]


def test_a_stream_without_the_option_has_no_usage(client: httpx.Client, llm: ScriptedLLM) -> None:  # noqa: ARG001
    assert all("usage" not in chunk for chunk in streamed(client))


@pytest.mark.parametrize("usage", [b"", b'data: {"choices": [], "usage": {"prompt_tokens": 7}}\n\n'])
def test_an_llm_may_close_its_stream_without_done(usage: bytes, client: httpx.Client, llm: ScriptedLLM) -> None:
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n'
    llm.script = Script(["Hello", " there.", end + usage], finish_reason=None)
    chunks = streamed(client, stream_options={"include_usage": True})
    assert text_of(chunks) == transcript_of(chunks) == "Hello there."
    assert len(audio_of(chunks)) >= 2 * CHUNK_SAMPLES * 2
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "length"


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
def test_a_whole_answer_is_one_object_with_a_file(format: str, client: httpx.Client, llm: ScriptedLLM) -> None:
    response = client.post(PATH, json=body(audio={"voice": "heart", "format": format}))
    answer = response.json()
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "stop"
    assert message["role"] == "assistant"
    assert message["content"] == message["audio"]["transcript"] == "Hello there. How are you?"
    assert set(message["audio"]) == {"id", "data", "expires_at", "transcript"}
    data = base64.b64decode(message["audio"]["data"])
    num_samples = len(data) // 2 if format == "pcm16" else len(read_audio(io.BytesIO(data), SAMPLE_RATE))
    assert num_samples >= 5 * CHUNK_SAMPLES
    assert answer["usage"]["completion_tokens_details"]["audio_tokens"] == 5
    assert llm.requests[0]["stream"] is True  # speech begins while the LLM writes


@pytest.mark.parametrize("format", ["wav", "mp3", "opus"])
def test_other_formats_are_streamed_as_one_file(format: str, client: httpx.Client, llm: ScriptedLLM) -> None:  # noqa: ARG001
    data = audio_of(streamed(client, audio={"voice": "heart", "format": format}))
    assert len(read_audio(io.BytesIO(data), SAMPLE_RATE)) >= 5 * CHUNK_SAMPLES


def test_speech_begins_while_the_llm_still_writes(client: httpx.Client, llm: ScriptedLLM) -> None:
    llm.script = Script(["Well then,", " this is", Action.WAIT, " the rest."])
    with client.stream("POST", PATH, json=body(stream=True)) as response:
        lines = response.iter_lines()
        received = next(line for line in lines if '"data"' in line)
        assert received
        assert llm.num_active == 1  # it has not written the rest
        llm.release()
        rest = "".join(lines)
    assert rest.endswith("data: [DONE]")
    assert " the rest." in rest


def test_the_request_goes_to_the_llm_with_its_model_and_key(client: httpx.Client, llm: ScriptedLLM) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    streamed(client, model="gpt-4o-audio-preview", tools=tools, temperature=0.3, seed=5, top_logprobs=None)
    (request,) = llm.requests
    assert request["model"] == MODEL
    assert request["messages"] == MESSAGES
    assert (request["tools"], request["temperature"], request["seed"]) == (tools, 0.3, 5)
    assert not {"audio", "modalities", "return_token_ids"} & set(request)
    assert llm.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_audio_and_images_of_the_user_go_to_the_llm(client: httpx.Client, llm: ScriptedLLM) -> None:
    parts = [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
    ]
    streamed(client, messages=[{"role": "user", "content": parts}])
    assert llm.requests[0]["messages"] == [{"role": "user", "content": parts}]


def test_earlier_answers_are_found_by_the_id_of_their_audio(client: httpx.Client, llm: ScriptedLLM) -> None:
    first = client.post(PATH, json=body()).json()["choices"][0]["message"]
    history = [*MESSAGES, {"role": "assistant", "audio": {"id": first["audio"]["id"]}}, MESSAGES[1]]
    streamed(client, messages=history)
    streamed(client, messages=[*MESSAGES, first, MESSAGES[1]])
    for request in llm.requests[1:]:
        answer = request["messages"][2]
        assert answer["content"] == "Hello there. How are you?"
        assert "audio" not in answer
    unknown = client.post(PATH, json=body(messages=[{"role": "assistant", "audio": {"id": "audio_1"}}]))
    assert unknown.status_code == 400
    assert unknown.json()["error"]["param"] == "messages[0].audio"


@pytest.mark.parametrize("fields", [{"modalities": ["text"]}, {"modalities": None, "audio": None}])
def test_without_audio_the_response_of_the_llm_is_passed_through(
    fields: dict[str, Any], client: httpx.Client, engine: PausableEngine, llm: ScriptedLLM
) -> None:
    whole = client.post(PATH, json=body(**fields, n=2, logprobs=True))
    assert whole.json()["choices"][0]["message"]["content"] == "Hello there. How are you?"
    assert (llm.requests[0]["n"], llm.requests[0]["logprobs"]) == (2, True)
    assert "stream" not in llm.requests[0]
    chunks = streamed(client, **fields)
    assert text_of(chunks) == "Hello there. How are you?"
    assert not audio_of(chunks)
    assert not engine.requests


def test_tool_calls_are_forwarded_and_not_spoken(client: httpx.Client, llm: ScriptedLLM) -> None:
    calls: list[dict[str, Any]] = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"place": '}},
        {"index": 0, "function": {"arguments": '"here"}'}},
    ]
    steps = [{"reasoning_content": "Hm, a"}, {"reasoning_content": " tool."}]
    llm.script = Script(
        [*steps, "Let me look.", *({"tool_calls": [call]} for call in calls)], finish_reason="tool_calls"
    )
    *chunks, end, usage = streamed(client, stream_options={"include_usage": True})
    assert [delta["tool_calls"][0] for delta in deltas(chunks) if "tool_calls" in delta] == calls
    assert end["choices"][0]["finish_reason"] == "tool_calls"
    assert usage["usage"]["completion_tokens_details"]["audio_tokens"] == 3  # words
    message = client.post(PATH, json=body()).json()["choices"][0]["message"]
    function = {"name": "look", "arguments": '{"place": "here"}'}
    assert message["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]
    assert message["reasoning_content"] == "Hm, a tool."
    assert message["audio"]["transcript"] == "Let me look."


def test_an_answer_without_text_has_no_audio(client: httpx.Client, llm: ScriptedLLM) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    llm.script = Script([{"tool_calls": [call]}], finish_reason="tool_calls")
    chunks = streamed(client)
    assert not audio_of(chunks)
    assert all("audio" not in delta for delta in deltas(chunks))
    message = client.post(PATH, json=body()).json()["choices"][0]["message"]
    assert message["audio"] is None
    assert message["content"] is None


MARKDOWN = """## Plan

**First**, see [the docs](https://example.com/a/b). 😀

| name | size |
|------|------|
| one  | 2    |

```python
for i in range(10): print(i)
```
Then `run` it.
"""


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_markup_is_not_spoken_and_stays_in_the_transcript(
    size: int, client: httpx.Client, engine: PausableEngine, llm: ScriptedLLM
) -> None:
    llm.script = Script([MARKDOWN[start : start + size] for start in range(0, len(MARKDOWN), size)])
    answer = client.post(PATH, json=body()).json()["choices"][0]["message"]
    assert answer["audio"]["transcript"] == MARKDOWN
    # Live text arrives later than the first words of a sentence, so that only starts are seen here.
    starts = " ".join(request.text for request in engine.requests)
    assert not set(starts) & set("#*|`[]()😀")
    assert "example.com" not in starts
    assert "range" not in starts


def test_a_voice_that_is_unknown_is_rejected_with_the_known_ones_before_the_llm_is_asked(
    client: httpx.Client, llm: ScriptedLLM
) -> None:
    response = client.post(PATH, json=body(audio={"voice": "nobody"}))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "audio.voice")
    assert "heart, michael" in error["message"]
    assert not llm.requests


def test_the_voice_may_be_named_beside_the_audio(
    client: httpx.Client,
    engine: PausableEngine,
    llm: ScriptedLLM,  # noqa: ARG001
) -> None:
    for fields in ({"voice": "michael"}, {"speaker": "michael"}, {"audio": {"voice": "michael"}}):
        client.post(PATH, json={"messages": MESSAGES, "modalities": ["audio"], **fields}).raise_for_status()
    client.post(PATH, json={"messages": MESSAGES, "modalities": ["audio"]}).raise_for_status()
    voices = [request.voice for request in engine.requests if request.text]
    assert set(voices) == {"michael", None}
    assert voices[-1] is None  # the model's default


@pytest.mark.parametrize(
    "fields", [{"response_format": "mp3"}, {"timestamp_granularities": ["word"]}], ids=lambda fields: next(iter(fields))
)
def test_parameters_of_speech_that_an_answer_does_not_have_are_named(
    fields: dict[str, Any],
    client: httpx.Client,
    llm: ScriptedLLM,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polyvox.server.synthesis.utterance.SpeechTimeline", None)  # so no words are aligned
    (name,) = fields
    answer = client.post(PATH, json=body(audio={"voice": "michael", **fields}))
    assert (answer.status_code, answer.headers.get("x-polyvox-ignored")) == (200, f"audio.{name}")
    rejected = client.post(f"{PATH}?strict=1", json=body(audio={"voice": "michael", **fields}))
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, f"audio.{name}")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"n": 2}, 400, "n"),
        ({"audio": {"voice": "heart", "format": "wma"}}, 422, "audio.format"),
        ({"audio": {"voice": "heart", "speed": 9.0}}, 422, "audio.speed"),
        ({"modalities": ["video"]}, 422, "modalities"),
        ({"messages": []}, 422, "messages"),
        ({"messages": None}, 422, "messages"),
    ],
)
def test_an_invalid_request_is_rejected_before_the_llm_is_asked(
    fields: dict[str, Any], status: int, param: str, client: httpx.Client, llm: ScriptedLLM
) -> None:
    response = client.post(PATH, json=body(**fields))
    assert (response.status_code, response.json()["error"]["param"].split("[")[0]) == (status, param)
    assert not llm.requests


def test_a_full_server_rejects_before_the_llm_is_asked(
    client: httpx.Client, engine: PausableEngine, llm: ScriptedLLM
) -> None:
    engine.max_streams = 0
    response = client.post(PATH, json=body(stream=True))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert not llm.requests


def test_without_an_llm_the_error_says_how_to_configure_one() -> None:
    with closing(PausableEngine()) as engine, serving(engine) as server, server.client() as client:
        for fields in ({}, {"modalities": ["text"]}):
            response = client.post(PATH, json=body(**fields))
            assert response.status_code == 404
            assert "--llm" in response.json()["error"]["message"]


def test_chunks_in_the_format_of_vllm_omni_are_files_in_the_content(llm: ScriptedLLM) -> None:
    settings = Settings(llm=llm.url, chat_format="vllm-omni")
    with closing(PausableEngine()) as engine, serving(engine, settings) as server, server.client() as client:
        chunks = streamed(client, audio=None, model="Qwen/Qwen3-Omni")
        audio = [chunk for chunk in chunks if chunk["modality"] == "audio" and chunk["choices"][0]["delta"]]
        texts = [chunk for chunk in chunks if chunk["modality"] == "text"]
        assert text_of(texts) == "Hello there. How are you?"
        num_samples = 0
        for chunk in audio:
            with wave.open(io.BytesIO(base64.b64decode(chunk["choices"][0]["delta"]["content"]))) as file:
                num_samples += file.getnframes()
        assert num_samples >= 5 * CHUNK_SAMPLES
        raw = streamed(client, audio={"format": "pcm16"})
        data = [
            base64.b64decode(each["choices"][0]["delta"].get("content", ""))
            for each in raw
            if each["modality"] == "audio"
        ]
        assert len(np.frombuffer(b"".join(data), "<i2")) == num_samples
        assert client.post(PATH, json=body(stream=True, audio={"format": "mp3"})).status_code == 400
    assert llm.requests[0]["model"] == "Qwen/Qwen3-Omni"


def test_the_llm_is_listed_among_the_models(client: httpx.Client) -> None:
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["Fake-CustomVoice", MODEL]
    assert client.get(f"/v1/models/{MODEL}").json()["id"] == MODEL


def test_connections_to_the_llm_are_used_again(client: httpx.Client, llm: ScriptedLLM) -> None:
    streamed(client)
    llm.connections.clear()
    for _ in range(3):
        streamed(client)
    assert len(llm.connections) == 1


def test_requests_are_counted_in_the_metrics(client: httpx.Client, server: RunningServer, llm: ScriptedLLM) -> None:
    streamed(client)
    llm.script = Script(status=400, error={"error": {"message": "no"}})
    client.post(PATH, json=body())
    page = client.get("/metrics").text
    assert 'polyvox_llm_requests_total{outcome="rejected"}' in page
    assert server.state.metrics.llm_requests.labels("finished")._value.get() >= 1
    assert "polyvox_llm_first_token_seconds_bucket" in page


@pytest.mark.parametrize(
    ("steps", "spoken"),
    [
        (["<speak>Hello there."], "Hello there."),
        (["<speak>Hello ", "<b"], "Hello less than b"),
        (["<speak>Salt & pepper.</speak>"], "Salt and pepper."),
        (["<speak>Hello.</wrong>"], "Hello."),
        (["<speak>", "<prosody rate='fast'>Hello.</prosody></speak>"], "Hello."),
    ],
)
def test_ssml_of_the_llm_may_be_malformed(
    steps: list[str], spoken: str, client: httpx.Client, llm: ScriptedLLM, engine: PausableEngine
) -> None:
    llm.script = Script(steps)
    assert text_of(streamed(client)) == "".join(steps)
    assert spoken.startswith(engine.requests[-1].text)  # the rest is appended
