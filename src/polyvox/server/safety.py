"""Who may call, and how much at once: before anything else of a request is looked at."""

import hashlib
import hmac
from collections import Counter
from math import ceil

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvox.errors import Overloaded
from polyvox.server.answers import Refused, error_answer, request_id_of
from polyvox.server.settings import Settings

# What is open whatever the settings: it tells nothing but that the server is there.
OPEN = ("/", "/livez", "/readyz", "/health")
PAGE = "/web/"  # the page's own files
# Behind each choice of `public`: methods and beginnings of paths.
CHOICES = {
    "voices": ("/v1/audio/voices",),
    "models": ("/v1/models", "/v1/audio/models"),
    "metrics": ("/metrics",),
    "docs": ("/docs", "/redoc", "/openapi.json"),
}
SPEAKING = ("/v1/audio/speech", "/v1/text-to-speech")  # what counts against a key's share


class TooMany(Overloaded):
    """One caller is over its share; the others are not told."""

    status = 429
    code = "too_many_requests"


class Keys:
    """The keys that may call. They are compared by their hashes, in the same time whatever they are."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, key: str) -> str | None:
        """A name for the caller that is not the key itself; None where it is not known."""
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:12] if any(matches) else None


class Guard:
    """ASGI middleware: checks keys, keeps each key's share of requests at once, and gives every answer its id."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self._settings = app, settings
        self._keys = Keys(settings.api_keys)
        # Server processes do not count together, so each has its part of the share.
        most = settings.key_streams
        self._most = None if most is None else ceil(most / max(1, settings.workers))
        self._speaking: Counter[str] = Counter()
        self._public = tuple(path for choice in settings.public for path in CHOICES[choice])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        request_id = request_id_of(request)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = [name for name, _ in message["headers"]]
                if b"x-request-id" not in names:
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) or "/"
        try:
            caller = self._check(request, path)
        except Refused as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": "an API key is needed"})
            else:
                await error_answer(error, request_id)(scope, receive, send_with_id)
            return
        if scope["type"] == "websocket":  # a socket is counted by what is said on it
            await self.app(scope, receive, send)
            return
        counted = self._most is not None and scope["method"] == "POST" and path.startswith(SPEAKING)
        if counted and self._most is not None and self._speaking[caller] >= self._most:
            over = TooMany(f"{self._most} requests of yours are being served already", retry_after=1)
            response = error_answer(over, request_id)
            response.headers["current-concurrent-requests"] = str(self._speaking[caller])
            response.headers["maximum-concurrent-requests"] = str(self._most)
            await response(scope, receive, send_with_id)
            return
        self._speaking[caller] += counted
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            self._speaking[caller] -= counted
            if self._speaking[caller] <= 0:
                del self._speaking[caller]

    def _check(self, request: HTTPConnection, path: str) -> str:
        """Who calls: a name for a key, or an address; raises Refused where the key is missing or wrong."""
        address = request.client.host if request.client else ""
        if not self._keys:
            return address
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip() if kind.lower() == "bearer" else request.headers.get("xi-api-key", "")
        method = request.scope.get("method", "")
        if not key and not method:  # a page cannot give a WebSocket headers
            key = request.query_params.get("api_key", "")
        caller = self._keys.find(key) if key else None
        if caller is not None:
            return caller
        if method == "OPTIONS" or (method and (path in OPEN or path.startswith(PAGE))):
            return address
        if method in ("GET", "HEAD") and any(
            path == public or path.startswith(f"{public}/") for public in self._public
        ):
            return address
        raise Refused(401, "invalid_api_key", "an API key is needed: Authorization: Bearer …, or xi-api-key: …")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
