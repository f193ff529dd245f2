# SPDX-License-Identifier: Apache-2.0
"""The messages between a server process and the engine's process, and their encoding.

MessagePack, decoded strictly into these types: decoding cannot run code. Audio travels through the `AudioRing`.
"""

import math
from typing import Annotated, Any, TypeAlias, get_args

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from polyvox import errors
from polyvox.engine.interface import FirstChunkTimes, Result
from polyvox.errors import NOT_SHOWN, InvalidRequest, Overloaded, OverloadReason, PolyvoxError
from polyvox.models.info import ModelInfo
from polyvox.models.request import ClonedVoice, Request

MAX_MESSAGE_BYTES = 64 << 20  # 11 minutes of a recording at 24 kHz
MAX_CREDIT = 1 << 20
MAX_KEY_LENGTH = 256
MAX_ARRAY_DIMENSIONS = 2

Id: TypeAlias = Annotated[int, Meta(ge=0)]
Limit: TypeAlias = Annotated[int, Meta(ge=0)]  # of a setting without an upper bound
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_CREDIT)]
Key: TypeAlias = Annotated[str, Meta(max_length=MAX_KEY_LENGTH)]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base class. `id` numbers the streams and calls of one connection."""


# From a server


class Submit(Message, frozen=True):
    """request: an encoded `Request`. It is decoded apart, so that an invalid one is rejected by a reply."""

    id: Id
    request: msgspec.Raw
    credit: Count  # chunks that the engine may send before the reader has consumed any


class GetStats(Message, frozen=True):
    id: Id


class GetInfo(Message, frozen=True):
    id: Id


class Clone(Message, frozen=True):
    id: Id
    samples: NDArray[np.float32]
    transcript: str | None


class AppendText(Message, frozen=True):
    id: Id
    text: str


class AppendRows(Message, frozen=True):
    id: Id
    rows: NDArray[np.float32]
    last: bool


class AppendTokens(Message, frozen=True):
    id: Id
    tokens: list[int]  # the model checks them, so that invalid ones end their stream only


class FinishText(Message, frozen=True):
    id: Id


class Cancel(Message, frozen=True):
    id: Id


class Consumed(Message, frozen=True):
    """The ring is copied up to a position, and readers have consumed chunks of their streams."""

    position: Id
    chunks: dict[Id, Count]


class AcquireKey(Message, frozen=True):
    id: Id
    key: Key
    limit: Limit


class ReleaseKey(Message, frozen=True):
    key: Key


class RestoreKeys(Message, frozen=True):
    """Counts that a server holds: of a restarted engine, or admitted by another replica."""

    counts: dict[Key, Count]


ServerMessage = (
    Submit
    | GetStats
    | GetInfo
    | Clone
    | AppendText
    | AppendRows
    | AppendTokens
    | FinishText
    | Cancel
    | Consumed
    | AcquireKey
    | ReleaseKey
    | RestoreKeys
)


# From the engine


class SubmitReply(Message, frozen=True):
    id: Id
    seed: int


class StatsReply(Message, frozen=True):
    id: Id
    stats: dict[str, int | float]


class InfoReply(Message, frozen=True):
    id: Id
    info: ModelInfo


class CloneReply(Message, frozen=True):
    id: Id
    voice: ClonedVoice


class KeyReply(Message, frozen=True):
    id: Id
    key: Key
    acquired: bool


class ErrorReply(Message, frozen=True):
    id: Id
    error_type: str
    message: str
    field: str | None
    retry_after: float | None
    reason: OverloadReason | None = None

    @classmethod
    def of(cls, id: int, error: PolyvoxError) -> "ErrorReply":
        field, retry_after, reason = (getattr(error, name, None) for name in ("field", "retry_after", "reason"))
        return cls(id, type(error).__name__, str(error), field, retry_after, reason)

    def error(self) -> PolyvoxError:
        """The same error; a type that is not known here becomes a PolyvoxError."""
        found = getattr(errors, self.error_type, None)
        cls = found if isinstance(found, type) and issubclass(found, PolyvoxError) else PolyvoxError
        error = cls.__new__(cls, self.message)
        if isinstance(error, Overloaded):
            error.reason = self.reason
        for name in ("field", "retry_after"):
            if (value := getattr(self, name)) is not None:
                setattr(error, name, value)
        return error


Reply = SubmitReply | StatsReply | InfoReply | CloneReply | KeyReply | ErrorReply


class ChunkHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A chunk whose samples come next in the ring."""

    id: Id
    index: Id
    num_samples: Id
    final: bool
    times: FirstChunkTimes | None = None


class Update(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All news for one server: replies, chunks, results, to be applied in this order."""

    replies: list[Reply]
    chunks: list[ChunkHeader]
    results: dict[Id, Result]


# Arrays


class _WireArray(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[tuple[Id, ...], Meta(max_length=MAX_ARRAY_DIMENSIONS)]
    data: bytes


def _encode_array(value: object) -> _WireArray:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} cannot be encoded")
    return _WireArray(value.dtype.name, value.shape, value.tobytes())


def _decode_array(expected: type, value: object) -> NDArray[Any]:
    """expected: NDArray[scalar type], the only custom type of these messages."""
    try:
        array = msgspec.convert(value, _WireArray)
    except msgspec.ValidationError as error:
        raise ValueError("expected an array") from error
    (scalar,) = get_args(get_args(expected)[1])
    dtype = np.dtype(scalar)
    if array.dtype != dtype.name:
        raise ValueError(f"expected an array of {dtype.name}, got {array.dtype[:20]}")
    if math.prod(array.shape) * dtype.itemsize != len(array.data):
        raise ValueError(f"an array of shape {array.shape} does not have {len(array.data)} bytes")
    return np.frombuffer(array.data, dtype).reshape(array.shape).copy()  # writable, and aligned


# Encoding

_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_request_decoder = msgspec.msgpack.Decoder(Request, dec_hook=_decode_array)
server_decoder = msgspec.msgpack.Decoder(ServerMessage, dec_hook=_decode_array)
engine_decoder = msgspec.msgpack.Decoder(Update, dec_hook=_decode_array)


def encode(message: Message | Update | Request) -> bytes:
    """Raises InvalidRequest for a value that cannot be sent, such as text with half a surrogate pair."""
    try:
        data = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest("request", NOT_SHOWN, f"cannot be sent to the engine: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidRequest("request", NOT_SHOWN, f"must encode to at most {MAX_MESSAGE_BYTES:,} bytes")
    return data


def decode_request(data: msgspec.Raw) -> Request:
    """Raises InvalidRequest with the name of the field."""
    try:
        return _request_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason, _, path = str(error).partition(" - at ")  # such as `$.sampling.top_k`
        field = path.strip("`$").rpartition(".")[2] or "request"
        raise InvalidRequest(field, NOT_SHOWN, f"is malformed: {reason}") from error
