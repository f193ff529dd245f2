# SPDX-License-Identifier: Apache-2.0
"""Carrier sentences that contain every frequent word and its inflected forms."""

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from training.everyday import TEMPLATES as EVERYDAY
from training.everyday import Everyday

TEMPLATES = """
Have you seen the {noun} behind the {noun}?
The {noun} was {adj}, but nobody {past} it.
I think that our {noun} is too {adj} for this.
She {past} the {adj} {noun} before breakfast.
They could not {verb} the {noun} without some help.
Why would anyone {verb} their own {noun}?
We talked about the {noun} for almost an hour.
There are not enough {nouns} in this {noun}.
He never {verbs} when the {nouns} are {adj}.
Please {verb} it again, and then show me the {noun}.
My sister {adv} {past} the whole {noun}.
Those {nouns} look more {adj} than I expected.
What happened to the {adj} {nouns} from last year?
It is not easy to {verb} and {verb} at the same time.
The old man was {doing} near the {noun}.
Stop {doing} and {doing} all day!
If you {verb} now, you will miss the {noun}.
I have always wanted a little more {noun}.
Did you say {noun} or {noun}?
That was a really {adj} {noun}, was it not?
Everybody {verbs} sooner or later, even my {noun}.
You spoke so {adv} that I {past} every word.
The {nouns} arrived {adv} on Monday morning.
Nothing is as {adj} as {noun} in the winter.
We need a new {noun}, because this one is {adj}.
How {adj} that {noun} is!
Her {noun} {verbs} much better than mine.
Without {noun}, there would be no {noun}.
I was {doing} the {nouns} while you were asleep.
Let us {verb} the {noun} together tomorrow.
Can you hear the {noun} outside?
The {noun} of the {noun} is not very {adj}.
No, I did not {verb} any {nouns} this week.
They have {past} us twice, and we still like them.
Look at those {adj} {nouns} over there!
He said it {adv}, and nobody answered.
Is it {adj} or {adj}?
First came the {noun}, then the {nouns}, and last the {noun}.
Some people {verb}, others just {verb}.
I am tired of {doing} for the same {noun}.
You should {adv} {verb} before you leave.
At the end of the street there is {adj} {noun}.
Every {noun} in town is {adj} at this time of year.
So you {past} it, and then what?
""".strip().splitlines()
SLOTS = ("noun", "nouns", "verb", "verbs", "past", "doing", "adj", "adv")
PARTS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
# Slots of the everyday templates that accept any word of a part of speech.
GENERAL = {
    "thing": "noun", "where": "noun", "who": "noun", "animal": "noun", "food": "noun", "feel": "adj", "do": "verb",
    "did": "past", "adj": "adj", "doing": "doing", "adv": "adv",
}  # fmt: skip
FREQUENT = 12_000  # words
COMMON = 4000  # of the frequent words
MIN_COUNTS, MIN_FORM_COUNTS = (
    (50, 15),
    (25, 6),
)  # of common and other words; of their forms


def frequent_words(wordnet: Path) -> dict[str, str]:
    """The most frequent single words of WordNet's tagged texts, each with its usual part of speech."""
    counts: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = {}
    for line in (wordnet / "cntlist.rev").read_text(encoding="latin-1").splitlines():
        sense, _, number = line.split()
        word, _, rest = sense.partition("%")
        if re.fullmatch(r"[a-z]{2,}", word):
            counts[word] += int(number)
            parts.setdefault(word, Counter())[PARTS[rest[0]]] += int(number)
    return {word: parts[word].most_common(1)[0][0] for word, _ in counts.most_common(FREQUENT)}


def irregular(wordnet: Path, part: str) -> dict[str, list[str]]:
    """Irregular forms by base word."""
    found: dict[str, list[str]] = {}
    for line in (wordnet / f"{part}.exc").read_text(encoding="latin-1").splitlines():
        form, *bases = line.split()
        for base in bases if re.fullmatch(r"[a-z]+", form) else ():
            found.setdefault(base, []).append(form)
    return found


def with_s(word: str) -> str:
    if re.search(r"(s|x|z|ch|sh)$", word):
        return word + "es"
    return word[:-1] + "ies" if re.search(r"[^aeiou]y$", word) else word + "s"


def with_ed(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    return word[:-1] + "ied" if re.search(r"[^aeiou]y$", word) else word + "ed"


def with_ing(word: str) -> str:
    if word.endswith("ie"):
        return word[:-2] + "ying"
    return word[:-1] + "ing" if re.search(r"[^eoy]e$", word) else word + "ing"


def forms(words: dict[str, str], wordnet: Path) -> dict[str, list[str]]:
    """Words and inflected forms by slot."""
    nouns, verbs = irregular(wordnet, "noun"), irregular(wordnet, "verb")
    found: dict[str, list[str]] = {slot: [] for slot in SLOTS}
    for word, part in words.items():
        found[part].append(word)
        if part == "noun":
            found["nouns"].append(nouns[word][0] if word in nouns else with_s(word))
        elif part == "verb":
            own = verbs.get(word, [])
            found["verbs"].append(with_s(word))
            found["past"] += [form for form in own if not form.endswith("ing")] or [with_ed(word)]
            found["doing"] += [form for form in own if form.endswith("ing")] or [with_ing(word)]
    return found


def general(template: str) -> str:
    """An everyday template with its slots generalised to parts of speech."""
    template = re.sub(r"\{(thing|animal)\}s\b", "{nouns}", template)
    return re.sub(r"\{(\w+)\}", lambda slot: f"{{{GENERAL.get(slot[1].lower(), slot[1])}}}", template)


def spoken_words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def carriers(texts: Iterable[str], words: dict[str, str], wordnet: Path, seed: int) -> Iterator[str]:
    """Sentences that bring each frequent word and form to its minimum count, beyond the given texts."""
    pick = random.Random(seed)
    counts = Counter(word for text in texts for word in spoken_words(text))
    by_slot = forms(words, wordnet)
    everyday = Everyday(seed)
    templates: dict[str, list[str]] = {slot: [] for slot in SLOTS}
    for template in (*TEMPLATES, *map(general, EVERYDAY)):
        for slot in set(re.findall(r"\{(\w+)\}", template)) & set(SLOTS):
            templates[slot].append(template)
    limits: Counter[str] = Counter()
    common = dict(itertools.islice(words.items(), COMMON))
    for part, often, forms_often in zip((common, words), MIN_COUNTS, MIN_FORM_COUNTS, strict=True):
        for slot, found in forms(part, wordnet).items():
            for word in found:
                limits[word] = max(limits[word], often if slot in PARTS.values() else forms_often)
    missing = {slot: [word for word in found if counts[word] < limits[word]] for slot, found in by_slot.items()}

    def fill(slot: str) -> str:
        if slot not in SLOTS:
            return everyday.fill(slot)
        while missing[slot]:
            position = pick.randrange(len(missing[slot]))
            word = missing[slot][position]
            if counts[word] < limits[word]:
                return word
            missing[slot][position] = missing[slot][-1]
            missing[slot].pop()
        return pick.choice(by_slot[slot])

    for slot in SLOTS:
        while missing[slot]:
            text = re.sub(r"\{(\w+)\}", lambda found: fill(found[1]), pick.choice(templates[slot]))
            text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
            counts.update(spoken_words(text))
            yield text[0].upper() + text[1:]
