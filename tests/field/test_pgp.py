"""Postgres under load: bloat, and what keeps it."""

from __future__ import annotations

import psycopg
from rota.sched.doctor import examine
from rota.sched.settings import Settings


def test_pgp_01_the_doctor_names_the_session_that_keeps_dead_rows_and_how_many_there_are(house, store_url, monkeypatch):
    """Without the first select of HOLDERS (sched/store/postgres/health.py) nobody is named; without `old or` in `_upkeep`
    (sched/doctor.py) the dead rows, vacuumed in vain a moment ago, are called well.
    """
    monkeypatch.setattr("rota.sched.doctor.OLD_SECONDS", 0.0)
    with psycopg.connect(store_url, application_name="pg_dump") as dump:
        dump.execute("begin isolation level repeatable read; select 1")
        for _ in range(3):
            house.sql("update rota.partition set epoch = epoch + 1")
        house.sql("select pg_stat_force_next_flush()")
        house.sql("vacuum rota.partition")
        checks = {check.name: check for check in examine(Settings(store=store_url))}
        assert checks["snapshot"].told.startswith(f"session {dump.info.backend_pid} (pg_dump, user ")
        assert checks["snapshot"].figures["since"]
        assert checks["bloat"].state == "warning"
        assert "partition has 192 dead rows" in checks["bloat"].told
        assert "see `snapshot`" in checks["bloat"].remedy
    figures = {each["name"]: each for each in checks["bloat"].figures}
    assert set(figures) == {"job", "run", "dead", "key", "member", "partition", "duty"}
    assert figures["partition"]["limit"] == 50
