"""Retention in a scheduler that has other things to do."""

from __future__ import annotations

import psycopg

DUE = "update rota.duty set due_at = to_timestamp(0) where name = 'retention'"
OLD = "rota.history_20200101"
IN_VAIN = "day 20200101 has to go and is still there"


def due(party):
    """Has a round come now: who joins looks at once whether one is due. Returns the scheduler."""
    party.db.execute(DUE)
    return party.start("scheduler")


def test_jobs_go_on_while_a_day_that_somebody_reads_has_to_go(party):
    with psycopg.connect(party.store, application_name="a long report") as reader:
        party.db.execute(f"create table {OLD} partition of rota.history for values from ('20200101') to ('20200102')")
        reader.execute("select count(*) from rota.history")
        waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%%concurrently'"
        ended = 0
        while not ended:  # a round that waited while the machine stood still was not seen
            first = due(party)
            party.until("the duty to wait", lambda: party.value(waits) or IN_VAIN in party.log_of(first))  # noqa: B023
            while party.value(waits):
                party.rota("submit", "noop")
                ended += 1
                party.until("its end", lambda: party.value("select count(*) from rota.history") == ended)  # noqa: B023
        party.until("the reason", lambda: party.status()["history"]["late"])
        (late,) = party.status()["history"]["late"]
        party.until("who it is", lambda: "a long report" in str(party.status()["history"]["late"][0]["why"]))
        assert late["since"] == "2020-01-16T00:00:00.000000Z"
        assert "a long report" in party.doctor()[1]["history late"]["told"]
    due(party)
    party.until("it to go", lambda: party.value(f"select to_regclass('{OLD}')") is None)
    assert "history_late" not in party.status()["degraded"]
    assert f"{IN_VAIN}: session" in party.log_of(first)
