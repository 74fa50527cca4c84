"""The protocol's state machine on Postgres: one database, emptied before each history."""

from __future__ import annotations

from contextlib import closing

import pytest
from rota.sched.store.conformance import House
from rota.sched.store.conformance.machine import test_every_tick_ends_once_whatever_happens  # noqa: F401

from tests.store.conftest import PostgresTestbed

EMPTY = """
do $$
declare name text;
begin
  for name in select c.relname from pg_class c where c.relnamespace = 'rota'::regnamespace and c.relkind = 'r'
    and c.relname not in ('partition', 'duty', 'alembic_version')
  loop
    execute format('delete from rota.%I', name);
  end loop;
  update rota.partition set owner = null, epoch = 0;
  update rota.duty set due_at = to_timestamp(0), ran_at = to_timestamp(0), holder = null;
end $$
"""


@pytest.fixture
def new_house(store_url):
    with closing(PostgresTestbed(store_url)) as bed:

        def empty():
            bed.sql(EMPTY)
            return House(bed)

        yield empty
