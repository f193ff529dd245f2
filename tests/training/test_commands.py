# SPDX-License-Identifier: Apache-2.0
"""The training commands of the documentation have arguments that their programs accept."""

import argparse
import importlib
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("voice.md", "phonemes.md")
COMMAND = re.compile(r"python -m (training\.\w+)([^`\n]*)")


class ArgumentsParsed(Exception):
    """Raised in place of the work of a program."""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [(module, rest.split("  #")[0]) for page in PAGES for module, rest in COMMAND.findall((DOCS / page).read_text())],
)
def test_a_training_command_of_the_documentation_has_valid_arguments(
    module: str, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, args: Sequence[str] | None = None) -> None:
        parse(parser, args)
        raise ArgumentsParsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(arguments)])
    with pytest.raises(ArgumentsParsed):
        importlib.import_module(module).main()
