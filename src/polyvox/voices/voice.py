"""One kept voice: what it is called, what it holds, and how it is written to a file."""

import hashlib
import itertools
import json
import math
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from polyvox.errors import InvalidRequest
from polyvox.models.info import ModelIdentity
from polyvox.models.request import ClonedVoice

Scalar = TypeVar("Scalar", bound=np.generic)

FORMAT = "polyvox-voice-1"
MAX_NAME = 60  # bytes; shorter than a content id, so that the two cannot be confused, and a file name when escaped
NAME_MARKS = "-_. "
# What clients say where they mean no voice in particular.
RESERVED = ("auto", "default", "none")
NAME_RULE = (
    f"must be up to {MAX_NAME} bytes of letters and digits, with single '-', '_', '.' or spaces between them, "
    f"and not {', '.join(RESERVED)}"
)
MAX_TEXT = 10_000  # characters of each text of a voice
MAX_VECTOR, MAX_CODES = 65_536, 1 << 20  # numbers; 30 s of the published models are 2,048 and 6,000
MAX_CODE = 1 << 16
MAX_FILE = 8 << 20  # bytes; what those limits come to, and more


def name_key(name: object) -> str:
    """What two spellings of a name have in common; raises InvalidRequest for what cannot be a name."""
    if not isinstance(name, str):
        raise InvalidRequest("name", name, NAME_RULE)
    key = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    for form in (unicodedata.normalize("NFC", name), key):
        marked = [character in NAME_MARKS for character in form]
        plain = all(mark or unicodedata.category(c)[0] in "LMN" for c, mark in zip(form, marked, strict=True))
        doubled = any(a and b for a, b in itertools.pairwise(marked))
        if not form or not plain or doubled or marked[0] or marked[-1] or unicodedata.category(form[0])[0] == "M":
            raise InvalidRequest("name", name, NAME_RULE)
        if len(form.encode()) > MAX_NAME or form in RESERVED:
            raise InvalidRequest("name", name, NAME_RULE)
    return key


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """A voice of the library: the vector of a speaker, perhaps with the codes and transcript of a recording.

    id is the SHA-256 of vector, codes and transcript: the same voice has it under any name. seconds: of the recording.
    source: the recording's file name. description: of a voice that was designed. consent: what its owner agreed to.
    """

    name: str
    id: str
    vector: NDArray[np.float32]
    codes: NDArray[np.int64] | None
    transcript: str | None
    model: ModelIdentity
    created: datetime
    consent: str | None = None
    source: str | None = None
    seconds: float | None = None
    description: str | None = None

    def fits(self, model: ModelIdentity) -> bool:
        return self.model.fingerprint == model.fingerprint

    def cloned_for(self, model: ModelIdentity) -> ClonedVoice:
        """What a model speaks with; raises InvalidRequest, with the names of both, for another model's voice."""
        if not model.can_clone:
            requirement = (
                f"must be a built-in voice of {model.name}, which cannot clone; this voice is for {self.model}"
            )
            raise InvalidRequest("voice", self.name, requirement)
        if not self.fits(model):
            raise InvalidRequest("voice", self.name, f"must be a voice for {model}; this voice is for {self.model}")
        return ClonedVoice(self.vector, self.codes, self.transcript)

    def info(self) -> dict[str, Any]:
        """All but the numbers, for lists and JSON."""
        return {
            "name": self.name,
            "id": self.id,
            "model": self.model.name,
            "fingerprint": self.model.fingerprint,
            "mode": "vector" if self.codes is None else "in context",
            "seconds": self.seconds,
            "transcript": self.transcript,
            "consent": self.consent,
            "source": self.source,
            "description": self.description,
            "created": self.created.isoformat(),
        }


def new_voice(
    name: str,
    cloned: ClonedVoice,
    model: ModelIdentity,
    consent: str | None,
    source: str | None,
    seconds: float | None,
    description: str | None,
) -> Voice:
    """A voice as it will be kept, checked; raises InvalidRequest for the field that is wrong."""
    vector, codes = _vector(cloned.vector), _codes(cloned.codes)
    _check_text("voice.transcript", cloned.transcript)
    voice = Voice(
        name=name,
        id=content_id(vector, codes, cloned.transcript),
        vector=vector,
        codes=codes,
        transcript=cloned.transcript,
        model=model,
        created=datetime.now(UTC).replace(microsecond=0),
        consent=consent,
        source=None if source is None else Path(source.replace("\\", "/")).name,
        seconds=seconds,
        description=description,
    )
    check(voice)
    return voice


def check(voice: Voice) -> None:
    """Raises InvalidRequest for the first field that no voice may have."""
    name_key(voice.name)
    if (voice.codes is None) != (voice.transcript is None):
        raise InvalidRequest("voice.transcript", voice.transcript, "codes and transcript require each other")
    for field in ("transcript", "consent", "source", "description"):
        _check_text(field, getattr(voice, field))
    for field, text in (("model.name", voice.model.name), ("model.fingerprint", voice.model.fingerprint)):
        _check_text(field, text)
    if voice.seconds is not None and not (math.isfinite(voice.seconds) and voice.seconds >= 0):
        raise InvalidRequest("seconds", voice.seconds, "must be a duration in seconds")
    if voice.created.tzinfo is None:
        raise InvalidRequest("created", str(voice.created), "must be a time with a time zone")


def content_id(vector: NDArray[np.float32], codes: NDArray[np.int64] | None, transcript: str | None) -> str:
    """The SHA-256 of what is heard of a voice, the same on every machine."""
    digest = hashlib.sha256(f"{FORMAT}\n{vector.shape}\n".encode())
    digest.update(np.ascontiguousarray(vector, "<f4").data)
    if codes is not None and transcript is not None:
        digest.update(f"\n{codes.shape}\n".encode())
        digest.update(np.ascontiguousarray(codes, "<i4").data)
        digest.update(transcript.encode())
    return digest.hexdigest()


def to_bytes(voice: Voice) -> bytes:
    """A voice as a safetensors file, with all of its words in the header."""
    arrays: dict[str, NDArray[Any]] = {"vector": voice.vector}
    if voice.codes is not None:
        arrays["codes"] = voice.codes.astype(np.int32)
    words = {
        "format": FORMAT,
        "name": voice.name,
        "id": voice.id,
        "model": voice.model.name,
        "fingerprint": voice.model.fingerprint,
        "created": voice.created.isoformat(),
        "transcript": voice.transcript,
        "consent": voice.consent,
        "source": voice.source,
        "seconds": None if voice.seconds is None else repr(float(voice.seconds)),
        "description": voice.description,
    }
    known = {key: word for key, word in words.items() if word is not None}
    return save(arrays, known | {"seal": _seal(known)})


def from_bytes(data: bytes) -> Voice:
    """The voice of a file; raises ValueError, with the reason, for anything but a whole and sound one."""
    words = _header(data)
    if words.get("format") != FORMAT:
        raise ValueError(f"it is not a file of the format {FORMAT}")
    if words.pop("seal", None) != _seal(words):
        raise ValueError("its words are not what they were when it was written")
    try:
        arrays = load(data)
        voice = Voice(
            name=words["name"],
            id=words["id"],
            vector=_vector(arrays["vector"]),
            codes=_codes(arrays.get("codes")),
            transcript=words.get("transcript"),
            model=ModelIdentity(words["model"], words["fingerprint"], can_clone=True),
            created=datetime.fromisoformat(words["created"]),
            consent=words.get("consent"),
            source=words.get("source"),
            seconds=float(words["seconds"]) if "seconds" in words else None,
            description=words.get("description"),
        )
        check(voice)
    except (SafetensorError, InvalidRequest) as error:
        raise ValueError(str(error)) from None
    except KeyError as error:
        raise ValueError(f"it has no {error.args[0]}") from None
    if voice.id != content_id(voice.vector, voice.codes, voice.transcript):
        raise ValueError("its content is not what it was when it was written")
    return voice


def _header(data: bytes) -> dict[str, str]:
    """The words of a safetensors file, which its library gives only for files that have a path."""
    if len(data) > MAX_FILE:
        raise ValueError(f"it is larger than {MAX_FILE >> 20} MiB")
    size = int.from_bytes(data[:8], "little")
    try:
        words = json.loads(data[8 : 8 + size])["__metadata__"]
        if isinstance(words, dict) and all(isinstance(word, str) for word in words.values()):
            return words
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ValueError("it is cut short, or no voice of Polyvox")


def _seal(words: dict[str, str]) -> str:
    """The id answers for the numbers; this one for the words."""
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def _vector(value: object) -> NDArray[np.float32]:
    requirement = f"must be an array of 1 to {MAX_VECTOR} finite numbers"
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.ndim != 1:
        raise InvalidRequest("voice.vector", _shape(value), requirement)
    if not 0 < len(value) <= MAX_VECTOR or not np.isfinite(value).all():
        raise InvalidRequest("voice.vector", _shape(value), requirement)
    return _frozen(value.astype(np.float32))


def _codes(value: object) -> NDArray[np.int64] | None:
    if value is None:
        return None
    requirement = f"must be an array of integers below {MAX_CODE} in the shape [frames, groups]"
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or value.ndim != 2:
        raise InvalidRequest("voice.codes", _shape(value), requirement)
    if not 0 < value.size <= MAX_CODES or not 0 <= value.min() <= value.max() < MAX_CODE:
        raise InvalidRequest("voice.codes", _shape(value), requirement)
    return _frozen(value.astype(np.int64))


def _frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Voices are shared by whoever asks for them."""
    array.flags.writeable = False
    return array


def _shape(value: object) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def _check_text(field: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise InvalidRequest(field, text, f"must be a text of at most {MAX_TEXT:,} characters")
    # Control characters could tell a terminal what to do; lone surrogates cannot be written.
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in text if c not in "\n\t"):
        raise InvalidRequest(field, text, "must not have control characters")
