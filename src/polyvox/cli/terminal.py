# SPDX-License-Identifier: Apache-2.0
"""Terminal output and options that all commands share. Messages go to stderr, results to stdout."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyvox.errors import InvalidRequest, PolyvoxError

if TYPE_CHECKING:
    from polyvox.engine.config import EngineConfig
    from polyvox.tts import TTS

console = Console(stderr=True, highlight=False, markup=False)

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Checkpoint: a folder or a Hugging Face id.", show_default="the embedded voice"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
VocoderDevice = Annotated[str, typer.Option(help="Device of the vocoder: auto (the same device), cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto, bfloat16, float32 or float64.")]


class UsageError(PolyvoxError):
    """The options of a command do not fit together."""


@contextmanager
def named_options(**options: str) -> Iterator[None]:
    """Errors name the option of the command line instead of the field that it sets, such as path="--output"."""
    try:
        yield
    except InvalidRequest as error:
        if error.field in options:
            error.rename(options[error.field])
        raise


class Interrupted(Exception):
    """The user pressed Ctrl-C. The message says what was kept."""


@contextmanager
def remembering_interrupts() -> Iterator[Callable[[], None]]:
    """Ctrl-C raises KeyboardInterrupt, and so does each later call of the value.

    Python ignores an exception in a destructor, so a single KeyboardInterrupt may have no effect.
    """
    interrupted = False

    def on_interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell
        yield check
        return
    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def load(
    model: str | None,
    device: str,
    dtype: str,
    config: "EngineConfig | None" = None,
    vocoder_device: str = "auto",
    kv_dtype: str = "auto",
    weight_dtype: str = "auto",
) -> "TTS":
    """Load a checkpoint and print how long it took."""
    with console.status("Starting …"):
        from polyvox import tts
    start = time.perf_counter()
    shown = console.is_terminal
    loaded = tts.load(
        model, device, dtype, shown, config, vocoder_device=vocoder_device, kv_dtype=kv_dtype, weight_dtype=weight_dtype
    )
    generator, vocoder = loaded.model.generator, loaded.model.vocoder
    placed = f"{generator.device.type}, {str(generator.dtype).removeprefix('torch.')}"
    if vocoder.device != generator.device:
        placed += f", vocoder on {vocoder.device.type}"
    voices = f"; voices: {', '.join(loaded.voices)}" if loaded.voices else ""
    name = "the embedded voice" if model is None else model
    console.print(f"Loaded {name} in {time.perf_counter() - start:.1f} s ({placed}){voices}", soft_wrap=True)
    return loaded


def exit_code(error: PolyvoxError) -> int:
    """The exit code of a command that ends with an error: 2 for invalid options and values, else 1."""
    return 2 if isinstance(error, InvalidRequest | UsageError) else 1


def show_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def show_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; tab-separated lines if stdout is not a terminal."""
    if not sys.stdout.isatty():
        for row in rows:
            sys.stdout.write("\t".join(" ".join(cell.split()) for cell in row) + "\n")
        return
    table = Table(*headings, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False, markup=False).print(table)


def show_figures(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Like show_rows, but tab-separated lines have a header, so that figures in logs have their names."""
    show_rows(headings, rows if sys.stdout.isatty() else [headings, *rows])
