# SPDX-License-Identifier: Apache-2.0
"""The Python API: load a checkpoint, then `say`, `stream`, `read` or `clone`."""

import gc
import hashlib
import logging
import secrets
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch

from polyvox.audio import Audio
from polyvox.audio.clip import FinishReason
from polyvox.audio.excerpt import fit_recording
from polyvox.audio.read import read_audio
from polyvox.audio.samples import Samples
from polyvox.audio.time_stretch import TimeStretcher, check_speed
from polyvox.caches import preload_triton, set_up_triton_cache
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import Result
from polyvox.engine.stream import LocalStream
from polyvox.errors import NOT_SHOWN, EngineDown, InvalidRequest
from polyvox.kernels.quantized_rows import supports
from polyvox.long_form import LongFormReader, ResumeStore, split_text
from polyvox.models.info import ModelIdentity
from polyvox.models.protocol import SpeechModel
from polyvox.models.registry import LoadOptions, load_model
from polyvox.models.request import AUTO, ClonedVoice, Layout, Request, Sampling
from polyvox.progress import showing_progress
from polyvox.text import TextRules
from polyvox.text.languages.language_codes import language_name
from polyvox.voices import VoiceLibrary

log = logging.getLogger(__name__)

EMBEDDED_VOICE = Path(__file__).parent / "assets/voice"
DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float32", "float64")}
QUANTIZED_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def load(
    model: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: bool = False,
    config: EngineConfig | None = None,
    voices: VoiceLibrary | None = None,
    vocoder_device: str = "auto",
    kv_dtype: str = "auto",
    weight_dtype: str = "auto",
) -> "TTS":
    """Load a checkpoint; without one, the embedded voice.

    model: a folder or a hub id. device: auto, cpu, cuda or cuda:N. dtype: auto (bfloat16 on CUDA, float32 elsewhere),
    bfloat16, float32 or float64. progress: show a progress bar on stderr. config: of the engine. voices: the voice
    library, by default the user's. vocoder_device: auto (the same device), cpu, cuda or cuda:N. kv_dtype: type of the
    KV cache, auto (int8 beside bfloat16 on CUDA, else model), model (dtype), int8 or fp8; both need half the memory of
    bfloat16. weight_dtype: of the matrices of talker and code predictor, auto (dtype), int8 or fp8.
    """
    # Before the checkpoint is downloaded.
    options = load_options(device, dtype, vocoder_device, kv_dtype, weight_dtype)
    with showing_progress(progress):
        loaded = load_model(EMBEDDED_VOICE, options, name="embedded") if model is None else load_model(model, options)
    return TTS(loaded, config, VoiceLibrary() if voices is None else voices, loaded.info().identity, progress)


class TTS:
    """A loaded checkpoint and its engine. As a context manager it closes the engine.

    The engine is closed, too, when nothing refers to this object any more; its streams and readers do. On a CPU, a
    thread that starts while the embedded voice speaks may have one thread for its own torch operations: call
    `torch.set_num_threads` in it.
    """

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig | None = None,
        voices: VoiceLibrary | None = None,
        identity: ModelIdentity | None = None,
        progress: bool = False,
    ) -> None:
        self.model, self.library, self.identity = model, voices, identity
        self.sample_rate = model.vocoder.sample_rate
        self._config, self._progress = config or EngineConfig(), progress
        self._config.check()
        self._lock = threading.Lock()
        self._engine: LocalEngine | None = None
        self._finalizer: weakref.finalize[[], TTS] | None = None  # closes the engine
        self._closed = False

    def __repr__(self) -> str:
        generator, info = self.model.generator, self.model.info()
        dtype = str(generator.dtype).removeprefix("torch.")
        return f"TTS({info.identity.name!r}, {generator.device}, {dtype}, voices={list(info.voices)})"

    @property
    def engine(self) -> LocalEngine:
        """The engine, started on first use and restarted after a failure."""
        with self._lock:
            if self._closed:
                raise EngineDown("The TTS object is closed. Load the model again.", retry_after=0)
            if self._engine is not None and self._engine.broken:
                self._engine.close()
                self._detach()
                self._engine = None
                _release_memory()
            if self._engine is None:
                with showing_progress(self._progress):
                    self._engine = LocalEngine(self.model, self._config)
                # Its own thread refers to an engine, so it is never collected while it runs.
                # Garbage is collected in any thread, so nothing waits there.
                self._finalizer = weakref.finalize(self, self._engine.request_close)
                self._finalizer.atexit = False  # the engine has a handler of its own
            return self._engine

    def detach_engine(self) -> LocalEngine:
        """The engine, which the caller has to close: it outlives this object."""
        engine = self.engine
        self._detach()
        return engine

    @property
    def voices(self) -> list[str]:
        """The names that `voice` accepts: built-in voices, and voices of the library for this model."""
        built_in = list(self.model.info().voices)
        if self.library is None or self.identity is None or not self.identity.can_clone:
            return built_in
        return built_in + [voice.name for voice in self.library.list() if voice.fits(self.identity)]

    def voice_for(self, voice: str | ClonedVoice | None) -> str | ClonedVoice | None:
        """Resolve the name of a library voice to the cloned voice; built-in names stay as they are."""
        if self.library is None or self.identity is None:
            return voice
        return self.library.resolve(voice, self.identity, self.model.info().voices)

    @property
    def languages(self) -> list[str]:
        """The names that `language` accepts."""
        return list(self.model.info().languages)

    def language_for(self, language: str) -> str:
        """The name of a language from its name or code. Raises InvalidRequest if the model does not speak it."""
        name = language_name(language) if isinstance(language, str) else ""
        if name not in self.languages:
            raise InvalidRequest("language", language, self.languages)
        return name

    def clone(self, recording: str | Path | Samples, text: str | None = None) -> ClonedVoice:
        """Clone the voice of a recording (a Base model only): an audio file, or samples at `sample_rate`.

        It must have at least 1 s of speech. Of more than 30 s the best part is used without the transcript (logged).
        text: the transcript. With it, speech continues the recording and is closer to the voice.
        """
        info = self.model.info()
        if not info.can_clone:  # before the file is read
            raise info.unsupported("recording", NOT_SHOWN, "can_clone")
        samples = recording if isinstance(recording, np.ndarray) else read_audio(recording, self.sample_rate)
        if info.max_reference_seconds is not None and samples.ndim == 1 and samples.dtype.kind == "f":
            samples, notice = fit_recording(samples, self.sample_rate, info.max_reference_seconds)
            if notice is not None:
                log.warning("recording cut notice=%r", notice)
                text = None
        return self.model.clone(samples, text)

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
        speed: float = 1.0,
    ) -> Audio:
        """Speak a text and return the whole clip. In asyncio use `stream`, or `asyncio.to_thread(tts.say, …)`.

        speed: from 0.25 to 4, at the same pitch. The other arguments are those of `stream`.
        """
        check_speed(speed)
        voice, language = self.voice_for(voice), self.language_for(language)
        request = Request(text, voice, language, instructions, seed, layout, sampling, max_frames, whole_file=True)
        stream = SpeechStream(self, self.engine.submit(request))
        audio, stretcher = stream.audio(list(stream)), TimeStretcher(speed, self.sample_rate)
        return replace(audio, samples=np.concatenate([stretcher.push(audio.samples), stretcher.finish()]))

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
    ) -> "SpeechStream":
        """Speak a text chunk by chunk. Raises InvalidRequest at once if an argument is invalid.

        voice: one of `voices`, by default the first, or a cloned voice for a Base model. language: one of `languages`,
        or its code, such as en or en-GB. instructions: how to speak, for models that support it. seed: the same seed
        gives the same speech; by default a random one. layout: "whole" puts all text before the first frame,
        "streaming" one token per frame; by default the checkpoint's. sampling: overrides the checkpoint's. max_frames:
        maximum length in frames of 80 ms. live: text may be appended until finish_text. trim_silence: drop silence
        before the first sound.
        """
        voice, language = self.voice_for(voice), self.language_for(language)
        request = Request(
            text, voice, language, instructions, seed, layout, sampling, max_frames, live, trim_silence=trim_silence
        )
        return SpeechStream(self, self.engine.submit(request))

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
        keep: str | Path | None = None,
        word_times: bool = False,
    ) -> LongFormReader:
        """Speak a text of any length, sentence by sentence, at one loudness. Iterate over the result for the sentences.

        speed: from 0.25 to 4, at the same pitch. rules: how the text is normalised, by default for the language.
        keep: a folder for finished sentences, from which an interrupted run resumes: a new or empty one, or that of an
        earlier run. word_times: estimate the times of the words of each sentence. The others are as in `stream`.
        """
        info, language = self.model.info(), self.language_for(language)
        rules = replace(
            rules or TextRules(language), phonemes=info.takes_phonemes, default_language=info.default_language
        )
        sentences, normalizer = split_text(text, rules)
        check_speed(speed)
        request = Request("", self.voice_for(voice), language, instructions, seed, sampling=sampling)
        store = None
        if keep is not None:
            settings = (
                sentences,
                _voice_key(request.voice),
                language,
                instructions,
                sampling,
                speed,
                str(self.identity),
            )
            store = ResumeStore(keep, settings, seed)
            request = replace(request, seed=store.seed)
        elif seed is None:
            request = replace(request, seed=secrets.randbelow(2**32))
        max_concurrent = max(1, self.engine.config.max_streams // 2)
        notes = normalizer.notes
        return LongFormReader(self.engine, sentences, request, max_concurrent, store, speed, notes, word_times, self)

    def close(self) -> None:
        """Close the engine and cancel its streams."""
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()
                self._detach()

    def _detach(self) -> None:
        """The engine is no longer closed together with this object."""
        if self._finalizer is not None:
            self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SpeechStream:
    """An utterance in progress. Iterate over it, with for or async for, for chunks of samples.

    finish_reason and result are set after the last chunk.
    """

    def __init__(self, tts: TTS, stream: LocalStream) -> None:
        self._tts = tts  # which would close the engine
        self._stream, self.sample_rate = stream, tts.sample_rate
        self._chunks = (chunk.samples for chunk in stream.chunks() if len(chunk.samples))

    @property
    def seed(self) -> int:
        return self._stream.seed

    @property
    def result(self) -> Result | None:
        """The finish reason, timings and token counts; None until the stream has finished."""
        return self._stream.result

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.result.finish_reason if self.result else None

    def __iter__(self) -> Iterator[Samples]:
        return self

    async def __aiter__(self) -> AsyncIterator[Samples]:
        async for chunk in self._stream:
            if len(chunk.samples):
                yield chunk.samples

    def __next__(self) -> Samples:
        return next(self._chunks)

    def append(self, text: str) -> None:
        """Append text to a live stream, in pieces of any size."""
        self._stream.append(text)

    def finish_text(self) -> None:
        """End the text of a live stream."""
        self._stream.finish_text()

    def cancel(self) -> None:
        """Cancel the stream at once. Idempotent."""
        self._stream.cancel()

    def audio(self, chunks: list[Samples]) -> Audio:
        """Join all chunks of a finished stream into a clip."""
        if self.finish_reason is None:
            raise RuntimeError("The stream has not finished. Iterate over it first.")
        samples = np.concatenate([*chunks, np.zeros(0, np.float32)])
        return Audio(samples, self.sample_rate, self.seed, self.finish_reason)


def _release_memory() -> None:
    """Free the memory of a closed engine: it has reference cycles, and torch caches freed GPU memory."""
    gc.unfreeze()  # a server freezes the objects of its start, which the collector then skips
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _voice_key(voice: str | ClonedVoice | None) -> object:
    """A value that identifies a voice by its content."""
    if not isinstance(voice, ClonedVoice):
        return voice
    codes = b"" if voice.codes is None else voice.codes.tobytes()
    return hashlib.sha256(voice.vector.tobytes() + codes).hexdigest(), voice.transcript


def placement(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """The torch device and dtype for the arguments of `load`. On a GPU, compiled kernels go to the cache folder."""
    target = _parse_device(device)
    if target.type == "cuda":
        set_up_triton_cache()
        preload_triton()
    if dtype == "auto":
        dtype = "bfloat16" if target.type == "cuda" else "float32"
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InvalidRequest("dtype", dtype, ["auto", *DTYPES])
    return target, DTYPES[dtype]


def load_options(
    device: str, dtype: str, vocoder_device: str = "auto", kv_dtype: str = "auto", weight_dtype: str = "auto"
) -> LoadOptions:
    """The arguments of `load` for the model registry; a vocoder_device of auto is the generator's device."""
    target, torch_dtype = placement(device, dtype)
    vocoder = target if vocoder_device == "auto" else _parse_device(vocoder_device, "vocoder_device")
    kv_type = parse_kv_dtype(kv_dtype, target, torch_dtype)
    return LoadOptions(target, torch_dtype, vocoder, kv_type, parse_weight_dtype(weight_dtype, target))


def parse_kv_dtype(name: str, device: torch.device, dtype: torch.dtype) -> torch.dtype | None:
    """The type of the KV cache beside dtype; None for the default. Raises InvalidRequest if the device lacks it."""
    if name in ("auto", "model"):
        return None if name == "auto" else dtype
    return _parse_quantized_dtype("kv_dtype", name, device, "auto", "model")


def parse_weight_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The type of the generator's matrices; None for that of the model. Raises InvalidRequest as above."""
    return None if name == "auto" else _parse_quantized_dtype("weight_dtype", name, device, "auto")


def _parse_quantized_dtype(field: str, name: str, device: torch.device, *others: str) -> torch.dtype:
    """others: further names that the field may have."""
    allowed = [*others, *QUANTIZED_DTYPES]
    if name not in QUANTIZED_DTYPES:
        raise InvalidRequest(field, name, allowed)
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if not supports(QUANTIZED_DTYPES[name], 10 * major + minor):
            names = ", ".join(each for each in allowed if each != name)
            raise InvalidRequest(field, name, f"must be one of {names} on a GPU of compute capability {major}.{minor}")
    return QUANTIZED_DTYPES[name]


def _parse_device(name: str, field: str = "device") -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InvalidRequest(field, name, "must be auto, cpu, cuda or cuda:N") from None
    if name != "cpu" and device.type != "cuda":
        raise InvalidRequest(field, name, "must be auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(field, name, f"this machine has {torch.cuda.device_count()} CUDA devices")
    return device
