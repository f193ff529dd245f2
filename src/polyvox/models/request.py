# SPDX-License-Identifier: Apache-2.0
"""Requests to a speech model of any family: plain values that cross process boundaries."""

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyvox.errors import InvalidRequest

# whole: all text is in the prompt. streaming: one text token per frame, so text may be appended.
Layout = Literal["whole", "streaming"]

AUTO = "auto"
MAX_CHUNK_FRAMES = 16  # frames of the largest chunk
SEED_LIMIT = 2**64
SAMPLING_BOUNDS = {
    "temperature": (0.0, 10.0),
    "top_k": (0, 1_000_000),
    "top_p": (1e-6, 1.0),
    "repetition_penalty": (0.1, 10.0),
    "min_frames": (0, 1_000_000),
}
# Below this logits overflow; 0 is greedy.
MIN_TEMPERATURE = 1e-3


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. Temperature 0 is greedy; top_k 0 and top_p 1 disable these filters."""

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    predictor_temperature: float = 0.9
    predictor_top_k: int = 50
    predictor_top_p: float = 1.0
    min_frames: int = 2  # before speech may end, as in the reference implementation

    def check(self) -> None:
        """Raises InvalidRequest for a value out of bounds."""
        for field in fields(self):
            low, high = SAMPLING_BOUNDS[field.name.removeprefix("predictor_")]
            value, integer = getattr(self, field.name), field.type is int
            if isinstance(value, bool) or not isinstance(value, int if integer else int | float):
                raise InvalidRequest(field.name, value, "must be an integer" if integer else "must be a number")
            if not low <= value <= high or (field.name.endswith("temperature") and 0 < value < MIN_TEMPERATURE):
                raise InvalidRequest(field.name, value, f"must be between {low:g} and {high:g}")


@dataclass(frozen=True, slots=True, eq=False)
class ClonedVoice:
    """The speaker vector of a recording. With the recording's codes and transcript, speech continues it."""

    vector: NDArray[np.float32]  # [hidden]
    codes: NDArray[np.int64] | None = None  # [frames, codebooks]
    transcript: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ThinkerPrompt:
    """A thinker's prompt by token ids. It ends with the start of the assistant's turn: the role and a line break."""

    ids: tuple[int, ...]
    # [n, thinker's width]: its hidden state at each audio, image and video token, in order; zeros by default.
    media_rows: NDArray[np.float32] | None = None
    # [3, tokens]: its rotary positions of the prompt; 0, 1, 2, … by default, as they are without images and video.
    positions: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One utterance. None is the checkpoint's default.

    seed: the same seed gives the same speech; random by default. live: text may be appended after the request has
    started, in the streaming layout. whole_file: the audio is not played while it is generated, so it has no deadline.
    first_chunk: frames of the first chunk. trim_silence: drop leading silence. guard: end speech that exceeds what its
    text can need. segment: index of this part of a longer text; each part has its own noise for the same seed.
    utterance_id: the same for all parts of a text that is played as one; 0 if there is only one. following_bytes: of
    text in later parts, as far as it is known. owner: utterances of different owners get their turns. fingerprint: the
    same when a rejected request is sent again; 0 if unknown. may_reserve: a rejection reserves the time to retry after;
    not if another engine is asked next. thinker_prompt: the speech is a thinker's answer, whose
    tokens are appended by id; such a request is live and has no text.
    """

    text: str
    voice: str | ClonedVoice | None = None
    language: str = AUTO
    instructions: str | None = None
    seed: int | None = None
    layout: Layout | None = None
    sampling: Sampling | None = None
    max_frames: int | None = None
    live: bool = False
    whole_file: bool = False
    first_chunk: int | None = None
    trim_silence: bool = False
    guard: bool = True
    segment: int = 0
    utterance_id: int = 0
    following_bytes: int = 0
    owner: str = ""
    fingerprint: int = 0
    may_reserve: bool = True
    thinker_prompt: ThinkerPrompt | None = None
