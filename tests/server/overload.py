"""More who ask than can be served, as they come in life: at random moments, whoever was answered before."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

LOAD = 4  # times what can be served
SECONDS_PER_BYTE = 0.072  # of speech
SAMPLE_BYTES = 2 * 24_000  # of a second
PLAYER_SECONDS = 0.1  # that a player gathers before it begins
TEXTS = (
    "Hello there, how are you today?",
    "The train to the coast leaves at ten. Please have your tickets ready.",
    "Of course. I have moved the meeting to Thursday, and told the others.",
)


def rate_of(capacity: float) -> float:
    """Requests a second that ask for so many times what an engine keeps fed."""
    spoken = SECONDS_PER_BYTE * sum(map(len, TEXTS)) / len(TEXTS)
    return LOAD * capacity / spoken


@dataclass(slots=True)
class Answer:
    """What one client had of the server."""

    sent: float
    status: int = 0
    answered: float = 0.0  # when the status came
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when, and how many bytes
    whole: bool = False

    @property
    def latency(self) -> float:
        return self.answered - self.sent

    @property
    def stalls(self) -> int:
        """Times that a player of little patience ran dry."""
        until, count = 0.0, 0
        for when, size in self.arrivals:
            if until and when > until:
                count += 1
            until = max(until, when + (0.0 if until else PLAYER_SECONDS)) + size / SAMPLE_BYTES
        return count


async def ask(port: int, text: str, seed: int) -> Answer:
    answer = Answer(time.monotonic())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = json.dumps({"input": text, "response_format": "pcm", "seed": seed}).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        told = await reader.readuntil(b"\r\n\r\n")
        answer.answered, answer.status = time.monotonic(), int(told.split(b" ", 2)[1])
        end = b""
        while part := await reader.read(1 << 16):
            answer.arrivals.append((time.monotonic(), len(part)))
            end = (end + part)[-5:]
        answer.whole = end == b"0\r\n\r\n"
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return answer


async def flood(port: int, rate: float, seconds: float, seed: int = 0) -> list[Answer]:
    """So many a second, for so long; and then all of them to their end."""
    chance = random.Random(seed)
    asking: list[asyncio.Task[Answer]] = []
    due = end = time.monotonic()
    end += seconds
    while (due := due + chance.expovariate(rate)) < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asking.append(asyncio.create_task(ask(port, chance.choice(TEXTS), len(asking))))
    return await asyncio.gather(*asking)


@dataclass(frozen=True, slots=True)
class Flooded:
    """What came of it."""

    admitted: list[Answer]
    refused: list[Answer]

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "Flooded":
        assert {answer.status for answer in answers} <= {200, 503}
        assert all(answer.whole for answer in answers if answer.status == 200)
        refused = sorted((answer for answer in answers if answer.status == 503), key=lambda answer: answer.latency)
        return cls([answer for answer in answers if answer.status == 200], refused)

    def refusal(self, share: float) -> float:
        """Seconds in which this share of the refused had their answer."""
        return self.refused[round(share * (len(self.refused) - 1))].latency

    @property
    def stalls(self) -> int:
        return sum(answer.stalls for answer in self.admitted)

    def told(self) -> str:
        p50, p95, worst = (f"{1e3 * self.refusal(share):.0f}" for share in (0.5, 0.95, 1.0))
        first = sorted(answer.latency for answer in self.admitted)
        waits = f"first sound p50 {first[len(first) // 2]:.2f} s, max {first[-1]:.2f} s"
        return (
            f"admitted {len(self.admitted)} ({waits}), refused {len(self.refused)} "
            f"(p50 {p50} ms, p95 {p95} ms, max {worst} ms), stalls of players {self.stalls}"
        )
