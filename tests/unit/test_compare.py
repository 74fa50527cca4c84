"""A worker compares what the ledger says it runs with what it holds."""

import asyncio
from types import SimpleNamespace

from rota.sched.store.values import Owned
from rota.workers.service import Worker

from tests.unit.conftest import AnyStore, ScriptedLink, a_delivered_attempt


async def test_what_was_begun_without_an_answer_is_handed_back_and_a_cancel_is_heard():
    mine, stranger = a_delivered_attempt(), a_delivered_attempt()
    owned = [Owned(mine.job.key, mine.fence, True), Owned(stranger.job.key, stranger.fence, False)]
    disowned, abandoned = [], []
    worker = object.__new__(Worker)
    worker._store = AnyStore()
    worker._finish_link = ScriptedLink(owned=owned, disown=lambda runs: disowned.extend(runs) or len(runs))
    worker._intake = SimpleNamespace(
        running={(mine.job.key, mine.fence): mine},
        begin_lock=asyncio.Lock(),
        suspects=lambda: {mine.job.key, stranger.job.key},
    )
    worker._executor = SimpleNamespace(abandon=abandoned.append)
    await worker._compare(1)
    assert disowned == [owned[1]]
    assert mine.cancelled
    assert abandoned == [mine]


async def test_a_worker_that_can_own_nothing_asks_nothing_but_now_and_then():
    worker = object.__new__(Worker)
    worker._store, worker._executor = AnyStore(), SimpleNamespace()
    worker._finish_link = ScriptedLink(owned=[])
    worker._intake = SimpleNamespace(running={}, begin_lock=asyncio.Lock(), suspects=set)
    await worker._compare(1)
    assert worker._finish_link.sent == []
    await worker._compare(1, whole=True)
    assert worker._finish_link.sent == ["owned"]
