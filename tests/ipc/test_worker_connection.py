"""One server's link to an engine: what is taken, what waits for the ring, and that an end comes with its chunk."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ipc.engine_processes import TIMEOUT, eventually, request
from ipc.fake_engine import CHUNK_SAMPLES, FakeEngine, FakeStream
from polyvox.engine.interface import Chunk, Stream
from polyvox.ipc import messages
from polyvox.ipc.audio_ring import AudioRing, shared_file
from polyvox.ipc.worker import WorkerConnection
from polyvox.models.request import Request

RING = 40 * CHUNK_SAMPLES


class FullStream(FakeStream):
    """Has all its chunks from the start, so nothing is told of it later; a take may be held up."""

    def __init__(self, engine: "FullEngine", asked: Request) -> None:
        super().__init__(engine, asked, None)
        self._meeting = engine
        with engine.work:
            while self.result is None:
                self.step()

    def take(self, most: int) -> list[Chunk]:
        if self._meeting.meets and most:
            self._meeting.meets = False
            self._meeting.collecting.set()
            assert self._meeting.asked.wait(TIMEOUT)
        return super().take(most)


class FullEngine(FakeEngine):
    """Lets a stream be taken from only once the hearing thread has come to a question for stats."""

    def __init__(self) -> None:
        super().__init__()
        self.meets = False
        self.collecting, self.asked = threading.Event(), threading.Event()

    def stats(self) -> dict[str, float]:
        self.asked.set()
        return super().stats()

    def submit(self, request: Request, on_ready: Callable[[FakeStream], None] | None = None) -> FakeStream:  # noqa: ARG002
        return FullStream(self, request)


@contextmanager
def linked(engine: FakeEngine, ring_samples: int) -> Iterator[tuple[WorkerConnection, messages.MessageChannel]]:
    """A link, and the wire of the server at its other end, which takes nothing from the ring by itself."""
    here, there = socket.socketpair()
    file = shared_file(ring_samples)
    link = WorkerConnection(engine, messages.MessageChannel(here, TIMEOUT), AudioRing(file), TIMEOUT)
    server = messages.MessageChannel(there, TIMEOUT)
    os.close(file)
    there.settimeout(TIMEOUT / 4)  # the link is looked at again when its patience ends
    try:
        yield link, server
    finally:
        link.close()
        server.close()
        engine.close()


def heard_by(server: messages.MessageChannel) -> messages.Wakeup:
    wakeup = server.receive()
    assert isinstance(wakeup, messages.Wakeup)
    return wakeup


def test_credit_that_comes_while_a_stream_is_collected_is_not_overlooked() -> None:
    engine = FullEngine()
    pieces: list[messages.Piece] = []
    with linked(engine, RING) as (_, server):

        def hear_until(count: int) -> None:
            while len(pieces) < count:
                pieces.extend(heard_by(server).pieces)

        server.send(messages.Submit(0, request(1, chunks=6), credit=2))
        hear_until(2)
        engine.meets = True
        server.send(messages.Taken(0, {0: 2}))  # these are being collected
        assert engine.collecting.wait(TIMEOUT)
        server.send(messages.Taken(0, {0: 2}))  # while these come
        server.send(messages.AskStats(1))
        hear_until(6)
    assert [piece.number for piece in pieces] == list(range(6))


def test_a_final_chunk_and_its_end_come_together_however_full_the_ring_is() -> None:
    """Several streams that end at once, and room for less than all of them."""
    with linked(FullEngine(), 3 * CHUNK_SAMPLES) as (link, server):
        for id in range(4):
            server.send(messages.Submit(id, request(id, chunks=2), credit=0))
        replies = 0
        while replies < 4:
            replies += len(heard_by(server).replies)
        server.send(messages.Taken(0, dict.fromkeys(range(4), 2)))  # all are ready in one look
        ended: set[int] = set()
        numbers: dict[int, list[int]] = {id: [] for id in range(4)}
        position = 0
        while len(ended) < 4:
            wakeup = heard_by(server)
            for piece in wakeup.pieces:
                numbers[piece.id].append(piece.number)
                position += piece.samples
            finals = {piece.id for piece in wakeup.pieces if piece.final}
            assert finals == set(wakeup.ended)
            ended |= finals
            server.send(messages.Taken(position, {}))
        assert all(seen == [0, 1] for seen in numbers.values())
        assert not link._deliveries


class HeldEngine(FakeEngine):
    """Can be stopped before chunks are taken from its streams."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = False
        self.stopped, self.goes_on = threading.Event(), threading.Event()

    def take_all(self, wanted: Sequence[tuple[Stream, int]]) -> list[list[Chunk]]:
        if self.stops and any(most for _, most in wanted):
            self.stops = False
            self.stopped.set()
            assert self.goes_on.wait(TIMEOUT)
        return super().take_all(wanted)


def test_a_text_that_is_refused_while_its_stream_is_collected_says_why() -> None:
    engine = HeldEngine()
    with linked(engine, RING) as (link, server):
        server.send(messages.Submit(0, Request("one", seed=1, live=True), credit=8))
        while not heard_by(server).pieces:
            pass
        engine.stops = True
        server.send(messages.Append(0, "two"))
        assert engine.stopped.wait(TIMEOUT)
        delivery = link._deliveries[0]
        server.send(messages.Append(0, "impossible"))
        eventually(
            lambda: delivery.failure is not None and delivery.stream is not None and bool(delivery.stream.result)
        )
        engine.goes_on.set()
        while not (wakeup := heard_by(server)).ended:
            pass
    assert wakeup.ended[0].finish_reason == "error"
    assert "impossible" in str(wakeup.ended[0].error)


def test_an_answer_does_not_wait_for_a_ring_that_is_full() -> None:
    with linked(FakeEngine(), 2 * CHUNK_SAMPLES) as (link, server):

        def full() -> bool:
            time.sleep(0.05)  # and the sending thread waits
            return bool(link._held and link._ready)

        for id in (0, 1):  # the ring is full of the first, and the second is ready
            server.send(messages.Submit(id, request(id, chunks=20), credit=4))
        eventually(full)
        server.send(messages.AskStats(2))
        replies: dict[int, messages.Reply] = {}
        while 2 not in replies:
            replies |= heard_by(server).replies
