"""Text to speech in Python: load a checkpoint, say something, or stream it."""

import hashlib
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch

from polyvox.audio import Audio
from polyvox.audio.clip import FinishReason, Samples
from polyvox.audio.read import read_audio
from polyvox.audio.time_stretch import TimeStretcher
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import Result
from polyvox.engine.stream import LocalStream
from polyvox.errors import NOT_SHOWN, EngineDown, InvalidRequest
from polyvox.models.info import ModelIdentity
from polyvox.models.protocol import SpeechModel
from polyvox.models.registry import load_model
from polyvox.models.request import AUTO, ClonedVoice, Layout, Request, Sampling
from polyvox.progress import ProgressBar
from polyvox.reading import Reading, ResumeStore, lines_of
from polyvox.text import TextRules
from polyvox.voices import VoiceLibrary

EMBEDDED_VOICE = Path(__file__).parent / "assets/voice"
DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float32", "float64")}


def load(
    path_or_id: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: bool = False,
    config: EngineConfig | None = None,
    voices: VoiceLibrary | None = None,
) -> "TTS":
    """A checkpoint from a folder or a hub id, ready to speak; without one, the embedded voice.

    device is auto, cpu, cuda or cuda:N; dtype is auto (bfloat16 on CUDA, float32 elsewhere), bfloat16, float32 or
    float64. progress shows a bar on stderr. config is the engine's. voices: the library whose voices a Base model
    speaks with, by default the user's own.
    """
    place = placement(device, dtype)  # before anything is fetched
    if path_or_id is None:
        speech = load_model(EMBEDDED_VOICE, *place, name="embedded", progress=progress)
    else:
        speech = load_model(path_or_id, *place, progress=progress)
    return TTS(speech, config, VoiceLibrary() if voices is None else voices, speech.info().identity)


class TTS:
    """One loaded checkpoint and the engine that runs it; usable as a context, which closes the engine."""

    def __init__(
        self,
        speech: SpeechModel,
        config: EngineConfig | None = None,
        voices: VoiceLibrary | None = None,
        identity: ModelIdentity | None = None,
    ) -> None:
        self.speech, self.library, self.identity = speech, voices, identity
        self.sample_rate = speech.sample_rate
        self._config = config or EngineConfig()
        self._config.check()
        self._lock = threading.Lock()
        self._engine: LocalEngine | None = None
        self._closed = False

    @property
    def engine(self) -> LocalEngine:
        """Started by the first request, and again after one that broke."""
        with self._lock:
            if self._closed:
                raise EngineDown("this TTS was closed: load it again", retry_after=0)
            if self._engine is not None and self._engine.broken:
                self._engine.close()  # it lets go of its memory
                self._engine = None
            if self._engine is None:
                self._engine = LocalEngine(self.speech, self._config, on_progress=ProgressBar())
            return self._engine

    @property
    def voices(self) -> list[str]:
        """The names that `voice` may have: the model's own, and those of the library that fit it."""
        own = list(self.speech.info().voices)
        if self.library is None or self.identity is None or not self.identity.can_clone:
            return own
        return own + [voice.name for voice in self.library.list() if voice.fits(self.identity)]

    def voice_for(self, voice: str | ClonedVoice | None) -> str | ClonedVoice | None:
        """A voice as a request has it: a name of the library becomes what the model speaks with."""
        if self.library is None or self.identity is None:
            return voice
        return self.library.resolve(voice, self.identity, self.speech.info().voices)

    @property
    def languages(self) -> list[str]:
        """The names that `language` may have."""
        return list(self.speech.info().languages)

    def clone(self, recording: str | Path | Samples, text: str | None = None) -> ClonedVoice:
        """The voice of a recording of 1 to 30 s, for a Base model: an audio file, or samples at `sample_rate`.

        text is what the recording says; with it, speech continues the recording, which is closer to the voice.
        """
        info = self.speech.info()
        if not info.can_clone:  # before the file is read
            raise info.unsupported("recording", NOT_SHOWN, "can_clone")
        if not isinstance(recording, np.ndarray):
            return self.speech.clone(read_audio(recording, self.sample_rate), text)
        return self.speech.clone(recording, text)

    def say(
        self,
        text: str,
        voice: str | ClonedVoice | None = None,
        language: str = AUTO,
        instructions: str | None = None,
        seed: int | None = None,
        layout: Layout | None = None,
        sampling: Sampling | None = None,
        max_frames: int | None = None,
    ) -> Audio:
        """Speaks a text; the arguments are those of `stream`."""
        voice = self.voice_for(voice)
        request = Request(text, voice, language, instructions, seed, layout, sampling, max_frames, whole_file=True)
        stream = Stream(self.engine.submit(request), self.sample_rate)
        return stream.audio(list(stream))

    def stream(
        self,
        text: str = "",
        voice: str | ClonedVoice | None = None,
        language: str = AUTO,
        instructions: str | None = None,
        seed: int | None = None,
        layout: Layout | None = None,
        sampling: Sampling | None = None,
        max_frames: int | None = None,
        live: bool = False,
        trim_silence: bool = False,
    ) -> "Stream":
        """Speaks a text chunk by chunk; raises InvalidRequest at once where it cannot.

        voice: one of `voices`, by default the model's first, or a cloned voice for a Base model. language: one of
        `languages`. instructions: how to speak, for models that take them. seed: the same seed gives the same
        speech; one is drawn if none is given. layout: all text before speech begins ("whole") or one token a frame
        ("streaming"); by default as the checkpoint was meant. sampling: instead of the checkpoint's own.
        max_frames: the longest utterance, in frames of 80 ms. live: more text may be appended until finish_text.
        trim_silence: begin with the first sound.
        """
        voice = self.voice_for(voice)
        request = Request(
            text, voice, language, instructions, seed, layout, sampling, max_frames, live, trim_silence=trim_silence
        )
        return Stream(self.engine.submit(request), self.sample_rate)

    def read(
        self,
        text: str,
        voice: str | ClonedVoice | None = None,
        language: str = AUTO,
        instructions: str | None = None,
        seed: int | None = None,
        sampling: Sampling | None = None,
        speed: float = 1.0,
        rules: TextRules | None = None,
        keep: Path | None = None,
    ) -> Reading:
        """Reads a text of any length, sentence by sentence, all equally loud: iterate over it for what is spoken.

        speed: from 0.25 to 4, at the same pitch. rules: how text is made speakable, by default for the language.
        keep: a folder for what is spoken; a reading of the same goes on from there. The others are as in `stream`.
        """
        lines, notes = lines_of(text, rules or TextRules(language))
        TimeStretcher(speed, self.sample_rate)  # or it is refused when the first line is spoken
        how = Request("", self.voice_for(voice), language, instructions, seed, sampling=sampling)
        shelf = None
        if keep is not None:
            settings = (lines, _told(how.voice), language, instructions, sampling, speed, str(self.identity))
            shelf = ResumeStore(keep, settings, seed)
            how = replace(how, seed=shelf.seed)
        elif seed is None:
            how = replace(how, seed=secrets.randbelow(2**32))
        return Reading(self.engine, lines, how, max(1, self.engine.config.max_streams // 2), shelf, speed, notes)

    def close(self) -> None:
        """Ends the engine and whatever it still speaks."""
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Stream:
    """Speech as it is made: iterate over it, with for or async for, for chunks of samples.

    finish_reason and result are known after the last one.
    """

    def __init__(self, stream: LocalStream, sample_rate: int) -> None:
        self._stream, self.sample_rate = stream, sample_rate
        self._chunks = (chunk.samples for chunk in stream.chunks() if len(chunk.samples))

    @property
    def seed(self) -> int:
        return self._stream.seed

    @property
    def result(self) -> Result | None:
        """How it ended, with timings and token counts; None until then."""
        return self._stream.result

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.result.finish_reason if self.result else None

    def __iter__(self) -> Iterator[Samples]:
        return self._chunks

    async def __aiter__(self) -> AsyncIterator[Samples]:
        async for chunk in self._stream:
            if len(chunk.samples):
                yield chunk.samples

    def __next__(self) -> Samples:
        return next(self._chunks)

    def append(self, text: str) -> None:
        """More text for a live stream, in pieces of any size."""
        self._stream.append(text)

    def finish_text(self) -> None:
        """No more text will come."""
        self._stream.finish_text()

    def cancel(self) -> None:
        """Ends the stream at once; any number of times."""
        self._stream.cancel()

    def audio(self, chunks: list[Samples]) -> Audio:
        """All chunks of this stream as one piece; for a stream that has ended."""
        if self.finish_reason is None:
            raise RuntimeError("the stream has not ended: iterate over it first")
        samples = np.concatenate([*chunks, np.zeros(0, np.float32)])
        return Audio(samples, self.sample_rate, self.seed, self.finish_reason)


def _told(voice: str | ClonedVoice | None) -> object:
    """A voice as something that can be compared by what it shows."""
    if not isinstance(voice, ClonedVoice):
        return voice
    codes = b"" if voice.codes is None else voice.codes.tobytes()
    return hashlib.sha256(voice.vector.tobytes() + codes).hexdigest(), voice.transcript


def placement(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """What the two arguments of `load` mean on this machine."""
    place = _device(device)
    if dtype == "auto":
        dtype = "bfloat16" if place.type == "cuda" else "float32"
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InvalidRequest("dtype", dtype, ["auto", *DTYPES])
    return place, DTYPES[dtype]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InvalidRequest("device", name, "must be auto, cpu, cuda or cuda:N") from None
    if name != "cpu" and device.type != "cuda":
        raise InvalidRequest("device", name, "must be auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest("device", name, f"this machine has {torch.cuda.device_count()} CUDA devices")
    return device
