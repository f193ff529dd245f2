# SPDX-License-Identifier: Apache-2.0
"""The settings of listeners: addresses, processes, TLS, shutdown."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, ValidationInfo, field_validator

from polyvox.server.setting_sections.section import SettingsSection
from polyvox.server.setting_types import Workers, split_address
from polyvox.server.tls import check_certificate, check_key


class NetworkSettings(SettingsSection):
    section: ClassVar[str] = "Network"

    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port; 0 for any free one.")
    workers: Workers = Field(
        default="auto",
        validate_default=True,
        ge=0,
        le=64,
        description="Number of HTTP server processes: a number, auto for one per four cores, or 0 to run the engine "
        "inside the server process.",
    )
    tls_cert: Path | None = Field(
        default=None,
        description="Certificate chain in PEM format for HTTPS and WSS; loaded again when the file changes.",
    )
    tls_key: Path | None = Field(
        default=None, validate_default=True, description="Key of tls_cert in PEM format, without a password."
    )
    root_path: str = Field(default="", description="Path prefix when served behind a proxy.")
    keep_alive_timeout: float = Field(default=30.0, gt=0, description="HTTP keep-alive timeout in seconds.")
    ray: bool = Field(
        default=False, description="Deploy on a Ray cluster: that of RAY_ADDRESS, or one on this machine."
    )
    drain_timeout: float = Field(
        default=30.0, ge=0, description="Seconds that running requests may take to finish at shutdown."
    )
    wyoming: str | None = Field(
        default=None,
        description="Address for Home Assistant's Wyoming protocol, such as tcp://0.0.0.0:10200; it has no API keys.",
    )
    zeroconf: bool = Field(
        default=False, description="Announce the Wyoming address on the local network; needs the package zeroconf."
    )

    @field_validator("tls_cert")
    @classmethod
    def _check_tls_cert(cls, cert: Path | None) -> Path | None:
        if cert is not None:
            check_certificate(cert)
        return cert

    @field_validator("tls_key")
    @classmethod
    def _check_tls_key(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        cert = info.data.get("tls_cert")
        if key is None and cert is not None:
            raise ValueError("must be set with tls_cert")
        if key is not None and "tls_cert" in info.data:  # otherwise tls_cert is invalid
            if cert is None:
                raise ValueError("must not be set without tls_cert")
            check_key(cert, key)
        return key

    @field_validator("wyoming")
    @classmethod
    def _check_wyoming(cls, address: str | None) -> str | None:
        if address is not None:
            split_address(address)
        return address

    @field_validator("zeroconf")
    @classmethod
    def _check_zeroconf(cls, zeroconf: bool, info: ValidationInfo) -> bool:
        if zeroconf and info.data.get("wyoming") is None:
            raise ValueError("must be false without wyoming, whose address it announces")
        return zeroconf

    @field_validator("root_path")
    @classmethod
    def _normalize_root_path(cls, path: str) -> str:
        return f"/{inner}" if (inner := path.strip("/")) else ""

    @property
    def wyoming_address(self) -> tuple[str, int] | None:
        return None if self.wyoming is None else split_address(self.wyoming)
