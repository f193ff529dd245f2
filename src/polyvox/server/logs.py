# SPDX-License-Identifier: Apache-2.0
"""Log lines on stderr: `event key=value`, or JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

from polyvox.server.settings import Settings

_STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


class LogFormatter(logging.Formatter):
    """Formats the message of a record and its `extra` fields."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        if self._as_json:
            line = {"time": time, "level": record.levelname.lower(), "logger": record.name}
            more = {"traceback": traceback} if traceback else {}
            return json.dumps({**line, "message": record.getMessage(), **fields, **more}, default=str)
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        line_text = f"{time} {record.levelname.lower()} {record.getMessage()}{pairs}"
        return f"{line_text}\n{traceback}" if traceback else line_text


def set_up_logs(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(settings.log_format == "json"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


def _quoted(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text and text else json.dumps(text)
