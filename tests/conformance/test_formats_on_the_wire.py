# SPDX-License-Identifier: Apache-2.0
"""How much of each format a client can decode while the engine is paused, over real sockets."""

from collections.abc import Iterator
from contextlib import suppress

import av.error
import pytest

from audio.signals import decoded
from ipc.fake_engine import CHUNK_SAMPLES, SAMPLE_RATE
from polyvox.audio.formats import FORMATS
from server.fakes import PausableEngine
from server.live_server import RunningServer, serving

SECONDS = CHUNK_SAMPLES / SAMPLE_RATE  # of a chunk
PUSHED = round(0.32 / SECONDS)  # chunks from one pause to the next
PAUSES = 5
READ_TIMEOUT = 20.0  # seconds after which missing data counts as buffered by the server
# Seconds that may be missing. AAC: three frames, one being filled, one in the encoder and one in the container.
MAX_DELAY = {"m4a": 0.13}


@pytest.fixture
def engine() -> Iterator[PausableEngine]:
    engine = PausableEngine(max_chunks=PUSHED)
    yield engine
    engine.close()


@pytest.fixture
def paused_server(engine: PausableEngine) -> Iterator[RunningServer]:
    with serving(engine, wait=False) as running:
        yield running


@pytest.mark.parametrize("format", FORMATS)
def test_of_320_ms_at_least_200_can_be_decoded_before_the_next_push(
    format: str, engine: PausableEngine, paused_server: RunningServer
) -> None:
    body = {"input": "Hello.", "response_format": format, "seed": 7, "max_new_tokens": PAUSES * PUSHED}
    rate = FORMATS[format].rate_for(SAMPLE_RATE)
    received, seconds = b"", 0.0
    with (
        paused_server.client() as client,
        client.stream("POST", "/v1/audio/speech", json=body, timeout=READ_TIMEOUT) as response,
    ):
        assert response.status_code == 200
        chunks = response.iter_raw()
        for pause in range(1, PAUSES):
            min_seconds = max(0.2, 0.32 * pause - MAX_DELAY.get(format, 0.12))
            while seconds < min_seconds:  # raises ReadTimeout if no more data arrives
                received += next(chunks)
                with suppress(av.error.EOFError, av.error.InvalidDataError):  # only a header, or part of an mp3 frame
                    samples, decoded_rate = decoded(received, format, rate)
                    seconds = len(samples) / decoded_rate
            assert engine.streams == 1
            engine.resume(PUSHED * (pause + 1))
        received += b"".join(chunks)
    samples, decoded_rate = decoded(received, format, rate)
    assert len(samples) / decoded_rate == pytest.approx(0.32 * PAUSES, abs=0.13)
