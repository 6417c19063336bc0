"""Log lines: one a request, as text for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

EXTRA = ("request_id", "path", "status", "ms", "id", "prompt_tokens", "completion_tokens")
"""What lines may carry beside their message; `id` is the answer's."""


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in EXTRA if hasattr(record, name)},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """A line for people, with the request's id at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        tokens = [
            f" {getattr(record, name)} {name.replace('_', ' ')}"
            for name in ("prompt_tokens", "completion_tokens")
            if hasattr(record, name)
        ]
        request_id = getattr(record, "request_id", None)
        line = super().formatMessage(record) + "".join(tokens) + (f" [{request_id}]" if request_id else "")
        return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)  # a path may hold any


def set_up(kind: str, level: int = logging.INFO) -> None:
    """Have forerun's and uvicorn's lines written to standard error, as "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    for name in ("forerun", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    logging.getLogger("uvicorn.error").handlers = []  # its lines reach those of "uvicorn"
    logging.getLogger("uvicorn.error").propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # the gate writes these, with ids
