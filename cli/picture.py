"""The status as lines of text, for `rota status` and `rota top`: each at most 98 columns wide."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rota.cli.output import duration
from rota.sched.ids import short
from rota.sched.store.views import DEGRADED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rota.sched.store.views import Row, StatusView

ALWAYS = ("succeeded", "dead", "cancelled")
WINDOW = 20.0
"""Seconds over which rates are taken, two heartbeats at least."""
_SAME_BEAT = 0.2
_BESIDES = 15
"""Lines that are neither a member nor a queue, the title of `rota top` and what is left out included."""
_MEMBER = "{:>6} {:10} {:24} {:>8} {:>6} {:>8} {:>10} {:>9} {:>8}"
_QUEUE = "{:<42} {:>9} {:>10} {:>9} {:>7}  {:<7}"
_WIDTH = 98
_RECENT = 3600.0
"""Seconds for which a death is red."""

_Sample = tuple[float, "Mapping[str, int]"]


class Rates:
    """Ends a second, from the counters of members. A counter moves with its member's heartbeat, so beats are compared."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[_Sample]] = {}

    def add(self, view: StatusView) -> None:
        """Takes one more picture into account."""
        now = datetime.fromisoformat(view.now).timestamp()
        self._samples = {m["id"]: self._samples.get(m["id"], deque()) for m in view.members}
        for m in view.members:
            _take(self._samples[m["id"]], now - m["beat_s"], m["ended"])

    def of(self, member: int) -> dict[str, float]:
        """Of one member, by kind of end; empty while there is only one heartbeat to look at."""
        samples = self._samples.get(member)
        if samples is None or len(samples) < 2:
            return {}
        (began, first), (at, last) = samples[0], samples[-1]
        return {kind: (n - first.get(kind, 0)) / (at - began) for kind, n in last.items()}

    def total(self) -> dict[str, float]:
        """Of all live members together."""
        total: dict[str, float] = {}
        for member in self._samples:
            for kind, rate in self.of(member).items():
                total[kind] = total.get(kind, 0.0) + rate
        return total


def _take(samples: deque[_Sample], at: float, counters: Mapping[str, int]) -> None:
    if samples and at - samples[-1][0] < _SAME_BEAT:
        return
    if samples and any(counters.get(kind, 0) < n for kind, n in samples[-1][1].items()):
        samples.clear()  # a new day
    samples.append((at, counters))
    while len(samples) > 2 and at - samples[1][0] >= WINDOW:
        samples.popleft()


def picture(view: StatusView, rates: Rates | None = None, height: int | None = None) -> list[Text]:
    """The lines. With `height`, members and queues are cut to it; without, what each degraded word means is told."""
    members = _members(view.members, rates)
    queues = [_queue(q, more=f"queues.{q['name']}.dead" in view.estimated) for q in view.queues]
    if height is not None:
        room = max(2, height - _BESIDES)
        share = max(room // 2, room - len(queues))
        members = _cut(members, share, "members")
        queues = _cut(queues, max(1, room - len(members)), "queues")
    why = [] if height is not None else [Text(f"  {word}: {DEGRADED.get(word, '')}", "red") for word in view.degraded]
    return [
        _head(view),
        *why,
        *_late(view.history),
        *_totals(view),
        *([] if view.last_death is None else [_death(view.last_death)]),
        *([] if rates is None else [_line("rate", _rates(rates.total()))]),
        _line("lag", (_lag(view, name) for name in ("schedule", "queue", "run"))),
        Text(),
        Text(_MEMBER.format("MEMBER", "KIND", "HOST", "PID", "PARTS", "RUNNING", "TODAY", "RATE", "BEAT"), "bold"),
        *members,
        Text(),
        Text(_QUEUE.format("QUEUE", "READY", "CONSUMERS", "CAP", "DEAD", ""), "bold"),
        *queues,
    ]


def _head(view: StatusView) -> Text:
    clock = view.now[:19].replace("T", " ")
    state = Text("degraded: " + ", ".join(view.degraded), "bold red") if view.degraded else Text("in order", "green")
    parts = view.partitions
    return Text.assemble(f"{clock} UTC   ", state, f"   partitions {parts['owned']} owned, {parts['unowned']} unowned")


def _late(history: Row) -> list[Text]:
    """The oldest day of history that should have gone."""
    told = (
        f"  {each['day']} since {each['since'][:16]}: {each['why'] or 'see rota doctor'}"
        for each in history.get("late", [])[:1]
    )
    return [Text(_short(line, _WIDTH), "red") for line in told]


def _totals(view: StatusView) -> list[Text]:
    def about(name: str, n: int) -> str:
        return f"~{n}" if name in view.estimated else str(n)

    jobs = [f"{name} {about(f'jobs.{name}', view.jobs[name])}" for name in ("scheduled", "due", "paused")]
    ended = [f"{name} {n}" for name, n in view.ended.items() if n or name in ALWAYS]
    oldest = view.lag["oldest_running_s"]
    running = [f"oldest running {duration(oldest)}"] if oldest else []
    unusual = {"superseded": sum(view.superseded.values()), "republished": sum(view.republished.values())}
    parked = [f"parked {view.parked}"] if view.parked else []
    return [
        _line("jobs", [*jobs, f"oldest due {duration(view.lag['oldest_due_s'])}"]),
        _line(
            "runs",
            [
                *(f"{state} {n}" for state, n in view.runs.items()),
                f"dead {about('dead', view.dead)}",
                *parked,
                *running,
            ],
        ),
        _line(
            "today",
            [*ended, f"retries {view.returned.get('retry', 0)}", *(f"{name} {n}" for name, n in unusual.items() if n)],
        ),
    ]


def _line(name: str, words: Iterable[str]) -> Text:
    return Text.assemble((f"{name:8}", "bold"), "   ".join(words))


def _rates(total: Mapping[str, float]) -> list[str]:
    return [
        f"{name} {total.get(kind, 0.0):.1f}/s"
        for name, kind in (("succeeded", "succeeded"), ("dead", "dead"), ("retries", "retry"))
    ]


def _lag(view: StatusView, name: str) -> str:
    return f"{name} p50 {duration(view.lag[name]['p50'])} p99 {duration(view.lag[name]['p99'])}"


def _members(members: Sequence[Row], rates: Rates | None) -> list[Text]:
    return [_member(m, None if rates is None else rates.of(m["id"])) for m in members]


def _member(m: Row, rate: Mapping[str, float] | None) -> Text:
    done = sum(m["ended"].get(kind, 0) for kind in ALWAYS)
    speed = f"{sum(rate.get(kind, 0.0) for kind in ALWAYS):.1f}/s" if rate else "-"
    beat = duration(m["beat_s"])
    return Text(
        _MEMBER.format(
            m["id"], m["kind"], _short(m["host"], 24), m["pid"], m["partitions"], m["running"], done, speed, beat
        )
    )


def _death(d: Row) -> Text:
    reason = " ".join(d["reason"].split())
    told = f"{duration(d['age_s'])} ago   {short(d['job_id'])}   {d['handler']} on {d['queue']}: {reason}"
    line = _line("died", [_short(told, _WIDTH - 8)])
    if d["age_s"] < _RECENT:
        line.stylize("red", 8)
    return line


def _queue(q: Row, *, more: bool) -> Text:
    mark, style = (_paused(q), "yellow") if q["paused"] else ("capped", "yellow") if q["capped"] else ("", "")
    figures = (_known(q["ready"]), _known(q["consumers"]), q["cap"], f"{q['dead']}+" if more else q["dead"])
    return Text(_QUEUE.format(_short(q["name"], 42), *figures, mark), style)


def _paused(q: Row) -> str:
    by = f" by {q['paused_by']}" if q["paused_by"] else ""
    return _short(f"paused{by}" + (f": {q['paused_reason']}" if q["paused_reason"] else ""), 60)


def _cut(lines: list[Text], room: int, what: str) -> list[Text]:
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], Text(f"  and {len(lines) - room + 1} more {what}", "dim")]


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _known(value: Any) -> str:
    return "?" if value is None else str(value)
