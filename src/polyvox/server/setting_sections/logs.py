# SPDX-License-Identifier: Apache-2.0
"""The settings of logs and traces."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from polyvox.errors import how_to_install
from polyvox.server.setting_sections.section import SettingsSection
from polyvox.server.setting_types import has_opentelemetry


class LogSettings(SettingsSection):
    section: ClassVar[str] = "Logging"

    log_format: Literal["text", "json"] = Field(default="text", description="Format of log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum level of log lines."
    )
    otel: bool = Field(
        default=False,
        description="Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT; needs the packages of the extra otel.",
    )

    @field_validator("otel")
    @classmethod
    def _check_otel(cls, otel: bool) -> bool:
        if otel and not has_opentelemetry():
            raise ValueError(f"must be false without its packages: {how_to_install('otel')}")
        return otel
