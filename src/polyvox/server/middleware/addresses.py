# SPDX-License-Identifier: Apache-2.0
"""The address of a client, also behind proxies."""

import ipaddress
import re

from starlette.requests import HTTPConnection

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPV6_PREFIX = 64  # bits: one customer usually has all addresses of such a network

_FORWARDED_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*("[^"]*"|[^";,\s]+)', re.IGNORECASE)
_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]+)\](?::\d+)?|(?P<v4>[^:]+):\d+")


class TrustedProxies:
    """Finds the client of a connection. Headers of proxies count only as far as every proxy after them is trusted.

    networks: addresses, or networks such as 10.0.0.0/8.
    """

    def __init__(self, networks: list[str]) -> None:
        self._networks = [ipaddress.ip_network(text, strict=False) for text in networks]

    def trusts(self, host: str) -> bool:
        address = _parse_address(host)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, connection: HTTPConnection) -> str:
        """The client's IPv4 address or IPv6 network; empty if the connection has none.

        Behind trusted proxies it is the last address of X-Forwarded-For or Forwarded that is not a trusted proxy. If
        both headers are sent and differ, a client may have sent one of them, and the address of the proxy counts.
        """
        peer = connection.client.host if connection.client is not None else ""
        if not self.trusts(peer):
            return _to_group(peer)
        listed = ",".join(connection.headers.getlist("x-forwarded-for"))
        elements = ",".join(connection.headers.getlist("forwarded"))
        found = {self._last_untrusted(peer, hops) for hops in (_split(listed), _forwarded_for(elements)) if hops}
        return _to_group(found.pop() if len(found) == 1 else peer)

    def set_scheme(self, connection: HTTPConnection) -> None:
        """Takes the scheme that clients use, for redirects, from a trusted proxy's X-Forwarded-Proto."""
        scheme = connection.headers.get("x-forwarded-proto", "").strip().lower()
        if scheme in ("http", "https") and connection.client is not None and self.trusts(connection.client.host):
            is_websocket = connection.scope["type"] == "websocket"
            connection.scope["scheme"] = scheme.replace("http", "ws") if is_websocket else scheme

    def _last_untrusted(self, peer: str, hops: list[str]) -> str:
        client = peer
        for hop in reversed(hops):
            if _parse_address(hop) is None:  # unknown or malformed: the trusted proxy before it is all that is known
                return client
            client = hop
            if not self.trusts(hop):
                return client
        return client


def _split(header: str) -> list[str]:
    return [part.strip() for part in header.split(",") if part.strip()]


def _forwarded_for(header: str) -> list[str]:
    """The `for` of each element of Forwarded (RFC 7239); empty where an element has none."""
    matches = [_FORWARDED_FOR.search(element) for element in _split(header)]
    return [match[1].strip('"') if match is not None else "" for match in matches]


def _parse_address(text: str) -> IPAddress | None:
    """An address with or without a port and brackets; None if it is malformed."""
    if (match := _WITH_PORT.fullmatch(text)) is not None:
        text = match["v6"] or match["v4"]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _to_group(host: str) -> str:
    address = _parse_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))
    return host if address is None else str(address)
