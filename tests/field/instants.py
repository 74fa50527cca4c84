"""Ticks as text, for cases that say which instants are right."""

from rota.sched.durations import instant
from rota.sched.timing import next_tick
from rota.sched.when import Schedule


def ticks(expression, tz, after, count, **policies):
    """The next ticks in UTC, such as `2027-01-01T02:00`, with seconds only where they are not 0. Each is after the last."""
    schedule, at, found = Schedule(cron=expression, tz=tz, **policies), instant(after, "after"), []
    for _ in range(count):
        tick = next_tick(schedule, at, at)
        if tick is None:
            break
        assert tick > at
        found.append(tick.strftime("%Y-%m-%dT%H:%M:%S").removesuffix(":00"))
        at = tick
    return found
