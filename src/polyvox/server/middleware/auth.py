# SPDX-License-Identifier: Apache-2.0
"""API keys and concurrency limits, checked before anything else of a request."""

import hashlib
import hmac
from urllib.parse import unquote

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyvox.errors import PolyvoxError
from polyvox.server.app_state import get_state
from polyvox.server.middleware.addresses import TrustedProxies
from polyvox.server.middleware.limits import LIMITER, Caller, ConcurrencyLimiter, ConcurrencyLimitExceeded
from polyvox.server.middleware.paths import HEALTH_PATHS, path_of, path_with_root
from polyvox.server.requests import request_id_of
from polyvox.server.responses import APIError, error_response, reject
from polyvox.server.settings import Settings

# Always public: they reveal only that the server runs.
PUBLIC_PATHS = ("/", *HEALTH_PATHS)
ASSETS = "/web/"  # of the playground
# Path prefixes of each choice of the setting `public`.
PUBLIC_CHOICES = {
    "voices": ("/v1/audio/voices", "/v1/voices", "/v2/voices"),
    "models": ("/v1/models", "/v1/audio/models"),
    "metrics": ("/metrics",),
    "docs": ("/docs", "/openapi.json"),
}
SYNTHESIS_PATHS = (
    "/v1/audio/speech",
    "/v1/text-to-speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/chat/completions",
    "/v1/text-to-dialogue",
    "/v1/speak",
    "/tts/bytes",
)  # count towards the concurrency limits
LATE_KEY_PATH = "/v1/text-to-speech/"  # these WebSockets may send their key in the first message
# Prefixes of a key among the subprotocols of a WebSocket: ours, and the one of OpenAI's clients.
KEY_PROTOCOLS = ("polyvox-key.", "openai-insecure-api-key.")
AUTHENTICATE = "polyvox.authenticate"  # ASGI scope entry: for a late key


class APIKeys:
    """The accepted keys. They are compared by their hashes, in constant time."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, key: str) -> str | None:
        """A name for the caller that does not reveal the key; None if the key is unknown."""
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:12] if any(matches) else None


class AuthMiddleware:
    """ASGI middleware that checks keys, applies the concurrency limit and adds x-request-id to responses."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self._settings = app, settings
        self._keys = APIKeys(settings.api_keys)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._public = tuple(path for choice in settings.public for path in PUBLIC_CHOICES[choice])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        request_id = request_id_of(request)
        self._proxies.set_scheme(request)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = [name for name, _ in message["headers"]]
                if b"x-request-id" not in names:
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        path = path_of(scope)
        scope["path"] = path_with_root(scope)
        if scope["type"] == "websocket":
            await self._open_websocket(request, path, receive, send)
            return
        try:
            limiter = scope[LIMITER] = self._limiter(request, self._check_key(request, path))
            if scope["method"] != "POST" or not path.startswith(SYNTHESIS_PATHS):
                await self.app(scope, receive, send_with_id)
                return
            async with limiter.request():
                await self.app(scope, receive, send_with_id)
        except PolyvoxError as error:  # only from the checks: the application handles its own
            get_state(request).record_rejected(error, request_id)
            response = error_response(error, request_id)
            if isinstance(error, ConcurrencyLimitExceeded):
                response.headers["current-concurrent-requests"] = str(error.limit)
                response.headers["maximum-concurrent-requests"] = str(error.limit)
            await response(scope, receive, send_with_id)

    async def _open_websocket(self, websocket: HTTPConnection, path: str, receive: Receive, send: Send) -> None:
        """WebSockets are limited per utterance, so only their key is checked here."""
        scope = websocket.scope
        try:
            if self._keys and not _key_of(websocket) and path.startswith(LATE_KEY_PATH):
                scope[LIMITER] = None
            else:
                scope[LIMITER] = self._limiter(websocket, self._check_key(websocket, path))
        except APIError as error:
            get_state(websocket).record_rejected(error, request_id_of(websocket))
            await reject(error, request_id_of(websocket), scope, receive, send)
            return

        engine, address = get_state(websocket).engine, self._proxies.client_of(websocket)

        def authenticate(key: str) -> ConcurrencyLimiter:  # must not refer to the scope, which refers to it
            name = self._keys.find(key) if key else None
            if name is None:
                raise _invalid_key()
            return ConcurrencyLimiter(engine, Caller(name, address), self._settings)

        scope[AUTHENTICATE] = authenticate
        await self.app(scope, receive, send)

    def _limiter(self, connection: HTTPConnection, key: str) -> ConcurrencyLimiter:
        caller = Caller(key, self._proxies.client_of(connection))
        return ConcurrencyLimiter(get_state(connection).engine, caller, self._settings)

    def _check_key(self, request: HTTPConnection, path: str) -> str:
        """The name of the caller's key, empty if none is needed. Raises APIError if a key is missing."""
        if not self._keys:
            return ""
        key, method = _key_of(request), request.scope.get("method", "")
        name = self._keys.find(key) if key else None
        if name is not None:
            return name
        if method == "OPTIONS" or (method and (path in PUBLIC_PATHS or path.startswith(ASSETS))):
            return ""
        if method in ("GET", "HEAD") and any(
            path == public or path.startswith(f"{public}/") for public in self._public
        ):
            return ""
        raise _invalid_key()


def is_anonymous(request: HTTPConnection) -> bool:
    """Whether keys are configured and the request has none, because its endpoint is public."""
    return bool(get_state(request).settings.api_keys) and not request.scope[LIMITER].caller.key


def _key_of(request: HTTPConnection) -> str:
    key = bearer_token(request.headers.get("authorization", ""))
    key = key or request.headers.get("xi-api-key", "") or request.headers.get("x-api-key", "")
    if not key and request.scope["type"] == "websocket":  # browsers cannot set headers of WebSockets
        key = request.query_params.get("api_key", "") or request.query_params.get("xi-api-key", "")
        key = key or bearer_token(request.query_params.get("authorization", ""))
        protocols = [name.partition(".") for name in request.scope.get("subprotocols", []) if _is_key(name)]
        key = key or next((unquote(rest) for _, _, rest in protocols), "")
    return key


def choose_subprotocol(proposed: list[str]) -> str | None:
    """The first subprotocol that is not a key: browsers require the server to choose one of theirs."""
    return next((name for name in proposed if not _is_key(name)), None)


def _is_key(protocol: str) -> bool:
    return protocol.startswith(KEY_PROTOCOLS)


def bearer_token(authorization: str) -> str:
    """The key of `Bearer …`, or of `Token …` as Deepgram's clients send it; empty for other schemes."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() in ("bearer", "token") else ""


def _invalid_key() -> APIError:
    message = "Missing or invalid API key. Send 'Authorization: Bearer …' or 'xi-api-key: …'."
    return APIError(401, "invalid_api_key", message)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
