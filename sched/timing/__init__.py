"""When ticks fall, and what becomes of missed ones. Pure functions: every instant is an argument, no clock is read."""

from rota.sched.timing.advice import advice
from rota.sched.timing.around import Around, around_changes
from rota.sched.timing.edit import Amended, Place, amend
from rota.sched.timing.outage import Outage, outage
from rota.sched.timing.plan import Advance, Skipped, advance
from rota.sched.timing.ticks import Fire, check_cron, fires, first_tick, jitter_of, next_tick
from rota.sched.timing.zones import instant_of, zone, zone_source

__all__ = [
    "Advance",
    "Amended",
    "Around",
    "Fire",
    "Outage",
    "Place",
    "Skipped",
    "advance",
    "advice",
    "amend",
    "around_changes",
    "check_cron",
    "fires",
    "first_tick",
    "instant_of",
    "jitter_of",
    "next_tick",
    "outage",
    "zone",
    "zone_source",
]
