# SPDX-License-Identifier: Apache-2.0
"""Clients of an engine in random operations: their requests, and what their readers received."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from engine.stepped_engine import Injected
from polyvox.audio.samples import Samples
from polyvox.engine.interface import Chunk, Result, Stream
from polyvox.engine.stream import LocalStream
from polyvox.models.request import Request, Sampling

# Longer than the codes ring (32 frames) and the buffer, so that both wrap.
MAX_FRAMES = 36
TEXTS = ("a", "on and on it goes, the line", "the other assistant, the other user, on and on it goes")
VOICES = ("serena", "vivian")
SAMPLINGS = {False: Sampling(), True: Sampling(temperature=0, predictor_temperature=0)}  # greedy?

Reader = Literal["none", "takes", "cancels", "raises", "raises at the end"]
READERS = st.sampled_from(["none", "none", "none", "takes", "cancels", "raises", "raises at the end"])
REQUEST_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(TEXTS),
    "voice": st.sampled_from(VOICES),
    "seed": st.integers(0, 1),
    "greedy": st.booleans(),
    "frames": st.sampled_from([MAX_FRAMES, MAX_FRAMES, 20, 7, 1]),
    "whole_file": st.sampled_from([False, False, False, True]),
    "first_chunk": st.sampled_from([None, 1, 5, 16]),
    "trim_silence": st.booleans(),
    "reader": READERS,
}
SUBMITTED = st.fixed_dictionaries(
    {
        **REQUEST_FIELDS,
        "layout": st.sampled_from(["whole", "streaming"]),
        "unassignable": st.sampled_from([False] * 7 + [True]),
    }
)
LIVE = st.fixed_dictionaries({**REQUEST_FIELDS, "first": st.integers(0, 30)})  # characters at once


def cut_short(result: Result | None) -> bool:
    return result is not None and result.finish_reason in ("cancelled", "error")


def one_of(some: list["Client"], pick: int) -> "Client | None":
    return some[pick % len(some)] if some else None


@dataclass(eq=False)
class Client:
    """A stream, its request, and the chunks that its reader received."""

    wanted: Request  # with the complete text and its layout
    reader: Reader
    left: str = ""  # text that is not appended yet
    stream: LocalStream = field(init=False)
    received: list[Chunk] = field(default_factory=list)
    causes: set[str] = field(default_factory=set)
    end: Result | None = None

    def take(self, max_chunks: int = 1_000) -> None:
        self.receive(self.stream.take(max_chunks))

    def receive(self, chunks: list[Chunk]) -> None:
        assert not (chunks and self.received and self.received[-1].final), "a chunk after the final one"
        self.received += chunks
        indices = [chunk.index for chunk in self.received]
        assert indices == list(range(len(indices)))
        assert not any(chunk.final for chunk in self.received[:-1])

    def on_ready(self, streams: Sequence[Stream]) -> None:
        """The on_ready callback of the stream."""
        (stream,) = streams
        if self.reader == "raises" or (self.reader == "raises at the end" and stream.result is not None):
            self.causes.add("cancel")
            raise Injected("reader")
        self.receive(stream.take(1_000))
        if self.reader == "cancels" and self.received:
            self.causes.add("cancel")
            stream.cancel()

    @property
    def samples(self) -> Samples:
        return np.concatenate([np.zeros(0, np.float32), *(chunk.samples for chunk in self.received)])
