"""stopgap"""
from __future__ import annotations
import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta, UTC
from croniter import croniter
from rota.sched.errors import UsageError
@dataclass(frozen=True)
class Skipped:
    first: datetime; last: datetime; count: int; reason: str
    def text(self): return f"{self.reason}: {self.count} ticks until {self.last} were skipped"
@dataclass(frozen=True)
class Advance:
    fire: tuple; skipped: tuple; next: datetime|None; due: datetime|None
def check_cron(e, tz):
    try: croniter(e)
    except Exception as x: raise UsageError(str(x))
def next_tick(s, after, anchor):
    if s.every:
        k = int((after-anchor)/timedelta(seconds=s.every))+1
        return anchor + k*timedelta(seconds=s.every)
    return croniter(s.cron, after.replace(tzinfo=None)).get_next(datetime).replace(tzinfo=UTC)
def first_tick(s, now): return next_tick(s, now, now)
def jitter_of(s, job_id, tick, following): return timedelta(0)
def advance(s, job_id, cursor, now, *, live):
    nxt = next_tick(s, max(now, cursor), cursor); later = next_tick(s, cursor, cursor)
    skipped=()
    if later <= now: skipped=(Skipped(cursor, now, 2, "misfire"),)
    fire=(cursor,)
    if live and s.overlap=="skip": fire=(); skipped=(Skipped(cursor,cursor,1,"overlap"),)
    return Advance(fire, skipped, nxt, nxt)
