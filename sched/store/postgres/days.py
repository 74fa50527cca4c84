"""History's day tables: made where they are missing, and listed.

What ends runs inserts into `rota.history` all the time, and people read it for as long as they like. An exclusive lock on it
would wait for all readers, and everything that ends would wait behind it. So a day is made as a table of its own and then
attached, which passes by both; how a day goes is in `retention.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.sched.store.transaction import Query

if TYPE_CHECKING:
    from rota.sched.store.transaction import Steps

# Append-only: what a first vacuum freezes no later one has to read, and no forced one comes before the table is dropped.
_STORAGE = "autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_threshold = 10000"

# One at a time: who comes second finds it made.
_MAKE = """
do $make$ begin
  lock table only rota.history in share update exclusive mode;
  if to_regclass('rota.history_{day}') is null then
    create table rota.history_{day} (like rota.history including defaults including constraints) with ({storage});
  end if;
  if not (select relispartition from pg_class where oid = 'rota.history_{day}'::regclass) then
    alter table rota.history attach partition rota.history_{day} for values from ('{start}') to ('{end}');
  end if;
end $make$
"""

_TODAY = "date_trunc('day', clock_timestamp() at time zone 'utc')"

MISSING = f"""
select to_char(d, 'YYYYMMDD'), d::text || '+00', (d + interval '1 day')::text || '+00'
from generate_series({_TODAY} + make_interval(days => %s), {_TODAY} + make_interval(days => %s), interval '1 day') d
where not exists (select from pg_inherits where inhrelid = to_regclass('rota.history_' || to_char(d, 'YYYYMMDD')))
"""

TABLES = """pg_class c left join pg_inherits i on i.inhrelid = c.oid and i.inhparent = 'rota.history'::regclass
where c.relnamespace = 'rota'::regnamespace and c.relkind = 'r' and c.relname ~ '^history_[0-9]{4}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])$'"""
"""All day tables `c`, also those that are not a part of history any more (no `i`)."""

DAY = "right(c.relname, 8)"
"""The day of a table, YYYYMMDD."""


def older_than(seconds: str) -> str:
    """Whether so much time has passed since a day ended: since then nothing was added to its table."""
    return f"{DAY} < to_char((clock_timestamp() at time zone 'utc') - make_interval(secs => {seconds}), 'YYYYMMDD')"


def make_days(first: int, last: int) -> Steps[None]:
    """Makes the tables of history from `first` to `last` days from the store's today (UTC), where they are missing."""
    for day, start, end in (yield Query(MISSING, [first, last])):
        yield Query(_MAKE.format(day=day, start=start, end=end, storage=_STORAGE))
