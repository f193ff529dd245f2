# SPDX-License-Identifier: Apache-2.0
"""The limits of requests: texts, bodies, files and times."""

import os
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from polyvox.server.setting_sections.section import SettingsSection

MAX_JSON_BYTES_PER_CHARACTER = 12  # an escaped surrogate pair
OTHER_FIELDS_BYTES = 64 * 1024  # of a JSON body, beside its text


class LimitSettings(SettingsSection):
    section: ClassVar[str] = "Request limits"

    max_text_chars: int = Field(default=50_000, ge=1, description="Maximum characters of text per request.")
    max_body_bytes: int = Field(default=16_000_000, ge=1000, description="Maximum size of a request body in bytes.")
    max_recording_bytes: int = Field(default=10_000_000, ge=1000, description="Maximum size of a recording in bytes.")
    max_recording_seconds: float = Field(
        default=60.0, gt=0, description="Seconds of a recording that are read; the rest is ignored."
    )
    max_batch_items: int = Field(default=32, ge=1, description="Maximum items per batch request.")
    max_spool_bytes: int = Field(
        default=2_000_000_000,
        ge=1_000_000,
        description="Maximum size in bytes of all whole-file responses, shared equally by the server processes; beyond "
        "it status 503.",
    )
    spool_dir: Path | None = Field(
        default=None, description="Folder of temporary files of whole-file responses; by default the system's."
    )
    body_timeout: float = Field(
        default=30.0, gt=0, description="Seconds for a request's headers, and for its body, to arrive."
    )
    websocket_idle_timeout: float = Field(default=30.0, gt=0, description="Seconds until an idle WebSocket is closed.")

    @field_validator("spool_dir")
    @classmethod
    def _check_spool_dir(cls, folder: Path | None) -> Path | None:
        if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError("must be a writable folder")
        return folder

    @property
    def max_text_body_bytes(self) -> int:
        """Body limit of routes that take no recordings."""
        return min(self.max_body_bytes, MAX_JSON_BYTES_PER_CHARACTER * self.max_text_chars + OTHER_FIELDS_BYTES)
