"""Who may call, and how much at once: before anything else of a request is looked at."""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvox.errors import Overloaded, PolyvoxError
from polyvox.server.middleware.limits import ConcurrencyLimiter
from polyvox.server.responses import Refused, error_answer, request_id_of
from polyvox.server.settings import Settings

# What is open whatever the settings: it tells nothing but that the server is there.
OPEN = ("/", "/livez", "/readyz", "/health")
PAGE = "/web/"  # the page's own files
# Behind each choice of `public`: methods and beginnings of paths.
CHOICES = {
    "voices": ("/v1/audio/voices", "/v1/voices", "/v2/voices"),
    "models": ("/v1/models", "/v1/audio/models"),
    "metrics": ("/metrics",),
    "docs": ("/docs", "/redoc", "/openapi.json"),
}
SPEAKING = ("/v1/audio/speech", "/v1/text-to-speech")  # what counts against a key's share
LATE = "/v1/text-to-speech/"  # sockets that may bring their key with the first message
# What a key has before it among the protocols that a socket offers: ours, and what OpenAI's clients send.
KEY_PROTOCOLS = ("polyvox-key.", "openai-insecure-api-key.")


class TooMany(Overloaded):
    """One caller is over its share; the others are not told."""

    status = 429
    code = "too_many_requests"

    def __init__(self, message: str, most: int) -> None:
        super().__init__(message, retry_after=1)
        self.most = most


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


class KeySlot:
    """What one caller may have at once."""

    def __init__(self, shares: ConcurrencyLimiter | None, caller: str) -> None:
        self._shares, self._caller = shares, caller

    @contextmanager
    def one(self) -> Iterator[None]:
        """Something that is being said for the caller; raises TooMany where that is one too many."""
        if self._shares is None:
            yield
            return
        place = self._shares.take(self._caller)
        if place is None:
            raise TooMany(f"your share is taken: {self._shares.most} at once", self._shares.most)
        try:
            yield
        finally:
            self._shares.give(self._caller, place)


class AuthMiddleware:
    """ASGI middleware: checks keys, keeps each key's share of requests at once, and gives every answer its id."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        shared: Path | None = None,
        refused: Callable[[PolyvoxError, str], None] = lambda *_: None,
    ) -> None:
        self.app, self._settings, self._refused = app, settings, refused
        self._keys = Keys(settings.api_keys)
        file = None if shared is None else shared / "shares"
        self._shares = None if settings.key_streams is None else ConcurrencyLimiter(settings.key_streams, file)
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

        path = self._path(scope)
        if scope["type"] == "websocket":
            await self._open(request, path, receive, send)
            return
        try:
            share = scope["polyvox.share"] = self._share(self._check(request, path))
        except Refused as error:
            self._refused(error, request_id)
            await error_answer(error, request_id)(scope, receive, send_with_id)
            return
        if scope["method"] != "POST" or not path.startswith(SPEAKING):
            await self.app(scope, receive, send_with_id)
            return
        try:
            with share.one():
                await self.app(scope, receive, send_with_id)
        except TooMany as over:
            self._refused(over, request_id)
            response = error_answer(over, request_id)
            response.headers["current-concurrent-requests"] = str(over.most)
            response.headers["maximum-concurrent-requests"] = str(over.most)
            await response(scope, receive, send_with_id)

    def _path(self, scope: Scope) -> str:
        """Without the path before ours, whether a proxy has taken that away (uvicorn puts it back) or left it."""
        root = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"].removeprefix(root)
        if root and f"{path}/".startswith(f"{root}/"):
            path = path.removeprefix(root)
            scope["path"] = root + path
        return path or "/"

    async def _open(self, socket: HTTPConnection, path: str, receive: Receive, send: Send) -> None:
        """A socket, which is counted by what is said on it. It finds its caller's share, or who to ask for it."""
        scope = socket.scope
        try:
            self._check_origin(socket)
            if self._keys and not _key_of(socket) and path.startswith(LATE):
                scope["polyvox.share"] = None
            else:
                scope["polyvox.share"] = self._share(self._check(socket, path))
        except Refused as error:
            self._refused(error, request_id_of(socket))
            if "websocket.http.response" not in scope.get("extensions", {}):
                await send({"type": "websocket.close", "code": 1008, "reason": str(error)})
                return
            await error_answer(error, request_id_of(socket))(scope, receive, send)
            return
        scope["polyvox.admit"] = self._admit
        await self.app(scope, receive, send)

    def _admit(self, key: str) -> KeySlot:
        """The share of a key that comes late; raises Refused."""
        caller = self._keys.find(key) if key else None
        if caller is None:
            raise _no_key()
        return self._share(caller)

    def _share(self, caller: str) -> KeySlot:
        return KeySlot(self._shares, caller)

    def _check_origin(self, socket: HTTPConnection) -> None:
        """Browsers let any page open a socket to any server, and tell which page it is."""
        origin, allowed = socket.headers.get("origin"), self._settings.cors_origins
        if origin is None or origin in allowed or "*" in allowed:
            return
        try:
            place = urlsplit(origin).netloc
        except ValueError:
            place = ""
        if not place or place != socket.headers.get("host"):
            raise Refused(403, "origin_refused", f"origin: {origin[:100]} is not one of cors_origins", "origin")

    def _check(self, request: HTTPConnection, path: str) -> str:
        """Who calls: a name for a key, or an address; raises Refused where the key is missing or wrong."""
        address = request.client.host if request.client else ""
        if not self._keys:
            return address
        key, method = _key_of(request), request.scope.get("method", "")
        caller = self._keys.find(key) if key else None
        if caller is not None:
            return caller
        if method == "OPTIONS" or (method and (path in OPEN or path.startswith(PAGE))):
            return address
        if method in ("GET", "HEAD") and any(
            path == public or path.startswith(f"{public}/") for public in self._public
        ):
            return address
        raise _no_key()


def _key_of(request: HTTPConnection) -> str:
    key = bearer(request.headers.get("authorization", "")) or request.headers.get("xi-api-key", "")
    if not key and request.scope["type"] == "websocket":  # a page cannot give a WebSocket headers
        key = request.query_params.get("api_key", "") or request.query_params.get("xi-api-key", "")
        key = key or bearer(request.query_params.get("authorization", ""))
        offered = [name.partition(".") for name in request.scope.get("subprotocols", []) if _is_key(name)]
        key = key or next((unquote(rest) for _, _, rest in offered), "")
    return key


def chosen_protocol(offered: list[str]) -> str | None:
    """The one to answer with, as browsers insist on one of theirs: the first that is not a key."""
    return next((name for name in offered if not _is_key(name)), None)


def _is_key(protocol: str) -> bool:
    return protocol.startswith(KEY_PROTOCOLS)


def bearer(authorization: str) -> str:
    """The key of `Bearer …`; nothing where it is another kind."""
    kind, _, key = authorization.partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


def _no_key() -> Refused:
    return Refused(401, "invalid_api_key", "an API key is needed: Authorization: Bearer …, or xi-api-key: …")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
