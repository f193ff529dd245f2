# SPDX-License-Identifier: Apache-2.0
"""The health check of the image: exits with 0 if the server in this container is ready, otherwise with 1."""

import os
import ssl
import sys
import urllib.request

TIMEOUT = 5.0  # seconds


def main() -> int:
    scheme = "https" if os.environ.get("POLYVOX_TLS_CERT") else "http"
    path = f"{os.environ.get('POLYVOX_ROOT_PATH', '').rstrip('/')}/readyz"
    url = f"{scheme}://127.0.0.1:{os.environ.get('POLYVOX_PORT', '8000')}{path}"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the certificate has the public name
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT):
            return 0
    except OSError as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
