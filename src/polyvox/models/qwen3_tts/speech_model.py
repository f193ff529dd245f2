"""A checkpoint that speaks: checks what is asked, makes the prompt, and runs the model over the engine's slots."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyvox.audio.clip import Samples
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.info import Capability, ModelIdentity, ModelInfo
from polyvox.models.protocol import Cache, PrefillMetadata, PreparedRequest
from polyvox.models.qwen3_tts.cloning import MAX_SECONDS, Cloner
from polyvox.models.qwen3_tts.codec import CodecState
from polyvox.models.qwen3_tts.config import ModelConfig
from polyvox.models.qwen3_tts.content_cache import Kept
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.qwen3_tts.prompt import Reference, build_prompt, languages
from polyvox.models.qwen3_tts.sampling import predictor_parameters, seed_words, talker_parameters
from polyvox.models.qwen3_tts.streaming_text import MAX_TEXT, StreamingText
from polyvox.models.qwen3_tts.tokenizer import TextTokenizer
from polyvox.models.request import SEED_LIMIT, ClonedVoice, Request, Sampling

# Speech takes about 0.9 frames a byte of UTF-8 in English and in Chinese. From the first bound on, ending becomes
# likelier; at the second it ends. Numbers and abbreviations, which are short to write, stay below both.
LIKELY_FRAMES, LIKELY_PER_BYTE = 63, 2
LONGEST_FRAMES, LONGEST_PER_BYTE = 125, 4
# A text that still grows has no length yet: two minutes, unless the request says otherwise.
GROWING_FRAMES = 1500
NEVER = 2**31
VOICES_KEPT = 32
MAX_SEGMENT = 2**31 - 1
MAX_FIRST_CHUNK = 16  # frames, the largest chunk there is
# For errors: a published model with each capability.
PUBLISHED: dict[Capability, str] = {
    "voices": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "takes_instructions": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "designs_voices": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
    "can_clone": "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
}
SPLIT_HINT = "Split the text at sentences."


def _bounds(size: int) -> tuple[int, int]:
    """Frames from which on the end of a text of so many bytes becomes likelier, and at which it ends."""
    return LIKELY_FRAMES + LIKELY_PER_BYTE * size, LONGEST_FRAMES + LONGEST_PER_BYTE * size


def _check_whole(field: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(field, value, f"must be an integer between {least} and {most}")


def _check_array(field: str, value: object, kinds: str, requirement: str, shape: list[int | None]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
        raise InvalidRequest(field, type(value).__name__, requirement)
    if value.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, value.shape, strict=True)):
        raise InvalidRequest(field, list(value.shape), requirement)


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """What a slot takes over from a request beside its rows."""

    seed: int
    segment: int
    sampling: Sampling
    likely: int  # frames after which end of speech becomes likelier
    warm: CodecState | None  # the codec after a recording that speech continues


def model_info(config: ModelConfig, identity: ModelIdentity) -> ModelInfo:
    """The capabilities of a checkpoint with this config."""
    return ModelInfo(
        identity=identity,
        voices=tuple(config.talker.speakers),
        languages=tuple(languages(config)),
        takes_instructions=config.takes_instructions,
        designs_voices=config.kind == "voice_design",
        hidden_size=config.talker.transformer.hidden_size,
        frame_seconds=config.codec.samples_per_frame / config.codec.sample_rate,
        sampling=config.sampling,
        max_reference_seconds=MAX_SECONDS if config.encoders else None,
        alternatives=PUBLISHED,
    )


class Qwen3TTSModel:
    """One loaded checkpoint behind the engine's protocol."""

    def __init__(self, model: Qwen3TTS, tokenizer: TextTokenizer, identity: ModelIdentity) -> None:
        self.model, self.tokenizer, self.config, self.identity = model, tokenizer, model.config, identity
        self.sample_rate = self.config.codec.sample_rate
        self.samples_per_frame = self.config.codec.samples_per_frame
        shape = self.config.talker.transformer
        self.hidden_size, self.max_positions = shape.hidden_size, self.config.talker.max_positions
        self.kv_shape = (shape.layers, shape.kv_heads, shape.head_dim)
        self.device, self.dtype = model.device, model.dtype
        self.nbytes = sum(tensor.nbytes for tensor in model.parameters() if tensor.device == model.device)
        self._warm: Kept[CodecState] = Kept(VOICES_KEPT)
        self._cloner = Cloner(model.encoders, self.sample_rate) if model.encoders else None

    @property
    def voices(self) -> list[str]:
        """The names that `voice` may have; empty where voices are cloned or designed."""
        return list(self.config.talker.speakers)

    @property
    def languages(self) -> list[str]:
        """The names that `language` may have."""
        return languages(self.config)

    def info(self) -> ModelInfo:
        return model_info(self.config, self.identity)

    def _here(self) -> AbstractContextManager[object]:
        """For callers' threads, whose current device is the first one."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    # Whose voice it is

    @property
    def cloner(self) -> Cloner:
        """Raises InvalidRequest if this checkpoint cannot clone."""
        if self._cloner is None:
            raise self.info().unsupported("recording", NOT_SHOWN, "can_clone")
        return self._cloner

    def clone(self, samples: Samples, transcript: str | None = None) -> ClonedVoice:
        """The voice of a recording at this model's sample rate, in the caller's thread.

        With a transcript, which is what the recording says, speech continues it; without one only the voice's vector
        is taken. Silence at both ends is cut off. The same recording gives what was worked out for it before.
        """
        cloner = self.cloner
        if transcript is not None:
            if not isinstance(transcript, str) or len(transcript) > MAX_TEXT:
                raise InvalidRequest("transcript", transcript, f"must be a string of at most {MAX_TEXT:,} characters")
            self.tokenizer.text(transcript, "transcript")
        with self._here():
            return cloner.clone(samples, transcript)

    # What is asked

    def growing_text(self, request: Request) -> StreamingText:
        if request.layout == "whole":
            raise InvalidRequest("layout", request.layout, "must be streaming when text is appended")
        self._check(request)
        return StreamingText(self.tokenizer)

    def prepare(self, request: Request, ids: list[int] | None = None) -> PreparedRequest:
        """Checks a request and makes its rows; ids are the first tokens of a text that still grows."""
        self._check(request)
        with torch.inference_mode(), self._here():
            return self._prepared(request, ids)

    def _prepared(self, request: Request, ids: list[int] | None) -> PreparedRequest:
        config, grows = self.config, ids is not None
        speaker, cloned = self._voice(request)
        layout = request.layout or ("streaming" if config.kind == "base" or grows else "whole")
        reference = vector = frames = warm = None
        if cloned is not None:
            vector = torch.from_numpy(cloned.vector.astype(np.float32))
            if cloned.codes is not None and cloned.transcript is not None:
                transcript = self.tokenizer.text(cloned.transcript, "voice.transcript")
                reference = Reference(transcript, len(cloned.codes))
                frames = torch.from_numpy(cloned.codes.astype(np.int64))
                warm = self._warm_state(frames)
        said = ids if ids is not None else self.tokenizer.text(request.text)
        if len(said) > config.max_frames:
            requirement = f"must have at most {config.max_frames} tokens but has {len(said)}"
            raise InvalidRequest("text", request.text, requirement, SPLIT_HINT)
        prompt = build_prompt(
            config,
            self.tokenizer.role,
            said,
            layout,
            request.language,
            speaker,
            cloned is not None,
            reference,
            self.tokenizer.instructions(request.instructions) if request.instructions else (),
        )
        room = config.talker.max_positions - len(prompt) - 1
        if room < 1:
            requirement = (
                f"text, instructions and reference must be below {config.talker.max_positions} tokens in total"
            )
            raise InvalidRequest("text", request.text, requirement)
        asked = min(request.max_frames or config.max_frames, room)
        likely, longest = _bounds(len(request.text.encode()))
        if grows:
            longest, likely = request.max_frames or GROWING_FRAMES, NEVER
            # Its end is not the end of the text: that row comes when the text is finished.
            trailing = prompt.trailing[:-1]
        else:
            trailing = prompt.trailing
        if not request.guard:
            longest, likely = asked, NEVER
        rows, text = self.model.embed(prompt, trailing, vector, frames)
        return PreparedRequest(
            rows=rows,
            text=text,
            max_frames=min(asked, longest),
            guarded=longest < asked and not grows,
            tokens=len(said),
            own=Own(request.seed or 0, request.segment, request.sampling or config.sampling, likely, warm),
        )

    def text_rows(self, ids: list[int], last: bool) -> Tensor:
        with torch.inference_mode(), self._here():
            return self.model.text_rows([*ids, self.config.tts_eos_id] if last else ids)

    def new_slots(self, count: int, text_rows: int, ring: int) -> "Qwen3TTSSlots":
        return Qwen3TTSSlots(self.model, count, text_rows, ring)

    # What can be refused

    def _check(self, request: Request) -> None:
        for field, value in (("text", request.text), ("instructions", request.instructions or "")):
            if not isinstance(value, str):
                raise InvalidRequest(field, value, "must be a string")
            if len(value) > MAX_TEXT:
                requirement = f"must have at most {MAX_TEXT:,} characters but has {len(value):,}"
                raise InvalidRequest(field, value, requirement, SPLIT_HINT)
        if request.instructions and not self.config.takes_instructions:
            hint = "VoiceDesign models and the 1.7B CustomVoice model take instructions."
            raise InvalidRequest("instructions", request.instructions, "is not supported by this model", hint)
        if not isinstance(request.language, str):
            raise InvalidRequest("language", request.language, self.languages)
        if request.max_frames is not None:
            _check_whole("max_frames", request.max_frames, 1, self.config.max_frames)
        if request.seed is not None:
            _check_whole("seed", request.seed, 0, SEED_LIMIT - 1)
        _check_whole("segment", request.segment, 0, MAX_SEGMENT)
        if request.first_chunk is not None:
            _check_whole("first_chunk", request.first_chunk, 1, MAX_FIRST_CHUNK)
        if request.layout not in (None, "whole", "streaming"):
            raise InvalidRequest("layout", request.layout, ("whole", "streaming"))
        if request.sampling is not None:
            if not isinstance(request.sampling, Sampling):
                raise InvalidRequest("sampling", request.sampling, "must be a Sampling")
            request.sampling.check()
        self._voice(request)

    def _voice(self, request: Request) -> tuple[str | None, ClonedVoice | None]:
        """The speaker or the cloned voice that this checkpoint can speak with."""
        voice = request.voice
        if self.config.kind == "custom_voice":
            if isinstance(voice, ClonedVoice):
                requirement = f"must be one of {', '.join(self.voices)}; only Base models take a cloned voice"
                raise InvalidRequest("voice", NOT_SHOWN, requirement)
            if voice is None:
                return self.voices[0], None
            if not isinstance(voice, str) or voice.lower() not in self.voices:
                raise InvalidRequest("voice", voice, self.voices)
            return voice, None
        if self.config.kind == "voice_design":
            if voice is not None:
                hint = "Describe the voice in 'instructions'."
                raise InvalidRequest("voice", voice, "is not supported by this model", hint)
            return None, None
        if not isinstance(voice, ClonedVoice):
            raise InvalidRequest("voice", voice, "must be a ClonedVoice, because a Base model has no built-in voices")
        self._check_clone(voice)
        return None, voice

    def _check_clone(self, voice: ClonedVoice) -> None:
        hidden, groups = self.config.talker.transformer.hidden_size, self.config.talker.code_groups
        size = self.config.predictor.vocab_size
        _check_array(
            "voice.vector", voice.vector, "f", f"must be an array of {hidden} finite numbers for this model", [hidden]
        )
        if not np.isfinite(voice.vector).all():
            raise InvalidRequest("voice.vector", NOT_SHOWN, "must not have NaN or infinite numbers")
        if (voice.codes is None) != (voice.transcript is None):
            raise InvalidRequest("voice.transcript", voice.transcript, "codes and transcript require each other")
        if voice.codes is not None:
            requirement = f"must be an array of integers from 0 to {size - 1} in the shape [frames, {groups}]"
            _check_array("voice.codes", voice.codes, "iu", requirement, [None, groups])
            if not len(voice.codes) or not 0 <= voice.codes.min() <= voice.codes.max() < size:
                raise InvalidRequest("voice.codes", NOT_SHOWN, requirement)
            if not isinstance(voice.transcript, str):
                raise InvalidRequest("voice.transcript", voice.transcript, "must be a string")

    def _warm_state(self, codes: Tensor) -> CodecState:
        """The codec after a recording, which is what speech continues; kept for the voices used last."""

        def decode() -> CodecState:
            _, state = self.model.codec(codes[None].to(self.device), self.model.codec.initial_state(1))
            return state

        return self._warm.get(codes.numpy(), decode)


# The numbers of a slot, each of which has a tensor of its own.
WHOLES = ("position", "text_end", "frame", "still", "segment", "budget", "least")


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """All of a slot that a stream finds set when it begins, as views that are made once."""

    wholes: list[Tensor]
    params: list[Tensor]
    input: Tensor
    text: Tensor
    seen: Tensor
    codec: CodecState


class Qwen3TTSSlots:
    """The model over a fixed number of slots; see protocol.py."""

    def __init__(self, model: Qwen3TTS, count: int, text_rows: int, ring: int) -> None:
        self.model = model
        self.rows = model.new_slots(count, text_rows, ring)
        self.nbytes = self.rows.nbytes
        self._places: list[_Place | None] = [None] * count

    def assign(self, slot: int, prepared: PreparedRequest) -> None:
        """In few calls: each costs a GPU's host tens of microseconds, and streams come by the hundred."""
        place, own = self._places[slot] or self._place(slot), prepared.own
        text = prepared.text[: len(place.text)]
        wholes = {
            "position": len(prepared.rows) - 1,
            "text_end": len(text),
            "frame": 0,
            "still": 0,
            "segment": own.segment,
            "budget": own.likely,
            "least": own.sampling.min_frames,
        }
        self._write(place.wholes, [*(wholes[name] for name in WHOLES), *seed_words(own.seed)], torch.int64)
        settings = [*talker_parameters(own.sampling), *predictor_parameters(own.sampling)]
        self._write(place.params, settings, self.rows.talker_params.dtype)
        place.input.copy_(prepared.rows[-1])
        place.seen.zero_()
        if own.warm is None:
            place.codec["position"].zero_()
            torch._foreach_zero_([state for name, state in place.codec.items() if name != "position"])
        else:
            torch._foreach_copy_([*place.codec.values()], [own.warm[name][0] for name in place.codec])
        place.text[: len(text)].copy_(text)

    def _write(self, places: list[Tensor], values: list[int] | list[float], dtype: torch.dtype) -> None:
        """By one copy to the device, which is not waited for."""
        torch._foreach_copy_(places, [*self.model.sent(values, dtype).split([len(place) for place in places])])

    def _place(self, slot: int) -> "_Place":
        rows = self.rows
        found = self._places[slot] = _Place(
            [*(getattr(rows, name)[slot : slot + 1] for name in WHOLES), rows.key[slot]],
            [rows.talker_params[slot], rows.predictor_params[slot]],
            rows.input[slot],
            rows.text[slot],
            rows.seen[slot],
            {name: state[slot] for name, state in rows.codec.items()},
        )
        return found

    def write_text(self, slot: int, start: int, text: Tensor) -> None:
        ring = self.rows.text.shape[1]
        first = start % ring
        fits = min(len(text), ring - first)
        self.rows.text[slot, first : first + fits].copy_(text[:fits])
        if fits < len(text):
            self.rows.text[slot, : len(text) - fits].copy_(text[fits:])
        self.rows.text_end[slot] = start + len(text)

    def close_text(self, slot: int, size: int) -> int:
        self.rows.budget[slot], longest = _bounds(size)
        return longest

    def prefill(
        self, rows: Tensor, slots: Tensor, positions: Tensor, cache: Cache, span: int, pack: PrefillMetadata | None
    ) -> None:
        self.model.prefill(rows, slots, positions, cache, span, pack)

    def frame(self, slots: Tensor, cache: Cache, span: int) -> Tensor:
        return self.model.frame(self.rows, slots, cache, span)

    def decode(self, slots: Tensor, first: Tensor, frames: int) -> Tensor:
        return self.model.decode(self.rows, slots, first, frames)

    def idle(self, slot: int) -> None:
        self.rows.position[slot].zero_()

    def poison(self, slot: int) -> None:
        self.rows.poison(slot)
