# SPDX-License-Identifier: Apache-2.0
"""The folder for what one start computes and the next one reuses: compiled kernels."""

import os
import threading
from contextlib import suppress
from pathlib import Path

from polyvox.errors import InvalidRequest

CACHE_DIR = "POLYVOX_CACHE_DIR"
TRITON_CACHE_DIR = "TRITON_CACHE_DIR"  # read by Triton at each compilation


def cache_folder() -> Path:
    """$POLYVOX_CACHE_DIR, or `polyvox` in $XDG_CACHE_HOME (~/.cache)."""
    if given := os.environ.get(CACHE_DIR):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "polyvox"


def set_up_triton_cache() -> None:
    """Lets Triton keep compiled kernels in the cache folder, unless its own variable names another one.

    Triton finds a kernel by its source, its options, the kind of GPU and the version of Triton, so a kernel is never
    stale. Raises InvalidRequest if the folder cannot be written.
    """
    if TRITON_CACHE_DIR in os.environ:
        return
    folder = cache_folder() / "triton"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        requirement = f"must be a folder that can be written: {error.strerror}"
        raise InvalidRequest("cache_dir", str(folder.parent), requirement) from None
    if not os.access(folder, os.W_OK):
        raise InvalidRequest("cache_dir", str(folder.parent), "must be a folder that can be written")
    os.environ[TRITON_CACHE_DIR] = str(folder)


def preload_triton() -> threading.Thread:
    """Imports Triton in a thread, while the weights are loaded.

    Also computes the hash of its library of 400 MB, which Triton needs to find a compiled kernel and then remembers.
    """
    thread = threading.Thread(target=_import_triton, name="polyvox-preload", daemon=True)
    thread.start()
    return thread


def _import_triton() -> None:
    with suppress(ImportError):  # not installed, or a version without this function
        import triton.language  # noqa: F401
        from triton.runtime.cache import triton_key

        triton_key()
