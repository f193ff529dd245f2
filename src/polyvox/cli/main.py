"""The `polyvox` command. Speech goes to files or stdout; everything that is told goes to stderr."""

import sys

import typer
from rich.text import Text

from polyvox.cli import bench, doctor, say, serve, voice
from polyvox.cli.terminal import console
from polyvox.errors import InvalidRequest, PolyvoxError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(say.say)
app.command()(serve.serve)
app.add_typer(voice.app, name="voice")
app.add_typer(bench.app, name="bench")
app.command()(doctor.doctor)


@app.callback()
def polyvox() -> None:
    """Speech from Qwen3-TTS checkpoints."""


def main() -> None:
    """Runs the command; an error of ours is one sentence on stderr, never a traceback."""
    try:
        app()
    except PolyvoxError as error:
        console.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        sys.exit(2 if isinstance(error, InvalidRequest) else 1)
