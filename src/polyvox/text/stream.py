"""Text made speakable while it is still being written: the same parts, however it was cut."""

import re
from itertools import chain

from polyvox.text.borders import LONGEST, WINDOW, Borders
from polyvox.text.characters import PICTURE, Cleaner
from polyvox.text.counting import cardinal
from polyvox.text.dates import DATES
from polyvox.text.markup import (
    BLOCK_TAGS,
    ENTITY,
    FENCE,
    LINE_TAGS,
    LONGEST_PAUSE,
    PREFIX,
    RULE_LINE,
    SPAN,
    STRAY,
    Hidden,
    bracket_pause,
    break_pause,
    unescape,
)
from polyvox.text.parts import Note, Part, TextRules, Words, merged
from polyvox.text.quantities import QUANTITIES
from polyvox.text.rules import LETTER, Rule
from polyvox.text.vocabulary import ABBREVIATIONS, COUNTRIES, MONEY, MONTHS, WEEKDAYS
from polyvox.text.vocabulary import SIGNS as _SIGN_WORDS
from polyvox.text.words import NAMES, SIGNS, code, link
from polyvox.text.writer import Writer

CONTEXT = 32  # characters before a segment that its rules may look back at

# Words that a rule may begin with; all others are said as they stand.
_SPECIAL = {name.split(".")[0] for name in ABBREVIATIONS} | {sign for sign in MONEY if len(sign) == 3} | {*COUNTRIES}
_SPECIAL |= {name[:size] for name in (*MONTHS, *WEEKDAYS) for size in (3, 4, 5, 9)} | {*"CFJwxπμ"}
_WORD = re.compile(rf"{LETTER}+(?:'{LETTER}+)*(?=[\s,;!?)\"—…]|$|[.:](?:\s|$))")
_ROMAN = re.compile(r"[IVX]+")
_LETTERS = re.compile(rf"{LETTER}+")
_NUMBER = re.compile(r"[$€£¥]?[0-9]+(?:[.,:/-][0-9]+)*%?")
_FOREIGN = re.compile(r"[\u0400-\u1cff\u2e80-\ud7ff\uf900-\ufaff]")
_PICTURES = re.compile(rf"(?:{PICTURE}\u200d?)+")


class SpokenText:
    """Takes text in pieces of any sizes and gives its parts, in order, as early as is safe.

    Held back is the word that may still grow, and with it what a rule may join to it: a number and the word after
    it, a bracket or tag that is open. At most LONGEST + LONGEST_SPAN characters and one letter's marks are held.
    """

    def __init__(self, rules: TextRules | None = None) -> None:
        self._rules = rules or TextRules()
        self._cleaner, self._hidden, self._writer = Cleaner(), Hidden(), Writer()
        self._notes: list[Note] = []
        self._text, self._at = "", 0
        self._line_start, self._structured = True, False
        self._fence, self._code, self._code_lines = "", list[str](), 0
        lexicon = {" ".join(word.lower().split()): said for word, said in self._rules.lexicon.items()}
        self._lexicon = lexicon
        self._special = _SPECIAL.union(*(_LETTERS.findall(word)[:1] + word.split()[:1] for word in lexicon))
        self._borders = Borders(self._rules.english, lexicon)
        self._ordered = self._rules_in_order()
        if self._rules.enabled and not self._rules.english:
            self._notes.append(Note("language", self._rules.language))

    @property
    def notes(self) -> list[Note]:
        """What was left out or passed through so far, by the layer that found it."""
        return [*self._cleaner.notes, *self._hidden.notes, *self._notes]

    def append(self, piece: str) -> list[Part]:
        """The parts that this piece makes certain."""
        if not self._rules.enabled:
            return [Words(piece)] if piece else []
        return self._read(self._hidden.append(self._cleaner.append(piece)), end=False)

    def finish(self) -> list[Part]:
        """The parts that are left."""
        if not self._rules.enabled:
            return []
        return self._read(self._hidden.append(self._cleaner.append("", end=True), end=True), end=True)

    @property
    def held(self) -> int:
        """How many characters are held back."""
        return len(self._text) - self._at

    def _read(self, text: str, end: bool) -> list[Part]:
        self._text += text
        while self._at < len(self._text):
            if self._fence:
                if not self._read_code(end):
                    break
                continue
            window = self._text[self._at : self._at + WINDOW]
            ends = end and self._at + len(window) == len(self._text)
            border = self._borders.first(window, ends, self._line_start)
            if border is None:
                break
            self._render(window[:border])
            self._at += border
        if end:
            self._close_code()
            self._close_line()
        kept = max(0, self._at - CONTEXT)
        self._text, self._at = self._text[kept:], self._at - kept
        return self._writer.take()

    # A segment: one pass from left to right, each place given to the first rule that takes it.

    def _render(self, segment: str) -> None:
        if segment == "\n":
            self._close_line()
            self._writer.line()
            return
        context = self._text[max(0, self._at - CONTEXT) : self._at]
        text, at = context + segment, len(context)
        if self._line_start and segment.strip():
            self._line_start = False
            if fence := FENCE.fullmatch(segment):
                self._fence, self._code, self._code_lines = fence["fence"], [segment], 0
                return
            if (
                RULE_LINE.fullmatch(segment)
                and (len(segment.strip()) > 1 or "|" in segment)
                and segment.strip() != "--"
            ):
                self._writer.paragraph()
                return
            at = self._prefixes(text, at)
        while at < len(text):
            at = self._step(text, at)

    def _prefixes(self, text: str, at: int) -> int:
        while (prefix := PREFIX.match(text, at)) and prefix.end() > at:
            self._structured = self._structured or not prefix["quote"]
            if prefix["number"]:
                self._writer.say(f"{cardinal(prefix['number'])}," if self._rules.english else prefix[0], sentence=True)
            if prefix["task"] and self._rules.english:
                self._writer.say("to do:" if prefix["task"] == " " else "done:")
            at = prefix.end()
            if prefix["row"] or prefix["heading"] or prefix["number"]:
                break
        return at

    def _step(self, text: str, at: int) -> int:
        char = text[at]
        if char.isspace():
            self._writer.raw(char)
            return at + 1
        word = _WORD.match(text, at)
        if (
            word
            and word[0] not in self._special
            and word[0].lower() not in self._special
            and not _ROMAN.fullmatch(word[0])
        ):
            self._writer.raw(word[0])
            return word.end()
        if char in "[<`!" and (span := SPAN.match(text, at)):
            self._markup(span)
            return span.end()
        if char == "&" and (entity := ENTITY.match(text, at)):
            return self._entity(entity)
        if char == "|":
            self._writer.cell()
            return at + 1
        if self._rules.english and char in "0123456789$€£¥" and (figures := self._foreign(text, at)):
            self._notes.append(Note("number", figures[0]))
            self._writer.raw(figures[0])
            return figures.end()
        for rule in self._ordered:
            match = rule.pattern.match(text, at)
            if match and match.end() > at and (said := self._said(rule, match)) is not None:
                self._replace(rule.name, match[0], said)
                return match.end()
        if not self._rules.english and (picture := _PICTURES.match(text, at)):
            self._notes.append(Note("emoji", picture[0]))
            self._writer.say("")
            return picture.end()
        if char in "[]`~_*{}<" and (stray := STRAY.match(text, at)):
            return self._stray(text, stray)
        letters = _LETTERS.match(text, at)
        after = letters.end() if letters else at + 1
        self._writer.raw(text[at:after])
        return after

    def _said(self, rule: Rule, match: re.Match[str]) -> str | None:
        if rule.name == "url" and match[0].lower() in self._lexicon:
            return self._lexicon[match[0].lower()]
        return rule.say(match)

    def _replace(self, name: str, source: str, said: str) -> None:
        """Nothing with a letter or a digit goes unsaid without a note."""
        if name == "url":
            self._notes.append(Note("url", source))
        elif name == "emoji" and len(source) > 1 and source[0] in source[1:]:
            self._notes.append(Note("repeated", source))
        elif not any(map(str.isalnum, said)) and any(map(str.isalnum, source)):
            self._notes.append(Note("left out", source))
        self._writer.say(said, sentence=name == "short" or not (name == "code" or source[0].isalpha()))

    def _foreign(self, text: str, at: int) -> re.Match[str] | None:
        """A number among letters of another script: there English words would be wrong."""
        figures = _NUMBER.match(text, at)
        if figures and (after := text[figures.end() : figures.end() + 1]) and _FOREIGN.match(after):
            return figures
        letters = _LETTERS.findall(text[max(0, at - CONTEXT) : at])
        return figures if letters and _FOREIGN.match(letters[-1][-1]) else None

    def _markup(self, span: re.Match[str]) -> None:
        label, source = span["label"], span[0]
        if (inner := span["code"] or span["code2"]) is not None:
            self._replace("code", source, code(inner) if self._rules.english else inner)
            if not any(map(str.isalnum, inner)):
                self._notes.append(Note("code", source))
        elif label is not None:
            self._bracket(span, label)
        elif span["alias"] is not None:
            self._notes.append(Note("tag", source))
            self._writer.say(span["alias"] or span["aliased"])
        elif span["link"]:
            self._notes.append(Note("url", source))
            self._writer.say(link(span["link"]) if self._rules.english else span["link"])
        elif span["tag"].lower() == "break" and not span["close"]:
            self._pause(source, break_pause(span["inside"]))
        else:
            self._notes.append(Note("tag", source))
            if span["tag"].lower() in BLOCK_TAGS:
                self._close_line()
                self._writer.paragraph()
            elif span["tag"].lower() in LINE_TAGS and not (span["tag"] == "s" and span["close"]):
                self._writer.line()
            elif span["tag"].lower() in ("td", "th") and not span["close"]:
                self._writer.cell()

    def _bracket(self, span: re.Match[str], label: str) -> None:
        asked, seconds = bracket_pause(label)
        if asked and not span["url"]:
            self._pause(span[0], seconds)
            return
        plain = span["url"] is None and span["reference"] is None and not span["image"]
        if not plain or label.startswith("^"):
            self._notes.append(Note("image" if span["image"] else "link", span[0]))
        if label.startswith("^"):
            return  # a footnote's mark
        if span["image"] and self._rules.english:
            self._writer.say("image:" if label.strip() else "image")
        self._writer.raw("(" if plain else "")
        at = 0
        while at < len(label):  # a label has no brackets, so this goes no deeper
            at = self._step(label, at)
        self._writer.raw(")" if plain else "")

    def _pause(self, source: str, seconds: float | None) -> None:
        if seconds is None:
            self._notes.append(Note("malformed", source))
            return
        if seconds > LONGEST_PAUSE:
            self._notes.append(Note("pause", source))
        if seconds > 0:
            self._writer.pause(min(seconds, LONGEST_PAUSE))

    def _entity(self, entity: re.Match[str]) -> int:
        char = Cleaner().append(unescape(entity[0]), end=True)
        if char == entity[0]:
            self._writer.raw("&")
            return entity.start() + 1
        if not char.strip():
            self._notes.append(Note("tag", entity[0]))
        if char in _SIGN_WORDS and self._rules.english:
            self._writer.say(_SIGN_WORDS[char])
        else:
            self._writer.raw(char or " ")
        return entity.end()

    def _stray(self, text: str, stray: re.Match[str]) -> int:
        """Marks without a partner: links' ends, emphasis, an underscore within a name."""
        if any(map(str.isalnum, stray[0])):
            self._notes.append(Note("link" if stray["url"] else "malformed", stray[0]))
        elif "_" in stray[0] and stray.start() and text[stray.start() - 1].isalnum():
            self._writer.say("")
        return stray.end()

    # Lines and blocks of code.

    def _close_line(self) -> None:
        if self._structured:
            self._writer.full_stop()
        self._line_start, self._structured = True, False

    def _read_code(self, end: bool) -> bool:
        newline = self._text.find("\n", self._at, self._at + LONGEST)
        whole = newline >= 0
        stop = newline + 1 if whole else min(len(self._text), self._at + LONGEST)
        if not whole and stop - self._at < LONGEST and not end:
            return False
        line, self._at = self._text[self._at : stop], stop
        first = self._code[-1].endswith("\n")
        self._code.append(line)
        bare = line.strip()
        if first and len(bare) >= len(self._fence) and set(bare) == {self._fence[0]}:
            self._close_code()
            if whole:
                self._writer.line()
        elif whole or end:
            self._code_lines += len(self._code) > 2 or bool(bare)
        return True

    def _close_code(self) -> None:
        if not self._fence:
            return
        self._notes.append(Note("code", "".join(self._code)))
        lines = self._code_lines
        self._fence, self._code, self._line_start = "", [], True
        if self._rules.english:
            self._writer.say(f"Code block, {cardinal(str(lines))} {'line' if lines == 1 else 'lines'}, left out.")

    def _rules_in_order(self) -> list[Rule]:
        lexicon = []
        if self._lexicon:
            words = sorted(self._lexicon, key=len, reverse=True)
            pattern = "|".join(re.escape(word).replace(r"\ ", " +") for word in words)
            say = lambda match: self._lexicon[" ".join(match[0].lower().split())]  # noqa: E731
            lexicon = [Rule("lexicon", re.compile(rf"(?<!\w)(?:{pattern})(?!\w)", re.IGNORECASE), say)]
        if not self._rules.english:
            return lexicon
        return [*lexicon, *NAMES, *DATES, *QUANTITIES, *SIGNS]


def speakable(text: str, rules: TextRules | None = None) -> list[Part]:
    """The whole text's parts: the stream, fed once."""
    stream = SpokenText(rules)
    return merged(chain(stream.append(text), stream.finish()))
