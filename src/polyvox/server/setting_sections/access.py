# SPDX-License-Identifier: Apache-2.0
"""The settings of access: API keys, limits per caller, proxies and origins."""

from ipaddress import ip_network
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from polyvox.server.setting_sections.section import SettingsSection
from polyvox.server.setting_types import CommaSeparated, Names

PublicEndpoints = Literal["voices", "models", "metrics", "docs"]


class AccessSettings(SettingsSection):
    section: ClassVar[str] = "Access"

    api_keys: Names = Field(default=[], description="Accepted API keys; without any, no key is needed.")
    public: Annotated[list[PublicEndpoints], *CommaSeparated] = Field(
        default=[], description="Endpoints that need no key: voices, models, metrics, docs."
    )
    max_streams_per_key: int | None = Field(
        default=None, ge=1, description="Maximum concurrent requests per API key; further requests get status 429."
    )
    max_streams_per_address: int | None = Field(
        default=None,
        ge=1,
        description="Maximum concurrent requests per client address or IPv6 /64; further requests get status 429.",
    )
    trusted_proxies: Names = Field(
        default=["127.0.0.1", "::1"],
        description="Addresses or networks of proxies whose X-Forwarded-For or Forwarded names the client.",
    )
    allowed_hosts: Names = Field(
        default=[], description="Public host names of the server, such as tts.example.com, .example.com or *."
    )
    cors_origins: Names = Field(
        default=[], description="Origins of web pages that may call, such as https://example.com, or *."
    )

    @field_validator("api_keys", mode="before")
    @classmethod
    def _check_api_keys(cls, keys: object) -> object:
        """An empty string is most likely a variable that is not set, and would start a server without keys."""
        if isinstance(keys, str) and not keys.replace(",", " ").strip():
            raise ValueError("must not be empty; remove it to run without keys")
        if isinstance(keys, list) and any(isinstance(key, str) and not key.strip() for key in keys):
            raise ValueError("must not have an empty key")
        return keys

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            try:
                ip_network(network, strict=False)
            except ValueError:
                raise ValueError("must be IP addresses or networks such as 10.0.0.0/8") from None
        return networks
