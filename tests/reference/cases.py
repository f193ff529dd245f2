# SPDX-License-Identifier: Apache-2.0
"""The cases that the reference and Polyvox both run. Imports only the standard library, as both sides read it."""

from dataclasses import dataclass, field
from typing import Any

FRAMES = 40  # maximum of each case with a tiny model
STREAMED_CODEC_FRAMES = 60
LONG_CODEC_FRAMES = 330  # past the 300 frames after which the reference's own decode is no longer exact


@dataclass(frozen=True)
class Utterance:
    text: str
    language: str = "auto"
    speaker: str | None = None
    instructions: str | None = None
    vector: int | None = None  # seed of a cloned voice's vector
    reference: tuple[str, int] | None = None  # transcript and frames of a cloned voice's recording


@dataclass(frozen=True)
class Clone:
    """Speech with a voice cloned from the samples of a recording; greedy, in the streaming layout."""

    name: str
    text: str
    language: str
    recording: tuple[str, int]  # kind and samples: see signals.py
    transcript: str | None = None  # None: by the speaker vector alone


@dataclass(frozen=True)
class Case:
    name: str
    checkpoint: str
    layout: str
    utterances: tuple[Utterance, ...]
    seed: int | None = None  # None: greedy
    sampling: dict[str, Any] = field(default_factory=dict)  # changes to generation_config.json


def _case(name: str, checkpoint: str, layout: str, *utterances: Utterance, **more: Any) -> Case:
    return Case(f"{checkpoint}-{name}-{layout}", checkpoint, layout, utterances, **more)


SHORT = "hello there"
TEXT = "The user heard the assistant; it cost 3.50, 'twas fine."
OTHER = "Lo, a résumé in the inn – 北京, then on."
STYLE = "speak slowly, in a warm voice"

CASES = (
    _case("speaker", "custom_voice", "whole", Utterance(TEXT, "english", "serena")),
    _case("speaker", "custom_voice", "streaming", Utterance(TEXT, "english", "serena")),
    _case("other-speaker", "custom_voice", "whole", Utterance(TEXT, "English", "Vivian")),
    _case("auto", "custom_voice", "whole", Utterance(OTHER, "Auto", "vivian")),
    _case("auto", "custom_voice", "streaming", Utterance(OTHER, "auto", "vivian")),
    _case("auto-dialect", "custom_voice", "whole", Utterance(OTHER, "auto", "eric")),
    _case("chinese-dialect", "custom_voice", "streaming", Utterance(OTHER, "Chinese", "eric")),
    _case("chinese", "custom_voice", "whole", Utterance(OTHER, "chinese", "serena")),
    _case("english-dialect-speaker", "custom_voice", "whole", Utterance(TEXT, "english", "eric")),
    _case("instructed", "custom_voice", "whole", Utterance(TEXT, "english", "serena", STYLE)),
    _case("instructed", "custom_voice", "streaming", Utterance(TEXT, "english", "serena", STYLE)),
    _case("one-token", "custom_voice", "streaming", Utterance("o", "auto", "vivian")),
    _case("designed", "voice_design", "whole", Utterance(TEXT, "english", None, STYLE)),
    _case("designed", "voice_design", "streaming", Utterance(TEXT, "auto", None, STYLE)),
    _case("plain", "voice_design", "whole", Utterance(OTHER, "german")),
    _case("vector", "base", "whole", Utterance(TEXT, "english", vector=1)),
    _case("vector", "base", "streaming", Utterance(TEXT, "auto", vector=2)),
    # Equal: 3 rows of transcript, 3 of text and its end are as many as 6 frames and their start (checked by a test).
    _case("icl-shorter", "base", "streaming", Utterance(TEXT, "english", vector=1, reference=(SHORT, 9))),
    _case("icl-equal", "base", "streaming", Utterance(SHORT, "english", vector=1, reference=(SHORT, 6))),
    _case("icl-longer", "base", "streaming", Utterance(SHORT, "auto", vector=2, reference=(SHORT, 40))),
    _case("icl", "base", "whole", Utterance(TEXT, "english", vector=2, reference=(SHORT, 9))),
    _case("seeded", "custom_voice", "whole", Utterance(TEXT, "english", "serena"), seed=7),
    _case("seeded", "custom_voice", "streaming", Utterance(TEXT, "english", "vivian"), seed=8),
    _case("seeded", "voice_design", "whole", Utterance(TEXT, "english", None, STYLE), seed=9),
    _case("seeded-icl", "base", "streaming", Utterance(TEXT, "auto", vector=1, reference=(SHORT, 9)), seed=10),
    _case(
        "seeded-filtered",
        "custom_voice",
        "whole",
        Utterance(TEXT, "english", "serena"),
        seed=12,
        sampling={
            "temperature": 1.3,
            "top_k": 20,
            "top_p": 0.8,
            "repetition_penalty": 1.4,
            "subtalker_temperature": 0.7,
            "subtalker_top_k": 10,
            "subtalker_top_p": 0.9,
        },
    ),
    _case(
        "batch",
        "custom_voice",
        "whole",
        Utterance(SHORT, "auto", "eric"),
        Utterance(OTHER, "chinese", "serena"),  # ends before the others
        Utterance(TEXT, "english", "vivian", STYLE),
    ),
    _case(
        "batch",
        "custom_voice",
        "streaming",
        Utterance(SHORT, "english", "vivian", STYLE),
        Utterance(OTHER, "auto", "eric"),
        Utterance(TEXT, "english", "serena"),
    ),
    _case(
        "batch",
        "base",
        "streaming",
        Utterance(TEXT, "english", vector=1, reference=(SHORT, 9)),
        Utterance(SHORT, "auto", vector=2, reference=(TEXT, 3)),
        Utterance(OTHER, "english", vector=3, reference=(SHORT, 40)),
    ),
)

# Inputs of the encoders, with lengths that are multiples of a frame (48 samples) and lengths that are not.
RECORDINGS = (
    ("noise", 24_000),
    ("noise", 1_300),
    ("tones", 10_007),
    ("chirp", 48_013),
    ("vowels", 36_000),
    ("vowels", 240_000),
)
# Too short for the speaker encoder, or silent: codes only.
CODED_RECORDINGS = (("noise", 1), ("noise", 47), ("noise", 48), ("noise", 49), ("tones", 95), ("silence", 4_800))
LATENTS_OF = MEL_OF = ("tones", 10_007)

CLONES = (
    Clone("vector", TEXT, "english", ("vowels", 36_000)),
    Clone("icl", TEXT, "english", ("vowels", 4_801), SHORT),
    # 59 frames, and 40 new ones: the package cuts the recording one sample early.
    Clone("icl-early-cut", TEXT, "auto", ("chirp", 2_800), SHORT),
)

# The embedded voice: trained weights, greedy to the end of speech. Its text is phonemes, so both sides read those of
# these sentences (checked by a test).
SENTENCES = {
    "heart": "Good morning, the train to the harbour leaves at nine.",
    "michael": "Please call me back when you have a minute to talk.",
}
PHONEMES = {
    "heart": "ɡˈʊd mˈɔɹnɪŋ, ðə tɹˈAn tə ðə hˈɑɹbəɹ lˈivz æt nˈIn.",
    "michael": "plˈiz kˈɔl mˌi bˈæk wˌɛn ju hæv ɐ mˈɪnət tə tˈɔk.",
}
EMBEDDED = tuple(
    _case(speaker, "embedded", layout, Utterance(PHONEMES[speaker], "english", speaker))
    for layout in ("whole", "streaming")
    for speaker in PHONEMES
)

TOKENIZER_TEXTS = (
    "hello",
    "Hello there, General.",
    " it's, he'll, WE'RE, they've; I'm",
    "a  b   c    d",
    "tabs\tand\nlines\n\n  and more \n x",
    "3.14159 and 1,000,000 and 2026-11-15",
    "eBay iPhone McDonald",
    "naïve café résumé Ångström",
    "e\u0301 and \u00e9",  # NFC
    "北京的天气很好。",
    "日本語、テスト",
    "안녕하세요",
    "Привет, мир!",
    "😀 👩‍👩‍👧 🇩🇪",
    "!!! ... ??? -- —",
    "user assistant",
    "x" * 50,
    "mixed日本English中文",
    "\u200bzero\u200dwidth",
    "line one\r\nline two",
    "wˈɔTəɹ, ðə bˈɑTᵊl — pˌiˈɛm; ʤˈʌmp… θˈɪŋz!",
)
