# SPDX-License-Identifier: Apache-2.0
"""Recordings that requests contain or refer to. Only allowed hosts and folders are read."""

import base64
import binascii
import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from polyvox.audio.read import read_audio
from polyvox.audio.samples import Samples
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.server.settings import Settings

FIELD = "recording"  # which each API calls by another name
MAX_REDIRECTS = 3
FETCH_TIMEOUT = 10.0  # seconds, for all redirects together
READ_SIZE = 1 << 16
DATA_URI = re.compile(r"data:[\w.+/;=-]*;base64,", re.ASCII)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class RecordingReader:
    """Fetches and decodes recordings within the limits of the settings. Calls block and belong in a thread."""

    def __init__(
        self,
        settings: Settings,
        sample_rate: int,
        resolve: Callable[[str, int], list[str]] | None = None,
        is_allowed: Callable[[Address], bool] | None = None,
    ) -> None:
        self._settings, self._sample_rate = settings, sample_rate
        self._resolve, self._is_allowed = resolve or resolve_host, is_allowed or is_public

    def read(self, source: str) -> Samples:
        """The samples of a recording at the engine's sample rate; raises InvalidRequest."""
        return self.decode(self.find(source))

    def decode(self, data: bytes) -> Samples:
        """The samples of an audio file; raises InvalidRequest."""
        settings = self._settings
        return read_audio(data, self._sample_rate, settings.max_recording_seconds, settings.max_recording_bytes)

    def find(self, source: str) -> bytes:
        """The bytes of a data URI, of base64, or of an allowed URL or file; raises InvalidRequest."""
        head = source[:100].lower()
        if head.startswith(("http://", "https://")):
            return self._fetch(source)
        if head.startswith("file:"):
            return self._open(source)
        if data := DATA_URI.match(source):
            source = source[data.end() :]
        elif ":" in source[:20] or "/" in source[:1]:
            requirement = "must be a data URI, base64, an allowed https:// URL or a file:// URL under media_root"
            raise InvalidRequest(FIELD, source, requirement)
        self._check_size((len(source) - 4) * 3 / 4)
        try:
            return base64.b64decode("".join(source.split()), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(FIELD, source, "must be complete base64, a data URI or a URL") from None

    def _open(self, url: str) -> bytes:
        root = self._settings.media_root
        parts = urlsplit(url)
        if root is None or parts.netloc not in ("", "localhost"):
            raise InvalidRequest(FIELD, url, "file:// URLs are disabled", "Set media_root to allow a folder.")
        try:
            path = Path(unquote(parts.path)).resolve(strict=True)  # through every link
            if not path.is_relative_to(root.resolve()) or not path.is_file():
                raise ValueError
            with path.open("rb") as file:
                data = file.read(self._settings.max_recording_bytes + 1)
        except (OSError, ValueError, RuntimeError):
            # One message for all causes: it does not reveal which files exist.
            raise InvalidRequest(FIELD, url, "must be a file under media_root") from None
        self._check_size(len(data))
        return data

    def _fetch(self, url: str) -> bytes:
        deadline = time.monotonic() + FETCH_TIMEOUT
        for _ in range(MAX_REDIRECTS + 1):
            found = self._get(url, deadline)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise InvalidRequest(FIELD, url, f"must have at most {MAX_REDIRECTS} redirects")

    def _get(self, url: str, deadline: float) -> bytes | str:
        """The content of a URL, or the location that it redirects to."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip(".").lower(), parts.port
        except ValueError:
            raise InvalidRequest(FIELD, url, "must be a URL") from None
        domains = self._settings.ref_audio_domains
        if parts.scheme not in ("http", "https") or parts.username or not _is_listed(host, domains):
            requirement = f"must be a URL at {', '.join(domains)}" if domains else "URLs are disabled"
            raise InvalidRequest(FIELD, url, requirement, "Set ref_audio_domains to allow other hosts.")
        port = port or (443 if parts.scheme == "https" else 80)
        connection = _PinnedConnection(host, port, self._address(host, port), parts.scheme == "https", deadline)
        timer = threading.Timer(max(deadline - time.monotonic(), 0.0), connection.shut_down)
        timer.start()
        try:
            connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
            response = connection.getresponse()
            if response.status in (301, 302, 303, 307, 308):
                return response.headers.get("location") or ""
            if response.status != 200:
                raise InvalidRequest(FIELD, url, f"the server responded with status {response.status}")
            data = bytearray()
            while part := response.read1(READ_SIZE):
                data += part
                self._check_size(len(data))
            return bytes(data)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise InvalidRequest(FIELD, url, f"cannot be fetched within {FETCH_TIMEOUT:g} s: {error}") from None
        finally:
            timer.cancel()
            connection.close()

    def _address(self, host: str, port: int) -> str:
        """The address to connect to, resolved once. All addresses of the host must be allowed."""
        try:
            found = self._resolve(host, port)
        except OSError:
            raise InvalidRequest(FIELD, host, "the host has no address") from None
        if not found or not all(self._is_allowed(ipaddress.ip_address(address)) for address in found):
            raise InvalidRequest(FIELD, host, "the host must have only public addresses")
        return found[0]

    def _check_size(self, size: float) -> None:
        limit = self._settings.max_recording_bytes
        if size > limit:
            raise InvalidRequest(FIELD, NOT_SHOWN, f"must have at most {limit:,} bytes (max_recording_bytes)")


class _PinnedConnection(http.client.HTTPConnection):
    """Connects to a fixed address, so that a changed DNS record has no effect."""

    def __init__(self, host: str, port: int, address: str, secure: bool, deadline: float) -> None:
        super().__init__(host, port)
        self._address, self._secure, self._deadline = address, secure, deadline

    def connect(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self.sock = socket.create_connection((self._address, self.port), left)
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)

    def shut_down(self) -> None:
        """Ends all waits. A socket timeout alone restarts with each byte that arrives."""
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


def resolve_host(host: str, port: int) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: Address) -> bool:
    """Whether an address is outside of this machine, private networks and cloud metadata services."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is not None:
            return is_public(inner)
        if address in ipaddress.ip_network("64:ff9b::/96"):  # NAT64: ends with an IPv4 address
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address.is_global and not address.is_multicast and not address.is_reserved


def _is_listed(host: str, domains: list[str]) -> bool:
    """example.com allows that host, .example.com its subdomains too."""
    names = [domain.lower().rstrip(".") for domain in domains]
    return any(host == name.lstrip(".") or (name.startswith(".") and host.endswith(name)) for name in names)
