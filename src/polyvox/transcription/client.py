# SPDX-License-Identifier: Apache-2.0
"""A client of any server with OpenAI's transcriptions: speaches, vLLM, whisper.cpp, LocalAI, OpenAI."""

import asyncio
import io
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import msgspec

from polyvox.audio.pcm import Pcm, pcm_bytes
from polyvox.audio.wav import wav_header
from polyvox.errors import Overloaded, PolyvoxError, shorten
from polyvox.http_client import new_session, send_with_retry
from polyvox.http_errors import (
    CLIENT_STATUSES,
    DEFAULT_RETRY_AFTER,
    KEY_STATUSES,
    OVERLOAD_STATUSES,
    describe_failure,
    read_error,
    retry_after,
    with_reason,
)
from polyvox.transcription.interface import (
    STTTimeLimit,
    Transcription,
    TranscriptionFailed,
    TranscriptionOutcome,
    TranscriptionOverloaded,
    TranscriptionRejected,
    TranscriptionTimeout,
)

log = logging.getLogger(__name__)

MAX_JSON_BYTES = 16_000_000  # of a transcript with the times of its words: hours of speech
JSON_TYPE = "application/json"
RESPONSE_TYPES = (JSON_TYPE, "text/plain", "text/event-stream", "text/vtt", "text/srt", "application/x-subrip")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

SpeechTask = Literal["transcriptions", "translations"]
Fields = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class STTConfig:
    """An OpenAI-compatible server and its limits. Times are in seconds.

    url: with its version, such as http://localhost:8001/v1. model: None for the one that each request names.
    turn_timeout: for one turn of a conversation. timeout: for an uploaded file.
    """

    url: str
    model: str | None = None
    key: str | None = None
    connect_timeout: float = 5.0
    turn_timeout: float = 20.0
    timeout: float = 600.0
    max_requests: int = 64


@dataclass(frozen=True, slots=True)
class Recording:
    """An audio file. Servers find its format by its name."""

    content: bytes
    name: str = "audio.wav"
    content_type: str = "audio/wav"


class Transcriber:
    """Pooled connections to one server. A failed connection is retried only before the answer has begun.

    on_finished: called with the outcome and the seconds of each request.
    """

    def __init__(
        self, config: STTConfig, on_finished: Callable[[TranscriptionOutcome, float], None] = lambda *_: None
    ) -> None:
        self._config, self._on_finished = config, on_finished
        self._num_requests = 0
        self._session = new_session(config.key, config.connect_timeout, config.max_requests)

    @property
    def num_requests(self) -> int:
        """Requests in progress."""
        return self._num_requests

    def check_capacity(self) -> None:
        """Raises TranscriptionOverloaded if no further request may be sent now."""
        if self._num_requests >= self._config.max_requests:
            message = f"The limit of {self._config.max_requests} STT requests is reached (max_stt_requests)."
            raise TranscriptionOverloaded(message, DEFAULT_RETRY_AFTER)

    async def close(self) -> None:
        await self._session.close()

    async def transcribe(
        self,
        pcm: Pcm,
        sample_rate: int,
        *,
        model: str | None = None,
        language: str | None = None,
        prompt: str | None = None,
    ) -> Transcription:
        """The transcript of one turn. Cancelling it cancels the request.

        Raises TranscriptionRejected, TranscriptionOverloaded, TranscriptionTimeout or TranscriptionFailed.
        """
        fields = {"model": model, "response_format": "json", "language": language, "prompt": prompt}
        recording = Recording(wav_header(sample_rate, 2 * len(pcm)) + pcm_bytes(pcm))
        given = [(name, value) for name, value in fields.items() if value]
        async with self._request("transcriptions", given, recording, "stt_turn_timeout") as reader:
            return parse_transcription(await reader.read_json())

    @asynccontextmanager
    async def open(
        self, task: SpeechTask, fields: Fields, recording: Recording
    ) -> AsyncIterator[tuple[str, AsyncIterator[bytes]]]:
        """Sends a form; the content type of the response and its body, as it arrives. JSON arrives whole and is
        checked. Raises as `transcribe` does."""
        async with self._request(task, fields, recording, "stt_timeout") as reader:
            if reader.is_json:
                data = await reader.read_json()
                yield JSON_TYPE, _whole(data)
            else:
                yield reader.content_type, reader.parts()

    @asynccontextmanager
    async def _request(
        self, task: SpeechTask, fields: Fields, recording: Recording, limit: STTTimeLimit
    ) -> AsyncIterator["_ResponseReader"]:
        """A response with status 200. limit: of the time until its end."""
        config = self._config
        self.check_capacity()
        self._num_requests += 1
        start = asyncio.get_running_loop().time()
        deadline = _Deadline(limit, config.turn_timeout if limit == "stt_turn_timeout" else config.timeout, start)
        outcome: TranscriptionOutcome = "cancelled"
        try:
            if config.model is not None:
                fields = [("model", config.model), *((name, value) for name, value in fields if name != "model")]
            async with deadline.limit():
                response = await self._connect(f"{config.url.rstrip('/')}/audio/{task}", fields, recording)
            try:
                async with deadline.limit():
                    await self._check(response)
                yield _ResponseReader(response, deadline)
            finally:
                response.close()  # ends it if it has not ended; a connection whose response has is kept
            outcome = "finished"
        except PolyvoxError as error:
            outcome = _outcome(error)
            raise
        finally:
            self._num_requests -= 1
            self._on_finished(outcome, asyncio.get_running_loop().time() - start)

    async def _connect(self, url: str, fields: Fields, recording: Recording) -> aiohttp.ClientResponse:
        async def send() -> aiohttp.ClientResponse:
            # It can be sent once only. Quoted names are percent-encoded, which servers do not decode.
            form = aiohttp.FormData(quote_fields=False)
            for name, value in fields:
                form.add_field(_header_value(name), value)
            name = _header_value(recording.name)
            form.add_field("file", io.BytesIO(recording.content), filename=name, content_type=recording.content_type)
            return await self._session.post(url, data=form, allow_redirects=False)

        try:
            return await send_with_retry(send, "stt")
        except aiohttp.ConnectionTimeoutError:
            seconds = self._config.connect_timeout
            message = f"The connection to the STT server took longer than {seconds:g} s"
            raise TranscriptionTimeout(message, "stt_connect_timeout") from None
        except (aiohttp.ClientError, OSError) as error:
            raise TranscriptionFailed(f"The STT server cannot be reached: {describe_failure(error)}.") from None

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raises the error of a response that is not a transcript."""
        status = response.status
        if status == 200:
            if response.content_type not in RESPONSE_TYPES:
                found = shorten(response.content_type)
                raise TranscriptionFailed(f"The STT server answered with content of type {found}: check stt.")
            return
        message, param = await read_error(response, self._config.key)
        if status in KEY_STATUSES:  # the message is about the server's key, not for its clients
            log.warning("stt key rejected", extra={"status": status, "error": message})
            raise TranscriptionFailed(f"The STT server rejected the server's key with status {status}: check stt_key.")
        if status in OVERLOAD_STATUSES:
            raise TranscriptionOverloaded(
                with_reason("The STT server is overloaded", message), retry_after(response), status
            )
        if status in CLIENT_STATUSES:
            raise TranscriptionRejected(status, with_reason("The STT server rejected the request", message), param)
        raise TranscriptionFailed(with_reason(f"The STT server answered with status {status}", message))


@dataclass(frozen=True, slots=True)
class _Deadline:
    """The end of the time of one request."""

    setting: STTTimeLimit
    seconds: float
    start: float

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Raises TranscriptionTimeout at the deadline."""
        try:
            async with asyncio.timeout_at(self.start + self.seconds):
                yield
        except TimeoutError:
            message = f"The STT server took longer than {self.seconds:g} s"
            raise TranscriptionTimeout(message, self.setting) from None


class _ResponseReader:
    """Reads a response until its deadline."""

    def __init__(self, response: aiohttp.ClientResponse, deadline: _Deadline) -> None:
        self._response, self._deadline = response, deadline
        self.is_json = response.content_type == JSON_TYPE
        self.content_type = response.headers["content-type"]

    async def parts(self) -> AsyncGenerator[bytes]:
        """Raises TranscriptionFailed or TranscriptionTimeout."""
        while part := await self._read():
            yield part

    async def read_json(self) -> bytes:
        """Raises TranscriptionFailed if it is not JSON, or has more than MAX_JSON_BYTES."""
        data = bytearray()
        while part := await self._read():
            data += part
            if len(data) > MAX_JSON_BYTES:
                raise TranscriptionFailed(f"The STT server sent more than {MAX_JSON_BYTES:,} bytes.")
        try:
            msgspec.json.decode(data, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            raise _invalid(bytes(data)) from None
        return bytes(data)

    async def _read(self) -> bytes:
        try:
            async with self._deadline.limit():
                return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise TranscriptionFailed(f"The connection to the STT server failed: {describe_failure(error)}.") from None


def parse_transcription(data: bytes) -> Transcription:
    """Raises TranscriptionFailed if it is not JSON with a text."""
    try:
        found = msgspec.json.decode(data, type=_Transcript)
    except (msgspec.DecodeError, RecursionError):
        raise _invalid(data) from None
    seconds = found.duration if isinstance(found.duration, int | float) else None
    return Transcription(
        found.text.strip(),
        found.language if isinstance(found.language, str) else None,
        seconds,
        found.usage if isinstance(found.usage, dict) else None,
    )


class _Transcript(msgspec.Struct):
    """The fields of a transcript that are read. Only the text must be valid."""

    text: str
    language: Any = None
    duration: Any = None
    usage: Any = None


def _header_value(text: str) -> str:
    """A name for the header of a form's part: a line break in it would begin another header."""
    return _CONTROL.sub("_", text)


async def _whole(data: bytes) -> AsyncGenerator[bytes]:
    yield data


def _invalid(data: bytes) -> TranscriptionFailed:
    return TranscriptionFailed(f"The STT server sent invalid data: {shorten(data[:200].decode(errors='replace'))}.")


def _outcome(error: PolyvoxError) -> TranscriptionOutcome:
    if isinstance(error, TranscriptionTimeout):
        return "timeout"
    return "rejected" if error.status < 500 or isinstance(error, Overloaded) else "failed"
