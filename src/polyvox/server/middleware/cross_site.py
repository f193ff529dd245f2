# SPDX-License-Identifier: Apache-2.0
"""Protection against foreign web pages: host names (DNS rebinding) and origins (cross-site requests)."""

import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from polyvox.server.app_state import get_state
from polyvox.server.middleware.paths import health_path
from polyvox.server.requests import request_id_of
from polyvox.server.responses import APIError, reject
from polyvox.server.settings import Settings

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")  # they change nothing, and browsers hide their responses from foreign pages
# Public DNS has no names under these, so no foreign page can have one: loopback, mDNS, private use, home networks.
PRIVATE_SUFFIXES = ("localhost", "local", "internal", "home.arpa", "lan")


class CrossSiteMiddleware:
    """Rejects requests with a foreign host name or origin.

    Without API keys every client that reaches the server may use it, also a web page in a user's browser. With keys a
    page would have to know one, so then only WebSockets are checked, and host names if `allowed_hosts` is set.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self._settings = app, settings
        self._hosts = [name.lower().rstrip(".") for name in settings.allowed_hosts]
        self._own_names = {settings.host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            connection = HTTPConnection(scope)
            try:
                self._check_host(connection)
                self._check_origin(connection)
            except APIError as error:
                request_id = request_id_of(connection)
                get_state(connection).record_rejected(error, request_id)
                await reject(error, request_id, scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check_host(self, connection: HTTPConnection) -> None:
        """A page of evil.example whose name is rebound to this machine still sends `Host: evil.example`."""
        hosts = connection.headers.getlist("host")
        if len(hosts) > 1 or (not hosts and connection.scope["http_version"] == "1.1"):
            raise APIError(400, "invalid_host", f"A request must have one Host header (got {len(hosts)}).", "host")
        if not hosts or health_path(connection.scope) or (self._settings.api_keys and not self._hosts):
            return
        name = _host_name(hosts[0])
        if not (self._is_listed(name) or name in self._own_names or _is_private(name)):
            message = f"The host name '{name[:100]}' is not allowed. Add it to allowed_hosts if it is the server's own."
            raise APIError(421, "host_refused", message, "host")

    def _check_origin(self, connection: HTTPConnection) -> None:
        """Browsers let any page open a WebSocket and send a form to any server, and add the page's origin."""
        if connection.scope["type"] == "http" and (
            self._settings.api_keys or connection.scope["method"] in SAFE_METHODS
        ):
            return
        origin, allowed = connection.headers.get("origin"), self._settings.cors_origins
        if origin is None or origin in allowed or "*" in allowed:
            return
        try:
            parts = urlsplit(origin)
            host, name = parts.netloc, (parts.hostname or "").lower()
        except ValueError:
            host = name = ""
        if not host or not (host == connection.headers.get("host") or self._is_listed(name)):
            message = f"The origin '{origin[:100]}' is not allowed. Add it to cors_origins to allow its pages."
            raise APIError(403, "origin_refused", message, "origin")

    def _is_listed(self, name: str) -> bool:
        """example.com allows that host, .example.com its subdomains too, * all."""
        return any(
            listed == "*" or name == listed.lstrip(".") or (listed.startswith(".") and name.endswith(listed))
            for listed in self._hosts
        )


def _host_name(host: str) -> str:
    """The name of a Host header without its port; an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _is_private(name: str) -> bool:
    """Whether no foreign page can have this host name: addresses and names that public DNS does not have."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(tuple(f".{suffix}" for suffix in PRIVATE_SUFFIXES))
    return True
