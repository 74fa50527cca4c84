"""What `rota doctor` asks of the store, and the one thing that it mends."""

from __future__ import annotations

from rota.sched.store.postgres.text import tick
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.views import HealthView

NUMBER_MARGIN = 1_000_000_000
"""How far beyond everything known the numbers go on: more than a lost stretch of the sequence can have given."""

# A number that any row has, or that a member says it was given. History would be dear to read, and is no older.
_KNOWN = """greatest(
  (select max(greatest(dispatch, fence)) from rota.run), (select max(watermark) from rota.member),
  (select max((stats->>'highest')::bigint) from rota.member))"""

HEALTH = f"""
select current_setting('server_version'), (select version_num from rota.migration), {tick("clock_timestamp()")},
  (select last_value from rota.number), coalesce({_KNOWN}, 0),
  (select max(right(c.relname, 8)) from pg_inherits i join pg_class c on c.oid = i.inhrelid
   where i.inhparent = 'rota.history'::regclass),
  to_char(clock_timestamp() at time zone 'utc', 'YYYYMMDD')
"""


class HealthStatements:
    """Cold."""

    @transaction()
    def health(self) -> Steps[HealthView]:
        """The store's own state."""
        (row,) = yield Query(HEALTH)
        return HealthView(*row)

    @transaction()
    def move_number(self, beyond: int) -> Steps[int]:
        """Has dispatch numbers and fences go on far beyond `beyond` and all that the store knows; returns from where.

        For a store that was restored from a backup: numbers that were given after it would be given again.
        """
        ((number,),) = yield Query(
            f"select setval('rota.number', greatest((select last_value from rota.number), %s, {_KNOWN}) + %s)",
            [beyond, NUMBER_MARGIN],
        )
        return int(number)
