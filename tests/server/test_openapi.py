"""The OpenAPI document: nothing in it leads nowhere, and what is read by hand is told."""

import json
import re
from contextlib import closing
from typing import Any

import pytest

from polyvox.audio.formats import FORMATS
from polyvox.server.api.elevenlabs import TextToSpeech
from polyvox.server.api.openai import Speech
from polyvox.server.api.voices import NewVoice
from polyvox.server.app import create_app
from server.fakes import HeldEngine


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    with closing(HeldEngine()) as engine:
        return create_app(engine).openapi()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)))
    assert references
    for reference in references:
        place = document
        for part in reference.split("/"):
            place = place[part]


def test_every_body_is_told_and_every_refusal(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    for operation in operations:
        assert {"4XX", "503"} <= set(operation["responses"])
        assert "422" not in operation["responses"]  # FastAPI's own, which is never sent
    posts = {name: path["post"] for name, path in document["paths"].items() if "post" in path}
    for model, name in ((Speech, "/v1/audio/speech"), (TextToSpeech, "/v1/text-to-speech/{voice_id}/stream")):
        told = posts[name]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert set(told) == set(model.model_fields)
    kinds = posts["/v1/audio/voices"]["requestBody"]["content"]
    for kind in ("application/json", "multipart/form-data"):
        assert set(kinds[kind]["schema"]["properties"]) == set(NewVoice.model_fields)
    assert all("requestBody" in operation for operation in posts.values())


def test_every_kind_of_sound_is_told_and_so_are_events(document: dict[str, Any]) -> None:
    told = set(document["paths"]["/v1/audio/speech"]["post"]["responses"]["200"]["content"])
    assert told == {entry.media_type for entry in FORMATS.values()} | {"text/event-stream"}
