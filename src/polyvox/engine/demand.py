# SPDX-License-Identifier: Apache-2.0
"""What a request asks of admission control, before and after it is prepared."""

from dataclasses import dataclass

from polyvox.engine.stream_state import StreamState
from polyvox.models.request import Request


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks for."""

    live: bool
    continues: bool = False
    utterance_id: int = 0
    owner: str = ""
    num_bytes: int = 0  # of text, with the segments that follow
    fingerprint: int = 0
    num_pages: int = 0  # 0 before the request is prepared
    may_reserve: bool = True  # a rejection reserves the time to retry after

    @classmethod
    def of(cls, request: Request) -> "Demand":
        # The text is not validated yet.
        num_bytes = len(str(request.text).encode(errors="replace")) + request.following_bytes
        return cls(
            live=not request.whole_file,
            continues=request.segment > 0,
            utterance_id=request.utterance_id,
            owner=request.owner,
            num_bytes=num_bytes,
            fingerprint=request.fingerprint,
            may_reserve=request.may_reserve,
        )

    @classmethod
    def of_stream(cls, stream: StreamState, num_pages: int) -> "Demand":
        """Of a prepared request. num_pages: what it gets on admission."""
        return cls(
            live=stream.live,
            continues=stream.continues,
            utterance_id=stream.utterance_id,
            owner=stream.owner,
            num_bytes=stream.text_bytes + stream.following_bytes,
            fingerprint=stream.fingerprint,
            num_pages=num_pages,
            may_reserve=stream.may_reserve,
        )
