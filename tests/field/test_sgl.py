"""Several schedulers: nobody is the leader, so nobody can wrongly think that he is. Rows and their keys decide."""

from __future__ import annotations

import itertools
import random
import re
import signal
import time
from collections import Counter

from app import effect
from rota import Client, after, every
from rota.sched.ids import RunKey
from rota.sched.store.conformance.house import LEASE
from rota.sched.store.values import End, NewMember
from rota.sched.when import Schedule

from tests.conftest import BOUND
from tests.field.conftest import at_once
from tests.integration.conftest import party_on

SAME = NewMember("scheduler", "one-host", 7, "0")


def test_sgl_01_a_scheduler_that_fails_to_take_partitions_holds_none_and_leaves_them_to_others(
    store_url, broker_url, tmp_path, make_role
):
    """Its membership ends with the failed `self._store.partitions(member)` of `_share` (sched/scheduler/service.py).

    With that error tolerated it stayed a live member, and the share that it could not take stood still for ever.
    """
    with party_on(store_url, broker_url, tmp_path) as party:
        party.env["ROTA_LEASE"] = "3"  # what the failed one cannot even leave is waited out
        good = party.start("scheduler")
        party.start("worker")
        party.until_working()
        party.env["ROTA_STORE"] = make_role("revoke update on rota.partition")
        bad = party.start("scheduler")
        party.until("it to fail", lambda: "permission denied" in party.log_of(bad))
        with Client.open(party.store) as client:
            client.submit_many([effect.call(key=f"k{n}") for n in range(200)])
        party.until("all effects", lambda: party.value("select count(*) from demo_effect") >= 200)
        assert party.value("select count(*) from demo_effect") == 200
        owners = "select count(*) from rota.partition p join rota.member m on m.id = p.owner where m.pid = %s"
        assert party.value(owners, bad.pid) == 0
        party.until("the other one to have all", lambda: party.value(owners, good.pid) == 64)


def test_sgl_03_members_of_one_host_and_one_pid_are_still_several(house):
    """Without `id bigint generated always as identity` for `rota.member` (sched/store/migrations/versions/0001_tenses.sql) there
    would be nothing to tell them apart.
    """
    members = [house.run(house.store.join(SAME)) for _ in range(3)]
    for _ in range(4):
        shares = [house.run(house.store.partitions(m)) for m in members]
    assert len(set(members)) == 3
    assert sorted(part for share in shares for part in share) == list(range(64))
    house.submit(*(house.job() for _ in range(30)))
    claims = at_once(house, 3, lambda link, n: link.run(house.store.claim(members[n], house.lanes(), 100, 10)))
    assert sum(len(c.dispatches) for c in claims) == len({d.job_id for c in claims for d in c.dispatches}) == 30


def test_sgl_04_lost_rows_of_leases_come_back_and_double_nothing(house):
    """Two members that both hold every partition, by a restored snapshot; then no such row is left at all.

    Without `insert into rota.partition` in `partitions` (sched/store/postgres/members.py) nobody serves anything any more,
    without `lost` in TAKE (sched/store/postgres/duties.py) nobody is judged dead.
    """
    one, other = house.join(), house.join()
    house.submit(*(house.job() for _ in range(50)))
    claims = [house.claim(member, limit=30) for member in (one, other)]
    assert len({d.job_id for c in claims for d in c.dispatches}) == 50
    house.sql("delete from rota.partition")
    house.sql("delete from rota.duty")
    worker = house.join("worker")
    for _ in range(3):
        shares = [house.run(house.store.partitions(m)) for m in (one, other)]
    assert [len(share) for share in shares] == [32, 32]
    for _ in range(2):  # one makes the row, and the first that takes the duty judges nobody
        house.recover(one)
    assert house.lose(one, worker).dead_members == [worker]


def test_sgl_06_a_scheduler_that_slept_long_goes_on_in_the_same_process(store_url, broker_url, tmp_path):
    """Asleep for longer than its lease, with its connections to the store gone.

    Others have taken it for dead. Without the loop around `_membership` (sched/scheduler/service.py) the process ends.
    """
    with party_on(store_url, broker_url, tmp_path) as party:
        party.env["ROTA_LEASE"] = "3"
        scheduler = party.start("scheduler")
        party.start("worker")
        party.until_working()
        with Client.open(party.store) as client:
            client.submit(effect.call(key="tick"), every(1, misfire="run_latest"), name="beat")
        party.until("a tick", lambda: party.effects("tick"))
        scheduler.send_signal(signal.SIGSTOP)
        party.until(
            "its lease to be over",
            lambda: party.value(
                "select max(beat_at) < clock_timestamp() - interval '4 s' from rota.member where kind = 'scheduler'"
            ),
        )
        party.db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'rota scheduler' and datname = current_database()"
        )
        party.db.execute("update rota.member set state = 'dead', ended_at = clock_timestamp() where kind = 'scheduler'")
        before = party.effects("tick")
        scheduler.send_signal(signal.SIGCONT)
        party.until("ticks again", lambda: party.effects("tick") >= before + 3)
        assert scheduler.poll() is None
        assert party.value("select count(*) from rota.history where outcome = 'skipped'")


def test_sgl_07_of_five_that_start_together_each_partition_and_each_duty_has_one_owner(house):
    """Without `where owner is null` in the taking of partitions (sched/store/postgres/members.py) two take the same."""
    for _ in range(20):
        house.sql("update rota.duty set due_at = to_timestamp(0)")
        house.sql("update rota.partition set epoch = 0")

        def begin(link, _):
            member = link.run(house.store.join(SAME))
            ran = link.run(house.store.recover(member, LEASE, 60)).ran
            return member, ran, link.run(house.store.partitions(member))

        found = at_once(house, 5, begin)
        assert sum(ran for _, ran, _ in found) == 1
        assert house.sql("select max(epoch) from rota.partition") == [(1,)]
        for _ in range(3):
            shares = [house.run(house.store.partitions(member)) for member, _, _ in found]
        assert sorted(part for share in shares for part in share) == list(range(64))
        for member, _, _ in found:
            house.run(house.store.leave(member))


def test_sgl_09_ticks_go_on_whichever_scheduler_is_killed(party):
    """The one that has the schedule's partition. Without FREE (sched/store/postgres/duties.py) ticks stop for ever."""
    for _ in range(2):
        party.start("scheduler")
    with Client.open(party.store) as client:
        ref = client.submit(effect.call(key="tick"), every(0.5), name="beat")
    schedulers = "select count(distinct owner) from rota.partition"
    owner = (
        "select m.pid from rota.partition p join rota.member m on m.id = p.owner where m.state = 'live' and p.part = %s"
    )
    party.until("three to share", lambda: party.value(schedulers) == 3)
    party.until("ticks", lambda: party.effects("tick"))
    part = int(ref.id[-2:], 16) & 63
    party.until("it to have an owner", lambda: party.value(owner, part))  # it may be between two
    pid = party.value(owner, part)
    next(member for member in party.members if member.pid == pid).kill()
    killed = party.value("select clock_timestamp()")
    later = "select count(*) from demo_effect where tick > %s + interval '2 s'"
    party.until("ticks again", lambda: party.value(later, killed) > 3)
    party.rota("cancel", "beat")
    late = "select extract(epoch from max(claimed_at - due_at)) from rota.history where outcome = 'succeeded'"
    assert party.value(late) < BOUND
    assert party.value("select count(*) - count(distinct tick) from demo_effect") == 0


def test_sgl_10_of_those_that_claim_in_the_same_second_each_tick_has_one(house):
    """Four walk the same lanes. Without `for update skip locked` in CLAIM (sched/store/postgres/scheduling.py) they tell
    the same missed ticks several times.
    """
    jobs = [house.job(when=Schedule(every=60, misfire="run_latest")) for _ in range(1000)]
    house.submit(*jobs)
    house.bed.pass_time(600)
    members = [house.join() for _ in range(4)]

    def claim(link, n):
        found = []
        while (claimed := link.run(house.store.claim(members[n], house.lanes(), 50, 10))).rows:
            found += claimed.dispatches
        return found

    found = [d.job_id for dispatches in at_once(house, 4, claim) for d in dispatches]
    house.claim(members[0], limit=5000)
    assert Counter(found) == dict.fromkeys((job.id for job in jobs), 1)
    assert house.sql("select count(*), count(distinct job_id) from rota.history") == [(1000, 1000)]


def test_sgl_12_who_looks_too_early_and_too_often_gets_each_tick_once(house):
    """Two look all the time, over the boundaries of three seconds; what they get ends at once.

    Without `set scheduled_for = x.next` in ADVANCE (sched/store/postgres/scheduling.py) each look gets
    the same tick again.
    """
    jobs = [house.job(when=Schedule(every=1, misfire="run_all")) for _ in range(50)]
    house.submit(*jobs)
    members = [(house.join(), house.join("worker")) for _ in range(2)]
    end, bound = time.monotonic() + 3.2, time.monotonic() + BOUND
    least = "select count(*) from (select from rota.history group by job_id having count(*) >= 2) x"

    def over():
        """Not before each has had two: a machine that stands still may have no time for a second."""
        now = time.monotonic()
        return now > end and (now > bound or house.sql(least) == [(50,)])

    def work(link, n):
        scheduler, worker = members[n]
        while not over():
            dispatches = link.run(house.store.claim(scheduler, house.lanes(), 100, 10)).dispatches
            refs = [(RunKey(d.job_id, d.scheduled_for), d.dispatch, False) for d in dispatches]
            begun = link.run(house.store.begin(worker, refs)) if refs else []
            link.run(house.store.finish([End(b.key, b.fence, "succeeded") for b in begun]))
            time.sleep(random.uniform(0, 0.02))

    at_once(house, 2, work)
    for job in jobs:
        ticks = [t for (t,) in house.sql("select scheduled_for from rota.history where job_id = %s order by 1", job.id)]
        assert len(ticks) >= 2
        assert {(b - a).total_seconds() for a, b in itertools.pairwise(ticks)} == {1}


def test_sgl_13_lse_15_pgc_07_the_clocks_of_hosts_decide_nothing(party_of_clocks):
    """A scheduler an hour ahead, one ten minutes behind, a worker five minutes ahead and a client five behind.

    With the host's clock instead of `select clock_timestamp()` in `submit` (sched/store/postgres/submission.py) the first
    ticks of schedules come at wrong times.
    """
    party = party_of_clocks
    party.start("scheduler", clock=3600)
    party.start("scheduler", clock=-600)
    party.start("worker", clock=300)
    party.until_working()
    party.until("both to share", lambda: party.value("select count(distinct owner) from rota.partition") == 2)
    party.env |= party.clock(-300)
    party.rota("submit", "effect", "--args", '{"key": "once-0"}', "--in", "2s")
    party.rota(
        "submit", "effect", "--args", '{"key": "beat-0"}', "--every", "1s", "--misfire", "run_all", "--name", "beat-0"
    )
    with Client.open(party.store) as client:
        for n in range(1, 8):  # over partitions of both
            client.submit(effect.call(key=f"once-{n}"), after(2))
            client.submit(effect.call(key=f"beat-{n}"), every(1, misfire="run_all"), name=f"beat-{n}")
    party.until("ticks", lambda: all(party.effects(f"beat-{n}") >= 4 for n in range(8)))
    party.until("the others", lambda: all(party.effects(f"once-{n}") == 1 for n in range(8)))
    with Client.open(party.store) as client:
        for n in range(8):
            client.cancel(f"beat-{n}")
    party.until("all to end", lambda: not party.value("select count(*) from rota.run"))
    lags = "select extract(epoch from min(begun_at - due_at)), extract(epoch from max(begun_at - due_at)) from rota.history"
    earliest, latest = party.db.execute(lags).fetchone()
    assert earliest >= 0
    assert latest < 240  # the least that a clock is wrong is five minutes
    for n in range(8):
        ticks = party.db.execute("select tick from demo_effect where key = %s order by tick", [f"beat-{n}"]).fetchall()
        assert {(b - a).total_seconds() for (a,), (b,) in itertools.pairwise(ticks)} == {1}
    assert party.value("select count(*) from rota.member where state = 'dead'") == 0
    assert (
        party.value("select count(*) from rota.history where losses > 0 or outcome not in ('succeeded', 'cancelled')")
        == 0
    )


def test_sgl_15_pgl_04_claiming_the_same_makes_no_errors_and_nobody_waits(make_postgres, house_on):
    """Thirty walk the same lanes and want the same duties, in a server that tells who waits for a lock or fails.

    Without `skip locked` in CLAIM or in TAKE (sched/store/postgres/duties.py) they stand in line.
    """
    server = make_postgres(settings={"log_lock_waits": "on", "deadlock_timeout": "50ms"})
    house = house_on(server.url)
    house.submit(*(house.job(when=Schedule(every=60)) for _ in range(300)))
    members = [house.join() for _ in range(30)]

    def tick(link, n):
        for _ in range(5):
            link.run(house.store.recover(members[n], LEASE, 0))
            link.run(house.store.claim(members[n], house.lanes(), 20, 10))

    for _ in range(2):
        house.bed.pass_time(60)
        at_once(house, 30, tick)
    log = server.log.read_text(encoding="utf-8")
    assert "ERROR" not in log
    assert "advisory" not in log
    # Those who make a table's file longer wait for each other, and for nothing of ours. And SKIP LOCKED does wait if the
    # version that it sees was followed by one which somebody else has locked, until that one's transaction ends.
    waits = re.findall(
        r"still waiting for \w+ on (?!extension).*\n.*DETAIL.*\n(?!.*while locking updated version).*", log
    )
    assert not waits, "somebody waited for more than 50 ms"


def test_sgl_16_a_tick_that_ran_and_was_forgotten_is_not_claimed_again(house):
    """The cursor remembers it: without `scheduled_for = x.next` in ADVANCE (sched/store/postgres/scheduling.py) it is claimed
    again.
    """
    first, late, worker = house.join(), house.join(), house.join("worker")
    repeated = house.job(when=Schedule(every=60))
    once = house.job(key="k")
    house.submit(repeated, once)
    house.bed.pass_time(61)
    begun = house.begin(worker, *house.claim(first).dispatches)
    house.run(house.store.finish([End(b.key, b.fence, "succeeded") for b in begun]))
    house.sql("truncate rota.history")
    assert house.claim(late).rows == 0
    (answer,) = house.submit(house.job(key="k"))
    assert (answer.job_id, answer.duplicate) == (once.id, True)
