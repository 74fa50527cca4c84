"""Changes of stored jobs while a scheduler and a worker are at it."""

from __future__ import annotations

from datetime import UTC, datetime

from app import effect
from rota import Client, after, every

KNOWN = """
select j.scheduled_for < clock_timestamp() - interval '5 s' from rota.job j, rota.queue q, rota.member m
where j.name = 'often' and q.name = 'demo' and m.kind = 'scheduler' and m.beat_at > q.paused_at + interval '6 s'
"""
"""The scheduler is there, and has left ticks alone for as long as it looks for what is paused."""


def test_what_a_change_or_a_trigger_makes_due_is_run_by_a_scheduler_that_sleeps(party):
    asleep = "select count(*) from rota.member where wakes_at > clock_timestamp() + interval '2 s'"
    with Client.open(party.store) as client:
        client.submit(effect.call(key="k"), every("30d"), name="monthly")
        client.submit(effect.call(key="once"), after("30d"), key="once")
        for number, (key, do) in enumerate(
            [
                ("k", lambda: client.trigger("monthly")),
                ("k", lambda: client.update("monthly", every="20d", run_now=True)),
                ("k", lambda: client.update("monthly", every=1)),
            ],
            1,
        ):
            party.until("it to sleep", lambda: party.value(asleep))
            do()
            party.until("the run", lambda key=key, number=number: party.effects(key) >= number)
        client.update("monthly", every="30d")
        ((id_,),) = party.db.execute("select id::text from rota.job where args ->> 'key' = 'once'").fetchall()
        party.until("it to sleep", lambda: party.value(asleep))
        client.update(id_, after(0))
        party.until("the other one", lambda: party.effects("once") == 1)


def test_what_is_paused_does_not_run_and_goes_on_afterwards(party):
    with Client.open(party.store) as client:
        client.submit(effect.call(key="k"), every(0.5, misfire="run_all"), name="often")
        once = client.submit(effect.call(key="once"), after("1h"))
        client.pause(once.id)
        party.db.execute("update rota.job set next_run_at = clock_timestamp() where id = %s", [once.id])
        party.until("ticks", lambda: party.effects("k") >= 2)
        client.pause("often", reason="enough")
        party.until("the rest to end", lambda: not party.value("select count(*) from rota.run"))
        before = party.effects("k")
        client.submit(effect.call(key="other"), after(2))
        party.until("what is not paused", lambda: party.effects("other"))
        assert (party.effects("k"), party.effects("once")) == (before, 0)
        client.resume("often")
        client.resume(once.id)
        party.until("what was late", lambda: party.effects("k") >= before + 4 and party.effects("once"))
        gaps = """select count(*) from (select tick - lag(tick) over (order by tick) as gap from demo_effect where key = 'k') x
          where gap <> interval '0.5 s'"""
        # A tick that is late may still be behind later ones; one that is missing stays so.
        party.until("no tick to be missing", lambda: party.value(gaps) == 0)

        client.pause_queue("demo", reason="the other side is down")
        party.until("it to be known", lambda: party.value(KNOWN))
        party.until("the rest to end", lambda: not party.value("select count(*) from rota.run"))
        before = party.effects("k")
        client.submit(effect.call(key="later"))
        client.trigger("often")
        seen = paused_since(party)
        party.until("two seconds to pass", lambda: paused_since(party) > seen + 2)
        assert (party.effects("k"), party.effects("later")) == (before, 0)
        assert "queue demo is paused by client@" in party.doctor()[1]["paused"]["told"]
        client.resume_queue("demo")
        party.until("all that waited", lambda: party.effects("later") and party.effects("k") > before + 8)
        client.cancel("often")


def paused_since(party):
    (at,) = party.db.execute("select paused_at from rota.queue where name = 'demo'").fetchone()
    return (datetime.now(UTC) - at).total_seconds()
