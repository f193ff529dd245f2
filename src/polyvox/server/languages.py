# SPDX-License-Identifier: Apache-2.0
"""The language of a request: a name as the models have it, or an ISO 639 code."""

import re

from polyvox.errors import InvalidRequest
from polyvox.models.info import ModelInfo
from polyvox.models.request import AUTO
from polyvox.server.ignored_fields import IgnoredFields

# ISO 639-1 codes and the models' names of the languages.
LANGUAGES = {
    "en": "english",
    "zh": "chinese",
    "ja": "japanese",
    "ko": "korean",
    "de": "german",
    "fr": "french",
    "ru": "russian",
    "pt": "portuguese",
    "es": "spanish",
    "it": "italian",
}
CODES = {name: code for code, name in LANGUAGES.items()}
_CODE = re.compile(r"[a-z]{2,3}([-_][a-z0-9]+)*")  # ISO 639, with or without a region


def parse_language(value: str | None, info: ModelInfo, ignored: IgnoredFields, field: str = "language") -> str:
    """The model's name of the language. One that the model does not speak is ignored; anything else is an error."""
    name = (value or AUTO).strip().lower() or AUTO
    name = LANGUAGES.get(re.split("[-_]", name)[0], name)
    if name == AUTO or name in info.languages:
        return name
    error = InvalidRequest(field, value, info.languages)
    if name not in CODES and not _CODE.fullmatch(name):
        raise error
    ignored.add_unsupported(field, error)
    return AUTO
