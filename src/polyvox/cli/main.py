# SPDX-License-Identifier: Apache-2.0
"""The `polyvox` command. Results go to files or stdout, messages and logs to stderr."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from polyvox import __version__
from polyvox.__main__ import INTERRUPTED
from polyvox.cli.terminal import Interrupted, console, exit_code
from polyvox.errors import PolyvoxError

COMMANDS = ("say", "serve", "think", "voice", "bench", "doctor")  # each is a module of this package


class Commands(TyperGroup):
    """Typer ends silently after Ctrl-C; these commands end with a message."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise Interrupted("Interrupted.") from None


def build_app(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands, whose modules are imported."""
    app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(polyvox)
    for name in commands:
        module = import_module(f"polyvox.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command()(getattr(module, name))
    return app


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"polyvox {__version__}")
        raise typer.Exit


def polyvox(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Streaming text to speech with the embedded voice, or with Qwen3-TTS and Qwen3-Omni checkpoints."""


def main() -> None:
    """Run the command. A PolyvoxError or Ctrl-C is printed as one line on stderr, without a traceback."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        build_app([name] if name in COMMANDS else COMMANDS)()  # importing the others takes a quarter of a second
    except PolyvoxError as error:
        console.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        sys.exit(exit_code(error))
    except Interrupted as error:
        console.print(str(error), soft_wrap=True)
        sys.exit(INTERRUPTED)
