"""What people and scripts look at: resolve, lists, one job, the status."""

import pytest
from rota.sched.errors import NotFound, Refused
from rota.sched.ids import short
from rota.sched.store.values import End, HandlerRow
from rota.sched.store.views import Filter
from rota.sched.when import every

PREFIX = "01a22b1c-979b-79e9-b6cf-51"


def finish(house, begun, outcome="succeeded"):
    house.run(house.store.finish([End(begun.key, begun.fence, outcome, reason="because")]))


def test_a_job_is_found_by_id_unique_prefix_and_name(house):
    job = house.job(when=every(3600), name="hourly")
    house.submit(job)
    for text in (job.id, job.id.upper(), job.id[:18], job.id.replace("-", "")[:20], "hourly"):
        assert house.run(house.store.resolve(text)) == job.id


def test_a_prefix_of_several_jobs_is_refused_and_names_them(house):
    jobs = [house.job(id=f"{PREFIX}{n:010x}") for n in (1, 2)]
    house.submit(*jobs)
    with pytest.raises(Refused, match=f"fits several jobs: {short(jobs[0].id)}"):
        house.run(house.store.resolve(PREFIX))


def test_what_is_nowhere_is_not_found(house):
    for text in ("ffffffff-ffff", "no such name"):
        with pytest.raises(NotFound, match="there is no job"):
            house.run(house.store.resolve(text))


def test_a_job_is_found_and_shown_while_it_runs_and_after_it_ended(house):
    *_, begun = house.started()
    job_id = begun.key.job_id
    assert house.run(house.store.resolve(job_id[:18])) == job_id
    assert house.run(house.store.show(job_id)).state == "running"
    finish(house, begun)
    assert house.run(house.store.resolve(job_id[:18])) == job_id
    view = house.run(house.store.show(job_id))
    assert (view.state, view.job, view.runs) == ("succeeded", None, [])


def test_one_run_is_listed_by_its_tick(house):
    *_, begun = house.started()
    job_id, tick = begun.key
    rows = house.run(house.store.list_runs(Filter(job=job_id, tick=tick)))
    assert [(r["job_id"], r["scheduled_for"]) for r in rows] == [(job_id, tick)]
    assert house.run(house.store.list_runs(Filter(job=job_id, tick="2000-01-01T00:00:00.000000Z"))) == []


def test_lists_keep_to_their_filters_and_limit(house):
    house.submit(house.job(when=every(60)), house.job(when=every(60), queue="slow", tenant="t"), house.job())
    assert [r["queue"] for r in house.run(house.store.list_jobs(Filter(tenant="t")))] == ["slow"]
    assert len(house.run(house.store.list_jobs(Filter(queue="mail")))) == 2
    assert len(house.run(house.store.list_jobs(Filter(limit=1)))) == 1
    assert house.run(house.store.list_jobs(Filter(state="paused"))) == []


def test_known_handlers_are_listed_in_order(house):
    house.run(house.store.announce([HandlerRow(n, "app", "mail", {}) for n in ("b", "a")], ["mail"]))
    assert house.run(house.store.known_handlers()) == ["a", "b"]


def figures(house, **stats):
    ((day,),) = house.sql("select to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD')")
    return {"day": day, **stats}


def test_ended_runs_are_summed_over_members_dead_ones_included_and_yesterday_left_out(house):
    members = [house.join("worker") for _ in range(3)]
    house.run(house.store.beat(members[0], figures(house, ended={"succeeded": 2, "retry": 1})))
    house.run(house.store.leave(members[1], figures(house, ended={"succeeded": 3, "dead": 1})))
    house.run(house.store.beat(members[2], {"day": "2000-01-01", "ended": {"succeeded": 100}}))
    view = house.run(house.store.status())
    assert (view.ended["succeeded"], view.ended["dead"], view.returned["retry"]) == (5, 1, 1)
    assert [m["id"] for m in view.members] == [members[0], members[2]]


def test_due_jobs_are_counted_and_paused_ones_are_not_due(house):
    house.submit(*(house.job() for _ in range(3)), house.job(when=every(3600)))
    house.sql("update rota.job set paused = true where id = (select id from rota.job where schedule is null limit 1)")
    view = house.run(house.store.status())
    assert view.jobs == {"scheduled": 4, "paused": 1, "due": 2, "estimated": False}
    assert view.lag["oldest_due_s"] >= 0


def test_totals_beyond_the_bound_are_estimates_and_say_so(house, monkeypatch):
    monkeypatch.setattr("rota.sched.store.postgres.reading.COUNTED", 2)
    house.submit(*(house.job() for _ in range(5)))
    view = house.run(house.store.status())
    assert {"jobs.scheduled", "jobs.due"} <= set(view.estimated)
    assert view.jobs["estimated"] is True
    assert view.jobs["due"] >= 3


def test_degraded_says_who_is_missing_and_what_members_report(house):
    assert house.run(house.store.status()).degraded == ["no_scheduler", "no_worker", "unowned_partitions"]
    house.run(house.store.partitions(house.join()))
    house.run(house.store.beat(house.join("worker"), {"degraded": ["broker"]}))
    assert house.run(house.store.status()).degraded == ["broker"]
