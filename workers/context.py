"""What a handler gets as `ctx`, and the transaction that commits its writes together with the run's completion."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rota.sched.client import JobRef
from rota.sched.errors import Refused, Superseded, UsageError
from rota.sched.requests import new_job
from rota.sched.store.values import End
from rota.sched.when import Once, When
from rota.workers.attempt import RESULT_LIMIT, clean, clean_json, success

if TYPE_CHECKING:
    from types import TracebackType

    import sqlalchemy as sa
    from rota.sched.app import Call
    from rota.sched.heartbeat import Trust
    from rota.sched.store.transaction import Transaction
    from rota.sched.store.values import Submitted
    from rota.workers.attempt import Attempt
    from rota.workers.pools import Pools
    from sqlalchemy.ext.asyncio import AsyncConnection

_NOTE_LIMIT = 500
"""Characters of a progress note that are kept."""


class RunContext:
    """One attempt, as its handler sees it. Implements `rota.Context`."""

    def __init__(self, attempt: Attempt, pools: Pools, trust: Trust) -> None:
        self._attempt = attempt
        self._pools = pools
        self._trust = trust
        self._transaction: HandlerTransaction | None = None
        timeout = attempt.timeout
        self._limit = math.inf if timeout is None else time.monotonic() + timeout
        """What `cancelled` goes by: the host's clock, which `deadline` is told in, may step."""
        self.deadline = None if timeout is None else datetime.now(UTC) + timedelta(seconds=timeout)

    def call(self) -> Any:
        """Calls the handler with its arguments, and with this context if it asks for one."""
        return self._attempt.handler.invoke(self, self._attempt.args)

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._attempt.job.key.job_id

    @property
    def scheduled_for(self) -> datetime:
        """The nominal tick, UTC: together with `job_id` the identity of this run."""
        return datetime.fromisoformat(self._attempt.job.key.scheduled_for)

    @property
    def is_catchup(self) -> bool:
        """Whether the tick was claimed late: a later one was due as well, or it was over its grace (60 s if none is given).

        The same for every attempt and redrive. False for a job without a schedule.
        """
        return self._attempt.catchup

    @property
    def missed(self) -> int | None:
        """How many ticks were skipped between the last one that became a run and this one; None if too many to count.

        0 on time. The same for every attempt and redrive.
        """
        return self._attempt.missed

    @property
    def attempt(self) -> int:
        """Which execution this is, from 1. Executions that lost their worker do not count."""
        return self._attempt.number

    @property
    def fence(self) -> int:
        """Rises with every attempt of this run: a resource that keeps the highest can refuse a stale writer."""
        return self._attempt.fence

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt and redrive of this run, and of no other."""
        return str(self._attempt.job.key)

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked to cancel, the run is this worker's no more, or the timeout has passed.

        Not this worker's: it drains past its time, or has not reached the store for a lease.
        """
        late = time.monotonic() > self._limit
        return self._attempt.cancelled or self._attempt.released or late or not self._trust.held

    def transaction(self, *, raw: bool = False) -> Any:
        """`with` in a sync handler gives a sqlalchemy Connection, `async with` in an async one an AsyncConnection.

        With `raw` they give psycopg's. Leaving it commits what was written there and the run's completion together, or
        neither. Raises Superseded, with nothing written, if the run was taken away from this attempt meanwhile, and
        Refused if the handler has committed or rolled back by itself.
        """
        self._transaction = HandlerTransaction(self._attempt, self._pools, raw=raw)
        return self._transaction

    def result(self, value: Any) -> None:
        """Sets the run's result (a JSON value), in a transaction where the handler's return value comes too late.

        One of more than RESULT_LIMIT bytes is not kept, as of a handler that returns it.
        """
        json.dumps(value, allow_nan=False)
        self._attempt.result = (value,)

    def submit(self, call: Call, when: When | None = None, **options: Any) -> JobRef:
        """Submits a job; inside a transaction of this context, with it.

        In an async handler this waits for the store: use `await ctx.asubmit(...)` there.
        """
        job = new_job(call, when or Once(), **options)
        open_transaction = self._transaction if self._transaction and self._transaction.connection else None
        txn = self._pools.store.submit([job], own_transaction=open_transaction is None)
        (answer,) = self._pools.run(txn) if open_transaction is None else open_transaction.run(txn)
        return _reference(answer)

    async def asubmit(self, call: Call, when: When | None = None, **options: Any) -> JobRef:
        """`submit` for async handlers."""
        job = new_job(call, when or Once(), **options)
        open_transaction = self._transaction if self._transaction and self._transaction.aconnection else None
        txn = self._pools.store.submit([job], own_transaction=open_transaction is None)
        if open_transaction is None:
            (answer,) = await self._pools.arun(txn)
        else:
            (answer,) = await open_transaction.arun(txn)
        return _reference(answer)

    def progress(self, fraction: float, note: str = "") -> None:
        """Tells how far it is, from 0 to 1; `rota show` has it after the worker's next heartbeat."""
        if not 0 <= fraction <= 1:
            raise UsageError(f"progress {fraction!r} is not from 0 to 1")
        self._attempt.progress = json.dumps({"fraction": round(fraction, 4), "note": clean(note)[:_NOTE_LIMIT]})

    def checkpoint(self, value: Any) -> None:
        """Keeps a JSON value, of RESULT_LIMIT bytes at most, for the attempts that follow, also if this worker dies.

        When it returns the value is stored. Raises Superseded if the run was taken from this attempt. In an async handler
        it waits for the store: use `await ctx.acheckpoint(...)` there.
        """
        text = self._checkpoint_text(value)
        self._check(self._pools.run(self._pools.store.checkpoint(self._attempt.job.key, self._attempt.fence, text)))
        self._attempt.checkpoint = text

    async def acheckpoint(self, value: Any) -> None:
        """`checkpoint` for async handlers."""
        text = self._checkpoint_text(value)
        txn = self._pools.store.checkpoint(self._attempt.job.key, self._attempt.fence, text)
        self._check(await self._pools.arun(txn))
        self._attempt.checkpoint = text

    @property
    def last_checkpoint(self) -> Any:
        """The last checkpoint of this run, by whichever of its attempts; None before the first one."""
        return None if self._attempt.checkpoint is None else json.loads(self._attempt.checkpoint)

    @staticmethod
    def _checkpoint_text(value: Any) -> str:
        text = clean_json(json.dumps(value, ensure_ascii=False, allow_nan=False))
        if (size := len(text.encode())) > RESULT_LIMIT:
            raise UsageError(f"a checkpoint of {size} bytes is over the limit of {RESULT_LIMIT}: store it elsewhere")
        return text

    def _check(self, written: bool) -> None:  # noqa: FBT001 - the store's answer
        if not written:
            raise superseded(self._attempt)


class HandlerTransaction:
    """One database transaction of a handler, with the fenced finish as its last statement."""

    def __init__(self, attempt: Attempt, pools: Pools, *, raw: bool) -> None:
        self._attempt = attempt
        self._pools = pools
        self._raw = raw
        self._block: Any = None
        self._root: Any = None
        self.connection: sa.Connection | None = None
        self.aconnection: AsyncConnection | None = None

    def run(self, txn: Transaction[list[Submitted]]) -> list[Submitted]:
        """A store's transaction as a part of this one."""
        assert self.connection is not None
        return self._pools.store.drive(self.connection, txn)

    async def arun(self, txn: Transaction[list[Submitted]]) -> list[Submitted]:
        """The asyncio twin of `run`."""
        assert self.aconnection is not None
        return await self._pools.store.adrive(self.aconnection, txn)

    def __enter__(self) -> Any:
        self._once()
        self.connection = self._pools.engine.connect()
        self._root = self.connection.begin()
        if not self._raw:
            return self.connection
        driver: Any = self.connection.connection.driver_connection
        self._block = driver.transaction()  # inside of which psycopg refuses commit and rollback
        self._block.__enter__()
        return driver

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self.connection
        assert connection is not None
        try:
            if error is None:
                self._check_untouched()
                self._check(self._pools.store.drive(connection, self._finish()))
        except BaseException as raised:
            self._end(connection, raised)
            raise
        self._end(connection, error)

    def _end(self, connection: sa.Connection, error: BaseException | None) -> None:
        self._attempt.committing = error is None
        try:
            if self._block is not None:
                self._block.__exit__(None if error is None else type(error), error, None)
            if error is None:
                connection.commit()
                self._attempt.completed = True
            else:
                connection.rollback()
        finally:
            self.connection = None
            connection.close()

    async def __aenter__(self) -> Any:
        self._once()
        self.aconnection = await self._pools.async_engine.connect()
        self._root = await self.aconnection.begin()
        if not self._raw:
            return self.aconnection
        driver: Any = (await self.aconnection.get_raw_connection()).driver_connection
        self._block = driver.transaction()
        await self._block.__aenter__()
        return driver

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self.aconnection
        assert connection is not None
        try:
            if error is None:
                self._check_untouched()
                self._check(await self._pools.store.adrive(connection, self._finish()))
        except BaseException as raised:
            await self._aend(connection, raised)
            raise
        await self._aend(connection, error)

    async def _aend(self, connection: AsyncConnection, error: BaseException | None) -> None:
        self._attempt.committing = error is None
        try:
            if self._block is not None:
                await self._block.__aexit__(None if error is None else type(error), error, None)
            if error is None:
                await connection.commit()
                self._attempt.completed = True
            else:
                await connection.rollback()
        finally:
            self.aconnection = None
            await connection.close()

    def _once(self) -> None:
        if self._attempt.completed:
            raise Refused(f"run {self._attempt.job.key} is completed by an earlier transaction: it has room for one")

    def _check_untouched(self) -> None:
        if not self._root.is_active:
            raise Refused(
                f"run {self._attempt.job.key}: its handler has ended the transaction of ctx.transaction() by itself, so its "
                "writes and the run's completion are not one; leave commit and rollback to the end of the `with`"
            )

    def _finish(self) -> Transaction[set[Any]]:
        attempt = self._attempt
        verdict = success(attempt.result[0] if attempt.result else None)
        end = End(attempt.job.key, attempt.fence, "succeeded", verdict.reason, verdict.result)
        return self._pools.store.finish([end])

    def _check(self, written: set[Any]) -> None:
        if not written:
            raise superseded(self._attempt)


def superseded(attempt: Attempt) -> Superseded:
    """Why an attempt may not write."""
    return Superseded(f"run {attempt.job.key} was taken from attempt {attempt.number} (fence {attempt.fence})")


def _reference(answer: Submitted) -> JobRef:
    if answer.conflict:
        raise Refused(f"{answer.conflict} was used with another request, for job {answer.job_id}")
    return JobRef(answer.job_id, answer.duplicate)
