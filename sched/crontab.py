r"""Reads a crontab: each line becomes a schedule with its command, or a refusal, by its number. Pure.

As in cron(8) and cronie: variables hold for the lines below them, `%` in a command is a line break and what follows the
first one is its input, `\%` is a percent sign, a system crontab has the user before the command. CRON_TZ is the zone of
the lines below it, RANDOM_DELAY (minutes) their jitter.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rota.sched.durations import seconds
from rota.sched.errors import UsageError
from rota.sched.timing import zone
from rota.sched.when import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLE = re.compile(r"""\s*("[^"]*"|'[^']*'|[A-Za-z_]\w*)\s*=\s*(.*?)\s*$""", re.ASCII)
_ENTRY = re.compile(r"\s*(@\S+|\S+(?:\s+\S+){4})(?:\s+(.*))?$")
_UNUSED = {"MAILTO": "output is kept with each run", "MAILFROM": "nothing is mailed"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A line that is a schedule: a shell command, its input, the variables above it, and the user who is to run it."""

    line: int
    schedule: Schedule
    command: str
    stdin: str
    env: dict[str, str]
    user: str | None

    def args(self) -> dict[str, Any]:
        """The arguments of `rota_command`."""
        given = {"command": self.command, "stdin": self.stdin, "env": self.env, "user": self.user}
        return {name: value for name, value in given.items() if value}

    def digest(self) -> str:
        """The same for the same schedule and command, wherever they stand."""
        text = repr((sorted(self.schedule.to_json().items()), sorted(self.args().items(), key=str)))
        return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


@dataclass(frozen=True, slots=True)
class Remark:
    """What is said of a line that is no schedule. `refused`: it was to be one, or decides about those below it."""

    line: int
    text: str
    why: str
    refused: bool


@dataclass(slots=True)
class _Reader:
    tz: str
    system: bool
    jitter: float = 0.0
    env: dict[str, str] = field(default_factory=dict)
    broken: str | None = None

    def line(self, number: int, text: str) -> Entry | Remark | None:
        if not text.strip() or text.lstrip().startswith("#"):
            return None
        try:
            _check_text(text)
            variable = _VARIABLE.fullmatch(text)
            return self._variable(number, text, *variable.groups()) if variable else self._entry(number, text)
        except UsageError as error:
            return Remark(number, text.strip(), str(error), refused=True)

    def _variable(self, number: int, text: str, name: str, value: str) -> Remark | None:
        name, value = _unquoted(name), _unquoted(value)
        if name == "CRON_TZ":
            self.broken = f"CRON_TZ of line {number} is no zone"
            zone(value)
            self.tz, self.broken = value, None
        elif name == "RANDOM_DELAY":
            self.jitter = seconds(f"{value}m", name)
        elif name in _UNUSED:
            return Remark(number, text.strip(), f"{name} is not used: {_UNUSED[name]}", refused=False)
        else:
            self.env[name] = value
        return None

    def _entry(self, number: int, text: str) -> Entry:
        found = _ENTRY.fullmatch(text)
        if found is None:
            raise UsageError("this is neither NAME=value nor five fields and a command")
        if self.broken:
            raise UsageError(f"{self.broken}: correct it, or give this line a zone that exists")
        when, rest = " ".join(found[1].split()), found[2] or ""
        user = None
        if self.system:
            user, _, rest = rest.strip().replace("\t", " ").partition(" ")
        if not rest.strip():
            raise UsageError(f"there is no command{' after the user' if user else ''}")
        command, stdin = _split(rest.strip())
        schedule = Schedule(cron=when, tz=self.tz, jitter=self.jitter)
        return Entry(number, schedule, command, stdin, dict(self.env), user)


def read_crontab(text: str, *, tz: str = "UTC", system: bool = False) -> Iterator[Entry | Remark]:
    """The lines that say something, in order; bytes that are no UTF-8 come as surrogates (surrogateescape).

    `tz`: the zone of lines without CRON_TZ. `system`: with a user column, as in /etc/crontab and /etc/cron.d.
    """
    reader = _Reader(tz, system)
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        found = reader.line(number, line)
        if found is not None:
            yield found


def _check_text(text: str) -> None:
    if "\0" in text or any("\udc80" <= character <= "\udcff" for character in text):
        raise UsageError("this line is not UTF-8 text: write it so, a command is kept as JSON")


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _split(rest: str) -> tuple[str, str]:
    r"""The command and its input: `%` breaks the line, the first one ends the command, `\%` is a percent sign."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", rest)]
    return parts[0].rstrip(), "".join(f"{part}\n" for part in parts[1:])
