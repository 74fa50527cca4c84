"""People and scripts: resolve, lists, one job, the status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from rota.sched.errors import NotFound, Refused
from rota.sched.ids import short
from rota.sched.store.values import End, HandlerRow
from rota.sched.store.views import Filter
from rota.sched.when import every

if TYPE_CHECKING:
    from rota.sched.store.conformance.house import House
    from rota.sched.store.values import Begun

_PREFIX = "01a22b1c-979b-79e9-b6cf-51"


def _finish(house: House, begun: Begun) -> None:
    house.run(house.store.finish([End(begun.key, begun.fence, "succeeded", reason="because")]))


def test_a_job_is_found_by_id_unique_prefix_and_name(house: House) -> None:
    job = house.job(when=every(3600), name="hourly")
    house.submit(job)
    for text in (job.id, job.id.upper(), job.id[:18], job.id.replace("-", "")[:20], "hourly"):
        assert house.run(house.store.resolve(text)) == job.id


def test_a_prefix_of_several_jobs_is_refused_and_names_them(house: House) -> None:
    jobs = [house.job(id=f"{_PREFIX}{n:010x}") for n in (1, 2)]
    house.submit(*jobs)
    with pytest.raises(Refused, match=f"fits several jobs: {short(jobs[0].id)}"):
        house.run(house.store.resolve(_PREFIX))


def test_what_is_nowhere_is_not_found(house: House) -> None:
    for text in ("ffffffff-ffff", "no such name"):
        with pytest.raises(NotFound, match="there is no job"):
            house.run(house.store.resolve(text))


def test_a_job_is_found_and_shown_while_it_runs_and_after_it_ended(house: House) -> None:
    *_, begun = house.started()
    job_id = begun.key.job_id
    assert house.run(house.store.resolve(job_id[:18])) == job_id
    assert house.shown(job_id).state == "running"
    _finish(house, begun)
    assert house.run(house.store.resolve(job_id[:18])) == job_id
    view = house.shown(job_id)
    assert (view.state, view.job, view.runs) == ("succeeded", None, [])


def test_one_run_is_listed_by_its_tick(house: House) -> None:
    *_, begun = house.started()
    job_id, tick = begun.key
    rows = house.run(house.store.list_runs(Filter(job=job_id, tick=tick)))
    assert [(r["job_id"], r["scheduled_for"]) for r in rows] == [(job_id, tick)]
    assert house.run(house.store.list_runs(Filter(job=job_id, tick="2000-01-01T00:00:00.000000Z"))) == []


def test_lists_keep_to_their_filters_and_limit(house: House) -> None:
    house.submit(house.job(when=every(60)), house.job(when=every(60), queue="slow", tenant="t"), house.job())
    assert [r["queue"] for r in house.run(house.store.list_jobs(Filter(tenant="t")))] == ["slow"]
    assert len(house.run(house.store.list_jobs(Filter(queue="mail")))) == 2
    assert len(house.run(house.store.list_jobs(Filter(limit=1)))) == 1
    assert house.run(house.store.list_jobs(Filter(state="paused"))) == []


def test_known_handlers_are_listed_in_order(house: House) -> None:
    house.run(house.store.announce([HandlerRow(n, "app", "mail", {}) for n in ("b", "a")], ["mail"]))
    assert house.run(house.store.known_handlers()) == ["a", "b"]


def _figures(house: House, **stats: Any) -> dict[str, Any]:
    return {"day": house.run(house.store.status()).now[:10], **stats}


def test_ended_runs_are_summed_over_members_dead_ones_included_and_yesterday_left_out(house: House) -> None:
    members = [house.join("worker") for _ in range(3)]
    house.run(house.store.beat(members[0], _figures(house, ended={"succeeded": 2, "retry": 1})))
    house.run(house.store.leave(members[1], _figures(house, ended={"succeeded": 3, "dead": 1})))
    house.run(house.store.beat(members[2], {"day": "2000-01-01", "ended": {"succeeded": 100}}))
    view = house.run(house.store.status())
    assert (view.ended["succeeded"], view.ended["dead"], view.returned["retry"]) == (5, 1, 1)
    assert [m["id"] for m in view.members] == [members[0], members[2]]


def test_degraded_says_who_is_missing_and_what_members_report(house: House) -> None:
    assert house.run(house.store.status()).degraded == ["no_scheduler", "no_worker", "unowned_partitions"]
    house.run(house.store.partitions(house.join()))
    house.run(house.store.beat(house.join("worker"), {"degraded": ["broker"]}))
    assert house.run(house.store.status()).degraded == ["broker"]


def test_what_nobody_claims_or_consumes_is_told(house: House) -> None:
    house.run(house.store.partitions(house.join()))
    worker = house.join("worker")
    house.run(house.store.announce([HandlerRow("send", "app", "mail", {})], ["mail"]))
    house.submit()
    house.bed.pass_time(31)
    assert house.run(house.store.status()).degraded == ["stalled"]
    figures = {"queues": {"mail": {"ready": 7, "consumers": 0, "capped": True}}}
    house.run(house.store.beat(worker, figures))
    assert house.run(house.store.status()).degraded == ["no_consumers"]


def test_what_is_parked_is_told(house: House) -> None:
    house.run(house.store.partitions(house.join()))
    house.run(house.store.beat(house.join("worker"), {"parked": 3}))
    view = house.run(house.store.status())
    assert (view.parked, view.degraded) == (3, ["parked"])


def test_the_oldest_running_run_is_told(house: House) -> None:
    house.started()
    house.bed.pass_time(100)
    assert 100 <= house.run(house.store.status()).lag["oldest_running_s"] < 130


def test_due_jobs_are_counted(house: House) -> None:
    house.submit(*(house.job() for _ in range(3)), house.job(when=every(3600)))
    house.bed.pass_time(2)
    view = house.run(house.store.status())
    assert view.jobs == {"scheduled": 4, "paused": 0, "due": 3, "estimated": False}
    assert view.lag["oldest_due_s"] >= 2


def test_a_day_of_history_is_read_in_portions_as_the_list_has_it(house: House) -> None:
    *_, begun = house.started()
    _finish(house, begun)
    history = house.run(house.store.days())
    (today,) = [each for each in history.days if each.day == history.now[:10]]
    assert today.open
    blocks = house.run(house.store.extent(today.day))
    assert blocks is not None
    portions = [house.run(house.store.read_day(today.day, n, n + 1)) for n in range(blocks)]
    assert [row for rows in portions for row in rows] == house.run(house.store.list_history(Filter()))
    assert house.run(house.store.extent("2001-01-01")) is None


def test_days_are_made_ahead_and_how_long_they_are_kept_is_noted(house: House) -> None:
    scheduler = house.join()
    assert house.run(house.store.retain(scheduler, 86_400.0, 60.0)).ran
    assert not house.run(house.store.retain(scheduler, 86_400.0, 60.0)).ran
    house.run(house.store.note_retention(86_400.0, {}))
    history = house.run(house.store.days())
    assert (history.keep_s, history.late()) == (86_400.0, [])
    assert sum(each.open for each in history.days) > 7
