# SPDX-License-Identifier: Apache-2.0
"""What the sections of the server's settings have in common."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class SettingsSection(BaseModel):
    """Some of the settings. section: its title in `polyvox serve --help`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    section: ClassVar[str]
