# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: nothing in it leads nowhere, and what is read by hand is body."""

import json
import re
from contextlib import closing
from typing import Any

import pytest

from polyvox.audio.formats import FORMATS
from polyvox.server.api.elevenlabs import TextToSpeechRequest
from polyvox.server.api.openai import SpeechRequest
from polyvox.server.api.voices import VoiceUpload
from polyvox.server.app import create_app
from polyvox.server.server_process import connect_local
from server.fakes import PausableEngine


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    with closing(PausableEngine()) as engine:
        return create_app(connect_local(engine)).openapi()


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)))
    assert references
    for reference in references:
        node = document
        for part in reference.split("/"):
            node = node[part]


def test_every_request_body_and_every_error_is_described(document: dict[str, Any]) -> None:
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    for operation in operations:
        assert {"4XX", "503"} <= set(operation["responses"])
        assert "422" not in operation["responses"]  # FastAPI's own format, which is never sent
    posts = {name: path["post"] for name, path in document["paths"].items() if "post" in path}
    assert all("requestBody" in operation for operation in posts.values())
    schemas = document["components"]["schemas"]
    for model, name in (
        (SpeechRequest, "/v1/audio/speech"),
        (TextToSpeechRequest, "/v1/text-to-speech/{voice_id}/stream"),
    ):
        reference = posts[name]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{model.__name__}"
        properties = schemas[model.__name__]["properties"]
        assert set(properties) == set(model.model_fields)
        assert all(
            {"type": "null"} in field["anyOf"] for key, field in properties.items() if key not in ("input", "text")
        )
    kinds = posts["/v1/audio/voices"]["requestBody"]["content"]
    for kind in ("application/json", "multipart/form-data"):
        assert set(kinds[kind]["schema"]["properties"]) == set(VoiceUpload.model_fields)


def test_every_audio_format_and_event_streams_are_described(document: dict[str, Any]) -> None:
    body = set(document["paths"]["/v1/audio/speech"]["post"]["responses"]["200"]["content"])
    assert body == {entry.media_type for entry in FORMATS.values()} | {"text/event-stream"}
