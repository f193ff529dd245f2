#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check the project's vocabulary: banned words, duplicate class names and SPDX headers.

    python tools/check_vocabulary.py [PATH ...]         report each violation as path:line
    python tools/check_vocabulary.py --stats [PATH ...] count violations by word and directory

Identifiers are split into words (`_check_door`, `checkDoor` and `CheckDoor` are "check door"), so a rule applies to
names, comments, docstrings, strings and Markdown alike. String literals of tests and of text corpora are data and are
not checked. `vocabulary: allow` in a comment exempts its line. Only the standard library is used.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SPDX = "# SPDX-License-Identifier: Apache-2.0"
PRAGMA = "vocabulary: allow"
SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".toml", ".yml", ".yaml", ".sh"}
FILES = {"Makefile", "run"}
CONTEXT = 80  # characters on each side of a word in which `near` is searched

# Not checked: dated notes, the lists of words themselves, recorded data.
SKIPPED = (
    "docs/notes/*",
    "docs/performance/*",
    "tools/check_vocabulary.py",
    "tests/test_vocabulary.py",
    "tests/golden/*",
    "*/assets/*",
)
# String literals in these files are input text, not messages.
DATA_STRINGS = ("tests/*", "training/*", "benchmarks/*", "examples/*", "*/languages/english/word_tables.py")


@dataclass(frozen=True)
class Rule:
    """One banned word. `pattern` matches text whose identifiers have been split into words."""

    word: str
    pattern: str
    use: str
    allow: str = ""  # a match that overlaps this pattern is allowed
    near: str = ""  # a match with this pattern within CONTEXT characters is allowed
    case: bool = False  # match case
    raw: bool = False  # match the text before identifiers are split
    paths: tuple[str, ...] = ()  # the rule does not apply to these paths


RULES = (
    # Metaphors
    Rule("seat", r"\b(?:un)?seat(?:s|ed|ing)?\b", "slot, slot allocation"),
    Rule("crowd", r"\bcrowd(?:s|ed)?\b", "streams, stream table, batch, load"),
    Rule("door", r"\bdoors?\b", "admission control, endpoint", allow=r"\b(?:front|back)[- ]?doors?\b"),
    Rule("desk", r"\bdesks?\b", "application state"),
    Rule("knock", r"\bknock(?:s|ed|ing)?\b", "connect"),
    Rule("twin", r"\btwins?\b", "reference implementation"),
    Rule("face", r"\bfaces?\b", "API, endpoint", allow=r"\b\w+ing ?face\b", near=r"type ?face|font"),
    Rule(
        "card",
        r"\bcards?\b",
        "GPU",
        allow=r"\b(?:model|wild|credit|sound|network|dataset) ?cards?\b",
        paths=("src/polyvox/server/web/*",),  # a card is a component of a page
    ),
    Rule("fed", r"\bfed\b", "in real time, passed, given"),
    Rule("landed", r"\b(?:landed|lands|landing)\b", "completed", allow=r"\blanding page\b"),
    Rule("flight", r"\bflights?\b", "in-flight step", allow=r"\bin[- ]flight\b"),
    Rule("shelf", r"\bshel(?:f|ves)\b", "store", allow=r"\boff[- ]the[- ]shelf\b"),
    Rule(
        "room",
        r"\brooms?\b",
        "capacity, free slots, module",
        near=r"live ?kit|\brtc\b|room simulation|reverb",
        paths=("*livekit*",),
    ),
    Rule("impatient", r"\b(?:im)?patien(?:t|ce)\b", "timeout"),
    Rule("unspoken", r"\bunspoken\b", "awaiting text"),
    Rule("skinny", r"\bskinny\b", "small batch"),
    Rule("lifeline", r"\blife ?lines?\b", "parent-death pipe"),
    # People where things act
    Rule("whoever", r"\bwho(?:m)?ever\b", "requests, clients, callers"),
    Rule("nobody", r"\bnobody\b", "no client, no stream, nothing"),
    Rule("somebody", r"\b(?:some|any|every)body\b", "a client, all clients"),
    Rule("those who", r"\bthose\s+who\b", "requests that, streams that"),
    Rule("told", r"\b(?:told|tell|tells|telling)\b", "notify, report, log, send, explain"),
    Rule(
        "heard",
        r"\b(?:un|mis|over)?heard\b",
        "received, played, recognised",
        near=r"\basr\b|whisper|recogni[sz]|word errors?|transcri|\bwer\b",
    ),
    Rule("obey", r"\bobey(?:s|ed)?\b", "dispatch"),
    Rule("owes", r"\bowes?\b", "needs"),
    # Vague words
    Rule(
        "place",
        r"\bplaces?\b",
        "slot, capacity, position, file, location",
        allow=r"\bin[- ]place\b|\b(?:take|takes|took|taking)\s+place\b|\bdecimal\s+places?\b"
        r"|\bin\s+the\s+first\s+place\b|\bplaces?\s+(?:the|a|an|it|them|each|this|weights|parameters|tensors|on)\b",
    ),
    Rule(
        "held",
        r"\bheld\b",
        "kept, allocated, reserved, in use",
        allow=r"\bheld[- ](?:out|back)\b",
        near=r"\block\b|\blocked\b|\bmutex\b|\bgil\b",
    ),
    Rule("gone", r"\bgone\b", "disconnected, removed, finished", allow=r"\b410\s+gone\b"),
    Rule("let in", r"\blet(?:s|ting)?[\s-]+in\b(?!\s+(?:the|this|that))", "admit"),
    Rule("so many", r"\bso\s+many\b", "num_, count"),
    Rule("whole number", r"\bwhole\s+numbers?\b", "integer"),
    Rule(
        "interpreter",
        r"\binterpreters?\b",
        "the GIL",
        near=r"triton|interpret=|python (?:3|executable)|sys\.executable|virtual environment|kernels? on a cpu",
    ),
    # Identifiers
    Rule("most_", r"(?<![A-Za-z_])_*(?:most|least)_(?!common\b)[a-z]\w*", "max_, min_", raw=True, case=True),
    Rule("MOST_", r"\b(?:[A-Z_]+_|_)?(?<!AT_)(?:MOST|LEAST)(?:_[A-Z]\w*)?\b", "MAX_, MIN_", raw=True, case=True),
    Rule("leave", r"\b_?leaving\b(?!\s)|(?<=\.)leave\(|\bdef leave\b", "release, pending_release", raw=True),
    Rule("offer", r"(?<=\.)offer(?:ed)?\(|\bdef offer\b|\boffered\b", "enqueue", raw=True),
    Rule(
        "old name",
        r"\b(?:Stepper|PagedKV|VoiceBook|ModelFacts|ServerLink|Hosting|Hosted|Landed|Wanted|Manner|wanted_by"
        r"|LocalTrack|Guard|Shares|Shelf|Growing|Settled|voicebook|queue_seconds(?<!max_queue_seconds)|STILL)\b",
        "the name in the vocabulary",
        case=True,
        raw=True,
    ),
    Rule("slo", r"\bslo\b", "max_queue_seconds", paths=("src/polyvox/bench/*", "*bench*", "docs/*", "CHANGELOG.md")),
)


class Piece(NamedTuple):
    """A stretch of text that rules are matched against."""

    line: int
    text: str


class Violation(NamedTuple):
    path: str
    line: int
    word: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def split_identifiers(text: str) -> str:
    """Split snake_case and camelCase identifiers into words. URLs are removed; line breaks stay."""
    text = re.sub(r"https?://[^\s)>\"']+", "", text)
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return text.replace("_", " ")


def python_pieces(source: str, strings: bool) -> Iterator[Piece]:
    """Names, comments and docstrings of a Python file; its other strings only where `strings` is set.

    Comments on consecutive lines are one piece, so that a phrase may be wrapped.
    """
    comments: list[Piece] = []
    code: dict[int, list[str]] = {}
    statement_start = True
    skip = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            if comments and line == comments[-1].line + comments[-1].text.count("\n") + 1:
                comments[-1] = Piece(comments[-1].line, comments[-1].text + "\n" + token.string.lstrip("#"))
            else:
                comments.append(Piece(line, token.string))
            continue
        if token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            if strings or (statement_start and token.type == tokenize.STRING):
                yield Piece(line, token.string)
        elif token.type in (tokenize.NAME, tokenize.OP):
            code.setdefault(line, []).append(token.string)
        if token.type == tokenize.NEWLINE:
            statement_start = True
        elif token.type not in skip:
            statement_start = False
    yield from comments
    for line, tokens in code.items():
        yield Piece(line, join_code(tokens))


def join_code(tokens: list[str]) -> str:
    """Join tokens of one line: operators without spaces, so that `.leave(` stays together."""
    text = ""
    for token in tokens:
        text += " " + token if text and text[-1].isalnum() and token[0].isalnum() else token
    return text


def pieces(path: str, source: str) -> Iterable[Piece]:
    if path.endswith(".py"):
        return python_pieces(source, strings=not any(fnmatch(path, pattern) for pattern in DATA_STRINGS))
    return [Piece(1, source)]


def check_text(path: str, source: str) -> Iterator[Violation]:
    """The banned words of one file."""
    exempt = {number for number, line in enumerate(source.splitlines(), 1) if PRAGMA in line}
    rules = [rule for rule in RULES if not any(fnmatch(path, pattern) for pattern in rule.paths)]
    for piece in pieces(path, source):
        words = split_identifiers(piece.text)
        for rule in rules:
            text = piece.text if rule.raw else words
            flags = 0 if rule.case else re.IGNORECASE
            for match in re.finditer(rule.pattern, text, flags):
                line = piece.line + text.count("\n", 0, match.start())
                if line not in exempt and not is_allowed(rule, text, match):
                    found = " ".join(match.group().split())
                    yield Violation(path, line, rule.word, f"'{found}' is not in the vocabulary; use: {rule.use}")


def is_allowed(rule: Rule, text: str, match: re.Match[str]) -> bool:
    start, end = max(0, match.start() - CONTEXT), match.end() + CONTEXT
    if rule.near and re.search(rule.near, text[start:end], re.IGNORECASE):
        return True
    return bool(rule.allow) and any(
        start + found.start() < match.end() and start + found.end() > match.start()
        for found in re.finditer(rule.allow, text[start:end], re.IGNORECASE)
    )


def check_header(path: str, source: str) -> Iterator[Violation]:
    """Every Python file begins with its licence, after a shebang if there is one."""
    lines = source.splitlines()[:2]
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    if source and (not lines or lines[0] != SPDX):
        yield Violation(path, 1, "SPDX", f"the first line must be '{SPDX}'")


def check_classes(sources: dict[str, str]) -> Iterator[Violation]:
    """Each class name is defined once in the package."""
    first: dict[str, str] = {}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                here = f"{path}:{node.lineno}"
                if node.name in first:
                    message = f"class '{node.name}' is also defined at {first[node.name]}"
                    yield Violation(path, node.lineno, "duplicate class", message)
                first.setdefault(node.name, here)


def tracked_files(paths: list[str]) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted(
        path
        for path in set(listed)
        if (Path(path).suffix in SUFFIXES or Path(path).name in FILES)
        and not any(fnmatch(path, pattern) for pattern in SKIPPED)
        and (ROOT / path).is_file()
    )


def check(paths: list[str]) -> list[Violation]:
    """All violations in the tracked and new files under `paths` (everything by default)."""
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in tracked_files(paths)}
    found: list[Violation] = []
    for path, source in list(sources.items()):
        try:
            if path.endswith(".py"):
                ast.parse(source)
        except SyntaxError as error:
            found.append(Violation(path, error.lineno or 1, "syntax", f"cannot be parsed: {error.msg}"))
            del sources[path]
    found += [violation for path, source in sources.items() for violation in check_text(path, source)]
    for path, source in sources.items():
        if path.endswith(".py"):
            found += check_header(path, source)
    unparsed = {violation.path for violation in found if violation.word == "syntax"}
    package = [path for path in tracked_files(["src/polyvox"]) if path.endswith(".py") and path not in unparsed]
    duplicates = check_classes({path: (ROOT / path).read_text(encoding="utf-8") for path in package})
    found += [violation for violation in duplicates if violation.path in sources]
    return sorted(set(found))


def directory(path: str) -> str:
    parts = Path(path).parts
    depth = 3 if parts[0] == "src" else 2
    return "/".join(parts[: min(depth, len(parts) - 1)]) or path


def print_stats(found: list[Violation]) -> None:
    words = Counter(violation.word for violation in found)
    directories = Counter(directory(violation.path) for violation in found)
    for title, counts in (("word", words), ("directory", directories)):
        print(f"{title:24} count")
        for name, count in counts.most_common():
            print(f"{name:24} {count}")
        print()
    print(f"total {len(found)} in {len({violation.path for violation in found})} files")


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the vocabulary, class names and SPDX headers.")
    parser.add_argument("paths", nargs="*", help="files or directories, relative to the repository (default: all)")
    parser.add_argument("--stats", action="store_true", help="print counts by word and directory")
    arguments = parser.parse_args()
    found = check(arguments.paths)
    if arguments.stats:
        print_stats(found)
    else:
        for violation in found:
            print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
