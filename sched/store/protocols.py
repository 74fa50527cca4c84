"""What a store is: one protocol for each role, and `Store`, which has them all.

A method is a transaction: it returns a `Transaction`, which does nothing until a link runs it, and whose effect is all
or none. If two writes must be atomic they are one method. Methods take and give batches. Times are the store's own.

**Zero rows have a meaning**, and each method says which. What a conditional write returns is exactly what it wrote:
a key that is missing was not written, because the row was gone, had another state or another fence. It is never an
error and never a reason to acknowledge a message: the caller looks at the row (`look`) and settles by what it finds.

Every transaction may be sent again after a lost answer.

**Whatever ends a run lets the next one go** that is buffered behind it, in the same transaction (docs/schedules.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import psycopg
    import sqlalchemy as sa
    from rota.sched.edits import Edit, Note
    from rota.sched.ids import RunKey
    from rota.sched.store.transaction import Transaction
    from rota.sched.store.values import (
        Begun,
        Cancelled,
        Claimed,
        DeadBatch,
        DeadFilter,
        DeadSurvey,
        Death,
        Edited,
        End,
        HandlerRow,
        Held,
        Lanes,
        Look,
        NewJob,
        NewMember,
        Owned,
        Readied,
        Recovered,
        Redrive,
        Retained,
        Return,
        Standing,
        Submitted,
        Triggered,
    )
    from rota.sched.store.views import Filter, HealthView, HistoryView, JobView, Row, StatusView, UpkeepView
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T")


class SyncLink(Protocol):
    """A connection that runs transactions one after the other. One thread at a time."""

    def run(self, txn: Transaction[T]) -> T:
        """Begins, drives the steps, commits.

        Unreachable: the outcome is unknown. Other RotaErrors: nothing was written.
        """

    def close(self) -> None:
        """Closes it; the link opens itself again when it is used."""


class AsyncLink(Protocol):
    """The asyncio twin of SyncLink: tasks wait for each other."""

    async def run(self, txn: Transaction[T]) -> T:
        """Begins, drives the steps, commits.

        Unreachable: the outcome is unknown. Other RotaErrors: nothing was written.
        """

    async def connection(self) -> psycopg.AsyncConnection[Any]:
        """The open connection, for LISTEN."""

    @property
    def pooled(self) -> bool:
        """Whether the open connection is a pooler's, which lends a session for one transaction: nothing is heard."""

    async def close(self) -> None:
        """Closes it; the link opens itself again when it is used."""


class Submission(Protocol):
    """The future's way in, and what ends a life by a user's will."""

    def submit(
        self, jobs: Sequence[NewJob], *, repeated: bool = False, own_transaction: bool = True
    ) -> Transaction[list[Submitted]]:
        """Stores jobs, all or none, and answers each in order; no two of them have the same scope and key.

        `repeated`: an earlier try with the same ids has an unknown outcome. `own_transaction` False: the commit is
        the caller's and comes later.
        """

    def cancel(self, job_id: str, scheduled_for: str | None, *, running: bool, reason: str) -> Transaction[Cancelled]:
        """Ends a job, or one run of it. Nothing found: `Cancelled.nothing`; it has ended, or never was."""


class Changing(Protocol):
    """What is done to jobs that have a future, by whom and why. Each has its job's row alone, as a claim has."""

    def update(self, job_id: str, edit: Edit) -> Transaction[Edited]:
        """Changes a definition; no tick is lost or doubled by it. The same edit sent again changes nothing.

        NotFound, Conflict (another version), UsageError, or Refused (`run_now`, as `trigger`): nothing is changed.
        """

    def pause(self, job_id: str, note: Note) -> Transaction[Held]:
        """Keeps a job from being claimed. NotFound: it has no future."""

    def resume(self, job_id: str, note: Note) -> Transaction[Held]:
        """Ends a pause; a tick whose time has passed is due at once, and its misfire policy decides."""

    def trigger(self, job_id: str, note: Note) -> Transaction[Triggered]:
        """One more run, whose tick is the store's now; the cursor stays. The same note sent again adds none.

        Refused where a run of the job is alive and its overlap policy is not `allow`, and for jobs that run once.
        """

    def pause_queue(self, queue: str, note: Note) -> Transaction[Held]:
        """Keeps all of a queue from being claimed and dispatched. NotFound: there is no such queue."""

    def resume_queue(self, queue: str, note: Note) -> Transaction[Held]:
        """Ends a queue's pause."""


class DeadSet(Protocol):
    """What failed for good. The methods that take `DeadFilter` do one portion of a walk, the oldest death first."""

    def survey_dead(self, which: DeadFilter) -> Transaction[DeadSurvey]:
        """The store's time, and how many dead runs of each handler a walk is going to look at."""

    def choose_dead(self, which: DeadFilter, *, alive: bool = False) -> Transaction[DeadBatch]:
        """What a redrive would take, or with `alive` (what is alive again, too) a discard; nothing is changed."""

    def redrive(self, which: DeadFilter, how: Redrive) -> Transaction[DeadBatch]:
        """Dead runs, again. A key that is nowhere in the answer is not dead (any more), or does not fit."""

    def discard(self, which: DeadFilter, told: str) -> Transaction[DeadBatch]:
        """Dead runs, settled for good: history with `told` and what they died of. What is missing: as for `redrive`."""

    def whereabouts(self, keys: Sequence[RunKey]) -> Transaction[dict[RunKey, str | None]]:
        """State or outcome of runs that are not dead; None for what is nowhere."""


class Scheduling(Protocol):
    """From due to dispatched."""

    def claim(self, member: int, lanes: Lanes, limit: int, per_lane: int) -> Transaction[Claimed]:
        """Moves due ticks into runs under new dispatch numbers; those that have to wait for their turn get none.

        No rows: nothing is due. Superseded: not live any more.
        """

    def claim_once(self, member: int, lanes: Lanes, limit: int, per_lane: int) -> Transaction[Claimed]:
        """As `claim`, and cheaper, of jobs that run once. `recurring`: others are due, too, and were left to `claim`."""

    def ready(self, member: int, lanes: Lanes, limit: int, per_lane: int | None = None) -> Transaction[Readied]:
        """Gives runs whose ready_at has come a new dispatch number, lane by lane, `per_lane` of each at most.

        None: nothing is ready, or the member is not live.
        """

    def sleep(self, member: int, lanes: Lanes, longest: float) -> Transaction[Look]:
        """What is due or when the next thing is, and the promise to look then, `longest` seconds from now at most.

        Superseded: not live any more.
        """

    def wake(self, member: int) -> Transaction[None]:
        """Takes the promise back. Nothing to take back is no matter."""


class Working(Protocol):
    """From begun to ended; every write is fenced."""

    def begin(
        self, member: int, refs: Sequence[tuple[RunKey, int, bool]], *, alone: bool = False
    ) -> Transaction[list[Begun]]:
        """Takes runs under their dispatch numbers.

        What is missing was not taken: `look`. Superseded: not live any more.
        """

    def look(self, keys: Sequence[RunKey], lease: float) -> Transaction[dict[RunKey, Standing]]:
        """Where runs stand; every key is answered, with state None where there is no run."""

    def finish(self, ends: Sequence[End]) -> Transaction[set[RunKey]]:
        """Ends attempts for good, and lets go what waits for that.

        What is missing lost its fence, or was finished by an earlier try: `look`.
        """

    def finish_unfollowed(self, ends: Sequence[End]) -> Transaction[set[RunKey]]:
        """As `finish`, and cheaper, of what nothing waits for. What is missing may be waited for: `finish`."""

    def give_back(self, returns: Sequence[Return]) -> Transaction[set[RunKey]]:
        """Ends attempts for now. What is missing lost its fence, or its cancel was asked for: `look`."""

    def owned(self, member: int, keys: Collection[RunKey] | None = None) -> Transaction[list[Owned]]:
        """The runs that the store says this worker runs; only those among `keys`, unless that is None."""

    def set_aside(self, refs: Sequence[tuple[RunKey, int]], after: float) -> Transaction[list[Death]]:
        """Runs whose handler their worker does not know. What is missing from the answer lives on: defer its message."""

    def checkpoint(self, key: RunKey, fence: int, value: str) -> Transaction[bool]:
        """Keeps a checkpoint. False: the attempt was superseded."""

    def progress(self, told: Sequence[tuple[RunKey, int, str]]) -> Transaction[int]:
        """Keeps how far attempts are. Fewer than told: the others were superseded."""

    def disown(self, owned: Sequence[Owned]) -> Transaction[int]:
        """Sends runs back to waiting whose begin had no answer. Returns how many; the others went on by themselves."""


class Membership(Protocol):
    """Who takes part, what it can run, and its share."""

    def join(self, new: NewMember) -> Transaction[int]:
        """Enters a process under a new id."""

    def beat(self, member: int, stats: Mapping[str, Any], watermark: int | None = None) -> Transaction[str | None]:
        """A heartbeat; the store's day (UTC). None: not live any more; drop everything and join under a new id."""

    def leave(
        self, member: int, stats: Mapping[str, Any] | None = None, watermark: int | None = None
    ) -> Transaction[None]:
        """Ends a membership. One that is over already stays so."""

    def partitions(self, member: int) -> Transaction[list[int]]:
        """Takes and gives up partitions for even shares; returns those of the member.

        None: it is too many schedulers.
        """

    def queues(self) -> Transaction[list[tuple[str, int]]]:
        """Every queue that is not paused, with its cap on what is published and not begun."""

    def announce(self, handlers: Sequence[HandlerRow], queues: Sequence[str]) -> Transaction[None]:
        """Tells what a worker can run."""

    def handlers(self, names: Sequence[str]) -> Transaction[dict[str, HandlerRow]]:
        """The announced ones among `names`. What is missing no worker has ever announced."""


class Duties(Protocol):
    """Standing work that one scheduler does for all."""

    def expire(self, keys: Collection[RunKey] | None = None) -> Transaction[int]:
        """Ends runs that did not begin in time, whoever asks; only those among `keys`, unless that is None.

        0: none is late, or others are at it.
        """

    def recover(self, member: int, lease: float, every: float) -> Transaction[Recovered]:
        """One round of recovery, `every` seconds after the last or when there is something to judge.

        `ran` False: not due, or another scheduler has it. `again_s` tells when to ask again.
        """

    def make_history(self) -> Transaction[None]:
        """Makes history's days ahead."""

    def retain(self, member: int, keep: float, every: float) -> Transaction[Retained]:
        """Takes the duty of history for `every` seconds and makes days ahead; which ended over `keep` seconds ago."""

    async def drop_day(self, link: AsyncLink, day: str) -> str | None:
        """Lets a day go without holding up what ends runs. Why it is still there; None: it is gone."""

    def note_retention(self, keep: float, why: Mapping[str, str]) -> Transaction[None]:
        """Notes how long history is kept, and why which days that have to go are still there."""

    def forget_keys(self) -> Transaction[bool]:
        """Forgets idempotency keys whose time is over. True: there may be more."""

    def reconcile(self, member: int, empty: Sequence[str], after: float, every: float) -> Transaction[list[RunKey]]:
        """Has runs dispatched anew whose message seems to be gone. None: all is well, or the duty was not due."""

    def upkeep(self) -> Transaction[UpkeepView]:
        """Dead rows of the tables that change all the time, and who keeps them from being removed."""

    def move_number(self, beyond: int) -> Transaction[int]:
        """Has dispatch numbers and fences go on far beyond `beyond` and all that is known; returns from where."""

    def ready_again(self, refs: Sequence[tuple[RunKey, int]]) -> Transaction[set[RunKey]]:
        """Has runs dispatched anew whose message was dead-lettered under this dispatch number.

        What is missing needs no message from us: it has ended, has another number, or runs (recovery looks after it).
        """


class Reading(Protocol):
    """What people and scripts look at; nothing is locked, and nothing here counts a large table."""

    def resolve(self, text: str) -> Transaction[str]:
        """The full id that an id, a unique prefix or a schedule's name means. Raises NotFound, or Refused for many."""

    def show(self, job_id: str, past: int = 20) -> Transaction[JobView | None]:
        """All that is known of a job. None: nothing is; it never was, or its history was dropped."""

    def list_jobs(self, which: Filter) -> Transaction[list[Row]]:
        """Jobs that have a future."""

    def list_schedules(self, which: Filter) -> Transaction[list[Row]]:
        """All schedules that are not paused, whatever the limit: `id`, `schedule`, `scheduled_for`."""

    def list_runs(self, which: Filter) -> Transaction[list[Row]]:
        """Live runs."""

    def list_history(self, which: Filter) -> Transaction[list[Row]]:
        """Ended runs."""

    def days(self) -> Transaction[HistoryView]:
        """The days of history."""

    def extent(self, day: str) -> Transaction[int | None]:
        """How many blocks a day of history has just now. None: there is no such day."""

    def read_day(self, day: str, first: int, last: int) -> Transaction[list[Row]]:
        """The rows of a day within some of its blocks. None: there are none, or they are not committed yet."""

    def list_dead(self, which: Filter) -> Transaction[list[Row]]:
        """Dead runs."""

    def known_handlers(self, limit: int = 1000) -> Transaction[list[str]]:
        """Names of announced handlers, for messages."""

    def health(self) -> Transaction[HealthView]:
        """The store's own state, for `rota doctor`."""

    def status(self) -> Transaction[StatusView]:
        """One picture of everything."""


class Store(Submission, Changing, DeadSet, Scheduling, Working, Membership, Duties, Reading, Protocol):
    """All roles, the links that run their transactions, and the schema's migrations."""

    @property
    def url(self) -> str:
        """Where it is, with its password: for the driver only."""

    @property
    def masked_url(self) -> str:
        """Where it is, for people and logs."""

    @property
    def wake_channel(self) -> str:
        """The channel on which a submit wakes sleeping schedulers."""

    def link(self, purpose: str) -> SyncLink:
        """A connection of one's own, opened when it is used first."""

    def async_link(self, purpose: str) -> AsyncLink:
        """The asyncio twin of `link`."""

    def engine(self, purpose: str, size: int) -> sa.Engine:
        """A pool of `size` connections for handlers' transactions."""

    def async_engine(self, purpose: str, size: int) -> AsyncEngine:
        """The asyncio twin of `engine`."""

    def drive(self, connection: sa.Connection, txn: Transaction[T]) -> T:
        """Runs a transaction's statements as a part of the one that is open on `connection`."""

    async def adrive(self, connection: AsyncConnection, txn: Transaction[T]) -> T:
        """The asyncio twin of `drive`."""

    def migrate(self) -> str:
        """Brings the schema up to date; idempotent and safe from many hosts at once. Returns its version then."""

    def migration_sql(self) -> str:
        """The statements that `migrate` would run on an empty store."""

    def close(self) -> None:
        """Ends what the store itself holds; links and engines belong to who opened them."""
