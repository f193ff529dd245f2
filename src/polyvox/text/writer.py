"""What is said, written down: white space kept apart, words set apart from their neighbours, lines closed."""

from polyvox.text.parts import Part, Pause, Words

_CLOSING = ")]}%!?.,;:…"
_STOPS = ".!?…"
_ENDS = ".!?,;:…—–-。！？，；："


class Writer:
    """Collects parts. What it gives depends on the calls alone, never on when the parts are taken."""

    def __init__(self) -> None:
        self.structured = False  # whether the line is a heading, an item, a row
        self._parts: list[Part] = []
        self._text: list[str] = []
        self._last = ""  # the last character since the last pause; none at the beginning
        self._gap = ""
        self._comma = False
        self._after_words = False
        self._after_pause = False

    def raw(self, text: str) -> None:
        """Text as it stands; runs of spaces become one."""
        if text.isspace():
            self._gap = self._gap or " "
        elif text:
            self._put(text, self._after_words and (text[0].isalnum() or text[0] in "([{"))
            self._after_words = False

    def say(self, words: str, sentence: bool = False) -> None:
        """Words for something that was not written as words; they never touch their neighbours.

        sentence: they begin with a capital letter where they begin a sentence, so that it still shows.
        """
        if not words.strip():
            self._gap = self._gap or " "
            return
        begins = "\n" in self._gap or (self._last in _STOPS and self._gap) or not (self._last or self._after_pause)
        if sentence and begins:
            words = words.lstrip()[:1].upper() + words.lstrip()[1:]
        self._put(words.strip(), self._last.isalnum() or self._last in _CLOSING)
        self._after_words = True

    def line(self) -> None:
        self.end_line()
        self._gap = "\n\n" if "\n" in self._gap else "\n"

    def paragraph(self) -> None:
        self.end_line()
        self._gap = "\n\n"

    def cell(self) -> None:
        """A comma, once more is said on the line."""
        self._comma = bool(self._last) and "\n" not in self._gap

    def end_line(self) -> None:
        """A full stop after a line that is a thought of its own, unless it has an end."""
        structured, self.structured, self._comma = self.structured, False, False
        if structured and self._last and "\n" not in self._gap and self._last not in _ENDS:
            self._gap = ""
            self._put(".", False)
            self._after_words = False

    def pause(self, seconds: float) -> None:
        self._flush()
        self._parts.append(Pause(seconds))
        self._last, self._gap, self._comma, self._after_words, self._after_pause = "", "", False, False, True

    def take(self) -> list[Part]:
        """The parts since the last call."""
        self._flush()
        parts, self._parts = self._parts, []
        return parts

    def _put(self, text: str, apart: bool) -> None:
        if self._after_pause:  # a full stop alone cannot be said
            text = text.lstrip(" .,;:!?…")
            if not text:
                return
            self._after_pause = False
        gap = self._gap or (" " if apart else "")
        if self._comma and self._last not in _ENDS:
            gap = ", "
        self._text.append((gap if self._last else "") + text)
        self._last, self._gap, self._comma = text[-1], "", False

    def _flush(self) -> None:
        if self._text:
            self._parts.append(Words("".join(self._text)))
            self._text = []
