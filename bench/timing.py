"""How fast ticks are computed: many different schedules planned, and the ticks of few that many jobs share.

Pure functions in one process, no servers. One JSON object a line; processor time, and all zones are looked at.

    .venv/bin/python bench/timing.py                     10,000 schedules, 1,000,000 shared ticks
    .venv/bin/python bench/timing.py --schedules 100000
"""

from __future__ import annotations

import argparse
import json
import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from rota.sched.timing import advance, first_tick, next_tick
from rota.sched.timing.zones import zone_names
from rota.sched.when import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOURS = ["*", "*/2", "8-17", *map(str, range(24))]
DAYS = ["*", "*", "1", "15", "L", "*/7", "1,15"]
MONTHS = ["*", "*", "1-6", "*/3", "jun"]
ZONES = sorted(zone_names())
WEEKDAYS = ["*", "*", "1-5", "mon", "0#2", "5L"]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--ticks", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    drawn = [_draw(rng) for _ in range(options.schedules)]
    schedules = _measured("schedules read", len(drawn), lambda: [Schedule(cron=c, tz=tz, jitter=30) for c, tz in drawn])
    _measured("schedules planned", len(drawn), lambda: _plan(schedules))
    shared = schedules[:100]
    instants = [START + timedelta(seconds=n) for n in range(options.ticks // 10_000)]
    _measured("shared ticks", 10_000 * len(instants), lambda: _shared(shared, instants))
    walked = Schedule(cron="*/5 * * * *", tz="Europe/Paris")
    _measured("ticks in a row", options.ticks // 10, lambda: _walk(walked, options.ticks // 10))


def _draw(rng: random.Random) -> tuple[str, str]:
    fields = [str(rng.randrange(60)), *(rng.choice(each) for each in (HOURS, DAYS, MONTHS, WEEKDAYS))]
    return " ".join(fields), rng.choice(ZONES)


def _measured(what: str, count: int, work: Callable[[], T]) -> T:
    begun = time.process_time()
    done = work()
    spent = time.process_time() - begun
    print(
        json.dumps({"what": what, "count": count, "seconds": round(spent, 3), "us_each": round(spent / count * 1e6, 2)})
    )
    return done


def _plan(schedules: list[Schedule]) -> None:
    """What a submit and the first claim do."""
    for schedule in schedules:
        tick = first_tick(schedule, START)
        advance(schedule, "01a22b2f-67dd-798b-aad5-ddfa2588df71", tick, tick, live=False)


def _shared(schedules: list[Schedule], instants: list[datetime]) -> None:
    for _ in range(100):
        for schedule in schedules:
            for instant in instants:
                next_tick(schedule, instant, instant)


def _walk(schedule: Schedule, count: int) -> None:
    at = START
    for _ in range(count):
        tick = next_tick(schedule, at, at)
        assert tick is not None
        at = tick


if __name__ == "__main__":
    main()
