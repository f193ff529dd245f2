# SPDX-License-Identifier: Apache-2.0
"""Text normalisation and sentence splitting."""

from polyvox.text.lexicon import Lexicon, Pronunciation
from polyvox.text.lexicon_files import load_lexicon
from polyvox.text.normalizer import TextNormalizer, normalize_text
from polyvox.text.parts import Note, Part, Pause, Rate, Words, format_parts, merge_parts
from polyvox.text.sentences import SentenceSplitter, split_sentences
from polyvox.text.text_rules import TextRules

__all__ = [
    "Lexicon",
    "Note",
    "Part",
    "Pause",
    "Pronunciation",
    "Rate",
    "SentenceSplitter",
    "TextNormalizer",
    "TextRules",
    "Words",
    "format_parts",
    "load_lexicon",
    "merge_parts",
    "normalize_text",
    "split_sentences",
]
