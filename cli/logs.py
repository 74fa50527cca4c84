"""Logging of members to stderr: one line an event, key=value or JSON, times in UTC, passwords of URLs masked."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:@/]*:)[^\s/]+@", re.IGNORECASE)
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
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return {name: _PASSWORD.sub(r"\1***@", value) for name, value in found.items()}

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
