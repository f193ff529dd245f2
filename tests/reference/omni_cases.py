# SPDX-License-Identifier: Apache-2.0
"""Conversations on which Polyvox is compared with transformers' Qwen3-Omni; plain data for both sides."""

from dataclasses import dataclass
from typing import Literal

START, END, SYSTEM, USER, ASSISTANT, LINE = 1, 2, 10, 11, 12, 13
AUDIO, IMAGE, VIDEO = 23, 24, 25
AUDIO_START, AUDIO_END, VISION_START, VISION_END = 26, 27, 28, 29
AUDIO_FRAMES = 220  # of the mel spectrogram: 13 tokens per full 100, and the rest
AUDIO_TOKENS = 29
IMAGE_GRID = (1, 4, 6)  # patches in time, height and width; 2 × 2 of them are one token
IMAGE_TOKENS = 6
VIDEO_GRID = (3, 4, 4)
VIDEO_TOKENS = 12
SECONDS_PER_GRID = 0.5  # 6.5 positions

System = (START, SYSTEM, LINE, 30, 31, END, LINE)
Turn = tuple[int, ...]


def user(*body: int) -> Turn:
    return (START, USER, LINE, *body, END, LINE)


def assistant(*body: int) -> Turn:
    return (START, ASSISTANT, LINE, *body, END, LINE)


OPEN = (START, ASSISTANT, LINE)


@dataclass(frozen=True)
class Conversation:
    """A prompt and the lengths of its answer: tokens of the thinker, and the fewest and most tokens of the talker."""

    name: str
    shape: Literal["plain", "wide"]
    prompt: Turn
    speaker: str = "ethan"
    answer: int = 12
    min_frames: int = 26
    frames: int = 40
    media: Literal["", "audio", "image", "video"] = ""


def _all(shape: Literal["plain", "wide"]) -> tuple[Conversation, ...]:
    audio = (AUDIO_START, *[AUDIO] * AUDIO_TOKENS, AUDIO_END)
    image = (VISION_START, *[IMAGE] * IMAGE_TOKENS, VISION_END)
    video = (VISION_START, *[VIDEO] * VIDEO_TOKENS, VISION_END)
    return (
        Conversation("text", shape, (*user(40, 41, 42, 43), *OPEN)),
        Conversation("system", shape, (*System, *user(44, 45), *OPEN), "chelsie"),
        Conversation("history", shape, (*System, *user(46), *assistant(47, 48, 49), *user(50, 51), *OPEN), "aiden"),
        Conversation("early-end", shape, (*user(62, 63), *OPEN), min_frames=0, frames=200),
        Conversation("short-answer", shape, (*user(52, 53, 54), *OPEN), answer=2),
        Conversation("long-answer", shape, (*user(55, 56), *OPEN), answer=60, frames=48),
        Conversation("limit", shape, (*user(57), *OPEN), frames=5, min_frames=5),
        Conversation("audio", shape, (*user(58, *audio, 59), *OPEN), media="audio"),
        Conversation("image", shape, (*user(60, *image, 61), *OPEN), media="image"),
        Conversation(
            "image-history",
            shape,
            (*System, *user(64), *assistant(65, 66), *user(*image), *assistant(67), *user(68), *OPEN),
            media="image",
        ),
        Conversation("video", shape, (*System, *user(69, *video, 70), *OPEN), media="video"),
    )


CONVERSATIONS = (*_all("plain"), *_all("wide"))
CODE2WAV_FRAMES = 37  # of the codes that are decoded as a whole and in chunks
