"""Logs: one line of text, or one JSON object, a record; on stderr. Keys and prompts are never logged."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

LEVELS = ("critical", "error", "warning", "info", "debug")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, process, message, and what the record was given as `extra={"data": {...}}`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self.process,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "data", {}))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """The same on one readable line."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s [{process}] %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        data = getattr(record, "data", {})
        return super().format(record) + "".join(f" {key}={json.dumps(value, ensure_ascii=False)}" for key, value in data.items())


def configure(level: str, *, process: str, style: str = "text") -> None:
    """Sets up the loggers `ramet` and `uvicorn.error` of this process. Others keep what they have."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if style == "json" else TextFormatter(process))
    for name in ("ramet", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
