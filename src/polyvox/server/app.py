"""One endpoint: POST /say takes a text and gives back a WAV file."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict

from polyvox.errors import Overloaded, PolyvoxError
from polyvox.models.request import AUTO
from polyvox.tts import TTS


class SayRequest(BaseModel):
    """What to say, and how; the fields are those of `TTS.say`."""

    model_config = ConfigDict(extra="forbid")

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
    def say(request: SayRequest) -> Response:
        audio = tts.say(**request.model_dump())
        headers = {"x-seed": str(audio.seed), "x-finish-reason": audio.finish_reason}
        return Response(audio.wav(), media_type="audio/wav", headers=headers)

    @app.exception_handler(PolyvoxError)
    def refuse(_: Request, error: PolyvoxError) -> JSONResponse:
        headers = {"retry-after": f"{error.retry_after:.0f}"} if isinstance(error, Overloaded) else None
        body = {"error": {"code": error.code, "message": str(error)}}
        return JSONResponse(body, status_code=error.status, headers=headers)

    return app
