# SPDX-License-Identifier: Apache-2.0
"""Self-signed certificates for 127.0.0.1."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    cert: Path
    key: Path

    def client_context(self) -> ssl.SSLContext:
        """The context of a client that accepts this certificate only."""
        return ssl.create_default_context(cafile=str(self.cert))


def create_certificate(folder: Path, name: str = "localhost", password: str | None = None) -> Certificate:
    """Writes a certificate and its key to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate = Certificate(folder / "cert.pem", folder / "key.pem")
    encryption = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *encryption]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(certificate.key), "-out", str(certificate.cert)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate
