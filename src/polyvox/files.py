# SPDX-License-Identifier: Apache-2.0
"""Atomic file writes."""

import secrets
from contextlib import suppress
from pathlib import Path

from polyvox.errors import InvalidRequest


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file through a temporary file and a rename. Raises InvalidRequest if the path is not writable."""
    partial = path.with_name(f".polyvox-{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(data)
        partial.replace(path)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            partial.unlink()
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest("path", str(path), f"cannot be written: {reason}") from None
