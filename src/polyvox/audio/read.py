"""Recordings that people bring, as samples."""

import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np

from polyvox.audio.clip import Samples
from polyvox.audio.resample import resample
from polyvox.errors import NOT_SHOWN, InvalidRequest

log = logging.getLogger(__name__)

DECODE_SECONDS = 30  # of wall time; the decoder's own limit is on processor time


def read_audio(
    source: str | Path | bytes | BinaryIO,
    sample_rate: int,
    max_seconds: float = 60.0,
    max_bytes: int = 50_000_000,
) -> Samples:
    """One channel at the wanted rate; what is louder than full scale is scaled down. The file is decoded in a process
    of its own, with limits of memory and time and no way to open anything else."""
    samples, rate = _decode(_bytes(source, max_bytes), max_seconds)
    resampled = resample(samples, rate, sample_rate)
    peak = float(np.abs(resampled).max(initial=0))
    return resampled / np.float32(peak) if peak > 1 else resampled


def _bytes(source: str | Path | bytes | BinaryIO, max_bytes: int) -> bytes:
    if isinstance(source, bytes):
        data = source
    elif isinstance(source, str | Path):
        try:
            # O_NONBLOCK: a named pipe must not hold us before we see that it is none of ours
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
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "polyvox.audio.decode", str(max_seconds)],  # -P: no module of this folder
            input=data,
            capture_output=True,
            timeout=DECODE_SECONDS,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise InvalidRequest("audio", NOT_SHOWN, f"decoding took longer than {DECODE_SECONDS} s") from None
    head, _, body = done.stdout.partition(b"\n")
    if done.returncode:
        log.warning(
            "the decoder ended with %d: %s", done.returncode, done.stderr.decode(errors="replace").strip()[-500:]
        )
        raise InvalidRequest("audio", NOT_SHOWN, "decoding exceeded its memory or time limit")
    answer = json.loads(head)
    if "error" in answer:
        raise InvalidRequest("audio", NOT_SHOWN, answer["error"])
    return np.frombuffer(body, np.float32), answer["rate"]
