# SPDX-License-Identifier: Apache-2.0
"""Fields of a request that have no effect: unknown ones, and those that the loaded model does not support."""

import re

from polyvox.errors import InvalidRequest
from polyvox.server.logs import log_detail
from polyvox.server.responses import APIError

IGNORED_HEADER = "x-polyvox-ignored"
MAX_LISTED_FIELDS, MAX_FIELD_NAME = 20, 60  # of the header


class IgnoredFields:
    """Collects the ignored fields of one request. strict: they are errors instead. prefix: of their names."""

    def __init__(self, strict: bool = False, prefix: str = "") -> None:
        self._strict, self._prefix = strict, prefix
        self.names: list[str] = []

    def add_unknown(self, names: list[str]) -> None:
        """Raises APIError if strict."""
        names = [self._prefix + name for name in names]
        if names and self._strict:
            raise APIError(400, "unknown_field", f"Unknown fields: {_listed(names)}.", names[0])
        self.names += names

    def add_unsupported(self, name: str, error: InvalidRequest) -> None:
        """A field that the model cannot honour. Raises the error if strict."""
        if self._strict:
            raise error
        self.names.append(self._prefix + name)

    def report(self, request_id: str) -> dict[str, str]:
        """Logs the fields and returns the header that names them; empty if there are none."""
        if not self.names:
            return {}
        listed = _listed(self.names)
        log_detail("fields ignored", request_id, {"ignored_fields": listed})
        return {IGNORED_HEADER: listed}


def _listed(names: list[str]) -> str:
    return ", ".join(re.sub(r"[^\x21-\x2b\x2d-\x7e]", "?", name[:MAX_FIELD_NAME]) for name in names[:MAX_LISTED_FIELDS])
