"""Logging of members: one line an event to stderr, UTC, key=value or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time


class _Line(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        at = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z"
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{at} {record.levelname.lower():7} {record.name.removeprefix('rota.')}: {text}"


class _Json(_Line):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str, *, as_json: bool = False) -> None:
    """Sets up the root logger; drivers speak from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Line())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("pika", "aio_pika", "aiormq", "alembic", "asyncio", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.WARNING)
