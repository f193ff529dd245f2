# SPDX-License-Identifier: Apache-2.0
"""The language of a request: a name as the models have it, or an ISO 639 code."""

import re

from polyvox.errors import InvalidRequest
from polyvox.models.info import ModelInfo
from polyvox.models.request import AUTO
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.text.languages.language_codes import CODES, language_name

_CODE = re.compile(r"[a-z]{2,3}([-_][a-z0-9]+)*")  # ISO 639, with or without a region


def parse_language(value: str | None, info: ModelInfo, ignored: IgnoredFields, field: str = "language") -> str:
    """The model's name of the language. One that the model does not speak is ignored; anything else is an error."""
    name = language_name(value or AUTO) or AUTO
    if name == AUTO or name in info.languages:
        return name
    error = InvalidRequest(field, value, info.languages)
    if name not in CODES and not _CODE.fullmatch(name):
        raise error
    ignored.add_unsupported(field, error)
    return AUTO
