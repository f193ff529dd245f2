# SPDX-License-Identifier: Apache-2.0
"""`polyvox serve` as a process: its log, its metrics, and one-shot requests to compare streams with."""

import json
import os
import re
import ssl
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
from polyvox.audio.samples import Samples

TIMEOUT = 120.0  # of one request, on a machine that may be busy


@dataclass(frozen=True, slots=True)
class ServerProcess:
    url: str
    log_lines: list[str]
    one_shots: dict[str, Samples] = field(default_factory=dict)  # by request
    verify: ssl.SSLContext | bool = True

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=TIMEOUT, trust_env=False, verify=self.verify, **options)

    def finished_requests(self) -> list[dict[str, Any]]:
        """The log records of utterances that have ended."""
        return [record for record in self._records() if "finish_reason" in record]

    def errors(self) -> list[dict[str, Any]]:
        """The log records of level error and above."""
        return [record for record in self._records() if record.get("level") in ("error", "critical")]

    def _records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.log_lines) if line.startswith("{")]

    def metric(self, name: str) -> float:
        with self.client() as client:
            found = re.search(rf"^{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)
        assert found, f"no metric {name}"
        return float(found[1])

    def active_streams(self) -> int:
        """Utterances that have begun and not ended."""
        return round(self.metric("polyvox_streams_active"))

    def one_shot(self, text: str, seed: int, **fields: Any) -> Samples:
        """The samples of the utterance from one non-streaming request, cached."""
        body = {"input": text, "seed": seed, "response_format": "pcm", "stream": False, **fields}
        key = json.dumps(body, sort_keys=True)
        if key not in self.one_shots:
            with self.client() as client:
                response = client.post("/v1/audio/speech", json=body)
            assert response.status_code == 200, response.text
            self.one_shots[key] = np.frombuffer(response.content, "<i2").astype(np.float32) / np.float32(32768)
        return self.one_shots[key]


@contextmanager
def run_server(voices: Path, *arguments: str, verify: ssl.SSLContext | bool = True) -> Iterator[ServerProcess]:
    """Start a server on loopback and wait until it is ready. It must exit with 0 on SIGTERM.

    verify: how clients check its certificate.
    """
    command = [sys.executable, "-m", "polyvox", "serve", "--port", "0", "--device", "cpu", *arguments]
    environment = {**os.environ, "POLYVOX_LOG_FORMAT": "json", "POLYVOX_VOICES_DIR": str(voices)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        log_lines: list[str] = []
        urls: list[str] = []

        def read_log() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                log_lines.append(line)
                if url := re.search(r"(?i)listening.*?(https?://[\d.]+:\d+)", line):
                    urls.append(url[1])

        thread = threading.Thread(target=read_log)
        thread.start()
        try:
            eventually(lambda: bool(urls) or process.poll() is not None or threading.Event().wait(0.05))
            assert urls, "".join(log_lines)
            with httpx.Client(base_url=urls[0], timeout=TIMEOUT, trust_env=False, verify=verify) as client:
                eventually(lambda: client.get("/readyz").status_code == 200 or threading.Event().wait(0.05))
            yield ServerProcess(urls[0], log_lines, verify=verify)
        finally:
            process.terminate()
            code = process.wait(TIMEOUT)
            thread.join()
        assert code == 0, "".join(log_lines[-50:])
