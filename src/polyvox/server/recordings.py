"""Recordings that requests bring or point to. Nothing is fetched or opened that was not allowed by name."""

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
from polyvox.engine.interface import Engine
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.request import ClonedVoice
from polyvox.server.settings import Settings

FIELD = "ref_audio"
REDIRECTS = 3
FETCH_SECONDS = 10.0
PART = 1 << 16
DATA = re.compile(r"data:[\w.+/;=-]*;base64,", re.ASCII)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Recordings:
    """Reads recordings within the limits of the settings. Its calls take seconds and belong in a thread."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        resolve: Callable[[str, int], list[str]] | None = None,
        allowed: Callable[[Address], bool] | None = None,
    ) -> None:
        self._engine, self._settings = engine, settings
        self._resolve, self._allowed = resolve or addresses, allowed or is_public

    def clone(self, source: str, transcript: str | None) -> ClonedVoice:
        """The voice of a recording; raises InvalidRequest with what is wrong with it."""
        return self.clone_bytes(self.find(source), transcript)[0]

    def clone_bytes(self, data: bytes, transcript: str | None) -> tuple[ClonedVoice, float]:
        """The same of a file that is here, and its length in seconds."""
        rate = self._engine.sample_rate
        samples = read_audio(data, rate, self._settings.max_audio_seconds, self._settings.max_audio)
        return self._engine.clone(samples, transcript), len(samples) / rate

    def find(self, source: str) -> bytes:
        """The bytes that a data URI or base64 holds, or that an allowed URL or file has."""
        head = source[:100].lower()
        if head.startswith(("http://", "https://")):
            return self._fetch(source)
        if head.startswith("file:"):
            return self._open(source)
        if data := DATA.match(source):
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
                data = file.read(self._settings.max_audio + 1)
        except (OSError, ValueError, RuntimeError):
            # One answer for all of it: it tells nobody which files there are.
            raise InvalidRequest(FIELD, url, "must be a file under media_root") from None
        self._check_size(len(data))
        return data

    def _fetch(self, url: str) -> bytes:
        until = time.monotonic() + FETCH_SECONDS
        for _ in range(REDIRECTS + 1):
            answer = self._ask(url, until)
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer)
        raise InvalidRequest(FIELD, url, f"must have at most {REDIRECTS} redirects")

    def _ask(self, url: str, until: float) -> bytes | str:
        """What is there, or where it is said to be."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip(".").lower(), parts.port
        except ValueError:
            raise InvalidRequest(FIELD, url, "must be a URL") from None
        domains = self._settings.ref_audio_domains
        if parts.scheme not in ("http", "https") or parts.username or not _is_named(host, domains):
            requirement = f"must be a URL at {', '.join(domains)}" if domains else "URLs are disabled"
            raise InvalidRequest(FIELD, url, requirement, "Set ref_audio_domains to allow other hosts.")
        port = port or (443 if parts.scheme == "https" else 80)
        connection = _Pinned(host, port, self._address(host, port), parts.scheme == "https", until)
        watch = threading.Timer(max(until - time.monotonic(), 0.0), connection.cut)
        watch.start()
        try:
            connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
            response = connection.getresponse()
            if response.status in (301, 302, 303, 307, 308):
                return response.headers.get("location") or ""
            if response.status != 200:
                raise InvalidRequest(FIELD, url, f"the server responded with status {response.status}")
            data = bytearray()
            while part := response.read1(PART):
                data += part
                self._check_size(len(data))
            return bytes(data)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise InvalidRequest(FIELD, url, f"cannot be fetched within {FETCH_SECONDS:g} s: {error}") from None
        finally:
            watch.cancel()
            connection.close()

    def _address(self, host: str, port: int) -> str:
        """The address that is asked: looked up once, and none of the host's may lead inside."""
        try:
            found = self._resolve(host, port)
        except OSError:
            raise InvalidRequest(FIELD, host, "the host has no address") from None
        if not found or not all(self._allowed(ipaddress.ip_address(address)) for address in found):
            raise InvalidRequest(FIELD, host, "the host must have only public addresses")
        return found[0]

    def _check_size(self, size: float) -> None:
        if size > self._settings.max_audio:
            raise InvalidRequest(FIELD, NOT_SHOWN, f"must be at most {self._settings.max_audio:,} bytes (max_audio)")


class _Pinned(http.client.HTTPConnection):
    """Talks to one address, whatever the name means by now; all of it has one deadline."""

    def __init__(self, host: str, port: int, address: str, secure: bool, until: float) -> None:
        super().__init__(host, port)
        self._address, self._secure, self._until = address, secure, until

    def connect(self) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        self.sock = socket.create_connection((self._address, self.port), left)
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)

    def cut(self) -> None:
        """Ends every wait: a timeout alone starts again with each byte that comes."""
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


def addresses(host: str, port: int) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: Address) -> bool:
    """No address of this machine, of a private network or of a cloud's own services, however it is written."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is not None:
            return is_public(inner)
        if address in ipaddress.ip_network("64:ff9b::/96"):  # NAT64: an IPv4 address at its end
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address.is_global and not address.is_multicast and not address.is_reserved


def _is_named(host: str, domains: list[str]) -> bool:
    """example.com allows itself, .example.com also all that is below it."""
    names = [domain.lower().rstrip(".") for domain in domains]
    return any(host == name.lstrip(".") or (name.startswith(".") and host.endswith(name)) for name in names)
