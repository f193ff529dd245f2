"""What a rule is: a pattern, and what is said where it matches."""

import re
from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[re.Match[str]], str | None]

# Letters: without ASCII digits and what stands for a power or a fraction.
LETTER = r"[^\W0-9_²³¹⁰⁴-⁹¼-¾⅐-⅞]"
NUM = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\d)\.\d+)"
SIGN = r"(?:(?<![^\s(\[\"'=<>≤≥≈~*×/:])[-−±])?"
TO = r" ?[-–—] ?"
LEFT = r"(?<!\w)(?<!\d[.,])"
TH = r"(?:st|nd|rd|th)"


@dataclass(frozen=True, slots=True)
class Rule:
    """Where its pattern matches, the words of `say` are said; None leaves the place to the rules that follow."""

    name: str
    pattern: re.Pattern[str]
    say: Say


class Rules(list[Rule]):
    """Rules in their order. As a decorator it adds the function below it; of several above one, the lowest is first."""

    def __call__(self, name: str, pattern: str, flags: int = 0) -> Callable[[Say], Say]:
        # A digit is an ASCII digit; those of other scripts are left as they are.
        compiled = re.compile(pattern.replace(r"\d", "[0-9]"), flags)

        def add(say: Say) -> Say:
            self.append(Rule(name, compiled, say))
            return say

        return add

    def words(self, name: str, pattern: str, said: str) -> None:
        """A rule that always says the same."""
        self(name, pattern)(lambda _: said)


def before(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - 24) : match.start()]


def after(match: re.Match[str]) -> str:
    return match.string[match.end() :]
