"""Text made speakable while it is still being written: the same parts, however it was cut."""

from itertools import chain

from polyvox.text.borders import LONGEST, WINDOW, Borders
from polyvox.text.characters import Cleaner
from polyvox.text.counting import cardinal
from polyvox.text.inline import CONTEXT, Inline
from polyvox.text.markup import FENCE, PREFIX, RULE_LINE, Hidden
from polyvox.text.parts import Note, Part, TextRules, Words, merged
from polyvox.text.writer import Writer


class SpokenText:
    """Takes text in pieces of any sizes and gives its parts, in order, as early as is safe.

    Held back is the word that may still grow, and with it what a rule may join to it: a number and the word after
    it, a bracket or tag that is open. At most LONGEST + LONGEST_SPAN characters and one letter's marks are held.
    """

    def __init__(self, rules: TextRules | None = None) -> None:
        self._rules = rules or TextRules()
        self._cleaner, self._hidden, self._writer = Cleaner(), Hidden(), Writer()
        self._inline = Inline(self._rules, self._writer)
        self._borders = Borders(self._rules.english, self._inline.lexicon)
        self._text, self._at = "", 0
        self._line_start = True
        self._fence, self._code, self._code_lines = "", list[str](), 0
        if self._rules.enabled and not self._rules.english:
            self._inline.note("language", self._rules.language)

    @property
    def notes(self) -> list[Note]:
        """What was left out or passed through so far, by the layer that found it."""
        return [*self._cleaner.notes, *self._hidden.notes, *self._inline.notes]

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
        return len(self._text) - self._at + self._hidden.held + self._cleaner.held

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
            self._writer.end_line()
        kept = max(0, self._at - CONTEXT)
        self._text, self._at = self._text[kept:], self._at - kept
        return self._writer.take()

    def _render(self, segment: str) -> None:
        if segment == "\n":
            self._line_start = True
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
        self._inline.read(text, at)

    def _prefixes(self, text: str, at: int) -> int:
        while (prefix := PREFIX.match(text, at)) and prefix.end() > at:
            self._writer.structured |= not prefix["quote"]
            if prefix["number"]:
                self._writer.say(f"{cardinal(prefix['number'])}," if self._rules.english else prefix[0], sentence=True)
            if prefix["task"] and self._rules.english:
                self._writer.say("to do:" if prefix["task"] == " " else "done:")
            at = prefix.end()
            if prefix["row"] or prefix["heading"] or prefix["number"]:
                break
        return at

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
        self._inline.note("code", "".join(self._code))
        lines = self._code_lines
        self._fence, self._code, self._line_start = "", [], True
        if self._rules.english:
            self._writer.say(f"Code block, {cardinal(str(lines))} {'line' if lines == 1 else 'lines'}, left out.")


def speakable(text: str, rules: TextRules | None = None) -> list[Part]:
    """The whole text's parts: the stream, fed once."""
    stream = SpokenText(rules)
    return merged(chain(stream.append(text), stream.finish()))
