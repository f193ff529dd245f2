"""What all commands share: what is told goes to stderr, what is asked for to stdout."""

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from polyvox.engine.config import EngineConfig
    from polyvox.tts import TTS

console = Console(stderr=True, highlight=False, markup=False)

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="A folder or a hub id; by default the embedded voice.")
]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto, bfloat16, float32 or float64.")]


def load(model: str | None, device: str, dtype: str, config: "EngineConfig | None" = None) -> "TTS":
    """Loads a checkpoint and tells how long that took."""
    with console.status("Starting …"):
        from polyvox import tts
    began = time.perf_counter()
    loaded = tts.load(model, device, dtype, progress=console.is_terminal, config=config)
    place = f"{loaded.speech.device.type}, {str(loaded.speech.dtype).removeprefix('torch.')}"
    voices = f"; voices: {', '.join(loaded.voices)}" if loaded.voices else ""
    name = "the embedded voice" if model is None else model
    console.print(f"Loaded {name} in {time.perf_counter() - began:.1f} s ({place}){voices}", soft_wrap=True)
    return loaded


def show_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def show_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people; tabs and lines where stdout is a pipe."""
    if not sys.stdout.isatty():
        for row in rows:
            sys.stdout.write("\t".join(" ".join(cell.split()) for cell in row) + "\n")
        return
    table = Table(*headings, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False, markup=False).print(table)


def show_figures(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The same with its headings in a pipe, too: figures without their names mean nothing to whoever reads a log."""
    show_rows(headings, rows if sys.stdout.isatty() else [headings, *rows])
