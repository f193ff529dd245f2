"""Text to speech in Python: load a checkpoint, say something, or stream it."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import torch

from polyvox.audio import Audio
from polyvox.audio.clip import FinishReason, Samples
from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_tts.checkpoint import find_checkpoint, load_model
from polyvox.models.qwen3_tts.config import Sampling
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.prompt import AUTO, Layout, Prompt, Reference, build_prompt, languages
from polyvox.models.qwen3_tts.sampling import SEED_LIMIT, KeyedNoise
from polyvox.models.qwen3_tts.tokenizer import TextTokenizer
from polyvox.models.qwen3_tts.voice import ClonedVoice

EMBEDDED_VOICE = Path(__file__).parent / "assets/voice"
DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float32", "float64")}

# Speech of the longest utterance a checkpoint allows, 8,191 frames or 11 minutes, is about as many characters.
MAX_TEXT = 10_000
# Frames of the first chunks of a stream; the last one repeats.
CHUNK_FRAMES = (2, 4, 8, 16)


def load(
    path_or_id: str | Path | None = None, device: str = "auto", dtype: str = "auto", progress: bool = False
) -> "TTS":
    """A checkpoint from a folder or a hub id, ready to speak; without one, the embedded voice.

    device is auto, cpu, cuda or cuda:N; dtype is auto (bfloat16 on CUDA, float32 elsewhere), bfloat16, float32 or
    float64. progress shows a bar on stderr.
    """
    folder = EMBEDDED_VOICE if path_or_id is None else find_checkpoint(path_or_id)
    model = load_model(folder, *placement(device, dtype), progress)
    return TTS(model, TextTokenizer(folder, model.config))


@dataclass(frozen=True, slots=True)
class _Utterance:
    """A request that has passed every check."""

    prompt: Prompt
    voice: ClonedVoice | None
    sampling: Sampling
    seed: int
    max_frames: int


class TTS:
    """One loaded checkpoint."""

    def __init__(self, model: Qwen3TTS, tokenizer: TextTokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config = model.config
        self.sample_rate = self.config.codec.sample_rate

    @property
    def voices(self) -> list[str]:
        """The names that `voice` may have; empty where voices are cloned or designed."""
        return list(self.config.talker.speakers)

    @property
    def languages(self) -> list[str]:
        """The names that `language` may have."""
        return languages(self.config)

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
        stream = self.stream(text, voice, language, instructions, seed, layout, sampling, max_frames)
        return stream.audio(list(stream))

    def stream(
        self,
        text: str,
        voice: str | ClonedVoice | None = None,
        language: str = AUTO,
        instructions: str | None = None,
        seed: int | None = None,
        layout: Layout | None = None,
        sampling: Sampling | None = None,
        max_frames: int | None = None,
    ) -> "Stream":
        """Speaks a text chunk by chunk; raises InvalidRequest at once where it cannot.

        voice: one of `voices`, by default the first, or a cloned voice for a Base model. language: one of
        `languages`. instructions: how to speak, for models that take them. seed: the same seed gives the same
        speech; one is drawn if none is given. layout: all text before speech begins ("whole") or one token a frame
        ("streaming"); by default as the checkpoint was meant. sampling: instead of the checkpoint's own.
        max_frames: the longest utterance, in frames of 80 ms.
        """
        config = self.config
        self._check(text, instructions, max_frames)
        if seed is None:
            seed = secrets.randbelow(2**32)
        elif isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT:
            raise InvalidRequest("seed", seed, f"a whole number from 0 to {SEED_LIMIT - 1}")
        speaker, cloned = self._voice(voice)
        if layout is None:
            layout = "streaming" if config.kind == "base" else "whole"
        elif layout not in ("whole", "streaming"):
            raise InvalidRequest("layout", layout, ("whole", "streaming"))
        sampling = sampling or config.sampling
        sampling.check()
        reference = None
        if cloned is not None and cloned.codes is not None and cloned.transcript is not None:
            transcript = self.tokenizer.text(cloned.transcript, "voice.transcript")
            reference = Reference(transcript, len(cloned.codes))
        prompt = build_prompt(
            config,
            self.tokenizer.role,
            self.tokenizer.text(text),
            layout,
            language,
            speaker,
            cloned is not None,
            reference,
            self.tokenizer.instructions(instructions) if instructions else (),
        )
        room = config.talker.max_positions - len(prompt)
        if room < 1:
            allowed = f"text and reference of fewer than {config.talker.max_positions} tokens for this model"
            raise InvalidRequest("text", text, allowed)
        frames = min(config.max_frames if max_frames is None else max_frames, room)
        return Stream(self.model, _Utterance(prompt, cloned, sampling, seed, frames))

    def _check(self, text: str, instructions: str | None, max_frames: int | None) -> None:
        for field, value in (("text", text), ("instructions", instructions or "")):
            if not isinstance(value, str):
                raise InvalidRequest(field, value, "a string")
            if len(value) > MAX_TEXT:
                allowed = f"at most {MAX_TEXT:,} characters (this is {len(value):,}): split it at sentences"
                raise InvalidRequest(field, value, allowed)
        if instructions and not self.config.takes_instructions:
            allowed = "none with this model: VoiceDesign and the 1.7B CustomVoice models take them"
            raise InvalidRequest("instructions", instructions, allowed)
        if max_frames is not None and not 1 <= max_frames <= self.config.max_frames:
            raise InvalidRequest("max_frames", max_frames, f"1 to {self.config.max_frames}")

    def _voice(self, voice: str | ClonedVoice | None) -> tuple[str | None, ClonedVoice | None]:
        """The speaker or the cloned voice that this checkpoint can speak with."""
        if self.config.kind == "custom_voice":
            if not isinstance(voice, str | None):
                raise InvalidRequest("voice", "a cloned voice", f"{', '.join(self.voices)}: only Base models clone")
            return voice or self.voices[0], None
        if self.config.kind == "voice_design":
            if voice is not None:
                raise InvalidRequest("voice", voice, "none with this model: describe the voice in instructions")
            return None, None
        if not isinstance(voice, ClonedVoice):
            raise InvalidRequest("voice", voice, "a ClonedVoice: a Base model has no voices of its own")
        voice.check(self.config)
        return None, voice


class Stream:
    """Speech as it is made: iterate over it for chunks of samples. finish_reason is known after the last one."""

    def __init__(self, model: Qwen3TTS, utterance: _Utterance) -> None:
        self.seed = utterance.seed
        self.sample_rate = model.config.codec.sample_rate
        self.finish_reason: FinishReason | None = None
        self._chunks = self._speak(model, utterance)

    def __iter__(self) -> Iterator[Samples]:
        return self._chunks

    def audio(self, chunks: list[Samples]) -> Audio:
        """All chunks of this stream as one piece; for a stream that has ended."""
        if self.finish_reason is None:
            raise RuntimeError("the stream has not ended: iterate over it first")
        samples = np.concatenate([*chunks, np.zeros(0, np.float32)])
        return Audio(samples, self.sample_rate, self.seed, self.finish_reason)

    @torch.inference_mode()
    def _speak(self, model: Qwen3TTS, utterance: _Utterance) -> Iterator[Samples]:
        voice = utterance.voice or ClonedVoice(torch.empty(0))
        rows = model.embed(utterance.prompt, voice.vector, voice.codes)
        noise = KeyedNoise([self.seed], [0], model.device)
        streams = model.prefill([rows], [utterance.prompt.trailing], [utterance.sampling], noise)
        state = model.codec.initial_state(1)
        if voice.codes is not None:
            # The recording that speech continues is the codec's past; its own samples are not wanted again.
            _, state = model.decode_audio(voice.codes[None].to(model.device), state)

        sizes = chain(CHUNK_FRAMES, repeat(CHUNK_FRAMES[-1]))
        size, frames = next(sizes), list[torch.Tensor]()
        ended = False
        for left in reversed(range(utterance.max_frames)):
            codes = model.frame(streams)
            ended = bool(streams.ended)
            if not ended:
                frames.append(codes)
            if frames and (ended or not left or len(frames) == size):
                samples, state = model.decode_audio(torch.stack(frames, dim=1), state)
                size, frames = next(sizes), []
                yield samples[0].float().cpu().numpy()
            if ended:
                break
        self.finish_reason = "stop" if ended else "length"


def placement(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """What the two arguments of `load` mean on this machine."""
    place = _device(device)
    if dtype == "auto":
        dtype = "bfloat16" if place.type == "cuda" else "float32"
    if dtype not in DTYPES:
        raise InvalidRequest("dtype", dtype, ["auto", *DTYPES])
    return place, DTYPES[dtype]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidRequest("device", name, "auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise InvalidRequest("device", name, "auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest("device", name, f"cpu: this machine has {torch.cuda.device_count()} CUDA devices")
    return device
