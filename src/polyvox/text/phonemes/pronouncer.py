# SPDX-License-Identifier: Apache-2.0
"""The pronunciation of one word in its context: lexicon, inflections, letters, compounds, then the spelling model."""

import re
import unicodedata
from functools import lru_cache

from polyvox.text.phonemes.alphabet import PRIMARY, SECONDARY, VOWELS, begins_with_vowel, with_secondary_stress
from polyvox.text.phonemes.corrections import ARTICLES, ENTRIES, FIXED_FORMS, LETTER_WORDS, LETTERS_ONLY, WEAK_FORMS
from polyvox.text.phonemes.heteronyms import SENTENCE_MARKS, Context, choose_form
from polyvox.text.phonemes.inflections import add_s, stems
from polyvox.text.phonemes.lexicon import END, load_lexicon_entries
from polyvox.text.phonemes.spelling_model import load_spelling_model

CACHED_WORDS = 50_000
MIN_COMPOUND_PART = 4
# Letters that NFKD does not decompose.
LATIN = str.maketrans({"ß": "ss", "ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ð": "th", "þ": "th", "ı": "i"})
_DOTTED = re.compile(r"(?:[A-Za-z]{1,2}\.)+[A-Za-z]{0,2}")
_CONSONANTS_ONLY = re.compile(r"[b-df-hj-np-tv-xz]+")
_UNPRONOUNCEABLE = re.compile(r"^[b-df-hj-np-tv-xz]{3}|[b-df-hj-np-tv-xz]{4}|^[aeiou]{3}")


def load_pronunciations() -> None:
    """Read the data files now, so that the first text does not wait for them."""
    load_lexicon_entries()
    load_spelling_model()


def is_known(word: str) -> bool:
    """Whether the lexicon has the word."""
    return _entry(word) is not None


def looks_ahead(word: str) -> bool:
    """Whether the pronunciation depends on what follows."""
    small = word.lower()
    return small in ARTICLES or small in WEAK_FORMS or word in LETTER_WORDS or " " in (_entry(word) or "")


def pronounce(word: str, context: Context, after_phonemes: str = "", starts_sentence: bool = False) -> str:
    """The phonemes of a word; `after_phonemes` are those of the next word, which decide "the" and "to"."""
    small = word.lower()
    ends_phrase = context.after in SENTENCE_MARKS
    if word in LETTER_WORDS and not (context.before.isupper() or context.after.isupper()):
        return spell(word)
    if small in ARTICLES and (small == word or not word.isupper()):
        before_vowel, before_consonant, at_end = ARTICLES[small]
        return at_end if ends_phrase else before_vowel if begins_with_vowel(after_phonemes) else before_consonant
    if small in WEAK_FORMS:
        weak, strong = WEAK_FORMS[small]
        return strong if ends_phrase or word.isupper() else weak
    if small in FIXED_FORMS and (word != "A" or starts_sentence) and word != "i":
        return FIXED_FORMS[small]
    entry = _entry(small if starts_sentence and _entry(small) else word)
    if entry is None or " " not in entry:
        return isolated(word)
    default, *others = entry.split(" ")
    forms = dict(other.split("=", 1) for other in others)
    if END in forms:
        spoken = forms[END] if ends_phrase else default
    else:
        lowered = Context(context.before.lower(), context.second_before.lower(), context.after.lower())
        spoken = forms.get(choose_form(small, frozenset(forms), lowered) or "", default)
    return _stressed(spoken) if word.isupper() and len(word) > 1 else spoken


def expected(word: str) -> str:
    """The phonemes of a word whose own context is not known yet."""
    return spell(word) if word in LETTER_WORDS else isolated(word)


@lru_cache(CACHED_WORDS)
def isolated(word: str) -> str:
    """The phonemes of a word alone, in its default form. "" if it has no letters. Cached: words must be short."""
    if exact := ENTRIES.get(word):
        return exact.split(" ", 1)[0]
    word = _latin(word)
    if not any(letter.isalpha() for letter in word):
        return ""
    if len(word) == 1 or word in LETTERS_ONLY:
        return spell(word)
    known = _known(word)
    if known:
        return _stressed(known) if word.isupper() and len(word) > 1 else known
    if "-" in word:
        parts = [isolated(part) for part in word.split("-")]
        return " ".join(part for part in parts if part)
    if _DOTTED.fullmatch(word):
        return spell(word)
    if _is_abbreviation(word):
        return spell(word)
    mixed = re.findall(r"[A-Z]?[a-z']+|[A-Z]+(?![a-z])", word)
    if len(mixed) > 1 and "'" not in word:
        return " ".join(isolated(part) for part in mixed)
    return _compound(word.lower()) or load_spelling_model().pronounce(word)


def spell(word: str) -> str:
    """The letters of a word one by one, the last one with the main stress; a plural s is kept."""
    plural = len(word) > 2 and word[-1] == "s" and word[:-1].isupper()
    letters = [letter.upper() for letter in (word[:-1] if plural else word) if letter.isalpha()]
    names = [load_lexicon_entries().get(letter) or "" for letter in letters]
    spoken = "".join(name.replace(PRIMARY, SECONDARY) for name in names[:-1]) + (names[-1] if names else "")
    return add_s(spoken) if plural and spoken else spoken


@lru_cache(CACHED_WORDS)
def _entry(word: str) -> str | None:
    """The entry of a word in one of its cases; "tours" is not an entry of "Tours" but an inflection."""
    lexicon = load_lexicon_entries()
    small = word.lower()
    for spelling in (word, small):
        if entry := ENTRIES.get(spelling) or lexicon.get(spelling):
            return entry
    if small.endswith("s") and any(stem in lexicon for stem, _ in stems(small)):
        return None
    return ENTRIES.get(small.capitalize()) or lexicon.get(small.capitalize())


def _known(word: str) -> str | None:
    """The default pronunciation of a word or of an inflection of one."""
    if entry := _entry(word):
        return entry.split(" ", 1)[0]
    for stem, add_ending in stems(word if word[:-1].isupper() and word[-1] == "s" else word.lower()):
        if len(stem) > 1:
            if entry := _entry(stem):
                default, *forms = entry.split(" ")
                verb = next((form[5:] for form in forms if form.startswith("VERB=")), default)
                return add_ending(verb if word.lower().endswith(("ing", "ed")) else default)
            if word.endswith("'s"):
                return add_ending(isolated(word[:-2]))
    return None


def _is_abbreviation(word: str) -> bool:
    plain = word.removesuffix("s") if word[:-1].isupper() else word
    if not plain.isupper() and not (_CONSONANTS_ONLY.fullmatch(plain.lower()) and "y" not in plain.lower()):
        return False
    small = plain.lower()
    return len(plain) <= 3 or _UNPRONOUNCEABLE.search(small) is not None or not set(small) & set("aeiouy")


def _compound(word: str) -> str | None:
    """Two known words: "floorboard". The longest first part that leaves a known second part."""
    for cut in range(len(word) - MIN_COMPOUND_PART, MIN_COMPOUND_PART - 1, -1):
        first, second = word[:cut], word[cut:]
        lexicon = load_lexicon_entries()
        if first in lexicon and (second in lexicon or (second.endswith("s") and second[:-1] in lexicon)):
            head, tail = _known(first), _known(second)
            if head and tail and PRIMARY in head and PRIMARY in tail:
                return head + with_secondary_stress(tail)
    return None


def _stressed(phonemes: str) -> str:
    """The word with a main stress, as a word in capitals has it."""
    if PRIMARY in phonemes:
        return phonemes
    if SECONDARY in phonemes:
        return phonemes.replace(SECONDARY, PRIMARY, 1)
    first = next((index for index, symbol in enumerate(phonemes) if symbol in VOWELS), None)
    return phonemes if first is None else phonemes[:first] + PRIMARY + phonemes[first:]


def _latin(word: str) -> str:
    """Accented letters without their accents."""
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFKD", word.translate(LATIN))
    return "".join(letter for letter in decomposed if letter.isascii())
