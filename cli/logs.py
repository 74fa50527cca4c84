"""Logging of members to stderr: one line an event, key=value or JSON, times in UTC, secrets masked, fields bounded."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

from rota.sched.urls import mask_text

_LIMIT = 8000
"""Characters of a message, and of the end of a traceback, that are written."""
_PLAIN = re.compile(r"[^\s\"=]+")
_DRIVERS = ("aio_pika", "aiormq", "alembic", "asyncio", "sqlalchemy")


class LineFormatter(logging.Formatter):
    """`at=... level=... logger=... message="..."`; a traceback is one more field, its line ends escaped."""

    converter = staticmethod(time.gmtime)

    def fields(self, record: logging.LogRecord) -> dict[str, str]:
        """What a line tells, in order."""
        found = {
            "at": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("rota."),
            "message": mask_text(record.getMessage()[: 2 * _LIMIT])[:_LIMIT],
        }
        if record.exc_info:
            found["traceback"] = mask_text(self.formatException(record.exc_info)[-2 * _LIMIT :])[-_LIMIT:]
        return found

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return " ".join(f"{name}={_quoted(value)}" for name, value in self.fields(record).items())


class JsonFormatter(LineFormatter):
    """The same fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return json.dumps(self.fields(record), ensure_ascii=False)


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def configure(level: str, *, as_json: bool = False) -> None:
    """Sets up the root logger; drivers speak from warnings on, pika only where the broker link lets it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _DRIVERS:
        logging.getLogger(name).setLevel(logging.WARNING)
