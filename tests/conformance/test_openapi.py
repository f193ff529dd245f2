# SPDX-License-Identifier: Apache-2.0
"""schemathesis on the OpenAPI document: every generated request gets a valid response, and the engine survives."""

import base64
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from audio.signals import speech
from conformance.capture import SAMPLE_RATE
from conformance.server_process import ServerProcess, run_server
from polyvox.audio import encode

# Per operation at most, besides those that cover the schema.
EXAMPLES = int(os.environ.get("OPENAPI_EXAMPLES", "200"))
REQUEST_TIMEOUT = 30.0  # seconds
RUN_TIMEOUT = 1500.0  # seconds
# The schema cannot express model capabilities and voices; and as a request id may be "batch", the path of batches
# also answers GET, which its entry does not list.
EXCLUDED_CHECKS = "positive_data_acceptance,allow_header_conformance"


@pytest.fixture(scope="module")
def speaking(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on a tiny CustomVoice checkpoint, which is fast."""
    with run_server(tmp_path_factory.mktemp("library"), "--model", str(checkpoints / "custom_voice")) as running:
        yield running


@pytest.mark.parametrize("kind", ["speaking", "cloning"])
def test_every_operation_handles_generated_requests(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server: ServerProcess = request.getfixturevalue(kind)
    events = tmp_path / "events.ndjson"
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"]
    command += [
        "--max-examples",
        str(EXAMPLES),
        "--exclude-checks",
        EXCLUDED_CHECKS,
        "--continue-on-failure",
        "--seed",
        "1",
    ]
    command += ["--phases", "examples,coverage,fuzzing", "--request-timeout", str(REQUEST_TIMEOUT), "--warnings", "off"]
    command += ["--report", "ndjson", "--report-ndjson-path", str(events)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_TIMEOUT)
    responses = statuses(events)
    with capsys.disabled():
        print(f"\n{kind}: {responses.total()} requests, statuses {dict(sorted(responses.items()))}")  # noqa: T201
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert responses.total() > 49 * EXAMPLES / 4
    assert all(status < 500 or status == 503 for status in responses)
    assert server.active_streams() == 0
    with server.client() as client:
        assert client.get("/readyz").status_code == 200
        body: dict[str, object] = {"input": "Hello.", "max_new_tokens": 5}
        if kind == "cloning":
            body["ref_audio"] = base64.b64encode(encode(speech(2.0), SAMPLE_RATE, "flac")).decode()
        assert client.post("/v1/audio/speech", json=body).status_code == 200
    assert server.errors() == []


def statuses(events: Path) -> Counter[int]:
    """The count of each status in the report."""
    return Counter(int(status) for status in re.findall(r'"status_code":(\d+)', events.read_text()))
