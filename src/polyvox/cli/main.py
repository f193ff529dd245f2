# SPDX-License-Identifier: Apache-2.0
"""The `polyvox` command. Results go to files or stdout, messages and logs to stderr."""

import sys
from typing import Annotated

import typer
from rich.text import Text

from polyvox import __version__
from polyvox.cli import bench, doctor, say, serve, think, voice
from polyvox.cli.terminal import console, exit_code
from polyvox.errors import PolyvoxError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(say.say)
app.command()(serve.serve)
app.command()(think.think)
app.add_typer(voice.app, name="voice")
app.add_typer(bench.app, name="bench")
app.command()(doctor.doctor)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"polyvox {__version__}")
        raise typer.Exit


@app.callback()
def polyvox(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Streaming text to speech with Qwen3-TTS checkpoints."""


def main() -> None:
    """Run the command. A PolyvoxError is printed as one line on stderr, without a traceback."""
    try:
        app()
    except PolyvoxError as error:
        console.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        sys.exit(exit_code(error))
