# SPDX-License-Identifier: Apache-2.0
"""Words with several pronunciations: which one is meant, by the two words before and the one word after."""

from dataclasses import dataclass
from typing import Literal

Form = Literal["NOUN", "VERB", "ADJ", "ADV", "PAST"]


@dataclass(frozen=True, slots=True)
class Context:
    """The words around a word in small letters; "" at a sentence boundary, a punctuation mark where one follows."""

    before: str = ""
    second_before: str = ""
    after: str = ""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRONOUNS = _words("i you we they who")
SINGULAR = _words("he she it this that which who everyone someone")
DETERMINERS = _words(
    "a an the this that these those my your his her its our their whose some any no every each another either neither "
    "one two three four five six seven eight nine ten first second third last next new old good bad big small great "
    "own same other only best worst single many few several all both more most much such"
)
OBJECTS = _words(
    "the a an this these those my your his her its our their it them him us me you all every each any some that "
    "yourself myself themselves himself herself itself everything something anything one"
)
PREPOSITIONS = _words(
    "of in on at for with from by about into without under over between against during through after before as per "
    "via toward towards within behind beside beyond among near off across along around until upon despite"
)
MODALS = _words(
    "to will would can could shall should may might must do does did don't doesn't didn't won't wouldn't can't "
    "couldn't shouldn't mustn't cannot let lets let's please i'll you'll he'll she'll it'll we'll they'll i'd you'd "
    "he'd she'd we'd they'd help helps helped gonna wanna gotta better"
)
HAVE = _words(
    "have has had having haven't hasn't hadn't i've you've we've they've who've could've should've would've must've"
)
BE = _words(
    "is are was were be been being am isn't aren't wasn't weren't i'm you're he's she's it's we're they're that's "
    "there's what's who's get gets got getting feel feels felt seem seems seemed look looks looked become becomes "
    "became stay stays stayed keep keeps kept"
)
DEGREES = _words("very so too quite rather really pretty extremely fairly more most less least how as somewhat highly")
ADVERBS = _words(
    "not never always often usually sometimes also just still only ever already now then even rarely seldom soon "
    "later finally both all forever"
)
NOUN_FOLLOWERS = _words("of is are was were has had in on from for by between about")
ADJECTIVE_ENDINGS = ("al", "ous", "ful", "ic", "ble", "ary", "ive", "less", "ish", "ean", "ian", "est")
FUNCTION_WORDS = NOUN_FOLLOWERS | PREPOSITIONS | MODALS | PRONOUNS | BE | HAVE | OBJECTS
INDEFINITE = ("ybody", "mebody", "yone", "meone")
NOT_A_SUBJECT = (*ADJECTIVE_ENDINGS, "s", "ed", "ing")
SENTENCE_MARKS = frozenset(".!?…;:—,") | {""}

# Words after which "live" is an adjective or adverb, and words before which it is one.
_LIVE_AFTER = _words("go goes going went broadcast streamed stream perform performed play played appear appeared aired")
_LIVE_BEFORE = _words(
    "music audio stream streams streaming show shows concert concerts video text broadcast broadcasts coverage demo "
    "demos action performance performances event events wire wires band bands tv television album session sessions "
    "chat data updates update captions caption speech translation support feed feeds recording audience"
)
# Words after which "used to" is a habit; after other words it is a purpose: "a tool used to cut".
_USED_TO = _words("i you he she it we they there who never always also am i'm get got getting people not")
_METAL = _words("pipe pipes paint poisoning acid battery batteries bullet bullets ore weight weights free glass solder")
_METAL_BEFORE = _words("of in and containing contains molten")
_READ_PRESENT = _words("often usually always sometimes rarely seldom also please you when if let's")
_WIND_OBJECTS = _words("up down your the through around back it")
_FISH_BEFORE, _FISH_AFTER = _words("fishing boat boats fish pond"), _words("sea striped largemouth caught")
_BOW_AFTER, _BOW_BEFORE = _words("take took takes deep low"), _words("down out before politely")


def choose_form(word: str, forms: frozenset[str], context: Context) -> str | None:
    """The form of a heteronym in its context, one of `forms`; None for the default pronunciation."""
    special = SPECIAL.get(word)
    guess = special(context) if special else part_of_speech(word, forms, context)
    return guess if guess in forms else None


def part_of_speech(word: str, forms: frozenset[str], context: Context) -> Form | None:
    """Noun, verb, adjective or adverb, by the words around it; None if they do not decide."""
    before, after = context.before, context.after
    ends_in_s = word.endswith("s") and not word.endswith("ss")
    if before in ADVERBS - DETERMINERS or before.endswith("ly"):
        before = context.second_before or before
    nominal: Form = "NOUN" if "NOUN" in forms or "ADJ" not in forms else "ADJ"
    if not before:
        return _first_word(ends_in_s, after)
    if before in HAVE or (before in BE and word.endswith("ed")):
        return "PAST" if "PAST" in forms else "VERB" if word.endswith("ed") else "NOUN"
    if before in BE or (before in DEGREES - PREPOSITIONS and after not in OBJECTS):
        return "ADJ"
    if _is_subject_or_modal(before, context, ends_in_s):
        return "VERB"
    if before in DETERMINERS:
        attributive = after.isalpha() and after not in FUNCTION_WORDS
        return "ADJ" if "ADJ" in forms and attributive else "NOUN"
    if before in PREPOSITIONS or before.endswith(("'s", "s'")):
        return nominal
    if after in OBJECTS and not before.endswith(ADJECTIVE_ENDINGS):
        return "VERB"
    if before in ("and", "or", "but"):
        return None
    if not ends_in_s and before.endswith("s") and not before.endswith("ss") and after in SENTENCE_MARKS:
        return "VERB"  # "prices increase."
    return nominal if nominal == "NOUN" or (after.isalpha() and after not in FUNCTION_WORDS) else None


def _first_word(ends_in_s: bool, after: str) -> Form | None:
    """The first word of a phrase: an imperative has its object next ("Record the meeting")."""
    if after in OBJECTS and not ends_in_s:
        return "VERB"
    return "NOUN" if after in NOUN_FOLLOWERS else None


def _is_subject_or_modal(before: str, context: Context, ends_in_s: bool) -> bool:
    """Whether a verb follows this word."""
    second, after = context.second_before, context.after
    if not ends_in_s:
        inverted = second in MODALS and before in PRONOUNS | SINGULAR - {"this", "that"}  # "did she record"
        return before in MODALS or before in PRONOUNS or inverted
    if before in MODALS - {"to"} or before in SINGULAR - {"this", "that"} or before.endswith(INDEFINITE):
        return True
    if not after.isalpha() or after in PREPOSITIONS | BE | HAVE | MODALS - {"to"}:
        return False
    if before == "that":
        return bool(second)  # "a building that houses offices"
    comparative = before.endswith("er") and after not in OBJECTS | {"to"}
    is_noun = before.isalpha() and not before.endswith(NOT_A_SUBJECT) and not comparative
    return second in DETERMINERS and is_noun  # "the letter upsets him"


def _read(context: Context) -> Form | None:
    before, second = context.before, context.second_before
    if before in HAVE or before in BE or before in ("well", "widely") or second in HAVE:
        return "PAST"
    if {before, second} & (MODALS | _READ_PRESENT | {"not"}) or not before:
        return None
    if before in ("i", "he", "she", "it", "we", "they", "who", "never", "just", "already", "recently", "once", "and"):
        return "PAST"
    if before in DETERMINERS or before in PREPOSITIONS:
        return None
    return "PAST" if context.after in OBJECTS | {"aloud", "about", "that", "through"} and before.isalpha() else None


def _live(context: Context) -> Form | None:
    before, after = context.before, context.after
    if before in BE or before in _LIVE_AFTER or after in _LIVE_BEFORE:
        return None
    if before in DETERMINERS - {"all", "both", "many", "most"} or (after == "from" and not before):
        return None
    return "VERB" if before else None


def _lives(context: Context) -> Form | None:
    if context.before in DETERMINERS or context.before in PREPOSITIONS or context.before.endswith("'s"):
        return None
    followers = PREPOSITIONS | OBJECTS | {"here", "there", "alone", "next"}
    return "VERB" if context.before and context.after in followers else None


def _lead(context: Context) -> Form | None:
    metal = context.after in _METAL or (
        context.before in _METAL_BEFORE and (context.after in SENTENCE_MARKS or context.after in ("is", "and", "or"))
    )
    return "NOUN" if metal else None


def _use(context: Context) -> Form | None:
    if context.before == "that":
        return None  # "recipes that use up the milk"
    form = part_of_speech("use", frozenset({"NOUN", "VERB"}), context)
    if form == "NOUN" and not context.before:
        return "NOUN" if context.after == "of" else None
    if (
        form == "NOUN"
        and context.before not in DETERMINERS | PREPOSITIONS
        and not context.before.endswith(ADJECTIVE_ENDINGS)
    ):
        return "NOUN" if context.after in ("of", "is", "cases", "case") or context.after in SENTENCE_MARKS else None
    return form


def _uses(context: Context) -> Form | None:
    if context.before in DETERMINERS or context.after in ("of", "for", "include", "are"):
        return "NOUN"
    return None


def _used(context: Context) -> Form | None:
    if context.after != "to":
        return None
    return "PAST" if context.before in _USED_TO else None


def _wind(context: Context) -> Form | None:
    if context.before in MODALS or context.before in PRONOUNS:
        return "VERB"
    return "VERB" if context.after in _WIND_OBJECTS - {"through"} and context.before not in DETERMINERS else None


def _wound(context: Context) -> Form | None:
    if context.after in ("up", "down", "around", "through", "its", "tightly"):
        return "PAST"
    return None


def _close(context: Context) -> Form | None:
    before, after = context.before, context.after
    if (after == "to" and before not in MODALS) or after in ("by", "together", "enough") or before in DEGREES | BE:
        return None
    if before in MODALS or before in PRONOUNS or after in OBJECTS:
        return "VERB"
    if before in ("the", "a", "to", "at") and (after in SENTENCE_MARKS or after == "of"):
        return "NOUN"
    if before in DETERMINERS:
        return None
    plural = before.endswith("s") and before not in DETERMINERS
    return "VERB" if after in SENTENCE_MARKS and (plural or before == "and") else None


def _that(context: Context) -> Form | None:
    """Stressed as a pronoun: at the end of a phrase or before a verb."""
    return "ADJ" if context.after in SENTENCE_MARKS or context.after in ("is", "was", "will", "would") else None


def _minute(context: Context) -> Form | None:
    tiny = context.before in DEGREES - {"as", "more", "most"} or context.after in ("detail", "details")
    return "ADJ" if tiny else None


def _bass(context: Context) -> Form | None:
    """The instrument or voice, unless the fish."""
    return None if context.after in _FISH_BEFORE or context.before in _FISH_AFTER else "ADJ"


def _bow(context: Context) -> Form | None:
    if {context.before, context.second_before} & _BOW_AFTER or context.after in _BOW_BEFORE:
        return "VERB"
    return part_of_speech("bow", frozenset({"NOUN", "VERB"}), context)


def _tear(context: Context) -> Form | None:
    if context.after in ("gas", "drops", "drop", "ducts", "duct", "rolled", "ran", "fell"):
        return None
    if context.after in ("up", "down", "apart", "off", "out", "in", "along"):
        return "VERB"
    return part_of_speech("tear", frozenset({"NOUN", "VERB"}), context)


def _resume(context: Context) -> Form | None:
    """The document, after a determiner."""
    return "NOUN" if context.before in DETERMINERS and context.before not in ("all", "both") else None


def _content(context: Context) -> Form | None:
    return None if context.before in BE | DEGREES and context.after in SENTENCE_MARKS | {"with", "to"} else "NOUN"


def _upset(context: Context) -> Form | None:
    """A noun only at the end of its phrase: "an upset child" has an adjective."""
    return None if _attributive(context) else part_of_speech("upset", frozenset({"NOUN"}), context)


def _attributive(context: Context) -> Form | None:
    """An adjective between a determiner and a noun only."""
    before_noun = context.after.isalpha() and context.after not in PREPOSITIONS | BE | HAVE | MODALS
    return "ADJ" if context.before in DETERMINERS and before_noun else None


SPECIAL = {
    "read": _read,
    "live": _live,
    "lives": _lives,
    "lead": _lead,
    "use": _use,
    "uses": _uses,
    "used": _used,
    "wind": _wind,
    "wound": _wound,
    "close": _close,
    "that": _that,
    "minute": _minute,
    "bass": _bass,
    "bow": _bow,
    "tear": _tear,
    "resume": _resume,
    "content": _content,
    "learned": _attributive,
    "inside": _attributive,
    "upset": _upset,
}
