# SPDX-License-Identifier: Apache-2.0
"""polyvox doctor: checks of this machine, in the order of the output."""

import importlib.util
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from polyvox.cli.findings import Finding, counted
from polyvox.errors import InvalidRequest, PolyvoxError

if TYPE_CHECKING:
    import torch

    from polyvox.engine.memory import ModelNeeds

MIN_PYTHON = (3, 11)
PORT = 8000  # the default of `polyvox serve`
DISK_NEEDED = 5 << 30  # bytes of the largest published checkpoint
MIN_CAPABILITY = (8, 0)  # of a GPU: the first with bfloat16
OPTIONAL = {"hf_xet": "faster downloads from the hub"}
PUBLISHED = "models--Qwen--Qwen3-TTS-12Hz-"


def python() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        yield Finding("Python", "fail", version, "install Python 3.11 or newer", essential=True)
    else:
        yield Finding("Python", "ok", f"{version} on {platform.system()} {platform.machine()}")


def torch_build() -> Iterator[Finding]:
    import torch

    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU only"
    if torch.version.cuda is None and shutil.which("nvidia-smi"):
        fix = "install torch with CUDA to use the NVIDIA GPU"
        yield Finding("torch", "warn", f"{torch.__version__}, {build}", fix)
    else:
        yield Finding("torch", "ok", f"{torch.__version__}, {build}")


def gpus() -> Iterator[Finding]:
    import torch

    from polyvox import kernels
    from polyvox.kernels.gpu import GPUS
    from polyvox.kernels.plain_paths import missing_paths

    if not torch.cuda.is_available():
        message = "none that torch can use; Polyvox runs on the CPU"
        fix = "check the driver with nvidia-smi" if torch.version.cuda and shutil.which("nvidia-smi") else None
        yield Finding("GPU", "warn", message, fix)
        return
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        capability = (device.major, device.minor)
        message = f"{device.name}, {_gb(free)} of {_gb(total)} free, compute capability {device.major}.{device.minor}"
        if driver := _driver():
            message += f", driver {driver}"
        if not kernels.installed():
            message += "; without Triton all calls run in the slower PyTorch implementations"
        else:
            architecture = 10 * device.major + device.minor
            missing = [
                f"{path.name} (needs {path.requirement}; instead: {path.otherwise})"
                for path in missing_paths(architecture, device.multi_processor_count)
            ]
            message += f"; plain paths: {', '.join(missing)}" if missing else "; all kernels on their fast paths"
            if architecture not in GPUS:
                message += f"; the kernels are not checked for sm_{architecture}"
        if capability < MIN_CAPABILITY:
            yield Finding(f"GPU {index}", "warn", message, "it has no bfloat16: use --dtype float32")
        else:
            yield Finding(f"GPU {index}", "ok", message)


def processor() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = f"{counted(torch.get_num_threads(), 'thread')} for torch"
    free, total = _memory()
    yield Finding("CPU", "ok", f"{counted(cores, 'core')}, {threads}, {_gb(free)} of {_gb(total)} memory free")


def embedded_voice() -> Iterator[Finding]:
    from polyvox.tts import load

    start = time.perf_counter()
    with load(device="cpu") as tts:
        load_seconds = time.perf_counter() - start
        tts.say("Hello.", seed=1, max_frames=4)  # excludes the engine's calibration from the timing
        start = time.perf_counter()
        audio = tts.say("Hello there.", seed=1)
        elapsed = time.perf_counter() - start
    factor = audio.seconds / elapsed
    message = f"loads in {load_seconds:.1f} s; one stream on the CPU runs at {factor:.1f} × real time"
    if factor < 1:
        yield Finding(
            "embedded voice", "warn", message, "too slow for streaming: stop other programs, or use a faster CPU"
        )
    else:
        yield Finding("embedded voice", "ok", message)


def models() -> Iterator[Finding]:
    """Which published models fit into memory, and for how many streams: the default of `polyvox serve`."""
    import torch

    from polyvox.models.registry import published_sizes
    from polyvox.tts import placement

    device, dtype = placement("auto", "auto")
    gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if gpu else _memory()[0]
    memory = "GPU memory" if gpu else "memory"
    for size in published_sizes():
        needs = model_needs(size, dtype, gpu)
        weights = f"{_gb(needs.weights)} of weights in {str(dtype).removeprefix('torch.')}"
        try:
            plan = needs.plan(free)
        except InvalidRequest:
            fix = f"free {_gb(needs.min_bytes() - free)}, or use a smaller model"
            yield Finding(f"model {size}", "warn", f"does not fit into {memory} ({weights})", fix)
            continue
        streams = f"{counted(plan.config.max_streams, 'stream')} of {plan.config.context} positions on average"
        message = f"{memory} for {streams}, beside {weights}"
        if gpu:
            yield Finding(f"model {size}", "ok", message)
        else:
            fix = f"polyvox bench engine --model {size}"
            yield Finding(f"model {size}", "ok", f"{message}; speed not measured", fix)


def audio_formats() -> Iterator[Finding]:
    """Encodes each format, because an FFmpeg build may list a codec and still reject its options."""
    import av
    import numpy as np

    from polyvox.audio.formats import FORMATS, encode

    available, missing = [], []
    for name in FORMATS:
        try:
            encode(np.zeros(2400, np.float32), 24000, name)
            available.append(name)
        except (av.FFmpegError, av.codec.codec.UnknownCodecError, PolyvoxError):
            missing.append(name)
    message = f"{', '.join(available)} (PyAV {av.__version__})"
    if missing:
        fix = "install PyAV from its wheels, which have all codecs"
        yield Finding("audio formats", "warn", f"{message}; missing: {', '.join(missing)}", fix)
    else:
        yield Finding("audio formats", "ok", message)


def player() -> Iterator[Finding]:
    from polyvox.audio.player import PLAYERS

    found = next((name for name in PLAYERS if shutil.which(name)), None)
    if importlib.util.find_spec("sounddevice") is not None:
        found = "sounddevice"
    if found is None:
        fix = f"pip install sounddevice, or install one of {', '.join(PLAYERS)}"
        yield Finding("player", "warn", "none found; --play does not work", fix)
    else:
        yield Finding("player", "ok", f"{found} for --play")


def hub() -> Iterator[Finding]:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    cached = sorted(folder.name.removeprefix("models--Qwen--") for folder in cache.glob(PUBLISHED + "*"))
    offline = "offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else "downloads are allowed (not tried)"
    message = f"{offline}; in {cache}: {', '.join(cached) or 'no Qwen3-TTS models'}"
    if constants.HF_HUB_OFFLINE and not cached:
        yield Finding("hub", "warn", message, "unset HF_HUB_OFFLINE to download a model, or pass a folder as --model")
    else:
        yield Finding("hub", "ok", message)
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < DISK_NEEDED and not cached:
        message = f"{_gb(free)} free for the hub cache; the 1.7B models need {_gb(DISK_NEEDED)}"
        yield Finding("disk", "warn", message, "free disk space, or set HF_HUB_CACHE to another disk")
    else:
        yield Finding("disk", "ok", f"{_gb(free)} free for the hub cache")


def voice_library() -> Iterator[Finding]:
    from polyvox.voices import VoiceLibrary

    library = VoiceLibrary()
    try:
        voices, damaged = library.list(), library.damaged()
    except PolyvoxError as error:
        yield Finding("voice library", "warn", str(error), "set POLYVOX_HOME to a writable folder")
        return
    message = f"{counted(len(voices), 'voice')} in {library.store.location}"
    if damaged:
        yield Finding("voice library", "warn", f"{message}; {len(damaged)} damaged", "run: polyvox voice list")
    else:
        yield Finding("voice library", "ok", message)


def port() -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", PORT)):
            yield Finding("port", "ok", f"{PORT} is free for polyvox serve")
    except OSError as error:
        yield Finding("port", "warn", f"{PORT} is in use ({error.strerror})", "run: polyvox serve --port 8001")


def packages() -> Iterator[Finding]:
    for name, use in OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            yield Finding(name, "warn", f"not installed: {use}", f"optional: pip install {name}")
        else:
            yield Finding(name, "ok", f"installed: {use}")


CHECKS = (
    python, torch_build, gpus, processor, embedded_voice, models, audio_formats, player, hub, voice_library, port,
    packages,
)  # fmt: skip


def model_needs(size: str, dtype: "torch.dtype", gpu: bool) -> "ModelNeeds":
    """What a published model needs of the memory of a GPU or of a machine."""
    import torch

    from polyvox.engine.memory import ModelNeeds
    from polyvox.models.registry import LoadOptions, default_kv_dtype, random_model
    from polyvox.models.talker_generator import TalkerGenerator

    kv_dtype = default_kv_dtype(torch.device("cuda" if gpu else "cpu"), dtype)
    model = random_model(size, LoadOptions(torch.device("meta"), dtype, kv_dtype=kv_dtype))  # shapes without memory
    assert isinstance(model.generator, TalkerGenerator)
    return ModelNeeds.of(model, gpu, host_bytes=model.generator.talker.text_table.nbytes)


def _memory() -> tuple[int, int]:
    """Available and total memory in bytes."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), total
    except (OSError, StopIteration):
        return total, total


def _driver() -> str | None:
    """The version of the NVIDIA kernel module, if it is loaded."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
