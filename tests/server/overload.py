# SPDX-License-Identifier: Apache-2.0
"""An open-loop load above the capacity: requests arrive at random times, whatever was answered before."""

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

LOAD = 4  # times the capacity
SECONDS_PER_BYTE = 0.072  # of speech
SAMPLE_BYTES = 2 * 24_000  # of a second
SENTENCES = (
    "Hello there, how are you today?",
    "The train to the coast leaves at ten.",
    "Please have your tickets ready before we arrive.",
    "I have moved the meeting to Thursday.",
)
PLAYER_SECONDS = 0.1  # of audio that a player buffers before it starts
TEXTS = (
    "Hello there, how are you today?",
    "The train to the coast leaves at ten. Please have your tickets ready.",
    "Of course. I have moved the meeting to Thursday, and body the others.",
)


def texts_of(num_sentences: int) -> tuple[str, ...]:
    """Texts of this many sentences."""
    return tuple(" ".join(SENTENCES[(first + i) % len(SENTENCES)] for i in range(num_sentences)) for first in range(4))


def rate_of(capacity: float, load: float = LOAD, texts: Sequence[str] = TEXTS) -> float:
    """Requests per second that are `load` times the capacity of an engine."""
    spoken = SECONDS_PER_BYTE * sum(map(len, texts)) / len(texts)
    return load * capacity / spoken


@dataclass(slots=True)
class Answer:
    """The response to one client."""

    sent: float
    status: int = 0
    answered: float = 0.0  # when the status came
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when, and how many bytes
    whole: bool = False
    retry_after: int = 0  # seconds, if the request was rejected
    retried: "Answer | None" = None  # the response when the request was sent again

    @property
    def latency(self) -> float:
        return self.answered - self.sent

    @property
    def stalls(self) -> int:
        """Underruns of a player with a buffer of PLAYER_SECONDS."""
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
        head_bytes = await reader.readuntil(b"\r\n\r\n")
        answer.answered, answer.status = time.monotonic(), int(head_bytes.split(b" ", 2)[1])
        if found := re.search(rb"\r\nretry-after: (\d+)\r\n", head_bytes.lower()):
            answer.retry_after = int(found[1])
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


async def ask_twice(port: int, text: str, seed: int) -> Answer:
    """Sends a rejected request again at its time."""
    answer = await ask(port, text, seed)
    if answer.status == 503:
        await asyncio.sleep(answer.retry_after)
        answer.retried = await ask(port, text, seed)
    return answer


async def flood(
    port: int, rate: float, seconds: float, seed: int = 0, texts: Sequence[str] = TEXTS, retries: bool = False
) -> list[Answer]:
    """Sends `rate` requests per second for a while, then waits for all of them."""
    send = ask_twice if retries else ask
    chance = random.Random(seed)
    asking: list[asyncio.Task[Answer]] = []
    due = end = time.monotonic()
    end += seconds
    while (due := due + chance.expovariate(rate)) < end:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asking.append(asyncio.create_task(send(port, chance.choice(texts), len(asking))))
    return await asyncio.gather(*asking)


@dataclass(frozen=True, slots=True)
class Flooded:
    """The responses, by status."""

    admitted: list[Answer]
    rejected: list[Answer]

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "Flooded":
        assert {answer.status for answer in answers} <= {200, 503}
        assert all(answer.whole for answer in answers if answer.status == 200)
        rejected = sorted((answer for answer in answers if answer.status == 503), key=lambda answer: answer.latency)
        return cls([answer for answer in answers if answer.status == 200], rejected)

    def rejection_latency(self, share: float) -> float:
        """Seconds in which this share of the rejected had their answer."""
        return self.rejected[round(share * (len(self.rejected) - 1))].latency

    @property
    def stalls(self) -> int:
        return sum(answer.stalls for answer in self.admitted)

    def in_time(self, seconds: float) -> float:
        """Share of the admitted, at once or when they were sent again, that had their first audio within this time."""
        retried = [answer.retried for answer in self.rejected if answer.retried is not None]
        admitted = self.admitted + [answer for answer in retried if answer.status == 200]
        return sum(answer.latency <= seconds for answer in admitted) / max(len(admitted), 1)

    @property
    def retries_admitted(self) -> float:
        """Share of the rejected that were admitted when they were sent again."""
        retried = [answer.retried for answer in self.rejected if answer.retried is not None]
        return sum(answer.status == 200 for answer in retried) / max(len(retried), 1)

    def summary(self) -> str:
        p50, p95, worst = (f"{1e3 * self.rejection_latency(share):.0f}" for share in (0.5, 0.95, 1.0))
        first = sorted(answer.latency for answer in self.admitted)
        waits = f"first sound p50 {first[len(first) // 2]:.2f} s, max {first[-1]:.2f} s"
        return (
            f"admitted {len(self.admitted)} ({waits}), rejected {len(self.rejected)} "
            f"(p50 {p50} ms, p95 {p95} ms, max {worst} ms), stalls of players {self.stalls}"
        )
