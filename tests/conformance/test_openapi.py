"""schemathesis over the OpenAPI document: whatever it thinks of, there is an answer, and the engine lives."""

import base64
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from audio.signals import speech
from conformance.hearing import RATE
from conformance.serve import Served, served
from polyvox.audio import encode

EXAMPLES = 200  # of each operation that has so many, beside those that cover the schema
PATIENCE = 30.0  # seconds until an answer is taken for a hang
ALL = 600.0  # seconds of the whole run
# What a model can do, and which voices there are, no schema says; and an id may be called batch, so that the path of
# batches has a GET which its entry does not name.
LEFT_OUT = "positive_data_acceptance,allow_header_conformance"


@pytest.fixture(scope="module")
def speaking(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """On a tiny CustomVoice checkpoint: it says anything, quickly."""
    with served(tmp_path_factory.mktemp("library"), "--model", str(checkpoints / "custom_voice")) as running:
        yield running


@pytest.mark.parametrize("kind", ["speaking", "cloning"])
def test_every_operation_answers_whatever_it_is_asked(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server: Served = request.getfixturevalue(kind)
    events = tmp_path / "events.ndjson"
    line = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"]
    line += ["--max-examples", str(EXAMPLES), "--exclude-checks", LEFT_OUT, "--continue-on-failure", "--seed", "1"]
    line += ["--phases", "examples,coverage,fuzzing", "--request-timeout", str(PATIENCE), "--warnings", "off"]
    line += ["--report", "ndjson", "--report-ndjson-path", str(events)]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=ALL)
    answers = statuses(events)
    with capsys.disabled():
        print(f"\n{kind}: {answers.total()} requests, answers {dict(sorted(answers.items()))}")  # noqa: T201
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert answers.total() > 22 * EXAMPLES / 4
    assert all(status < 500 or status == 503 for status in answers)
    assert server.under_way() == 0
    with server.client() as client:
        assert client.get("/readyz").status_code == 200
        body: dict[str, object] = {"input": "Hello.", "max_new_tokens": 5}
        if kind == "cloning":
            body["ref_audio"] = base64.b64encode(encode(speech(2.0), RATE, "flac")).decode()
        assert client.post("/v1/audio/speech", json=body).status_code == 200
    assert server.failures() == []


def statuses(events: Path) -> Counter[int]:
    """How often each status came, by the report of the run."""
    return Counter(int(status) for status in re.findall(r'"status_code":(\d+)', events.read_text()))
