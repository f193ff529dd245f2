# SPDX-License-Identifier: Apache-2.0
"""Read recordings of any format as samples."""

import json
import logging
import os
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from polyvox.audio.resample import resample
from polyvox.audio.samples import Samples
from polyvox.errors import NOT_SHOWN, InvalidRequest

log = logging.getLogger(__name__)

DECODE_TIMEOUT = 30  # seconds; the decoder process limits its CPU time itself
# The decoder handles untrusted input, so it gets no API keys or tokens from the environment.
DECODER_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")


def read_audio(
    source: str | Path | bytes | BinaryIO,
    sample_rate: int,
    max_seconds: float = 60.0,
    max_bytes: int = 50_000_000,
) -> Samples:
    """Mono samples at `sample_rate`, scaled down if they exceed full scale; of a long file the first `max_seconds`.

    The file is decoded in a separate process with limits on memory and time, which has no network and no other files.
    """
    samples, rate = _decode(_read_bytes(source, max_bytes), max_seconds)
    resampled = resample(samples, rate, sample_rate)
    peak = float(np.abs(resampled).max(initial=0))
    return resampled / np.float32(peak) if peak > 1 else resampled


def _read_bytes(source: str | Path | bytes | BinaryIO, max_bytes: int) -> bytes:
    if isinstance(source, bytes):
        data = source
    elif isinstance(source, str | Path):
        try:
            # O_NONBLOCK: opening a named pipe must not block
            with open(
                source, "rb", opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
            ) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise InvalidRequest("audio", str(source), "must be a regular file")
                data = file.read(max_bytes + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidRequest("audio", str(source), f"cannot be read: {reason}") from None
    else:
        data = source.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InvalidRequest("audio", NOT_SHOWN, f"must be at most {max_bytes / 1e6:g} MB")
    return data


def _decode(data: bytes, max_seconds: float) -> tuple[Samples, int]:
    inherited = {name: os.environ[name] for name in DECODER_ENVIRONMENT if name in os.environ}
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-m", "polyvox.audio.decode", str(max_seconds)],  # -P: no imports from this folder
            input=data,
            capture_output=True,
            timeout=DECODE_TIMEOUT,
            env={**inherited, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise InvalidRequest("audio", NOT_SHOWN, f"decoding took longer than {DECODE_TIMEOUT} s") from None
    header, _, body = process.stdout.partition(b"\n")
    if process.returncode:
        stderr = process.stderr.decode(errors="replace").strip()[-500:]
        log.warning("audio decoder failed status=%d stderr=%r", process.returncode, stderr)
        raise InvalidRequest("audio", NOT_SHOWN, "decoding exceeded its memory or time limit")
    result = json.loads(header)
    _log_isolation(result["isolation"])
    if "error" in result:
        raise InvalidRequest("audio", NOT_SHOWN, result["error"])
    return np.frombuffer(body, np.float32), result["rate"]


@cache
def _log_isolation(isolation: str) -> None:
    """Logs how decoders are isolated, once."""
    level = logging.WARNING if isolation.startswith("none") else logging.INFO
    log.log(level, "audio decoder started isolation=%r", isolation)
