"""Text as people write it, made speakable."""

from polyvox.text.lexicon import load_lexicon
from polyvox.text.parts import Note, Part, Pause, TextRules, Words, merged, spoken
from polyvox.text.sentences import SentenceStream, sentences
from polyvox.text.stream import SpokenText, speakable

__all__ = [
    "Note",
    "Part",
    "Pause",
    "SentenceStream",
    "SpokenText",
    "TextRules",
    "Words",
    "load_lexicon",
    "merged",
    "sentences",
    "speakable",
    "spoken",
]
