# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' endpoints beside speech: cloned voices, search, dictionaries, account; and dialogues."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ipc.fake_engine import ABOUT, LENGTH
from polyvox.models.request import ClonedVoice
from polyvox.server.settings import Settings
from server.fakes import CUSTOM, PausableEngine
from server.live_server import RunningServer, serving
from server.test_voices import recording
from server.websocket_clients import connect_websocket

pytestmark = pytest.mark.slow

DICTIONARIES = "/v1/pronunciation-dictionaries"
RULES = [{"string_to_replace": "SQL", "type": "alias", "alias": "sequel"}]
KEYS = ("first key", "second key")


@pytest.fixture(scope="module")
def cloning_engine() -> Iterator[PausableEngine]:
    with closing(PausableEngine(ABOUT)) as engine:
        yield engine


@pytest.fixture(scope="module")
def cloning(cloning_engine: PausableEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = Settings(voices_dir=tmp_path_factory.mktemp("voices"))
    with serving(cloning_engine, settings) as running:
        yield running


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[PausableEngine]:
    info = replace(CUSTOM, voice_genders={"heart": "female", "michael": "male"})
    with closing(PausableEngine(info)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(voices_dir=tmp_path_factory.mktemp("voices"))


# Voices


def test_a_voice_can_be_cloned_edited_and_deleted(cloning: RunningServer) -> None:
    with cloning.client() as client:
        files = [("files", ("a.flac", recording())), ("files", ("b.flac", recording()))]
        fields = {"name": "Nina", "description": "warm", "labels": '{"accent": "none"}'}
        added = client.post("/v1/voices/add", data=fields, files=files)
        assert (added.status_code, added.headers["x-polyvox-ignored"]) == (200, "labels")
        assert added.json() == {"voice_id": "Nina", "requires_verification": False}
        found = client.get("/v1/voices/nina").json()
        assert (found["category"], found["description"]) == ("cloned", "warm")
        assert client.get("/v1/audio/voices/Nina").json()["seconds"] == pytest.approx(4.0)
        speech = client.post("/v1/text-to-speech/Nina?output_format=pcm_24000", json={"text": "Hello."})
        assert speech.status_code == 200
        edited = client.post("/v1/voices/Nina/edit", data={"name": "Ida", "description": "cold"}, files={"x": ""})
        assert edited.status_code == 400  # x is not a field for files
        edited = client.post("/v1/voices/Nina/edit", files={"name": (None, "Ida"), "description": (None, "cold")})
        assert edited.json() == {"status": "ok"}
        assert client.get("/v1/voices/Nina").status_code == 404
        assert client.get("/v1/voices/Ida").json()["description"] == "cold"
        again = client.post("/v1/voices/Ida/edit", files=[("name", (None, "Ida")), ("files", ("c.flac", recording(3)))])
        assert again.status_code == 200
        assert client.get("/v1/audio/voices/Ida").json()["seconds"] == pytest.approx(3.0)
        assert client.delete("/v1/voices/Ida").json() == {"status": "ok"}
        assert client.delete("/v1/voices/Ida").status_code == 404


def test_new_recordings_keep_the_consent_and_the_description(cloning: RunningServer) -> None:
    with cloning.client() as client:
        fields = {"name": "Olga", "consent": "signed by Olga", "speaker_description": "warm"}
        assert client.post("/v1/audio/voices", data=fields, files={"audio_sample": recording()}).status_code == 201
        edited = client.post("/v1/voices/Olga/edit", files={"files": ("b.flac", recording(3))})
        assert edited.status_code == 200
        found = client.get("/v1/audio/voices/Olga").json()
        assert (found["consent"], found["speaker_description"]) == ("signed by Olga", "warm")
        assert found["seconds"] == pytest.approx(3.0)


def test_a_name_in_use_and_a_missing_recording_are_rejected(cloning: RunningServer) -> None:
    with cloning.client() as client:
        sample = {"files": ("a.flac", recording())}
        assert client.post("/v1/voices/add", data={"name": "Twice"}, files=sample).status_code == 200
        assert client.post("/v1/voices/add", data={"name": "Twice"}, files=sample).status_code == 409
        assert client.post("/v1/voices/add", data={"name": "!"}, files=sample).status_code == 400
        empty = client.post("/v1/voices/add", files={"name": (None, "Empty")})
        assert (empty.status_code, empty.json()["error"]["param"]) == (400, "files")
        assert client.post("/v1/voices/add", json={"name": "JSON"}).status_code == 415
        for path in ("/v1/voices/add", "/v1/voices/Twice/edit"):
            damaged = client.post(path, data={"name": "Damaged"}, files={"files": ("a.flac", b"noise")})
            assert (damaged.status_code, damaged.json()["error"]["param"]) == (400, "files")
        unknown = client.delete("/v1/voices/Nobody")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "voice_id")


def test_a_model_that_cannot_clone_says_so(client: httpx.Client) -> None:
    answer = client.post("/v1/voices/add", data={"name": "Nina"}, files={"files": ("a.flac", recording())})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "files")
    for method, path in (("POST", "/v1/voices/heart/edit"), ("DELETE", "/v1/voices/heart")):
        files = {"name": (None, "Other")} if method == "POST" else None
        answer = client.request(method, path, files=files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "voice_id")


def test_voices_are_searched_sorted_and_paged(client: httpx.Client) -> None:
    def names(**query: Any) -> list[str]:
        return [voice["voice_id"] for voice in client.get("/v2/voices", params=query).json()["voices"]]

    assert names() == ["heart", "michael"]
    assert names(search="MICH") == names(search="male", category="premade")[1:] == ["michael"]
    assert names(category="cloned") == names(search="nobody") == []
    assert names(voice_ids=["heart"]) == ["heart"]
    assert names(sort="name", sort_direction="desc") == ["michael", "heart"]
    first = client.get("/v2/voices", params={"page_size": 1}).json()
    assert (first["has_more"], first["total_count"], len(first["voices"])) == (True, 2, 1)
    assert names(page_size=1, next_page_token=first["next_page_token"]) == ["michael"]
    assert client.get("/v2/voices?page_size=0").status_code == 400
    wrong = client.get("/v2/voices?page_size=abc")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (422, "page_size")
    assert wrong.json()["error"]["message"].startswith("Invalid value for 'page_size': must be an integer (got 'abc').")
    for token in ("x", "9" * 5000):
        assert client.get("/v2/voices", params={"next_page_token": token}).status_code == 400
        assert client.get(DICTIONARIES, params={"cursor": token}).status_code == 400


def test_a_default_voice_of_elevenlabs_is_found_and_speaks(client: httpx.Client, engine: PausableEngine) -> None:
    assert client.get("/v1/voices/21m00Tcm4TlvDq8ikWAM").json()["voice_id"] == "heart"
    assert client.get("/v1/voices/pNInz6obpgDQGcFmaJgB/settings").json()["speed"] == 1.0
    assert client.get("/v1/voices/settings/default").status_code == 200
    assert client.post("/v1/text-to-speech/pNInz6obpgDQGcFmaJgB", json={"text": "Hi."}).status_code == 200
    assert engine.requests[-1].voice == "michael"


def test_the_account_has_no_history_and_no_limit_of_characters(client: httpx.Client) -> None:
    user = client.get("/v1/user").json()
    assert user["subscription"] == client.get("/v1/user/subscription").json()
    assert user["subscription"]["character_limit"] > 10**9
    assert client.get("/v1/history").json() == {"history": [], "last_history_item_id": None, "has_more": False}
    for method, path in (("GET", "/v1/history/x"), ("GET", "/v1/history/x/audio"), ("DELETE", "/v1/history/x")):
        assert client.request(method, path).status_code == 404


# Dialogue


def test_a_dialogue_has_the_voice_of_each_turn_in_one_stream(client: httpx.Client, engine: PausableEngine) -> None:
    turns = [
        {"text": "Hello. How are you?", "voice_id": "heart"},
        {"text": "Fine.", "voice_id": "pNInz6obpgDQGcFmaJgB"},
        {"text": "Good!", "voice_id": "heart"},
    ]
    for path in ("/v1/text-to-dialogue/stream", "/v1/text-to-dialogue"):
        engine.requests.clear()
        answer = client.post(f"{path}?output_format=pcm_24000", json={"inputs": turns, "seed": 3, "settings": {}})
        assert (answer.status_code, answer.headers["x-polyvox-ignored"]) == (200, "settings")
        assert [request.voice for request in engine.requests] == ["heart", "heart", "michael", "heart"]
        assert [request.segment for request in engine.requests] == [0, 1, 2, 3]
        assert len({request.utterance_id for request in engine.requests}) == 1
        assert len(answer.content) > 4 * LENGTH * 960  # with pauses


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({}, 422, "inputs"),
        ({"inputs": []}, 422, "inputs"),
        ({"inputs": [{"text": "Hi."}]}, 422, "inputs"),
        ({"inputs": [{"text": "Hi.", "voice_id": "heart"}, {"text": " ", "voice_id": "heart"}]}, 400, "text"),
        ({"inputs": [{"text": "Hi.", "voice_id": "heart"}, {"text": "Hi.", "voice_id": "bob"}]}, 404, "voice_id"),
    ],
)
def test_an_invalid_dialogue_is_rejected(
    body: dict[str, Any], status: int, expected: str, client: httpx.Client
) -> None:
    answer = client.post("/v1/text-to-dialogue/stream", json=body)
    assert (answer.status_code, answer.json()["error"]["param"].partition(".")[0]) == (status, expected)


# Pronunciation dictionaries


def add(client: httpx.Client, **more: Any) -> dict[str, Any]:
    answer = client.post(f"{DICTIONARIES}/add-from-rules", json={"rules": RULES, "name": "Terms", **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_dictionary_changes_what_is_spoken_on_every_transport(
    server: RunningServer, client: httpx.Client, engine: PausableEngine
) -> None:
    locators = [{"pronunciation_dictionary_id": add(client)["id"], "version_id": None}]
    named = {"pronunciation_dictionary_locators": locators}
    client.post("/v1/text-to-speech/heart", json={"text": "Learn SQL now.", **named})
    assert engine.requests[-1].text == "Learn sequel now."
    client.post("/v1/text-to-dialogue", json={"inputs": [{"text": "SQL.", "voice_id": "heart"}], **named})
    assert engine.requests[-1].text == "sequel."
    for path, context in (("stream-input", {}), ("multi-stream-input", {"context_id": "a"})):
        with connect_websocket(server, f"/v1/text-to-speech/heart/{path}?output_format=pcm_24000") as websocket:
            websocket.send(text=" ", **context, **named)
            websocket.send(text="Learn SQL now. ", flush=True, **context)
            websocket.send(**({"text": ""} if not context else {"close_context": True, **context}))
            assert websocket.final(context.get("context_id"))[1]
        assert engine.requests[-1].text == "Learn sequel now."
    unknown = {"pronunciation_dictionary_locators": [{"pronunciation_dictionary_id": "x"}]}
    answer = client.post("/v1/text-to-speech/heart", json={"text": "Hi.", **unknown})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "dictionary_not_found")


def test_rules_are_added_replaced_and_removed_in_new_versions(client: httpx.Client, engine: PausableEngine) -> None:
    first = add(client)
    path = f"{DICTIONARIES}/{first['id']}"
    more = [{"string_to_replace": "SQL", "type": "alias", "alias": "ess queue ell"}]
    second = client.post(f"{path}/add-rules", json={"rules": [*more, {**more[0], "string_to_replace": "NATO"}]}).json()
    assert (second["version_rules_num"], second["version_id"] != first["version_id"]) == (2, True)
    third = client.post(f"{path}/remove-rules", json={"rule_strings": ["NATO"]}).json()
    assert third["version_rules_num"] == 1
    assert client.get(path).json()["rules"][0]["alias"] == "ess queue ell"
    for version, spoken in ((first, "sequel."), (third, "ess queue ell.")):
        locator = {"pronunciation_dictionary_id": first["id"], "version_id": version["version_id"]}
        body = {"text": "SQL.", "pronunciation_dictionary_locators": [locator]}
        client.post("/v1/text-to-speech/heart", json=body)
        assert engine.requests[-1].text == spoken
    assert client.post(f"{path}/set-rules", json={"rules": []}).json()["version_rules_num"] == 0
    assert client.patch(path, json={"name": "Words"}).json()["name"] == "Words"
    assert client.patch(path, json={"archived": True}).status_code == 200
    assert client.get(path).status_code == client.delete(path).status_code == 404


def test_a_dictionary_from_a_file_can_be_downloaded_and_added_again(client: httpx.Client) -> None:
    found = add(client)
    file = client.get(f"{DICTIONARIES}/{found['id']}/{found['version_id']}/download")
    assert (file.status_code, file.headers["content-type"]) == (200, "application/pls+xml")
    form: Any = {"name": (None, "Copy"), "file": ("terms.pls", file.content, "application/pls+xml")}
    copy = client.post(f"{DICTIONARIES}/add-from-file", files=form).json()
    assert (copy["name"], copy["version_rules_num"]) == ("Copy", 1)
    rules = client.get(f"{DICTIONARIES}/{copy['id']}").json()["rules"]
    assert (rules[0]["string_to_replace"], rules[0]["alias"]) == ("SQL", "sequel")
    listed = client.get(DICTIONARIES, params={"page_size": 1}).json()
    assert (len(listed["pronunciation_dictionaries"]), listed["has_more"]) == (1, True)
    rest = client.get(DICTIONARIES, params={"cursor": listed["next_cursor"]}).json()
    ids = [each["id"] for page in (listed, rest) for each in page["pronunciation_dictionaries"]]
    assert {found["id"], copy["id"]} <= set(ids)
    for body in (b"<lexicon", b"\xff"):
        bad: Any = {"name": (None, "Bad"), "file": ("terms.pls", body, "application/pls+xml")}
        assert client.post(f"{DICTIONARIES}/add-from-file", files=bad).status_code == 400


def test_phoneme_rules_are_ignored_by_a_model_without_phonemes(client: httpx.Client) -> None:
    rules = [{"string_to_replace": "Linux", "type": "phoneme", "phoneme": "ˈlɪnəks", "alphabet": "ipa"}]
    locator = {"pronunciation_dictionary_id": add(client, rules=rules)["id"]}
    body = {"text": "Linux.", "pronunciation_dictionary_locators": [locator]}
    answer = client.post("/v1/text-to-speech/heart", json=body)
    assert answer.headers["x-polyvox-ignored"] == "pronunciation_dictionary_locators.phoneme"
    assert client.post("/v1/text-to-speech/heart?strict=1", json=body).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        {"rules": [{"string_to_replace": "x", "type": "song"}], "name": "Bad"},
        {"rules": [{"string_to_replace": "x", "type": []}], "name": "Bad"},
        {"rules": [{"string_to_replace": "x\ud800", "type": "alias", "alias": "y"}], "name": "Bad"},
        {"rules": [{"string_to_replace": "x", "type": "alias", "alias": "y\0"}], "name": "Bad"},
        {"rules": [{"type": "alias"}], "name": "Bad"},
        {"rules": [], "name": " "},
        {"rules": []},
    ],
)
def test_an_invalid_dictionary_is_rejected(body: dict[str, Any], client: httpx.Client) -> None:
    assert client.post(f"{DICTIONARIES}/add-from-rules", content=json.dumps(body)).status_code in (400, 422)


def test_a_key_sees_only_its_own_dictionaries(engine: PausableEngine, tmp_path: Path) -> None:
    with serving(engine, Settings(api_keys=list(KEYS), voices_dir=tmp_path)) as server:
        first, second = (server.client(headers={"xi-api-key": key}) for key in KEYS)
        with first, second:
            path = f"{DICTIONARIES}/{add(first)['id']}"
            assert first.get(path).status_code == 200
            assert second.get(path).status_code == second.delete(path).status_code == 404
            assert second.get(DICTIONARIES).json()["pronunciation_dictionaries"] == []


def test_a_cloned_voice_speaks_in_a_dialogue(cloning: RunningServer, cloning_engine: PausableEngine) -> None:
    with cloning.client() as client:
        client.post("/v1/voices/add", data={"name": "Eva"}, files={"files": ("a.flac", recording())})
        turns = [{"text": "Hello.", "voice_id": "Eva"}]
        assert client.post("/v1/text-to-dialogue", json={"inputs": turns}).status_code == 200
    assert isinstance(cloning_engine.requests[-1].voice, ClonedVoice)
