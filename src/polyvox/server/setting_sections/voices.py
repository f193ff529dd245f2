# SPDX-License-Identifier: Apache-2.0
"""The settings of voices, pronunciations and recordings."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from polyvox.file_store import is_url
from polyvox.server.setting_sections.section import SettingsSection
from polyvox.server.setting_types import Aliases, Names


class VoiceLibrarySettings(SettingsSection):
    section: ClassVar[str] = "Voices"

    voices_dir: Path | str | None = Field(
        default=None, description="Folder or URL (s3://…) of the voice library; by default the user's own folder."
    )
    lexicon: Path | None = Field(
        default=None,
        description="File with pronunciations: lines of word = respelling, PLS (.pls) or JSON rules (.json).",
    )
    voice_aliases: Aliases = Field(default={}, description="Alternative voice names, such as alloy=heart.")
    ref_audio_domains: Names = Field(default=[], description="Hosts that recordings may be fetched from.")
    media_root: Path | None = Field(default=None, description="Folder that file:// recordings may be read from.")

    @field_validator("voices_dir")
    @classmethod
    def _parse_voices_dir(cls, location: Path | str | None) -> Path | str | None:
        return Path(location) if isinstance(location, str) and not is_url(location) else location
