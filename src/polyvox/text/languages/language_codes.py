# SPDX-License-Identifier: Apache-2.0
"""The languages that have text rules, with their ISO 639-1 codes."""

import re

CODES = {
    "english": "en",
    "german": "de",
    "french": "fr",
    "spanish": "es",
    "italian": "it",
    "portuguese": "pt",
    "russian": "ru",
    "chinese": "zh",
    "japanese": "ja",
    "korean": "ko",
}
_NAMES = {code: name for name, code in CODES.items()}


def language_name(value: str) -> str:
    """The name of a language, as the models have it, from its name or code: english for English, en or en-GB.

    Of a language without a code, the value in lower case.
    """
    name = value.strip().lower()
    return _NAMES.get(re.split("[-_]", name)[0], name)
