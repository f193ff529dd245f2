# SPDX-License-Identifier: Apache-2.0
"""Text rules of each language, loaded with the first text of the language."""

from functools import cache
from importlib import import_module

from polyvox.text.languages.language_rules import LanguageRules

LANGUAGES = (
    "english",
    "german",
    "french",
    "spanish",
    "italian",
    "portuguese",
    "russian",
    "chinese",
    "japanese",
    "korean",
)


@cache
def load_rules(language: str) -> LanguageRules:
    """The rules of a language; a language that has none gets empty rules."""
    if language not in LANGUAGES:
        return LanguageRules(language)
    rules: LanguageRules = import_module(f"polyvox.text.languages.{language}").LANGUAGE
    return rules
