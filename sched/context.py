"""What a handler may ask of its `ctx`. The real one is made by the worker; tests may pass their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    import psycopg
    import sqlalchemy as sa
    from rota.sched.app import Call
    from rota.sched.requests import JobRef
    from rota.sched.when import When
    from sqlalchemy.ext.asyncio import AsyncConnection


S_co = TypeVar("S_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)


class BothTransaction(Protocol[S_co, A_co]):
    """`with` in a sync handler gives a connection, `async with` in an async one its asyncio twin."""

    def __enter__(self) -> S_co: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    async def __aenter__(self) -> A_co: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Context(Protocol):
    """One attempt of a run, as its handler sees it."""

    @property
    def job_id(self) -> str:
        """The job's id."""

    @property
    def scheduled_for(self) -> datetime:
        """The nominal tick, UTC: together with `job_id` the identity of this run."""

    @property
    def is_catchup(self) -> bool:
        """Whether the tick was claimed late: a later one was due as well, or it was over its grace (60 s if none is given).

        The same for every attempt and redrive. False for a job without a schedule.
        """

    @property
    def missed(self) -> int | None:
        """How many ticks were skipped between the last one that became a run and this one; None if too many to count.

        0 on time. The same for every attempt and redrive.
        """

    @property
    def attempt(self) -> int:
        """Which execution this is, from 1. Executions that lost their worker do not count."""

    @property
    def fence(self) -> int:
        """Rises with every attempt of this run: a resource that keeps the highest can refuse a stale writer."""

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt and redrive of this run, and of no other."""

    @property
    def deadline(self) -> datetime | None:
        """When the handler's timeout ends (this host's clock), None without one."""

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop: it was cancelled, handed back, or is past its timeout."""

    @overload
    def transaction(self, *, raw: Literal[False] = False) -> BothTransaction[sa.Connection, AsyncConnection]: ...
    @overload
    def transaction(
        self, *, raw: Literal[True]
    ) -> BothTransaction[psycopg.Connection[Any], psycopg.AsyncConnection[Any]]: ...
    def transaction(self, *, raw: bool = False) -> Any:
        """Commits the handler's writes and the run's completion together, or neither.

        Gives a connection of SQLAlchemy, or with `raw` of psycopg. It is not the handler's to commit.
        """

    def result(self, value: Any) -> None:
        """Sets the run's result, a JSON value; one of more than 64 kB is not kept."""

    def submit(self, call: Call, when: When | None = None, **options: Any) -> JobRef:
        """Submits a job; inside a transaction of this context, with it. For sync handlers."""

    async def asubmit(self, call: Call, when: When | None = None, **options: Any) -> JobRef:
        """`submit` for async handlers."""

    def progress(self, fraction: float, note: str = "") -> None:
        """Tells how far it is, from 0 to 1; `rota show` prints it."""

    def checkpoint(self, value: Any) -> None:
        """Keeps a JSON value for the attempts that follow, also if this worker dies. For sync handlers."""

    async def acheckpoint(self, value: Any) -> None:
        """`checkpoint` for async handlers."""

    @property
    def last_checkpoint(self) -> Any:
        """The last checkpoint of this run, by whichever of its attempts; None before the first one."""
