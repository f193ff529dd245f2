"""polyvox doctor: what this machine can do, and what to fix. Nothing is fetched."""

import importlib.util
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.console import Console
from rich.text import Text

from polyvox.cli.terminal import Json, console, show_json
from polyvox.errors import PolyvoxError

if TYPE_CHECKING:
    import torch


State = Literal["ok", "warn", "fail"]
SIGNS: dict[State, tuple[str, str]] = {"ok": ("ok", "green"), "warn": ("! ", "yellow"), "fail": ("✗ ", "red")}

MIN_PYTHON = (3, 11)
PORT = 8000  # of `polyvox serve`
CONTEXT = 1024  # positions a stream: a minute and more of speech
DISK_NEEDED = 5 << 30  # the larger published checkpoint
MEMORY_KEPT = 0.9  # of what is free; the rest is for activations and for others
OLDEST_GPU = (8, 0)  # the first with bfloat16
OPTIONAL = {"hf_xet": "faster downloads from the hub"}
PUBLISHED = "models--Qwen--Qwen3-TTS-12Hz-"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and what to do where it is not well."""

    subject: str
    state: State
    told: str
    fix: str | None = None
    essential: bool = False

    @property
    def broken(self) -> bool:
        return self.essential and self.state == "fail"


Check = Callable[[], Iterator[Finding]]


def doctor(as_json: Json = False) -> None:
    """What this machine can do, and what to fix."""
    findings: list[Finding] = []
    out = Console(highlight=False, markup=False)
    for check in CHECKS:
        with console.status(f"Looking at {_subject(check)} …"):
            found = list(_found(check))
        findings += found
        for finding in found:
            if not as_json:
                _show(out, finding)
    broken = any(finding.broken for finding in findings)
    if as_json:
        show_json({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
    elif broken:
        console.print("Polyvox cannot speak here before what is marked ✗ is mended.")
    else:
        console.print('Polyvox can speak here. Try: polyvox say "Hello there."')
    if broken:
        raise typer.Exit(1)


def _show(out: Console, finding: Finding) -> None:
    sign, colour = SIGNS[finding.state]
    line = Text.assemble((sign, colour), f" {finding.subject}: {finding.told}")
    if finding.fix:
        line.append(f" → {finding.fix}", "bold")
    out.print(line, soft_wrap=True)


def _subject(check: Check) -> str:
    return check.__name__.replace("_", " ")


def _found(check: Check) -> Iterator[Finding]:
    """What a check finds; that it failed itself is a finding, too."""
    try:
        yield from check()
    except PolyvoxError as error:
        yield Finding(_subject(check), "fail", str(error), essential=True)
    except Exception as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Finding(_subject(check), "fail", told, "install again: make clean, then make serve", essential=True)


# What is looked at, in this order


def python() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        yield Finding("Python", "fail", version, "Python 3.11 or newer", essential=True)
    else:
        yield Finding("Python", "ok", f"{version} on {platform.system()} {platform.machine()}")


def torch_build() -> Iterator[Finding]:
    import torch

    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU only"
    if torch.version.cuda is None and shutil.which("nvidia-smi"):
        fix = "there is an NVIDIA driver here: install torch with CUDA to use it"
        yield Finding("torch", "warn", f"{torch.__version__}, {build}", fix)
    else:
        yield Finding("torch", "ok", f"{torch.__version__}, {build}")


def gpus() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        why = "none that torch can use; speech is made by the CPU"
        fix = "check the driver with nvidia-smi" if torch.version.cuda and shutil.which("nvidia-smi") else None
        yield Finding("GPU", "warn", why, fix)
        return
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        capability = (about.major, about.minor)
        told = f"{about.name}, {_gb(free)} of {_gb(total)} free, compute capability {about.major}.{about.minor}"
        if driver := _driver():
            told += f", driver {driver}"
        if capability < OLDEST_GPU:
            yield Finding(f"GPU {index}", "warn", told, "without bfloat16 it is slow: use --dtype float32")
        else:
            yield Finding(f"GPU {index}", "ok", told)


def processor() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free, total = _memory()
    told = f"{cores} cores, {torch.get_num_threads()} threads for torch, {_gb(free)} of {_gb(total)} memory free"
    yield Finding("CPU", "ok", told)


def embedded_voice() -> Iterator[Finding]:
    from polyvox.tts import load

    began = time.perf_counter()
    with load(device="cpu") as tts:
        loaded = time.perf_counter() - began
        tts.say("Hello.", seed=1, max_frames=4)  # the engine measures itself before it first speaks
        began = time.perf_counter()
        audio = tts.say("Hello there.", seed=1)
        took = time.perf_counter() - began
    factor = audio.seconds / took
    told = f"loads in {loaded:.1f} s and speaks at {factor:.1f} × real time on one stream of the CPU"
    if factor < 1:
        yield Finding("embedded voice", "warn", told, "it stutters: end other programs, or use a larger machine")
    else:
        yield Finding("embedded voice", "ok", told)


def models() -> Iterator[Finding]:
    """Which published models fit, by their weights and by what each stream needs beside them."""
    import torch

    from polyvox.models.registry import DEFAULT_FAMILY, get_family
    from polyvox.tts import placement

    device, dtype = placement("auto", "auto")
    cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if cuda else _memory()[0]
    place = f"{'the GPU' if cuda else 'memory'}, {str(dtype).removeprefix('torch.')}"
    for size in get_family(DEFAULT_FAMILY).sizes:
        weights, stream = model_needs(size, dtype)
        streams = int((free * MEMORY_KEPT - weights) // stream)
        needs = f"{_gb(weights)} and {stream / 1e6:.0f} MB a stream of {CONTEXT} positions"
        if streams < 1:
            fix = f"free {_gb(weights + stream - free * MEMORY_KEPT)}, or a smaller model"
            yield Finding(f"model {size}", "warn", f"does not fit into {place} ({needs})", fix)
        elif cuda:
            yield Finding(f"model {size}", "ok", f"{place} holds {streams} streams ({needs})")
        else:
            fix = f'whether it keeps up with speech: make bench ARGS="--model {size}"'
            yield Finding(f"model {size}", "warn", f"{place} holds {streams} streams ({needs})", fix)


def sound_formats() -> Iterator[Finding]:
    """Each is tried: a build of FFmpeg may name a codec and still refuse what we ask of it."""
    import av
    import numpy as np

    from polyvox.audio.formats import FORMATS, encode

    there, missing = [], []
    for name in FORMATS:
        try:
            encode(np.zeros(2400, np.float32), 24000, name)
            there.append(name)
        except (av.FFmpegError, av.codec.codec.UnknownCodecError, PolyvoxError):
            missing.append(name)
    told = f"{', '.join(there)} (PyAV {av.__version__})"
    if missing:
        fix = "install PyAV from its own wheels, which hold all codecs"
        yield Finding("sound formats", "warn", f"{told}; not {', '.join(missing)}", fix)
    else:
        yield Finding("sound formats", "ok", told)


def player() -> Iterator[Finding]:
    from polyvox.audio.player import PLAYERS

    found = next((name for name in PLAYERS if shutil.which(name)), None)
    if importlib.util.find_spec("sounddevice") is not None:
        found = "sounddevice"
    if found is None:
        fix = f"pip install sounddevice, or install one of {', '.join(PLAYERS)}"
        yield Finding("player", "warn", "none found for --play", fix)
    else:
        yield Finding("player", "ok", f"{found} for --play")


def hub() -> Iterator[Finding]:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    kept = sorted(folder.name.removeprefix("models--Qwen--") for folder in cache.glob(PUBLISHED + "*"))
    offline = "offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else "online"
    told = f"{offline}; in {cache}: {', '.join(kept) or 'no Qwen3-TTS model yet'}"
    if constants.HF_HUB_OFFLINE and not kept:
        yield Finding("hub", "warn", told, "unset HF_HUB_OFFLINE once, or name a folder with --model")
    else:
        yield Finding("hub", "ok", told)
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < DISK_NEEDED and not kept:
        told = f"{_gb(free)} free for the hub's cache; the 1.7B models need {_gb(DISK_NEEDED)}"
        yield Finding("disk", "warn", told, "make room, or set HF_HUB_CACHE to a larger disk")
    else:
        yield Finding("disk", "ok", f"{_gb(free)} free for the hub's cache")


def voice_library() -> Iterator[Finding]:
    from polyvox.voices import VoiceLibrary

    library = VoiceLibrary()
    try:
        voices, damaged = library.list(), library.damaged()
    except PolyvoxError as error:
        yield Finding("voice library", "warn", str(error), "set POLYVOX_HOME to a folder of yours")
        return
    told = f"{len(voices)} voices in {library.folder}"
    if damaged:
        yield Finding("voice library", "warn", f"{told}; {len(damaged)} damaged", "see polyvox voice list")
    else:
        yield Finding("voice library", "ok", told)


def port() -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", PORT)):
            yield Finding("port", "ok", f"{PORT} is free for polyvox serve")
    except OSError as error:
        yield Finding("port", "warn", f"{PORT} is taken ({error.strerror})", "polyvox serve --port 8001")


def packages() -> Iterator[Finding]:
    for name, use in OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            yield Finding(name, "warn", f"not installed: {use}", f"pip install {name}, if wanted")
        else:
            yield Finding(name, "ok", f"installed: {use}")


CHECKS = (
    python, torch_build, gpus, processor, embedded_voice, models, sound_formats, player, hub, voice_library, port,
    packages,
)  # fmt: skip


def model_needs(size: str, dtype: "torch.dtype") -> tuple[int, int]:
    """Bytes of a published model's weights, and of what a stream needs: keys and values, and its rows."""
    import torch

    from polyvox.engine.model_runner import TEXT_ROWS
    from polyvox.engine.stream_state import RING_FRAMES
    from polyvox.models.registry import random_model

    model = random_model(size, torch.device("meta"), dtype)  # shapes without memory
    layers, kv_heads, head_dim = model.kv_shape
    cache = CONTEXT * 2 * layers * kv_heads * head_dim * dtype.itemsize
    return model.nbytes, cache + model.new_slots(1, TEXT_ROWS, RING_FRAMES).nbytes


def _memory() -> tuple[int, int]:
    """Bytes of memory that are free, or can be freed, and all."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), total
    except (OSError, StopIteration):
        return total, total


def _driver() -> str | None:
    """The version of NVIDIA's kernel module, where there is one."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
