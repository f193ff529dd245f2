# SPDX-License-Identifier: Apache-2.0
"""Log lines on stderr: `event key=value`, or JSON."""

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType

from polyvox.server.settings import Settings

log = logging.getLogger(__name__)

# The message of an InvalidRequest with its value.
_INVALID_VALUE = re.compile(r"(Invalid value for '(?P<field>[^']*)': .*?) \(got (?P<value>.*)", re.DOTALL)
# Fields whose values are texts of the user, or contain them. Of others only a number or a word is logged, so that a
# field that is missing here gives no text away.
_TEXT_FIELDS = re.compile(
    r"\b(alias|consent|content|\w*description|inputs?|instructions|items|messages|phonemes|prompt|pronunciations?|"
    r"references|rules|string_to_replace|turns|\w*text|transcript)\b"
)
_NUMBER_OR_WORD = re.compile(r"(?:'[\w.:/+-]*'|[\w.:+-]+)\)", re.ASCII)
_INVALID_HTTP = "Invalid HTTP request received."  # uvicorn's line; TimeoutProtocol logs one with the client's address
_STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
_STANDARD_ATTRIBUTES.add("_ray_timestamp_ns")  # Ray adds it to all records


class LogFormatter(logging.Formatter):
    """Formats the message of a record and its `extra` fields."""

    def __init__(self, as_json: bool, more_fields: Mapping[str, object] | None = None) -> None:
        """more_fields: of all lines of this process."""
        super().__init__()
        self._as_json, self._more_fields = as_json, more_fields or {}

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        fields = {**self._more_fields, **extra}
        timestamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        message = record.getMessage().strip()
        if self._as_json:
            line = {"time": timestamp, "level": record.levelname.lower(), "logger": record.name}
            more = {"traceback": traceback} if traceback else {}
            return json.dumps({**line, "message": message, **fields, **more}, default=str)
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        line_text = f"{timestamp} {record.levelname.lower()} {message}{pairs}"
        return f"{line_text}\n{traceback}" if traceback else line_text


class RequestLine:
    """The one log line of an HTTP request or of a WebSocket, which is written at its end."""

    def __init__(self, request_id: str) -> None:
        self.request_id, self.arrived_at = request_id, time.monotonic()
        self.event: str | None = None
        self.level = logging.INFO
        self.fields: dict[str, object] = {}
        self.is_open = True

    def add(self, event: str | None, fields: Mapping[str, object], level: int) -> None:
        """The last event and the highest level are those of the line."""
        self.event, self.level = event or self.event, max(self.level, level)
        self.fields.update(fields)

    def close(self) -> None:
        """What follows has lines of its own: a WebSocket is open."""
        self.is_open = False


current_line: ContextVar[RequestLine | None] = ContextVar("polyvox_request_line", default=None)


def log_request(event: str, request_id: str, fields: Mapping[str, object], level: int = logging.INFO) -> None:
    """Adds to the line of the current HTTP request.

    Parts of it, such as an item of a batch or an utterance of a WebSocket, have an id and a line of their own. Texts in
    an error are not logged.
    """
    if "error" in fields:
        fields = {**fields, "error": without_texts(str(fields["error"]))}
    if (line := _line_of(request_id)) is not None:
        line.add(event, fields, level)
    else:
        log.log(level, event, extra={"request_id": request_id, **fields})


def without_texts(message: str) -> str:
    """The message of an error without the value that it shows, if that may be a text of the user."""
    found = _INVALID_VALUE.search(message)
    if found is None or (_NUMBER_OR_WORD.match(found["value"]) and not _TEXT_FIELDS.search(found["field"])):
        return message
    return f"{message[: found.start()]}{found[1]}."


def log_detail(event: str, request_id: str, fields: Mapping[str, object]) -> None:
    """Adds fields to the line of the current HTTP request, or writes them as an event of their own."""
    if (line := _line_of(request_id)) is not None:
        line.add(None, fields, logging.INFO)
    else:
        log.info(event, extra={"request_id": request_id, **fields})


def arrival_of(request_id: str) -> float | None:
    """When the current HTTP request arrived, by `time.monotonic`; None for a part of it and for a WebSocket."""
    line = _line_of(request_id)
    return None if line is None else line.arrived_at


def _line_of(request_id: str) -> RequestLine | None:
    line = current_line.get()
    return line if line is not None and line.is_open and line.request_id == request_id else None


def set_up_logs(settings: Settings, more_fields: Mapping[str, object] | None = None) -> None:
    """Writes all log lines of this process to stderr in one format, with warnings and uncaught exceptions.

    more_fields: of all lines of this process.
    """
    as_json = settings.log_format == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(as_json, more_fields))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != _INVALID_HTTP)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda failed: _log_uncaught(failed.exc_type, failed.exc_value, failed.exc_traceback)
    if as_json:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # of downloads


def _log_uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        sys.__excepthook__(kind, error or kind(), traceback)
    else:
        log.critical("uncaught exception", exc_info=(kind, error or kind(), traceback))


def _quoted(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text and text else json.dumps(text)
