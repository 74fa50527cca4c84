"""When a scheduler asks for a round of recovery, and who takes the other duties."""

import asyncio
from types import SimpleNamespace

import pytest
from rota.sched.scheduler import service
from rota.sched.scheduler.service import RECOVER_AGAIN_SECONDS, Scheduler
from rota.sched.store.values import Recovered

from tests.unit.conftest import AnyStore, ScriptedLink


class OverError(Exception):
    """Enough rounds."""


@pytest.fixture
def pauses(monkeypatch):
    """How long it waited; after as many rounds as there are answers it is over."""
    found = []

    async def wait(_, seconds):
        found.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(service, "set_within", wait)
    return found


def a_scheduler(*answers):
    scheduler = object.__new__(Scheduler)
    left = iter(answers)

    def answer(*_):
        return next(left, OverError())

    scheduler._settings = SimpleNamespace(lease=15.0, reconcile_after=120.0)
    scheduler._store, scheduler._link = AnyStore(), ScriptedLink(recover=answer, reconcile=[])
    scheduler._depths = SimpleNamespace(empty=[])
    scheduler._ended, scheduler._deputy = asyncio.Event(), False
    return scheduler


async def rounds(scheduler):
    async def recover(member):
        found = await scheduler._link.run(scheduler._store.recover(member))
        if isinstance(found, OverError):
            raise found
        return found

    scheduler._recover = recover
    with pytest.raises(OverError):
        await scheduler._recover_often(1)


async def test_who_had_the_last_round_takes_the_next_when_it_is_due_and_the_others_a_little_later(pauses):
    """So they find it done, unless that one has died: then within a second of when it was due."""
    await rounds(a_scheduler(Recovered(ran=True, again_s=10.0)))
    await rounds(a_scheduler(Recovered(ran=False, again_s=10.0)))
    holder, deputy = pauses
    assert 10 < holder < deputy <= 10 + RECOVER_AGAIN_SECONDS


async def test_a_round_that_failed_is_tried_again_soon(pauses):
    await rounds(a_scheduler(None))
    assert pauses == [RECOVER_AGAIN_SECONDS]


async def test_only_who_has_recovery_looks_for_lost_messages(pauses):
    scheduler = a_scheduler(Recovered(ran=False, again_s=10.0))
    await rounds(scheduler)
    await scheduler._reconcile(1)
    assert "reconcile" not in scheduler._link.sent
    scheduler = a_scheduler(Recovered(ran=True, again_s=10.0))
    await rounds(scheduler)
    await scheduler._reconcile(1)
    assert "reconcile" in scheduler._link.sent
    assert len(pauses) == 2
