# SPDX-License-Identifier: Apache-2.0
"""Normalisation of a text segment: one pass from left to right, the first matching rule wins."""

import re

from polyvox.text import markup
from polyvox.text.languages.language_rules import LanguageRules
from polyvox.text.part_writer import PartWriter
from polyvox.text.parts import Note
from polyvox.text.phonemes.inline_phonemes import mark_phonemes
from polyvox.text.rules import LETTER, Rule
from polyvox.text.ssml import MAX_DEPTH
from polyvox.text.text_rules import TextRules
from polyvox.text.unicode_cleaner import PICTOGRAM, PRIMES, UnicodeCleaner

CONTEXT = 32  # characters before a segment that its rules may look at

_WORD = re.compile(rf"(?![\u0370-\u03ff]){LETTER}+(?:'{LETTER}+)*(?=[\s,;!?)\"—…]|$|[.:](?:\s|$))")
_ESCAPED = frozenset("\\`*_{}[]()#+-.!|<>~$")  # characters that Markdown allows after a backslash
_DECORATION = re.compile(r"([-<>=+^@%&$/\\.!?])\1{3,}")  # repeated for decoration
_ROMAN = re.compile(r"[IVXLCDM]+(?:'s)?")
_LETTERS = re.compile(rf"{LETTER}+")
_NUMBER = re.compile(r"[$€£¥]?[0-9]+(?:[.,:/-][0-9]+)*%?")
_FOREIGN = re.compile(r"[\u0400-\u1cff\u2e80-\ud7ff\uf900-\ufaff]")
_PICTOGRAMS = re.compile(rf"(?:{PICTOGRAM}\u200d?)+")


class InlineNormalizer:
    """Applies the rules of a language and a lexicon to segments, and notes what was changed or left out."""

    def __init__(self, rules: TextRules, writer: PartWriter, language: LanguageRules) -> None:
        self.notes: list[Note] = []
        self._writer = writer
        self._lexicon, self._takes_phonemes = rules.lexicon, rules.phonemes
        self._rates: list[float] = []  # of open <prosody> elements
        self._language = language
        self._rules, self._word_rules = language.rules, language.word_rules

    def set_language(self, language: LanguageRules) -> None:
        """The language of the segments that follow."""
        if language is not self._language:
            self._language = language
            self._rules, self._word_rules = language.rules, language.word_rules

    def read(self, text: str, at: int = 0, origin: int | None = None) -> None:
        """Normalise a text from a position on; the text before it is context.

        origin: position of the text in the whole; None within a piece of text whose position is recorded as a whole.
        """
        while at < len(text):
            after = self._step(text, at)
            if origin is not None:
                self._writer.mark(origin + at, text[at:after])
            at = after

    def note(self, kind: str, source: str) -> None:
        self.notes.append(Note(kind, source))

    def _step(self, text: str, at: int) -> int:
        char = text[at]
        if char.isspace():
            self._writer.raw(char)
            return at + 1
        if self._lexicon and (after := self._pronounce(text, at)) > at:
            return after
        word = _WORD.match(text, at)
        if word and not _ROMAN.fullmatch(word[0]) and not self._language.is_special(word[0]):
            self._writer.raw(word[0])
            return word.end()
        if char in "[<`!" and (span := markup.SPAN.match(text, at)):
            self._markup(span)
            return span.end()
        if char == "&" and (entity := markup.ENTITY.match(text, at)):
            return self._entity(entity)
        if char in "\\$" and (after := self._apply(self._language.formulas, text, at)) > at:
            return after
        if char == "|" or (char == "\\" and text[at + 1 : at + 2] in _ESCAPED):
            if char == "|":
                self._writer.cell()
            return at + 1
        if run := _DECORATION.match(text, at):
            self._writer.raw(run[0])
            return run.end()
        if self._language.keeps_foreign_numbers and char in "0123456789$€£¥" and (figures := self._foreign(text, at)):
            self.note("number", figures[0])
            self._writer.raw(figures[0])
            return figures.end()
        if (after := self._apply(self._word_rules if char.isalpha() else self._rules, text, at)) > at:
            return after
        if not self._language.names_emoji and (pictogram := _PICTOGRAMS.match(text, at)):
            self.note("emoji", pictogram[0])
            self._writer.say("")
            return pictogram.end()
        if char in "[]`~_*{}<" and (stray := markup.STRAY.match(text, at)):
            return self._stray(text, stray)
        letters = _LETTERS.match(text, at)
        after = letters.end() if letters else at + 1
        self._writer.raw(text[at:after].translate(PRIMES))
        return after

    def _apply(self, rules: list[Rule], text: str, at: int) -> int:
        """Apply the first rule that matches; the position after it, or `at` if none does."""
        for rule in rules:
            match = rule.pattern.match(text, at)
            if match and match.end() > at and (spoken := rule.say(match)) is not None:
                self._replace(rule.name, match[0], spoken)
                return match.end()
        return at

    def _pronounce(self, text: str, at: int) -> int:
        """Apply the lexicon; the position after the words, or `at` if it has none of them."""
        found = self._lexicon.match(text, at)
        if found is None:
            return at
        pronunciation, end = found
        if pronunciation.respelling:
            self._replace("lexicon", text[at:end], pronunciation.respelling)
            return end
        return end if self._say_phonemes(text[at:end], pronunciation.phonemes, pronunciation.alphabet) else at

    def _say_phonemes(self, written: str, phonemes: str, alphabet: str) -> bool:
        """Whether the words were spoken; otherwise a note says why not."""
        if not self._takes_phonemes:
            self.note("phonemes", written)
            return False
        try:
            self._writer.say(mark_phonemes(written, phonemes, alphabet))
        except ValueError as error:
            self.note("malformed", f"{phonemes}: {error}")
            return False
        return True

    def _replace(self, name: str, source: str, spoken: str) -> None:
        """Write the replacement. A letter or digit that is left out always gets a note."""
        if name == "url":
            self.note("url", source)
        elif name == "emoji" and len(source) > 1 and source[0] in source[1:]:
            self.note("repeated", source)
        elif not any(map(str.isalnum, spoken)) and any(map(str.isalnum, source)):
            self.note("left out", source)
        may_start = name in ("short", "money") or not (name == "code" or source[0].isalpha())
        self._writer.say(spoken, sentence=may_start)

    def _foreign(self, text: str, at: int) -> re.Match[str] | None:
        """A number next to letters of another script, where words of a language with Latin letters would be wrong."""
        figures = _NUMBER.match(text, at)
        if figures and (after := text[figures.end() : figures.end() + 1]) and _FOREIGN.match(after):
            return figures
        letters = _LETTERS.findall(text[max(0, at - CONTEXT) : at])
        return figures if letters and _FOREIGN.match(letters[-1][-1]) else None

    def _markup(self, span: re.Match[str]) -> None:
        label, source = span["label"], span[0]
        if (inner := span["code"] or span["code2"]) is not None:
            self._replace("code", source, self._language.code(inner))
            if not any(map(str.isalnum, inner)):
                self.note("code", source)
        elif label is not None:
            self._bracket(span, label)
        elif span["element"]:
            self._element(span)
        elif span["link"]:
            self.note("url", source)
            self._writer.say(self._language.link(span["link"]))
        else:
            self._tag(span)

    def _element(self, span: re.Match[str]) -> None:
        """<sub>, <say-as> and <phoneme> with their content."""
        attributes, content = markup.parse_attributes(span["attributes"] or ""), span["content"]
        plain = markup.unescape(content)
        match span["element"].lower():
            case "sub":
                self.note("tag", span[0])
                self._writer.say(attributes.get("alias") or plain)
            case "phoneme":
                alphabet = attributes.get("alphabet", "ipa").lower()
                if not self._say_phonemes(plain, attributes.get("ph", ""), alphabet):
                    self.read(content)
            case _:
                kind, format = attributes.get("interpret-as", ""), attributes.get("format", "")
                say_as = self._language.say_as
                spoken = say_as(kind, plain, format) if say_as else None
                if spoken is None:
                    self.read(content)
                else:
                    self._replace("say-as", content, spoken)

    def _tag(self, span: re.Match[str]) -> None:
        tag, is_close = span["tag"].lower(), bool(span["close"])
        if tag == "break" and not is_close:
            self._pause(span[0], markup.break_pause(span["inside"]))
            return
        if tag == "prosody":
            self._prosody(span, is_close)
            return
        self.note("tag", span[0])
        if tag in markup.BLOCK_TAGS:
            self._writer.paragraph()
        elif tag in markup.LINE_TAGS and not (span["tag"] == "s" and is_close):
            self._writer.line()
        elif tag == "sentence":
            self._writer.sentence()
            self._writer.structured = not is_close
        elif tag in ("td", "th") and not is_close:
            self._writer.cell()

    def _prosody(self, span: re.Match[str], is_close: bool) -> None:
        rate = self._rates[-1] if self._rates else 1.0
        if is_close:
            del self._rates[-1:]
        elif len(self._rates) < MAX_DEPTH:
            given = markup.parse_attributes(span["inside"]).get("rate")
            found = markup.parse_rate(given) if given is not None else rate
            if found is None:
                self.note("malformed", span[0])
            self._rates.append(rate if found is None else found)
        current = self._rates[-1] if self._rates else 1.0
        if current != rate:
            self._writer.rate(current)

    def _bracket(self, span: re.Match[str], label: str) -> None:
        is_pause, seconds = markup.bracket_pause(label)
        if is_pause and not span["url"]:
            self._pause(span[0], seconds)
            return
        plain = span["url"] is None and span["reference"] is None and not span["image"]
        if not plain or label.startswith("^"):
            self.note("image" if span["image"] else "link", span[0])
        if label.startswith("^"):
            return  # a footnote reference
        if span["image"] and (announcements := self._language.announcements):
            self._writer.say(announcements.image + (":" if label.strip() else ""))
        self._writer.raw("(" if plain else "")
        self.read(label)  # a label has no brackets, so this does not recurse further
        self._writer.raw(")" if plain else "")

    def _pause(self, source: str, seconds: float | None) -> None:
        if seconds is None:
            self.note("malformed", source)
            return
        allowed = min(markup.MAX_PAUSE, markup.MAX_SILENCE - self._writer.silence)
        if seconds > allowed:
            self.note("pause", source)
        if min(seconds, allowed) > 0:
            self._writer.pause(min(seconds, allowed))

    def _entity(self, entity: re.Match[str]) -> int:
        char = UnicodeCleaner().append(markup.unescape(entity[0]), end=True)
        if char == entity[0]:
            self._writer.raw("&")
            return entity.start() + 1
        if not char.strip():
            self.note("tag", entity[0])
        if char in self._language.signs:
            self._writer.say(self._language.signs[char])
        else:
            self._writer.raw(char or " ")
        return entity.end()

    def _stray(self, text: str, stray: re.Match[str]) -> int:
        """Unpaired marks: ends of links, emphasis, an underscore in a name."""
        if any(map(str.isalnum, stray[0])):
            self.note("link" if stray["url"] else "malformed", stray[0])
        elif "_" in stray[0] and stray.start() and text[stray.start() - 1].isalnum():
            self._writer.say("")
        return stray.end()
