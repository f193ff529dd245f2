# SPDX-License-Identifier: Apache-2.0
"""Language detection for streamed text, word by word: the script, then frequent words, letters and endings."""

import re
from functools import cache

from polyvox.text.frequent_words import FREQUENT_WORDS

OTHER = "other"  # a language without rules
MAX_LOOKAHEAD = 64  # characters from the start of a sentence after which its language is decided
_MARGIN = 3.5  # of the score before all other languages that decides at once
_INHERITED, _DEFAULT = 2.0, 1.0  # the score of the language of the text so far, and of the default language
_MIN_SCORE = 1.0  # below it a sentence inherits the language
_MAX_HAN = 16  # Han characters without kana; a Japanese sentence has kana before
_EXCLUSIVE = 3.0  # the score of a frequent word that only one language has; divided among those that have it

# A full stop after a short word is taken for an abbreviation.
SENTENCE_END = re.compile(
    r"(?:(?<!\b[^\W\d_])(?<!\b[^\W\d_]{2})(?<!\b[^\W\d_]{3})(?<!\b[Pp]rof)\.|[!?…])[\"')\]»*_]*\s+(?=[^\sa-zß-ÿа-яё])|[。！？]|\n"
)
_TOKEN = re.compile(
    r"<[^<>\n]*>|\S+@\S+|(?:https?://|www\.)\S+|(?<![^\W_])[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}|[\u3040-\u30ff]+|[\u3400-\u9fff]"
    r"|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+(?:'[^\W\d_\u3040-\u30ff\u3400-\u9fff]+)*'?"
)
_KANA, _HAN, _HANGUL = (
    re.compile("[\u3040-\u30ff]"),
    re.compile("[\u3400-\u9fff]"),
    re.compile("[\u1100-\u11ff\uac00-\ud7a3]"),
)
_CYRILLIC, _LATIN = re.compile("[\u0400-\u052f]"), re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")

_ENDINGS = {
    "english": ("ing", "ght", "ould", "ness", "ship", "n't", "'s", "'re", "'ve", "'ll", "ly", "tion", "ed"),
    "german": (
        "ung",
        "ungen",
        "lich",
        "liche",
        "ische",
        "keit",
        "heit",
        "chen",
        "sch",
        "cht",
        "ten",
        "gen",
        "tz",
        "ier",
    ),
    "french": (
        "eux",
        "eau",
        "aux",
        "tion",
        "ais",
        "ait",
        "ez",
        "eur",
        "ique",
        "ette",
        "elle",
        "ment",
        "oir",
        "é",
        "ée",
    ),
    "spanish": (
        "ción",
        "ciones",
        "dad",
        "iendo",
        "ando",
        "mente",
        "aron",
        "eron",
        "ió",
        "ía",
        "illo",
        "ías",
        "os",
        "as",
    ),
    "portuguese": (
        "ção",
        "ções",
        "dade",
        "mente",
        "ando",
        "ou",
        "am",
        "em",
        "ões",
        "ão",
        "eira",
        "eiro",
        "inho",
        "ência",
        "ácia",
        "os",
        "as",
    ),
    "italian": ("zione", "zioni", "mente", "ità", "ato", "ati", "are", "ere", "ire", "ella", "etto", "ggio", "i", "o"),
}
_LETTERS: dict[str, dict[str, float]] = {
    "german": {"ß": 3.0, "ä": 2.0, "ö": 1.5, "ü": 1.5},
    "french": {
        "œ": 3.0,
        **dict.fromkeys("ûî", 2.0),
        **dict.fromkeys("èùêë", 1.5),
        "ç": 1.0,
        **dict.fromkeys("âôàé", 0.6),
    },
    "spanish": {"ñ": 3.0, **dict.fromkeys("íóú", 0.7), "á": 0.5, "é": 0.3},
    "portuguese": {**dict.fromkeys("ãõ", 3.0), **dict.fromkeys("çâêô", 1.0), **dict.fromkeys("íóáúà", 0.5)},
    "italian": {**dict.fromkeys("òì", 2.0), **dict.fromkeys("ùè", 1.0), "à": 0.5},
    OTHER: dict.fromkeys("åøæłąęśżźćńğşıășțőűřěůžčšđћ", 3.0),
}
_ENDING, _MIN_STEM = 1.0, 2
_LETTER = re.compile(r"[^\W\d_]")
_NUMBER_BEFORE = re.compile(r"[0-9] $")
_WORD_AFTER = re.compile(r" [^\W\d_]{2}")
_MAX_ACRONYM = 4
_MIN_OTHER = 3  # letters of a word in another script; shorter ones are units and variables
_UNITS = frozenset(("mi", "ha", "cu", "ma", "gib"))  # words of other languages that are units after a number
_CAPITAL_AFTER = re.compile(r" [A-ZÀ-Þ][a-zß-ÿ]")
_NUMBER_AFTER = re.compile(r"\. ?[0-9]")
# Words that begin names, such as El Paso, and their weight before a capital letter.
_NAME_WORDS = frozenset(("El", "La", "Los", "Las", "Le", "Les", "Il", "Lo", "Al", "De", "Del", "Di", "Da", "Do", "Por"))
_NAME_WEIGHT = 0.3
_SCRIPT = 3.0  # the score of a word in a script that one language uses
_CHARACTER = 2.0  # the score of a Han or kana character
_ELISIONS: dict[str, dict[str, float]] = {
    elided: scores
    for elisions, scores in (
        ("j n s qu m t jusqu lorsqu puisqu", {"french": 3.0}),
        ("l d c", {"french": 1.5, "italian": 1.0}),
        ("un dell all nell dall sull quest quell", {"italian": 3.0}),
    )
    for elided in elisions.split()
}
_NOT_RUSSIAN = re.compile("[іїєґўјљњћђџ]")


@cache
def _word_owners() -> dict[str, dict[str, float]]:
    owners: dict[str, list[str]] = {}
    for language, words in FREQUENT_WORDS.items():
        for word in set(words.split()):
            owners.setdefault(word, []).append(language)
    return {word: dict.fromkeys(owned, _EXCLUSIVE / len(owned)) for word, owned in owners.items()}


@cache
def _ending_owners() -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for language, endings in _ENDINGS.items():
        for ending in endings:
            owners.setdefault(ending, []).append(language)
    return owners


def _word_scores(word: str) -> dict[str, float]:
    """What one word says about the language."""
    if _KANA.match(word):
        return {"japanese": _CHARACTER * len(word)}
    if _HAN.match(word):
        return {"chinese": _CHARACTER, "japanese": _CHARACTER}
    if _HANGUL.match(word):
        return {"korean": _SCRIPT}
    word = word.lower()
    if _CYRILLIC.match(word):
        return {OTHER: _SCRIPT} if _NOT_RUSSIAN.search(word) else {"russian": _SCRIPT}
    if not _LATIN.match(word):
        return {OTHER: _SCRIPT} if len(word) >= _MIN_OTHER else {}
    if found := _word_owners().get(word):
        return found
    scores: dict[str, float] = {}
    elided, apostrophe, rest = word.partition("'")
    if apostrophe and elided in _ELISIONS:
        scores = dict(_ELISIONS[elided])
        word = rest
    for language, letters in _LETTERS.items():
        if score := max((letters.get(char, 0.0) for char in word), default=0.0):
            scores[language] = scores.get(language, 0.0) + score
    for size in range(min(6, len(word) - _MIN_STEM), 0, -1):
        if owners := _ending_owners().get(word[-size:]):
            for language in owners:
                scores[language] = scores.get(language, 0.0) + _ENDING / len(owners)
            break
    return scores


def detect(text: str, ends: bool, inherited: str | None, default: str) -> str | None:
    """The language of the sentence that starts a text; None if it depends on more text.

    ends: no more text follows. inherited: the language of the text before the sentence. At most MAX_LOOKAHEAD
    characters decide, and a longer text never changes the decision.
    """
    ends_found = SENTENCE_END.finditer(text, 0, MAX_LOOKAHEAD)
    # The full stop after the number of a list item ends no sentence.
    boundary = next((end for end in ends_found if end[0] == "\n" or _LETTER.search(text, 0, end.start() + 1)), None)
    stop = boundary.start() + 1 if boundary else min(len(text), MAX_LOOKAHEAD)
    is_whole = boundary is not None or ends or len(text) > MAX_LOOKAHEAD
    opening = text.rfind("<", 0, stop)
    if not is_whole and opening >= 0 and text.find(">", opening, stop) < 0:
        stop = opening  # a tag that is not complete: its words are not of the text
    expected = inherited or default
    scores = {expected: _INHERITED if inherited else _DEFAULT}
    num_han = num_kana = 0
    for token in _TOKEN.finditer(text, 0, stop):
        if token.end() + 3 >= len(text) and not is_whole:
            break  # the word may still grow, and what follows it may count
        if not _is_word(text, token):
            continue
        begins_name = token[0] in _NAME_WORDS and _CAPITAL_AFTER.match(text, token.end())
        for language, score in _word_scores(token[0]).items():
            scores[language] = scores.get(language, 0.0) + (score * _NAME_WEIGHT if begins_name else score)
        num_han += bool(_HAN.match(token[0]))
        num_kana += bool(_KANA.match(token[0]))
        best, second = _two_best(scores)
        if scores[best] - second >= _MARGIN or (best == "chinese" and num_han >= _MAX_HAN and not num_kana):
            return best
    if not is_whole:
        return None
    if num_han and not num_kana and expected != "japanese":
        scores["japanese"] = 0.0
    best, _ = _two_best(scores)
    return best if scores[best] >= _MIN_SCORE else expected


def _is_word(text: str, token: re.Match[str]) -> bool:
    """Whether a token says something about the language: not a tag, an address, a unit, an acronym or a variable."""
    word = token[0]
    if not word[0].isalpha() or "." in word or "@" in word or word.startswith(("http:", "https:")):
        return False
    if _HAN.match(word) or _KANA.match(word) or _HANGUL.match(word):
        return True
    if text[token.start() - 1 : token.start()].isdigit() or text[token.end() : token.end() + 1].isdigit():
        return False
    if word.lower() in _UNITS and _NUMBER_BEFORE.search(text, 0, token.start()):
        return False
    if len(word) <= _MAX_ACRONYM and _NUMBER_AFTER.match(text, token.end()):
        return False  # an abbreviation: est. 1890
    if len(word) == 1:
        return _WORD_AFTER.match(text, token.end()) is not None or (
            not word.isascii() and _LATIN.match(word) is not None
        )
    return not word.isupper() or len(word) > _MAX_ACRONYM


def _two_best(scores: dict[str, float]) -> tuple[str, float]:
    """The language with the highest score, and the second highest score."""
    best = max(scores, key=lambda language: scores[language])
    return best, max((score for language, score in scores.items() if language != best), default=0.0)
