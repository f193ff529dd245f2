"""What is to be said and how, whichever face was asked."""

from dataclasses import dataclass

from polyvox.models.request import AUTO, ClonedVoice, Layout, Sampling
from polyvox.server.synthesis.segments import Granularity


@dataclass(frozen=True, slots=True)
class SynthesisOptions:
    """What is to be said and how it is to sound, the same from every face.

    streaming: bytes leave as they are made; else all of them at the end, as a file with its true length. live: text may
    be appended, and is said by sentences, clauses or tokens. divided: what is said in one go is a file of its own. The
    others are those of `Request`, of `Encoder` and of `TextRules`.
    """

    text: str = ""
    voice: str | ClonedVoice | None = None
    language: str = AUTO
    instructions: str | None = None
    seed: int | None = None
    sampling: Sampling | None = None
    layout: Layout | None = None
    max_frames: int | None = None
    first_chunk: int | None = None
    format: str = "mp3"
    sample_rate: int | None = None
    bit_rate: int | None = None
    speed: float = 1.0
    normalize: bool = True
    streaming: bool = True
    live: bool = False
    granularity: Granularity = "sentence"
    divided: bool = False
