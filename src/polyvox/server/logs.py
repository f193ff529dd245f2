"""Lines on stderr: what happened, and with `name=value` or as JSON what a machine may look for."""

import json
import logging
import sys
from datetime import UTC, datetime

from polyvox.server.settings import Settings

_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


class Lines(logging.Formatter):
    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        more = {name: value for name, value in vars(record).items() if name not in _USUAL}
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._as_json:
            line = {"time": when, "level": record.levelname.lower(), "logger": record.name}
            told = {"trace": trace} if trace else {}
            return json.dumps({**line, "message": record.getMessage(), **more, **told}, default=str)
        words = "".join(f" {name}={_quoted(value)}" for name, value in more.items())
        return f"{when} {record.levelname.lower()} {record.getMessage()}{words}" + (f"\n{trace}" if trace else "")


def set_up_logs(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(settings.log_format == "json"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


def _quoted(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text and text else json.dumps(text)
