"""One endpoint: POST /say takes a text and gives back a WAV file."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from polyvox.errors import Overloaded, PolyvoxError, StreamFailed
from polyvox.models.request import AUTO
from polyvox.tts import TTS


class SayRequest(BaseModel):
    """What to say, and how; the fields are those of `TTS.stream`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    voice: str | None = None
    language: str = AUTO
    instructions: str | None = None
    seed: int | None = None


def create_app(tts: TTS) -> FastAPI:
    """The application around one loaded checkpoint."""
    app = FastAPI(title="Polyvox")

    @app.get("/", response_class=PlainTextResponse)
    def usage() -> str:
        voices = ", ".join(tts.voices) or "none of its own"
        return f'POST /say with {{"text": "Hello"}} gives a WAV file.\nVoices: {voices}\nMore: /docs\n'

    @app.post("/say", response_class=Response, responses={200: {"content": {"audio/wav": {}}}})
    async def say(wanted: SayRequest, request: Request) -> Response:
        stream = await run_in_threadpool(lambda: tts.stream(**wanted.model_dump(), trim_silence=True))
        chunks = []
        try:
            async for chunk in stream:
                chunks.append(chunk)
                if await request.is_disconnected():
                    raise StreamFailed("the client has gone")
        finally:
            stream.cancel()
        audio = stream.audio(chunks)
        headers = {"x-seed": str(audio.seed), "x-finish-reason": audio.finish_reason}
        return Response(audio.wav(), media_type="audio/wav", headers=headers)

    @app.exception_handler(PolyvoxError)
    def refuse(_: Request, error: PolyvoxError) -> JSONResponse:
        headers = {"retry-after": f"{max(error.retry_after, 1):.0f}"} if isinstance(error, Overloaded) else None
        return _error(error.status, error.code, str(error), headers)

    @app.exception_handler(RequestValidationError)
    def refuse_body(_: Request, error: RequestValidationError) -> JSONResponse:
        told = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'body'}: {e['msg']}" for e in error.errors())
        return _error(422, "invalid_request", told)

    return app


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    # A lone surrogate can be asked for but not sent back.
    message = message.encode("utf-8", "replace").decode()
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status, headers=headers)
