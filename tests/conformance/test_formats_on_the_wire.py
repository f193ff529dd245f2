"""What a listener can play of each format before the server has more: real sockets, an engine that is held back."""

from collections.abc import Iterator
from contextlib import suppress

import av.error
import pytest

from audio.signals import decoded
from ipc.fake_engine import CHUNK_SAMPLES, SAMPLE_RATE
from polyvox.audio.formats import FORMATS
from server.fakes import HeldEngine
from server.live_server import Serving, serving

SECONDS = CHUNK_SAMPLES / SAMPLE_RATE  # of a chunk
PUSHED = round(0.32 / SECONDS)  # chunks from one hold to the next
HOLDS = 5
PATIENCE = 20.0  # seconds until what has not come is taken for held back
# Seconds that may be missing: of AAC three frames, which are being filled, with the encoder and with the container.
BEHIND = {"m4a": 0.13}


@pytest.fixture
def engine() -> Iterator[HeldEngine]:
    engine = HeldEngine(allowed=PUSHED)
    yield engine
    engine.close()


@pytest.fixture
def held(engine: HeldEngine) -> Iterator[Serving]:
    with serving(engine, wait=False) as running:
        yield running


@pytest.mark.parametrize("format", FORMATS)
def test_of_320_ms_at_least_200_can_be_heard_before_the_next_push(
    format: str, engine: HeldEngine, held: Serving
) -> None:
    body = {"input": "Hello.", "response_format": format, "seed": 7, "max_new_tokens": HOLDS * PUSHED}
    rate = FORMATS[format].rate_for(SAMPLE_RATE)
    heard, seconds = b"", 0.0
    with (
        held.client() as client,
        client.stream("POST", "/v1/audio/speech", json=body, timeout=PATIENCE) as answer,
    ):
        assert answer.status_code == 200
        parts = answer.iter_raw()
        for hold in range(1, HOLDS):
            least = max(0.2, 0.32 * hold - BEHIND.get(format, 0.12))
            while seconds < least:  # no end of the body and no more of it: a ReadTimeout
                heard += next(parts)
                with suppress(av.error.EOFError, av.error.InvalidDataError):  # a header, a frame of mp3
                    back, found = decoded(heard, format, rate)
                    seconds = len(back) / found
            assert engine.streams == 1
            engine.let_go(PUSHED * (hold + 1))
        heard += b"".join(parts)
    back, found = decoded(heard, format, rate)
    assert len(back) / found == pytest.approx(0.32 * HOLDS, abs=0.13)
