"""The clients that programs and the command line use: submit, cancel, redrive, look.

`Client` and `AsyncClient` differ only in how they run a plan; what a request does is in `sched/plans.py`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from rota.sched import dead, edits, plans, requests
from rota.sched.errors import RotaError
from rota.sched.requests import JobRef, Submission, Submittable
from rota.sched.store import open_store
from rota.sched.when import Once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from rota.sched.app import Call
    from rota.sched.dead import DeadResult, Told
    from rota.sched.ids import RunKey
    from rota.sched.plans import Plan
    from rota.sched.policy import Duration, Retry
    from rota.sched.store.protocols import Store, SyncLink
    from rota.sched.store.transaction import Transaction
    from rota.sched.store.values import Cancelled, Edited, Held, Triggered
    from rota.sched.store.views import JobView
    from rota.sched.when import When

__all__ = ["AsyncClient", "Client", "JobRef", "Submission"]

T = TypeVar("T")


class Client:
    """A synchronous client on a store. Threads may share it: their requests follow one another.

    After a fork the child's client opens a connection of its own. Every method raises Unreachable where the store
    cannot
    be reached, and NotMigrated where its schema is not the one this version needs.
    """

    def __init__(self, store: Store, name: str | None = None) -> None:
        self.store = store
        self.name = name or f"client@{socket.gethostname()}"
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._link = store.link("client")
        self._inherited: list[SyncLink] = []

    @classmethod
    def open(cls, store_url: str, name: str | None = None) -> Self:
        """A client of the store that `store_url` names. Connects at the first request. UsageError for a wrong URL.

        `name` says in the lineage of runs who redrove them; by default it is the host's.
        """
        return cls(open_store(store_url), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. The client opens another when it is used again."""
        self._after_fork()
        with self._lock:
            self._link.close()

    def submit(  # noqa: PLR0913 - the words of the request
        self,
        call: Call,
        when: When = Once(),  # noqa: B008 - immutable
        *,
        key: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        retry: Retry | Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        connection: object | None = None,
    ) -> JobRef:
        """Stores a job: `handler.call(...)`, now or at `when`. When this returns, it will run.

        `key` makes it idempotent for 7 days, `name` (schedules only) as long as the schedule lives: the same request
        again
        gives the same id with `duplicate`, another one raises Conflict. `queue` instead of the handler's. Raises
        UsageError for what cannot be stored. Unreachable means that it is unknown whether it was stored, after four
        tries:
        with a key it may be submitted again safely.

        `retry` (a Retry, or some of its numbers) and `timeout` instead of the handler's; `expires`: a run may not begin later than that after it was due.

        `connection`: a `psycopg.Connection`, or SQLAlchemy's `Connection` or `Session` over psycopg 3, whose
        transaction the
        job becomes part of; the caller commits.
        """
        job = requests.new_job(
            call,
            when,
            key=key,
            name=name,
            queue=queue,
            tenant=tenant,
            retry=retry,
            timeout=timeout,
            expires=expires,
        )
        return self._do(plans.submitting(self.store, [job], borrowed=connection is not None), connection)[0]

    def submit_many(self, items: Iterable[Submittable], *, connection: object | None = None) -> list[JobRef]:
        """Stores many jobs: calls, (call, when) pairs or `Submission`s. One round trip for each 1000, in order.

        All or none of each 1000 are stored, and of all in the caller's transaction (`connection`). Raises as `submit`.
        """
        jobs = plans.new_jobs(items)
        return self._do(plans.submitting(self.store, jobs, borrowed=connection is not None), connection)

    def cancel(self, target: str, *, running: bool = False, reason: str | None = None) -> Cancelled:
        """Ends a job (id, unique prefix or name) with its runs that have not begun, or one run (JOB@T).

        `running` also asks what runs to stop. Raises NotFound where there is no such job; one that has ended already
        gives
        an answer whose `nothing` is true.
        """
        why = plans.why_cancelled(self.name, reason)
        return self._do(plans.cancelling(self.store, target, running=running, reason=why))

    def update(  # noqa: PLR0913 - the words of the request
        self,
        target: str,
        when: When | None = None,
        *,
        args: Mapping[str, Any] | None = None,
        version: int | None = None,
        run_now: bool = False,
        by: str | None = None,
        reason: str | None = None,
        **parts: Any,
    ) -> Edited:
        """Changes a stored job (id, unique prefix or name): what is not named stays as it is.

        `when` replaces the schedule with all its policies, or the instant of a job that runs once; `parts` are single words of
        `cron`, `every`, `retry`, `timeout` and `expires` (`update("nightly", tz="Europe/Rome", misfire="skip")`), None for
        the default; of a `retry` that is no Retry the numbers that are not named stay. `args` replaces the arguments.
        `version` is the one that is meant, as `get` tells it: if it was changed since, Conflict says by whom. `by` (this
        client's name) and `reason` are kept with the job.

        No tick is lost, doubled or moved by it: what was due before runs or is skipped by the old definition, the first tick
        of the new one is after now, and nothing runs at once unless `run_now`. It may be repeated safely. Raises UsageError
        for what cannot be, NotFound where there is no such job or it has no future.
        """
        edit = edits.edit(by or self.name, when, args, parts, version=version, reason=reason, run_now=run_now)
        return self._do(plans.updating(self.store, target, edit))

    def pause(self, target: str, *, by: str | None = None, reason: str | None = None) -> Held:
        """Pauses a job (id, unique prefix or name): none of its ticks is claimed. What was claimed before runs.

        Raises NotFound where there is no such job, or it has no future.
        """
        return self._do(plans.pausing(self.store, target, edits.note(by or self.name, reason)))

    def resume(self, target: str, *, by: str | None = None, reason: str | None = None) -> Held:
        """Ends a job's pause. What is late is due now: of a schedule what its misfire policy says, of others the one run."""
        return self._do(plans.resuming(self.store, target, edits.note(by or self.name, reason)))

    def trigger(self, target: str, *, by: str | None = None, reason: str | None = None) -> Triggered:
        """One run of a schedule now, beside its ticks, which stay where they are; also while it is paused.

        Raises Refused where a run of the job is alive and its overlap policy is not `allow`, and for a job that runs once.
        """
        return self._do(plans.triggering(self.store, target, edits.note(by or self.name, reason)))

    def pause_queue(self, queue: str, *, by: str | None = None, reason: str | None = None) -> Held:
        """Pauses a queue: within seconds nothing of it is claimed or dispatched any more; what the broker has of it runs."""
        return self._do(plans.single(self.store.pause_queue(queue, edits.note(by or self.name, reason))))

    def resume_queue(self, queue: str, *, by: str | None = None, reason: str | None = None) -> Held:
        """Ends a queue's pause; what is late runs as after an outage."""
        return self._do(plans.single(self.store.resume_queue(queue, edits.note(by or self.name, reason))))

    def get(self, target: str) -> JobView:
        """What is known of a job: id, unique prefix or name. Raises NotFound."""
        return self._do(plans.looking(self.store, target))

    def redrive(  # noqa: PLR0913 - the words of the request
        self,
        *runs: str | RunKey,
        queue: str | None = None,
        handler: str | None = None,
        tenant: str | None = None,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        everything: bool = False,
        limit: int | None = None,
        max_redrives: int | None = None,
        args: Mapping[str, Any] | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        progress: Told | None = None,
    ) -> DeadResult:
        """Dead runs, again: those named (JOB@T), or all that fit all filters, or `limit` of them; the oldest first.

        Attempts start anew, and so does the time within which they may begin. `error` is text within reason or errors,
        `since` and `until` are instants of death; `everything` stands for no filter. What was redriven `max_redrives`
        times already is left alone. `args` replaces the arguments, `per_second` spreads the runs. `dry_run` changes
        nothing and answers what would be done. `progress` is called after each portion, which is a transaction of its own:
        what it raises ends the redrive there, and what is done is done. So it is with Unreachable: to ask again goes on
        with the rest.

        Raises UsageError if nothing says which, and for arguments that no handler concerned can take.
        """
        which = dead.dead_filter(
            runs,
            queue=queue,
            handler=handler,
            tenant=tenant,
            error=error,
            since=since,
            until=until,
            everything=everything,
            limit=limit,
            max_redrives=max_redrives,
        )
        how = dead.how_to_redrive(self.name, args, per_second)
        return self._do(dead.redriving(self.store, runs, which, how, told=progress, dry_run=dry_run))

    def discard(  # noqa: PLR0913 - the words of the request
        self,
        *runs: str | RunKey,
        queue: str | None = None,
        handler: str | None = None,
        tenant: str | None = None,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        everything: bool = False,
        limit: int | None = None,
        max_redrives: int | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Told | None = None,
    ) -> DeadResult:
        """Dead runs, settled for good: they go to history, with `reason` and this client's name. Else as `redrive`."""
        which = dead.dead_filter(
            runs,
            queue=queue,
            handler=handler,
            tenant=tenant,
            error=error,
            since=since,
            until=until,
            everything=everything,
            limit=limit,
            max_redrives=max_redrives,
        )
        why = dead.why_discarded(self.name, reason)
        return self._do(dead.discarding(self.store, runs, which, why, told=progress, dry_run=dry_run))

    def run(self, txn: Transaction[T]) -> T:
        """Runs one of the store's transactions on this client's connection."""
        return self._do(plans.single(txn))

    def _do(self, plan: Plan[T], connection: object | None = None) -> T:
        """Runs a plan to its end."""
        step: Callable[[], Any] = plan.__next__
        while True:
            try:
                order = step()
            except StopIteration as done:
                answer: T = done.value
                return answer
            try:
                outcome = self._carry_out(order, connection)
            except RotaError as error:
                step = _throwing(plan, error)
            else:
                step = _sending(plan, outcome)

    def _carry_out(self, order: Transaction[Any] | float, connection: object | None) -> Any:
        if isinstance(order, float):
            time.sleep(order)
            return None
        if connection is not None:
            from rota.sched.store.postgres.borrowed import run_on  # noqa: PLC0415 - only who uses it pays for it

            return run_on(connection, order)
        self._after_fork()
        with self._lock:
            return self._link.run(order)

    def _after_fork(self) -> None:
        """A child must not speak, nor say goodbye, on its parent's connection."""
        if self._pid != os.getpid():
            self._inherited.append(self._link)
            self._link = self.store.link("client")
            self._lock = threading.Lock()
            self._pid = os.getpid()


class AsyncClient:
    """The asyncio twin of `Client`. Tasks may share it; it belongs to one event loop."""

    def __init__(self, store: Store, name: str | None = None) -> None:
        self.store = store
        self.name = name or f"client@{socket.gethostname()}"
        self._link = store.async_link("client")

    @classmethod
    def open(cls, store_url: str, name: str | None = None) -> Self:
        """As `Client.open`."""
        return cls(open_store(store_url), name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. The client opens another when it is used again."""
        await self._link.close()

    async def submit(  # noqa: PLR0913 - the words of the request
        self,
        call: Call,
        when: When = Once(),  # noqa: B008 - immutable
        *,
        key: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        retry: Retry | Mapping[str, Any] | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109 - of the job's attempts
        expires: Duration | None = None,
        connection: object | None = None,
    ) -> JobRef:
        """As `Client.submit`; `connection` is psycopg's or SQLAlchemy's asyncio kind."""
        job = requests.new_job(
            call,
            when,
            key=key,
            name=name,
            queue=queue,
            tenant=tenant,
            retry=retry,
            timeout=timeout,
            expires=expires,
        )
        refs = await self._do(plans.submitting(self.store, [job], borrowed=connection is not None), connection)
        return refs[0]

    async def submit_many(self, items: Iterable[Submittable], *, connection: object | None = None) -> list[JobRef]:
        """As `Client.submit_many`."""
        jobs = plans.new_jobs(items)
        return await self._do(plans.submitting(self.store, jobs, borrowed=connection is not None), connection)

    async def cancel(self, target: str, *, running: bool = False, reason: str | None = None) -> Cancelled:
        """As `Client.cancel`."""
        why = plans.why_cancelled(self.name, reason)
        return await self._do(plans.cancelling(self.store, target, running=running, reason=why))

    async def update(  # noqa: PLR0913 - the words of the request
        self,
        target: str,
        when: When | None = None,
        *,
        args: Mapping[str, Any] | None = None,
        version: int | None = None,
        run_now: bool = False,
        by: str | None = None,
        reason: str | None = None,
        **parts: Any,
    ) -> Edited:
        """As `Client.update`."""
        edit = edits.edit(by or self.name, when, args, parts, version=version, reason=reason, run_now=run_now)
        return await self._do(plans.updating(self.store, target, edit))

    async def pause(self, target: str, *, by: str | None = None, reason: str | None = None) -> Held:
        """As `Client.pause`."""
        return await self._do(plans.pausing(self.store, target, edits.note(by or self.name, reason)))

    async def resume(self, target: str, *, by: str | None = None, reason: str | None = None) -> Held:
        """As `Client.resume`."""
        return await self._do(plans.resuming(self.store, target, edits.note(by or self.name, reason)))

    async def trigger(self, target: str, *, by: str | None = None, reason: str | None = None) -> Triggered:
        """As `Client.trigger`."""
        return await self._do(plans.triggering(self.store, target, edits.note(by or self.name, reason)))

    async def pause_queue(self, queue: str, *, by: str | None = None, reason: str | None = None) -> Held:
        """As `Client.pause_queue`."""
        return await self._do(plans.single(self.store.pause_queue(queue, edits.note(by or self.name, reason))))

    async def resume_queue(self, queue: str, *, by: str | None = None, reason: str | None = None) -> Held:
        """As `Client.resume_queue`."""
        return await self._do(plans.single(self.store.resume_queue(queue, edits.note(by or self.name, reason))))

    async def get(self, target: str) -> JobView:
        """As `Client.get`."""
        return await self._do(plans.looking(self.store, target))

    async def redrive(  # noqa: PLR0913 - the words of the request
        self,
        *runs: str | RunKey,
        queue: str | None = None,
        handler: str | None = None,
        tenant: str | None = None,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        everything: bool = False,
        limit: int | None = None,
        max_redrives: int | None = None,
        args: Mapping[str, Any] | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        progress: Told | None = None,
    ) -> DeadResult:
        """As `Client.redrive`."""
        which = dead.dead_filter(
            runs,
            queue=queue,
            handler=handler,
            tenant=tenant,
            error=error,
            since=since,
            until=until,
            everything=everything,
            limit=limit,
            max_redrives=max_redrives,
        )
        how = dead.how_to_redrive(self.name, args, per_second)
        return await self._do(dead.redriving(self.store, runs, which, how, told=progress, dry_run=dry_run))

    async def discard(  # noqa: PLR0913 - the words of the request
        self,
        *runs: str | RunKey,
        queue: str | None = None,
        handler: str | None = None,
        tenant: str | None = None,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        everything: bool = False,
        limit: int | None = None,
        max_redrives: int | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Told | None = None,
    ) -> DeadResult:
        """As `Client.discard`."""
        which = dead.dead_filter(
            runs,
            queue=queue,
            handler=handler,
            tenant=tenant,
            error=error,
            since=since,
            until=until,
            everything=everything,
            limit=limit,
            max_redrives=max_redrives,
        )
        why = dead.why_discarded(self.name, reason)
        return await self._do(dead.discarding(self.store, runs, which, why, told=progress, dry_run=dry_run))

    async def run(self, txn: Transaction[T]) -> T:
        """As `Client.run`."""
        return await self._do(plans.single(txn))

    async def _do(self, plan: Plan[T], connection: object | None = None) -> T:
        step: Callable[[], Any] = plan.__next__
        while True:
            try:
                order = step()
            except StopIteration as done:
                answer: T = done.value
                return answer
            try:
                outcome = await self._carry_out(order, connection)
            except RotaError as error:
                step = _throwing(plan, error)
            else:
                step = _sending(plan, outcome)

    async def _carry_out(self, order: Transaction[Any] | float, connection: object | None) -> Any:
        if isinstance(order, float):
            await asyncio.sleep(order)
            return None
        if connection is not None:
            from rota.sched.store.postgres.borrowed import run_on_async  # noqa: PLC0415 - only who uses it pays for it

            return await run_on_async(connection, order)
        return await self._link.run(order)


def _throwing(plan: Plan[Any], error: RotaError) -> Callable[[], Any]:
    return lambda: plan.throw(error)


def _sending(plan: Plan[Any], outcome: object) -> Callable[[], Any]:
    return lambda: plan.send(outcome)
