# SPDX-License-Identifier: Apache-2.0
"""The options of one synthesis request, independent of the API that it came from."""

from dataclasses import dataclass

from polyvox.models.request import AUTO, ClonedVoice, Layout, Sampling
from polyvox.server.synthesis.segments import Granularity
from polyvox.server.synthesis.timestamps import TimestampGranularity
from polyvox.text import Lexicon, Pronunciation


@dataclass(frozen=True, slots=True)
class Turn:
    """A text of a dialogue and the name of the voice that speaks it."""

    text: str
    voice: str


@dataclass(frozen=True, slots=True)
class SynthesisOptions:
    """What to synthesise and how.

    streaming: bytes are sent as they are encoded; otherwise the result is one file with its final length. live: text
    may be appended; granularity is the unit in which it is synthesised. separate_files: each segment is a file of its
    own. turns: of a dialogue; text is that of all turns. pronunciations and lexicons: in addition to the server's
    lexicon. timestamps: the units of text whose times are estimated. recorded: the audio is kept, to find the last word
    that was played when the utterance is interrupted. The other fields are those of `Request`, `Encoder` and
    `TextRules`.
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
    ssml: bool = True
    pronunciations: tuple[Pronunciation, ...] = ()
    lexicons: tuple[Lexicon, ...] = ()  # the first has precedence
    notice: str | None = None  # for the client: what was done with the request's recording
    ignored_fields: tuple[str, ...] = ()  # for the client: fields of the request that have no effect
    streaming: bool = True
    live: bool = False
    granularity: Granularity = "sentence"
    separate_files: bool = False
    turns: tuple[Turn, ...] = ()
    timestamps: tuple[TimestampGranularity, ...] = ()
    recorded: bool = False

    @property
    def tracks_positions(self) -> bool:
        """Whether the positions of segments in the client's text are needed."""
        return self.recorded or bool(self.timestamps)
