# SPDX-License-Identifier: Apache-2.0
"""TLS for HTTPS and WSS: the certificate and its key, loaded again when their files change."""

import asyncio
import logging
import ssl
from pathlib import Path

log = logging.getLogger(__name__)

RELOAD_INTERVAL = 5.0  # seconds between two checks of the files
ENCRYPTED = "must be a key without a password"
FileState = tuple[tuple[int, int, int], ...]


def check_certificate(cert: Path) -> None:
    """Raises ValueError if the file is not a certificate in PEM format."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert)
    except ssl.SSLError as error:  # a subclass of OSError
        raise ValueError(f"must be a certificate in PEM format: {_reason(error)}") from None
    except OSError as error:
        raise ValueError(f"must be a readable file: {error.strerror}") from None


def check_key(cert: Path, key: Path) -> None:
    """Raises ValueError if the file is not the key of the certificate, in PEM format."""
    try:
        key.open("rb").close()
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError("must be the key of the certificate in tls_cert") from None
        raise ValueError(f"must be a key in PEM format: {_reason(error)}") from None
    except OSError as error:
        raise ValueError(f"must be a readable file: {error.strerror}") from None


class ServerCertificate:
    """The TLS context of a server process. New connections use the certificate that was loaded last."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._state = self._read_state()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.set_alpn_protocols(["http/1.1"])
        _load(self.context, cert, key)

    async def watch(self) -> None:
        """Loads changed files, until it is cancelled. While they are invalid, the previous certificate stays."""
        logged: str | None = None
        while True:
            await asyncio.sleep(RELOAD_INTERVAL)
            try:
                if await asyncio.to_thread(self.reload):
                    log.info("certificate loaded", extra={"tls_cert": str(self._cert)})
                logged = None
            except (OSError, ValueError) as error:
                if logged != str(error):
                    log.error("certificate not loaded", extra={"tls_cert": str(self._cert), "error": str(error)})
                logged = str(error)

    def reload(self) -> bool:
        """Loads the files if they have changed. Raises OSError or ValueError if they are invalid."""
        state = self._read_state()
        if state == self._state:
            return False
        check_certificate(self._cert)  # a failure in the context in use would leave it without a certificate
        check_key(self._cert, self._key)
        _load(self.context, self._cert, self._key)
        self._state = state
        return True

    def _read_state(self) -> FileState:
        found = [path.stat() for path in (self._cert, self._key)]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    context.load_cert_chain(cert, key, password=_refuse_password)


def _refuse_password() -> str:
    """Called for a key with a password; OpenSSL would ask the terminal."""
    raise ValueError(ENCRYPTED)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unknown format").replace("_", " ").lower()
