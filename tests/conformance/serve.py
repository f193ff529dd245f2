"""`polyvox serve` as a process of its own, what it tells while it runs, and one-shot speech from it to compare with."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from ipc.engine_processes import eventually
from polyvox.audio.clip import Samples

TIMEOUT = 120.0  # of one request, on a machine that may be busy


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    told: list[str]  # its lines on stderr
    once: dict[str, Samples] = field(default_factory=dict)  # what it was asked in one shot

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=TIMEOUT, trust_env=False, **more)

    def said(self) -> list[dict[str, Any]]:
        """The utterances that have ended, as its log tells them."""
        lines = [json.loads(line) for line in list(self.told) if line.startswith("{")]
        return [line for line in lines if line.get("message") == "said"]

    def failures(self) -> list[str]:
        """What its log has of errors."""
        lines = [line for line in list(self.told) if line.startswith("{")]
        return [line for line in lines if json.loads(line).get("level") in ("error", "critical")]

    def metric(self, name: str) -> float:
        with self.client() as client:
            found = re.search(rf"^{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)
        assert found, f"{name} is not among the metrics"
        return float(found[1])

    def under_way(self) -> int:
        """Utterances that have begun and not ended."""
        return round(self.metric("polyvox_streams_active"))

    def one_shot(self, text: str, seed: int, **fields: Any) -> Samples:
        """The whole utterance as samples, from one plain request, which is made once."""
        body = {"input": text, "seed": seed, "response_format": "pcm", "stream": False, **fields}
        asked = json.dumps(body, sort_keys=True)
        if asked not in self.once:
            with self.client() as client:
                answer = client.post("/v1/audio/speech", json=body)
            assert answer.status_code == 200, answer.text
            self.once[asked] = np.frombuffer(answer.content, "<i2").astype(np.float32) / np.float32(32768)
        return self.once[asked]


@contextmanager
def served(voices: Path, *arguments: str) -> Iterator[Served]:
    """A server on loopback that can speak; it must end in good order."""
    line = [sys.executable, "-m", "polyvox", "serve", "--port", "0", "--device", "cpu", *arguments]
    environment = {**os.environ, "POLYVOX_LOG_FORMAT": "json", "POLYVOX_VOICES": str(voices)}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
        told: list[str] = []
        places: list[str] = []

        def listen() -> None:
            assert process.stderr is not None
            for text in process.stderr:
                told.append(text)
                if place := re.search(r"Listening on (http://[\d.]+:\d+)", text):
                    places.append(place[1])

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            eventually(lambda: bool(places) or process.poll() is not None or threading.Event().wait(0.05))
            assert places, "".join(told)
            with httpx.Client(base_url=places[0], timeout=TIMEOUT, trust_env=False) as client:
                eventually(lambda: client.get("/readyz").status_code == 200 or threading.Event().wait(0.05))
            yield Served(places[0], told)
        finally:
            process.terminate()
            code = process.wait(TIMEOUT)
            thread.join()
        assert code == 0, "".join(told[-50:])
