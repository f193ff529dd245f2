# SPDX-License-Identifier: Apache-2.0
"""Pronunciation of inflected words from that of their stems: plural, 's, -ed, -ing, -ly, -ness and -less."""

from collections.abc import Callable, Iterator

from polyvox.text.phonemes.alphabet import flap_final_t

VOICELESS = frozenset("pkfθstʃʧ")
SIBILANTS = frozenset("szʃʒʧʤ")
DOUBLED = frozenset("bdgklmnprtvz")

Ending = Callable[[str], str]


def add_s(stem: str) -> str:
    """The plural, the third person or the possessive: cats, dogs, horses."""
    if stem[-1] in SIBILANTS:
        return stem + "ᵻz"
    return stem + ("s" if stem[-1] in VOICELESS else "z")


def add_ed(stem: str) -> str:
    """The past: walked, played, wanted."""
    if stem[-1] in "td":
        return flap_final_t(stem) + "ᵻd"
    return stem + ("t" if stem[-1] in VOICELESS else "d")


def add_ing(stem: str) -> str:
    return flap_final_t(stem) + "ɪŋ"


def add_in(stem: str) -> str:
    """The ending of "goin'"."""
    return flap_final_t(stem) + "ɪn"


def add_ly(stem: str) -> str:
    """The adverb: quickly, finally (one l), happily."""
    if stem[-1] == "i":
        return stem[:-1] + "əli"
    return stem + ("i" if stem[-1] == "l" else "li")


def replace_le(stem: str) -> str:
    """The adverb of an adjective in -le: simply."""
    return stem.removesuffix("l").removesuffix("ᵊ").removesuffix("ə") + "li"


def add_ness(stem: str) -> str:
    return stem + "nəs"


def add_less(stem: str) -> str:
    return stem + "ləs"


def unchanged(stem: str) -> str:
    return stem


def stems(word: str) -> Iterator[tuple[str, Ending]]:
    """Possible stems of a word, the likeliest first, each with the function that adds the ending to its phonemes."""
    if word.endswith("'s"):
        yield word[:-2], add_s
    elif word.endswith("s'"):
        yield word[:-1], unchanged
    elif word.endswith("in'"):
        yield from _verb_stems(word[:-3], add_in)
    elif word.endswith("'"):
        yield word[:-1], unchanged
    elif word.endswith("s") and not word.endswith("ss"):
        yield word[:-1], add_s
        if word.endswith("ies"):
            yield word[:-3] + "y", add_s
        elif word.endswith(("ses", "xes", "zes", "ches", "shes", "oes")):
            yield word[:-2], add_s
    elif word.endswith("ed") and not word.endswith("eed"):
        yield from _verb_stems(word[:-2], add_ed)
        if word.endswith("ied"):
            yield word[:-3] + "y", add_ed
    elif word.endswith("ing"):
        yield from _verb_stems(word[:-3], add_ing)
    elif word.endswith("ly"):
        yield word[:-2], add_ly
        if word.endswith("ily"):
            yield word[:-3] + "y", add_ly
        elif word.endswith("ically"):
            yield word[:-4], add_ly
        else:
            yield word[:-1] + "e", replace_le
    elif word.endswith("ness"):
        yield word[:-4], add_ness
        if word.endswith("iness"):
            yield word[:-5] + "y", add_ness
    elif word.endswith("less"):
        yield word[:-4], add_less


def _verb_stems(stem: str, ending: Ending) -> Iterator[tuple[str, Ending]]:
    doubled = len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] in DOUBLED
    if doubled:
        yield stem, ending  # "polling" is of "poll"
        yield stem[:-1], ending
    if len(stem) > 3 and stem[-1] in "dklmnprt" and set(stem[-3:-1]) <= set("aeiou"):  # "toiled" has no silent e
        yield stem, ending
    yield stem + "e", ending
    yield stem, ending
