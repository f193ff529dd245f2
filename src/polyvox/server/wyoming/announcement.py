# SPDX-License-Identifier: Apache-2.0
"""Announces the Wyoming address on the local network (zeroconf), so that Home Assistant finds it."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from polyvox.errors import NOT_SHOWN, InvalidRequest, how_to_install

log = logging.getLogger(__name__)

SERVICE = "_wyoming._tcp.local."
MULTICAST_ADDRESS = ("224.0.0.251", 5353)  # of mDNS; no packet is sent to find the outgoing interface


@contextmanager
def announced(listener: socket.socket) -> Iterator[None]:
    """Announces the address of a socket until the end of the context."""
    try:
        from zeroconf import ServiceInfo, Zeroconf
    except ImportError:
        requirement = f"requires the package zeroconf: {how_to_install('zeroconf')}"
        raise InvalidRequest("zeroconf", NOT_SHOWN, requirement) from None
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = _outgoing_address()
    name = f"polyvox-{socket.gethostname().partition('.')[0]}.{SERVICE}"
    info = ServiceInfo(SERVICE, name, port=port, parsed_addresses=[host])
    try:
        zeroconf = Zeroconf()
    except OSError as error:
        raise InvalidRequest("zeroconf", True, f"needs a network with multicast: {error.strerror}") from None
    try:
        zeroconf.register_service(info, allow_name_change=True)
        log.info("wyoming announced", extra={"service": info.name, "address": f"{host}:{port}"})
        yield
    finally:
        zeroconf.close()  # withdraws the announcement


def _outgoing_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(MULTICAST_ADDRESS)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
