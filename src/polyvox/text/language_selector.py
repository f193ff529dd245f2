# SPDX-License-Identifier: Apache-2.0
"""The language of each sentence of streamed text. A decision depends on the text alone and is never taken back."""

import re
from collections import Counter

from polyvox.text.language_detector import MAX_LOOKAHEAD, SENTENCE_END, detect
from polyvox.text.languages import load_rules
from polyvox.text.languages.english import SPECIAL_WORDS
from polyvox.text.languages.language_codes import language_name
from polyvox.text.lexicon import CJK
from polyvox.text.rules import LETTER
from polyvox.text.text_rules import TextRules

# A word that no rule of any language matches: it is followed by a word that is no Roman numeral.
_PLAIN_WORD = re.compile(rf" *({LETTER}+(?:'{LETTER}+)*)(?= +[^\W0-9_IVXLCDM])")
_PLAIN_CJK = re.compile(rf"[{CJK}]+(?=[{CJK}])")
_ROMAN = re.compile(r"[IVXLCDM]+(?:'s)?")
_STOP = re.compile(r"[.!?…][\"')\]»*_]*$")
_FINAL_STOP = re.compile(r"[。！？\n]$")


class LanguageSelector:
    """Selects the rules for each sentence: those of the requested language, or of the detected one.

    Positions are those of the normaliser's text. A sentence is decided after at most MAX_LOOKAHEAD characters.
    """

    def __init__(self, rules: TextRules) -> None:
        self._is_auto, self._default = rules.is_auto, rules.default_language
        self.language = load_rules(rules.default_language if rules.is_auto else language_name(rules.language))
        self.num_sentences: Counter[str] = Counter()
        self._joining_words, self._has_cjk = rules.lexicon.joining_words, rules.lexicon.has_cjk
        self._inherited: str | None = None
        self._is_decided, self._start = False, 0  # of the sentence
        self._after_stop = False  # the text so far ends with punctuation that may end a sentence

    def plain_word_end(self, text: str, at: int) -> int | None:
        """The length of a word at the position that is the same in all languages; None if there is none."""
        if not self._has_cjk and (run := _PLAIN_CJK.match(text, at, at + MAX_LOOKAHEAD)):
            return run.end() - at
        word = _PLAIN_WORD.match(text, at, at + MAX_LOOKAHEAD)
        if (
            word is None
            or _ROMAN.fullmatch(word[1])
            or not SPECIAL_WORDS.isdisjoint((word[1], word[1].lower()))
            or word[1].lower() in self._joining_words
        ):
            return None
        return word.end() - at

    def select(self, text: str, at: int, ends: bool) -> bool:
        """Decide the language at a position; whether it is decided. ends: no more text follows."""
        if self._after_stop:
            following = at
            while following < len(text) and text[following] == " ":
                following += 1
            if following == len(text) and not ends:
                return False
            if not text[following : following + 1].islower():
                self.start_sentence(following)
            self._after_stop = False
        if self._is_decided:
            return True
        if not self._is_auto:
            language = self.language.name
        else:
            window = text[self._start : self._start + MAX_LOOKAHEAD + 1]
            found = detect(window, ends and self._start + len(window) == len(text), self._inherited, self._default)
            if found is None:
                return False
            language = self._inherited = found
            self.language = load_rules(language)
        self._is_decided = True
        self.num_sentences[language] += 1
        return True

    def advance(self, segment: str, at: int) -> None:
        """A segment at the position has been read."""
        inner = [match.end() for match in SENTENCE_END.finditer(segment) if match.end() < len(segment)]
        if inner:
            self.start_sentence(at + inner[-1])
        if _FINAL_STOP.search(segment):
            self.start_sentence(at + len(segment))
        else:
            self._after_stop = _STOP.search(segment) is not None

    def start_sentence(self, at: int) -> None:
        self._start, self._is_decided, self._after_stop = at, False, False

    def first_needed(self, at: int) -> int:
        """The first position of the text that a decision may need."""
        return at if self._is_decided else min(at, self._start)

    def shift(self, num_chars: int) -> None:
        """The beginning of the text has been dropped."""
        self._start -= num_chars
