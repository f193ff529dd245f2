# SPDX-License-Identifier: Apache-2.0
"""A voice of the library: its fields, its validation and its file format."""

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
MAX_NAME = 60  # bytes; shorter than a content id, and valid as an escaped file name
NAME_MARKS = "-_. "
# Clients send these names for the default voice.
RESERVED = ("auto", "default", "none")
NAME_RULE = (
    f"must be up to {MAX_NAME} bytes of letters and digits, with single '-', '_', '.' or spaces between them, "
    f"and not {', '.join(RESERVED)}"
)
MAX_TEXT = 10_000  # characters of each text field
MAX_VECTOR, MAX_CODES = 65_536, 1 << 20  # numbers; 30 s with the published models have 2,048 and 6,000
MAX_CODE = 1 << 16
MAX_FILE = 8 << 20  # bytes; more than these limits add up to


def name_key(name: object) -> str:
    """The case-folded form by which names are compared. Raises InvalidRequest for an invalid name."""
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
    """A voice of the library: a speaker embedding, optionally with the codes and transcript of a recording.

    id: SHA-256 of vector, codes and transcript, independent of the name. seconds: duration of the recording. source:
    its file name. description: the prompt of a designed voice. consent: what the speaker consented to.
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
        """The voice for a request to this model. Raises InvalidRequest for a voice of another model."""
        if not model.can_clone:
            requirement = (
                f"must be a built-in voice of {model.name}, which cannot clone; this voice is for {self.model}"
            )
            raise InvalidRequest("voice", self.name, requirement)
        if not self.fits(model):
            raise InvalidRequest("voice", self.name, f"must be a voice for {model}; this voice is for {self.model}")
        return ClonedVoice(self.vector, self.codes, self.transcript)

    def info(self) -> dict[str, Any]:
        """All fields except the arrays, for lists and JSON."""
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
    """Create and validate a voice. Raises InvalidRequest."""
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
    """Raises InvalidRequest for the first invalid field."""
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
    """The SHA-256 of what defines the sound of a voice, equal on every machine."""
    digest = hashlib.sha256(f"{FORMAT}\n{vector.shape}\n".encode())
    digest.update(np.ascontiguousarray(vector, "<f4").data)
    if codes is not None and transcript is not None:
        digest.update(f"\n{codes.shape}\n".encode())
        digest.update(np.ascontiguousarray(codes, "<i4").data)
        digest.update(transcript.encode())
    return digest.hexdigest()


def to_bytes(voice: Voice) -> bytes:
    """Serialise a voice as a safetensors file with its text fields in the metadata."""
    arrays: dict[str, NDArray[Any]] = {"vector": voice.vector}
    if voice.codes is not None:
        arrays["codes"] = voice.codes.astype(np.int32)
    metadata = {
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
    known = {key: value for key, value in metadata.items() if value is not None}
    return save(arrays, known | {"seal": _metadata_hash(known)})


def from_bytes(data: bytes) -> Voice:
    """Parse a file. Raises ValueError with the reason if it is damaged."""
    metadata = _read_metadata(data)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"the format is not {FORMAT}")
    if metadata.pop("seal", None) != _metadata_hash(metadata):
        raise ValueError("the metadata is corrupt")
    try:
        arrays = load(data)
        voice = Voice(
            name=metadata["name"],
            id=metadata["id"],
            vector=_vector(arrays["vector"]),
            codes=_codes(arrays.get("codes")),
            transcript=metadata.get("transcript"),
            model=ModelIdentity(metadata["model"], metadata["fingerprint"], can_clone=True),
            created=datetime.fromisoformat(metadata["created"]),
            consent=metadata.get("consent"),
            source=metadata.get("source"),
            seconds=float(metadata["seconds"]) if "seconds" in metadata else None,
            description=metadata.get("description"),
        )
        check(voice)
    except (SafetensorError, InvalidRequest) as error:
        raise ValueError(str(error)) from None
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing") from None
    if voice.id != content_id(voice.vector, voice.codes, voice.transcript):
        raise ValueError("the content is corrupt")
    return voice


def _read_metadata(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file, which the safetensors library reads only from paths."""
    if len(data) > MAX_FILE:
        raise ValueError(f"the file is larger than {MAX_FILE >> 20} MiB")
    size = int.from_bytes(data[:8], "little")
    try:
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
            return metadata
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ValueError("the file is truncated or not a Polyvox voice")


def _metadata_hash(metadata: dict[str, str]) -> str:
    """A checksum of the metadata; the content id is the checksum of the arrays."""
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


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
    """Read-only, because voices are shared between requests."""
    array.flags.writeable = False
    return array


def _shape(value: object) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def _check_text(field: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise InvalidRequest(field, text, f"must be a text of at most {MAX_TEXT:,} characters")
    # Control characters could control a terminal; lone surrogates cannot be encoded.
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in text if c not in "\n\t"):
        raise InvalidRequest(field, text, "must not have control characters")
