"""What `rota doctor` asks of the store, and the one thing that it mends."""

from __future__ import annotations

from rota.sched.store.postgres.text import tick
from rota.sched.store.transaction import Query, Steps, transaction
from rota.sched.store.views import HealthView, UpkeepView

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


HOT = ("job", "run", "dead", "key", "member", "partition", "duty")
"""Tables whose rows change all the time."""


def _option(name: str) -> str:
    own = f"(select option_value from pg_options_to_table(c.reloptions) where option_name = '{name}')"
    return f"coalesce({own}, current_setting('{name}'))::float8"


TABLES = f"""
select c.relname::text as name, s.n_live_tup as live, s.n_dead_tup as dead, pg_total_relation_size(c.oid) as bytes,
  ({_option("autovacuum_vacuum_threshold")} + {_option("autovacuum_vacuum_scale_factor")} * greatest(c.reltuples, 0))::bigint,
  extract(epoch from clock_timestamp()
    - coalesce(greatest(s.last_autovacuum, s.last_vacuum), pg_postmaster_start_time()))::float8
from pg_stat_user_tables s join pg_class c on c.oid = s.relid
where s.schemaname = 'rota' and s.relname = any(%s) order by s.n_dead_tup desc, 1
"""

# Whose snapshot or own number an old row must be kept for. Others may not see a session's start and name.
HOLDERS = f"""
select what, {tick("since")}, extract(epoch from clock_timestamp() - since)::float8, transactions
from (
  select format('session %%s (%%s, user %%s, %%s)', pid, coalesce(nullif(application_name, ''), 'unnamed'), usename,
      coalesce(state, 'state hidden')) as what,
    xact_start as since, greatest(age(backend_xmin), age(backend_xid)) as transactions
  from pg_stat_activity
  where pid <> pg_backend_pid() and (datname = current_database() or backend_type = 'walsender')
    and coalesce(backend_xmin, backend_xid) is not null
  union all
  select format('prepared transaction %%s (user %%s)', gid, owner), prepared, age(transaction) from pg_prepared_xacts
  where database = current_database()
  union all
  select format('replication slot %%s (%%s)', slot_name, case when active then 'active' else 'not active' end), null, age(xmin)
  from pg_replication_slots where xmin is not null
) x order by transactions desc limit 5
"""


class HealthStatements:
    """Cold."""

    @transaction()
    def health(self) -> Steps[HealthView]:
        """The store's own state."""
        (row,) = yield Query(HEALTH)
        return HealthView(*row)

    @transaction()
    def upkeep(self) -> Steps[UpkeepView]:
        """How autovacuum keeps up, and who holds it back."""
        tables = yield Query(TABLES, [list(HOT)])
        holders = yield Query(HOLDERS, [])
        return UpkeepView(
            [dict(zip(("name", "live", "dead", "bytes", "limit", "vacuumed_s"), row, strict=True)) for row in tables],
            [dict(zip(("what", "since", "age_s", "transactions"), row, strict=True)) for row in holders],
        )

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
