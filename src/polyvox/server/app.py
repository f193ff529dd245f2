"""One endpoint: POST /say takes a text and gives back a WAV file."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict

from polyvox.errors import Overloaded, PolyvoxError
from polyvox.models.qwen3_tts.prompt import AUTO
from polyvox.tts import TTS

MAX_WAITING = 8
MAX_WAIT_SECONDS = 30.0


class SayRequest(BaseModel):
    """What to say, and how; the fields are those of `TTS.say`."""

    model_config = ConfigDict(extra="forbid")

    text: str
    voice: str | None = None
    language: str = AUTO
    instructions: str | None = None
    seed: int | None = None


class Turn:
    """One speaks at a time; a few may wait, for a while."""

    def __init__(self, waiting: int = MAX_WAITING, seconds: float = MAX_WAIT_SECONDS) -> None:
        self._places = threading.BoundedSemaphore(waiting + 1)
        self._speaking = threading.Lock()
        self._seconds = seconds

    @contextmanager
    def take(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise Overloaded("too many requests are waiting: try again later", retry_after=5)
        try:
            if not self._speaking.acquire(timeout=self._seconds):
                raise Overloaded(f"no turn within {self._seconds:g} s: try again later", retry_after=5)
            try:
                yield
            finally:
                self._speaking.release()
        finally:
            self._places.release()


def create_app(tts: TTS, turn: Turn | None = None) -> FastAPI:
    """The application around one loaded checkpoint."""
    app = FastAPI(title="Polyvox")
    turn = turn or Turn()

    @app.get("/", response_class=PlainTextResponse)
    def usage() -> str:
        voices = ", ".join(tts.voices) or "none of its own"
        return f'POST /say with {{"text": "Hello"}} gives a WAV file.\nVoices: {voices}\nMore: /docs\n'

    @app.post("/say", response_class=Response, responses={200: {"content": {"audio/wav": {}}}})
    def say(request: SayRequest) -> Response:
        with turn.take():
            audio = tts.say(**request.model_dump())
        headers = {"x-seed": str(audio.seed), "x-finish-reason": audio.finish_reason}
        return Response(audio.wav(), media_type="audio/wav", headers=headers)

    @app.exception_handler(PolyvoxError)
    def refuse(_: Request, error: PolyvoxError) -> JSONResponse:
        headers = {"retry-after": f"{error.retry_after:.0f}"} if isinstance(error, Overloaded) else None
        body = {"error": {"code": error.code, "message": str(error)}}
        return JSONResponse(body, status_code=error.status, headers=headers)

    return app
