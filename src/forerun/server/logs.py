"""Log lines: one a request, as text for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

EXTRA = ("request_id", "path", "status", "ms")


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


def set_up(kind: str, level: int = logging.INFO) -> None:
    """Have forerun's and uvicorn's lines written to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonLines() if kind == "json" else plain)
    for name in ("forerun", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = True  # the gate writes these, with ids
