"""Log records as one JSON object a line, for what collects logs."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

__all__ = ("JsonFormatter",)


class JsonFormatter(logging.Formatter):
    """``{"time": ..., "level": ..., "logger": ..., "message": ...}``; the time is UTC, with milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        entry = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)
