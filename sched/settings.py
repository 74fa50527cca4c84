"""The effective settings: one frozen, validated object. The environment is read here, at the entry points only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rota.sched.durations import duration_text, seconds
from rota.sched.errors import UsageError
from rota.sched.ids import check_name
from rota.sched.urls import mask

if TYPE_CHECKING:
    from collections.abc import Mapping

_DURATIONS = ("lease", "beat", "drain_timeout", "reconcile_after", "unknown_after", "ack_timeout", "history_keep")
_SHORTEST = {
    "reconcile_after": (1.0, "messages take their time"),
    "unknown_after": (1.0, "messages take their time"),
    "history_keep": (3600.0, "what ends in the last moment of a day is committed in the next one"),
}
_NUMBERS = {
    "concurrency": (1, 10_000),
    "processes": (1, 256),
    "prefetch": (0, 65_535),
    "batch": (1, 10_000),
    "confirm_window": (1, 100_000),
}
SHORTEST_ACK_TIMEOUT = 6.0
"""Seconds: the delay ladder knows whole seconds, and deliveries change hands three times in an ack timeout."""
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """Each is also an environment variable (`ROTA_` and its name in capitals). Durations in seconds, or text.

    Raises UsageError for a value that cannot be used, with the variable's name and what to give. The repr has no URL,
    so no password.
    """

    store: str = field(default="", repr=False)
    broker: str = field(default="", repr=False)
    app: str = ""
    lease: float = 15.0
    beat: float = 5.0
    concurrency: int = 16
    processes: int = 1
    queues: tuple[str, ...] = ()
    prefetch: int = 0
    drain_timeout: float = 30.0
    reconcile_after: float = 120.0
    unknown_after: float = 3600.0
    ack_timeout: float = 1800.0
    batch: int = 500
    confirm_window: int = 2000
    history_keep: float = 14 * 86_400.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            object.__setattr__(self, name, seconds(getattr(self, name), _variable(name)))
        for name, (shortest, why) in _SHORTEST.items():
            if getattr(self, name) < shortest:
                raise UsageError(
                    f"{_variable(name)} is {getattr(self, name):g} s: {why}, give {duration_text(shortest)} or more"
                )
        if self.ack_timeout < SHORTEST_ACK_TIMEOUT:
            raise UsageError(
                f"ROTA_ACK_TIMEOUT is {self.ack_timeout:g} s: it is the broker's `consumer_timeout`, which has to be "
                f"{SHORTEST_ACK_TIMEOUT:g} s or more; RabbitMQ's default is 30m"
            )
        for name, (low, high) in _NUMBERS.items():
            object.__setattr__(self, name, _number(name, getattr(self, name), low, high))
        if isinstance(self.queues, str):
            object.__setattr__(self, "queues", tuple(q for q in self.queues.replace(",", " ").split() if q))
        for queue in self.queues:
            check_name(queue, "queue")
        if self.log_level not in LEVELS:
            raise UsageError(f"ROTA_LOG_LEVEL is {self.log_level!r}: use one of {', '.join(LEVELS)}")
        if not 0 < self.beat < self.lease / 2:
            raise UsageError(
                f"ROTA_BEAT is {self.beat:g} s and ROTA_LEASE {self.lease:g} s: a heartbeat must come more than twice "
                f"in a lease, or the living are taken for dead; set ROTA_BEAT between 0 and {self.lease / 2:g} s"
            )

    @property
    def longest_hold(self) -> float:
        """Seconds that no delivery, begun or not, is held longer: a third of the broker's ack timeout.

        It leaves time for what may hold up the giving back, and the broker looks only now and then.
        """
        return self.ack_timeout / 3

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: Any) -> Settings:
        """What the environment says, and over it the options that are not None. UsageError with name and value."""
        found = {f.name: environ[_variable(f.name)] for f in fields(cls) if environ.get(_variable(f.name))}
        return cls(**{**found, **{k: v for k, v in overrides.items() if v is not None}})

    def need(self, *names: str) -> Settings:
        """These settings, if `names` are set; UsageError otherwise."""
        for name in names:
            if not getattr(self, name):
                raise UsageError(f"no {name}: set {_variable(name)} or give --{name}, for example {_EXAMPLES[name]}")
        return self

    def to_json(self, *, masked: bool = True) -> dict[str, Any]:
        """All of them; the passwords of URLs masked, unless a process hands them to its own child."""
        value = asdict(self)
        value["queues"] = list(self.queues)
        for name in ("store", "broker"):
            url = value[name]
            value[name] = (mask(url) if masked else url) or None
        value["app"] = self.app or None
        return value


_EXAMPLES = {
    "store": "postgresql://rota:secret@127.0.0.1:5432/rota",
    "broker": "amqp://rota:secret@127.0.0.1:5672/",
    "app": "billing:app",
}


def _variable(name: str) -> str:
    return f"ROTA_{name.upper()}"


def _number(name: str, value: object, low: int, high: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise UsageError(f"{_variable(name)} is {value!r}: give a whole number from {low} to {high}") from None
    if not low <= number <= high:
        raise UsageError(f"{_variable(name)} is {number}: it must be from {low} to {high}")
    return number
