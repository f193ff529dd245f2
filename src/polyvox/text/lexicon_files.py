# SPDX-License-Identifier: Apache-2.0
"""Lexicon files: `word = respelling` lines, W3C's PLS, and JSON rules as in ElevenLabs' pronunciation dictionaries."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.text.lexicon import Lexicon, Pronunciation

MAX_ENTRIES = 10_000
MAX_FILE_BYTES = 4_000_000
PLS_NAMESPACE = "http://www.w3.org/2005/01/pronunciation-lexicon"
XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"
PLS_LANGUAGE = "en-US"  # PLS requires one; pronunciations have none


def load_lexicon(path: str | Path) -> Lexicon:
    """Read a lexicon file: PLS for .pls and .xml, JSON rules for .json, otherwise lines.

    Raises InvalidRequest with the line number for an invalid line.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest("lexicon", str(path), f"must have at most {MAX_FILE_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest("lexicon", str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("lexicon", str(path), f"must be a UTF-8 text file: {error}") from error
    match path.suffix.lower():
        case ".pls" | ".xml":
            return parse_pls(text)
        case ".json":
            return parse_rules(text)
        case _:
            return _parse_lines(text, path)


def _parse_lines(text: str, path: Path) -> Lexicon:
    """`word = respelling`, or `word = /phonemes/`. `#` at the start of a line or after white space starts a comment."""
    entries: list[Pronunciation] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        content = f" {line}".partition(" #")[0].strip()
        if not content:
            continue
        word, equals, spoken = (piece.strip() for piece in content.partition("="))
        where = f"lexicon {path}, line {number}"
        if not (equals and spoken and any(map(str.isalnum, word))):
            raise InvalidRequest(where, line.strip(), "must be word = respelling")
        if word.lower() in seen:
            raise InvalidRequest(where, word, f"is already defined on line {seen[word.lower()]}")
        is_phonemes = len(spoken) > 2 and spoken[0] == spoken[-1] == "/"
        entries.append(Pronunciation(word, phonemes=spoken[1:-1]) if is_phonemes else Pronunciation(word, spoken))
        seen[word.lower()] = number
    return _limited(entries)


def parse_rules(text: str) -> Lexicon:
    """JSON: a list of rules, or an object with `rules`. A rule has string_to_replace, type alias or phoneme, and alias,
    or phoneme and alphabet; case_sensitive is true by default, as in ElevenLabs' API."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("lexicon", NOT_SHOWN, f"must be JSON: {error}") from None
    rules = found.get("rules") if isinstance(found, dict) else found
    if not isinstance(rules, list):
        raise InvalidRequest("lexicon", NOT_SHOWN, "must be a list of rules")
    return _limited(_rule(rule) for rule in rules)


def _rule(rule: Any) -> Pronunciation:
    if not isinstance(rule, dict):
        raise InvalidRequest("lexicon", rule, "rules must be JSON objects")
    word, kind = rule.get("string_to_replace"), rule.get("type", "alias")
    if kind not in ("alias", "phoneme"):
        raise InvalidRequest("lexicon", kind, "the type of a rule must be alias or phoneme")
    spoken, alphabet = rule.get(kind), rule.get("alphabet", "ipa")
    if not (isinstance(word, str) and isinstance(spoken, str) and isinstance(alphabet, str)):
        raise InvalidRequest("lexicon", rule, f"a rule must have string_to_replace and {kind}")
    match_case = rule.get("case_sensitive", True) is not False
    if kind == "alias":
        return Pronunciation(word, spoken, match_case=match_case)
    return Pronunciation(word, phonemes=spoken, alphabet=alphabet, match_case=match_case)


def parse_pls(text: str) -> Lexicon:
    """W3C's Pronunciation Lexicon Specification: lexemes of graphemes with an alias or a phoneme. Case matters."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InvalidRequest("lexicon", NOT_SHOWN, "must be PLS without a document type")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, expat.ExpatError, ValueError) as error:
        raise InvalidRequest("lexicon", NOT_SHOWN, f"must be PLS: {error}") from None
    alphabet = root.get("alphabet", "ipa")
    entries: list[Pronunciation] = []
    for lexeme in root.iterfind(".//{*}lexeme"):
        alias, phoneme = lexeme.find("{*}alias"), lexeme.find("{*}phoneme")
        for grapheme in lexeme.iterfind("{*}grapheme"):
            word = (grapheme.text or "").strip()
            if alias is not None:
                entries.append(Pronunciation(word, (alias.text or "").strip(), match_case=True))
            elif phoneme is not None:
                found = phoneme.get("alphabet", alphabet)
                entries.append(
                    Pronunciation(word, phonemes=(phoneme.text or "").strip(), alphabet=found, match_case=True)
                )
            else:
                raise InvalidRequest("lexicon", word, "a lexeme must have an alias or a phoneme")
    return _limited(entries)


def to_pls(pronunciations: Iterable[Pronunciation]) -> str:
    """A PLS document. PLS cannot say that a word matches in any case."""
    root = ElementTree.Element(
        "lexicon",
        {"version": "1.0", "xmlns": PLS_NAMESPACE, "alphabet": "ipa", f"{{{XML_NAMESPACE}}}lang": PLS_LANGUAGE},
    )
    for each in pronunciations:
        lexeme = ElementTree.SubElement(root, "lexeme")
        ElementTree.SubElement(lexeme, "grapheme").text = each.word
        if each.respelling:
            ElementTree.SubElement(lexeme, "alias").text = each.respelling
        else:
            attributes = {} if each.alphabet == "ipa" else {"alphabet": each.alphabet}
            ElementTree.SubElement(lexeme, "phoneme", attributes).text = each.phonemes
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def to_rule(pronunciation: Pronunciation) -> dict[str, Any]:
    """A rule as `parse_rules` reads it."""
    rule: dict[str, Any] = {"string_to_replace": pronunciation.word, "case_sensitive": pronunciation.match_case}
    if pronunciation.respelling:
        return {**rule, "type": "alias", "alias": pronunciation.respelling}
    return {**rule, "type": "phoneme", "phoneme": pronunciation.phonemes, "alphabet": pronunciation.alphabet}


def _limited(entries: Iterable[Pronunciation]) -> Lexicon:
    found = tuple(entries)
    if len(found) > MAX_ENTRIES:
        raise InvalidRequest("lexicon", len(found), f"must have at most {MAX_ENTRIES:,} entries")
    return Lexicon(found)
