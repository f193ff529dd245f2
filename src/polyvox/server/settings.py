# SPDX-License-Identifier: Apache-2.0
"""The settings of the server: all sections, in the order of `polyvox serve --help` and of the printed file."""

from typing import Any

import yaml
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from polyvox.file_store import without_secrets
from polyvox.server.setting_sections.access import AccessSettings
from polyvox.server.setting_sections.conversation import ConversationSettings
from polyvox.server.setting_sections.engine import EngineSettings
from polyvox.server.setting_sections.limits import LimitSettings
from polyvox.server.setting_sections.logs import LogSettings
from polyvox.server.setting_sections.network import NetworkSettings
from polyvox.server.setting_sections.voices import VoiceLibrarySettings

ENV_PREFIX = "POLYVOX_"
BACKLOG = 2048  # connections that wait to be accepted
SECTIONS = (
    NetworkSettings,
    EngineSettings,
    AccessSettings,
    LimitSettings,
    VoiceLibrarySettings,
    ConversationSettings,
    LogSettings,
)
SECRETS = ("api_keys", "llm_key", "stt_key")  # never shown


class Settings(
    # The fields of the last base class come first.
    LogSettings,
    ConversationSettings,
    VoiceLibrarySettings,
    LimitSettings,
    AccessSettings,
    EngineSettings,
    NetworkSettings,
    BaseSettings,
):
    """Settings of `polyvox serve`. The constructor takes explicit values only; `load_settings` reads the sources."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    def with_supervised_llm(self, url: str) -> "Settings":
        copy = self.model_copy(update={"llm": url})
        copy._llm_is_supervised = True
        return copy

    def shown_values(self) -> dict[str, Any]:
        """All settings as JSON values. API keys are counted, not shown."""
        values = self.model_dump(mode="json")
        values["api_keys"] = [f"({len(self.api_keys)} hidden)"] if self.api_keys else []
        values["llm_key"] = "(hidden)" if self.llm_key else None
        values["stt_key"] = "(hidden)" if self.stt_key else None
        if isinstance(self.voices_dir, str):
            values["voices_dir"] = without_secrets(self.voices_dir)
        return values

    def to_yaml(self) -> str:
        """All settings as a configuration file, without API keys."""
        return yaml.safe_dump(self.shown_values(), sort_keys=False, allow_unicode=True)


def section_of(name: str) -> str:
    """The title of the section that has this setting."""
    return next(section.section for section in SECTIONS if name in section.model_fields)
