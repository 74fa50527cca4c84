"""The protocol as a state machine: whatever order its steps come in, every tick ends, and has one effect.

hypothesis draws the steps of schedulers, workers, users, recovery and the broker, and has processes die, stand still
past their lease, lose answers and repeat statements. The store is real; the processes and the broker are what is
written here, and do what docs/protocol.md asks of them. Time moves only by `Testbed.pass_time` and `silence`, so a
failure is replayed by its steps alone.

A test module gets it with a fixture `new_house`, which gives a house on an empty store each time it is called:

    from rota.sched.store.conformance.machine import test_every_tick_ends_once_whatever_happens

`ROTA_MACHINE_EXAMPLES` asks for so many longer histories, other ones at each run.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from rota.sched.durations import rfc3339
from rota.sched.errors import Superseded
from rota.sched.ids import RunKey
from rota.sched.model import LOSSES_LIMIT
from rota.sched.scheduler.watermark import Watermark
from rota.sched.store.values import DeadFilter, End, Redrive, Return
from rota.sched.store.views import Filter
from rota.sched.timing.plan import BUFFER
from rota.sched.timing.policies import Overlap
from rota.sched.when import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rota.sched.model import Dispatch
    from rota.sched.store.conformance.house import House
    from rota.sched.store.views import Row

__all__ = ["test_every_tick_ends_once_whatever_happens"]

T = TypeVar("T")

EXAMPLES = int(os.environ.get("ROTA_MACHINE_EXAMPLES") or 0)
SETTINGS = settings(
    max_examples=EXAMPLES or 60,
    stateful_step_count=80 if EXAMPLES else 40,
    derandomize=not EXAMPLES,
    print_blob=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

LEASE = 1800.0
"""Longer than a history takes by any clock, shorter than the silence that `Testbed.silence` makes."""
DELAY = 600.0
"""Of retries and schedules: only time that is made to pass brings them about."""
ROUNDS = 6
"""After so many rounds of everybody's standing work nothing may be left."""
ALONE_FROM = 2
"""Losses from which on a run is begun alone."""
LOOK_EVERY = 5
"""Steps between looks at jobs, history and the dead; runs are looked at after each."""
EVERYTHING = Filter(limit=1000)
ERROR = '{"attempt": 1, "type": "ValueError", "message": "no"}'

Fate = Literal["succeeded", "dead", "retry", "retry by the store", "snooze", "release"]
FATES: tuple[Fate, ...] = ("succeeded", "dead", "retry", "retry by the store", "snooze", "release")

OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)

nth = st.integers(0, 9)
"""Chooses among what there is."""
rarely = st.sampled_from([False, False, False, True])


def test_every_tick_ends_once_whatever_happens(new_house: Callable[[], House]) -> None:
    # It takes any factory, and says that it takes a class.
    run_state_machine_as_test(lambda: Protocol(new_house()), settings=SETTINGS)  # type: ignore[arg-type]


@dataclass
class Attempt:
    """An execution of a run, by the message that brought it."""

    message: Dispatch
    fence: int
    worker: int

    @property
    def key(self) -> RunKey:
        return key_of(self.message)


@dataclass
class Scheduler:
    """A scheduler's process: what it has been given and the broker has not confirmed."""

    member: int
    outstanding: dict[int, Dispatch] = field(default_factory=dict)
    watermark: Watermark = field(default_factory=Watermark)

    def take(self, runs: Sequence[Dispatch]) -> None:
        runs = sorted(runs, key=lambda d: d.dispatch)
        self.watermark.add(d.dispatch for d in runs)
        self.outstanding.update((d.dispatch, d) for d in runs)


@dataclass
class Worker:
    """A worker's process: what it executes."""

    member: int
    running: list[Attempt] = field(default_factory=list)


@dataclass
class Run:
    """What must be true of a live run. `dispatch` 0: no message may begin it. `due`: not to be begun before.

    `buffered`: it waits until what is alive of its job has ended; those are released in the order of `place`.
    """

    dispatch: int
    fence: int | None = None
    owner: int | None = None
    attempt: int = 0
    losses: int = 0
    due: float = 0.0
    retrying: bool = False
    asked: bool = False
    buffered: bool = False
    place: int = 0

    @property
    def state(self) -> str:
        if self.buffered:
            return "buffered"
        if self.owner is not None:
            return "running"
        return "retrying" if self.retrying else "waiting"

    def begun(self, fence: int, owner: int) -> None:
        self.fence, self.owner, self.retrying = fence, owner, False
        self.attempt += 1

    def given_up(self, *, spent: bool = False, due: float | None = None) -> None:
        """The attempt is over, the run is not."""
        self.fence = self.owner = None
        self.retrying, self.due = due is not None, due or 0.0
        self.attempt -= not spent


def key_of(dispatch: Dispatch) -> RunKey:
    return RunKey(dispatch.job_id, dispatch.scheduled_for)


class Protocol(RuleBasedStateMachine):
    """Two schedulers, two workers, users and a broker around one store.

    Beside what the processes know stands what has really happened, answered or not: by that every answer is judged.
    """

    def __init__(self, house: House) -> None:
        super().__init__()
        self.house = house
        self.store = house.store
        self.schedulers = [Scheduler(house.join("scheduler")) for _ in range(2)]
        self.workers = [Worker(house.join("worker")) for _ in range(2)]
        self.messages: list[Dispatch] = []
        """What the broker has: queued, delayed, or delivered and not acknowledged; in any order, with copies."""
        self.steps = 0
        self.now = 0.0
        self.jobs: list[str] = []
        self.future: set[str] = set()
        self.recurring: dict[str, Overlap] = {}
        """The schedules that there ever were; one at a time of each policy."""
        self.places = 0
        self.runs: dict[RunKey, Run] = {}
        self.dead: list[RunKey] = []
        self.past: list[RunKey] = []
        self.effects: list[RunKey] = []
        self.attempts: list[Attempt] = []
        self.silent: set[int] = set()
        self.gone: list[int] = []
        """Members that are not live any more."""

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:
            self._end_everything()
        self.house.close()

    # Users.

    @rule(count=st.integers(1, 3), lost=rarely)
    def submit(self, count: int, lost: bool) -> None:
        jobs = [self.house.job() for _ in range(count)]
        self.house.submit(*jobs)
        if lost:
            self.house.submit(*jobs, repeated=True)
        self.jobs += [job.id for job in jobs]
        self.future.update(job.id for job in jobs)

    def schedule(self, overlap: Overlap) -> None:
        if overlap in self.recurring.values():
            return
        job = self.house.job(when=Schedule(every=DELAY, misfire="run_all", overlap=overlap))
        self.house.submit(job)
        self.jobs.append(job.id)
        self.future.add(job.id)
        self.recurring[job.id] = overlap

    @precondition(lambda self: self.jobs)
    @rule(n=nth, running=st.booleans())
    def cancel(self, n: int, running: bool) -> None:
        job_id = pick(self.jobs, n)
        job = self.house.shown(job_id).job
        done = self.house.run(self.store.cancel(job_id, None, running=running, reason="asked to"))
        mine = {key: run for key, run in self.runs.items() if key.job_id == job_id}
        idle = [key for key, run in mine.items() if run.owner is None]
        busy = [run for run in mine.values() if run.owner is not None]
        assert (done.job, done.runs, done.asked) == (job_id in self.future, len(idle), len(busy) if running else 0)
        if job is not None:
            self.future.remove(job_id)
            self.past.append(RunKey(job_id, job["scheduled_for"]))
        for key in idle:
            del self.runs[key]
            self.past.append(key)
        for run in busy:
            run.asked = run.asked or running

    @precondition(lambda self: self.dead)
    @rule(n=nth, discard=rarely, lost=rarely)
    def redrive(self, n: int, discard: bool, lost: bool) -> None:
        key = pick(self.dead, n)
        if discard:
            assert self.house.run(self.store.discard(DeadFilter(keys=[key]), "by the machine")).taken == [key]
            self.dead.remove(key)
            self.past.append(key)
            return
        again = self.store.redrive(DeadFilter(keys=[key]), Redrive("the machine"))
        assert self.house.run(again).taken == [key]
        if lost:
            assert self.house.run(again).taken == []
        self.dead.remove(key)
        turns = key.job_id in self.future and self.recurring.get(key.job_id, "allow") != "allow"
        waits = turns and bool(self._of(key.job_id))
        self._enter(key, Run(0, buffered=waits))

    @rule()
    def time_passes(self) -> None:
        self.house.bed.pass_time(DELAY + 1)
        self.now += DELAY + 1

    # Schedulers.

    @rule(n=nth, lost=rarely)
    def claim(self, n: int, lost: bool) -> None:
        if not self.future:
            self.submit(1, lost=False)
        self._claim(pick(self.schedulers, n), lost=lost)

    def _claim(self, s: Scheduler, *, lost: bool = False) -> None:
        cursors = {job_id: self._cursor(job_id) for job_id in self.recurring if job_id in self.future}
        try:
            once = self.house.claim_once(s.member)
            dispatches = once.dispatches + (self.house.claim(s.member).dispatches if once.recurring else [])
        except Superseded:
            assert s.member in self.gone
            self._join_anew(s)
            return
        assert s.member not in self.gone, "the dead claim nothing"
        told = {key_of(d): d.dispatch for d in dispatches}
        for job_id, cursor in cursors.items():
            self._ticks(job_id, _between(job_id, cursor, self._cursor(job_id)), told)
        for key, number in told.items():
            assert key.job_id in self.future
            assert key not in {*self.runs, *self.dead, *self.past}, "a tick is claimed once"
            self._enter(key, Run(number))
            self.future.remove(key.job_id)
        self._given(s, dispatches, lost)

    def _cursor(self, job_id: str) -> datetime:
        return datetime.fromisoformat(self.house.future(job_id)["scheduled_for"])

    def _ticks(self, job_id: str, ticks: list[RunKey], told: dict[RunKey, int]) -> None:
        """What became of the ticks of a schedule that a claim took: by its policy, and by what was alive of it."""
        overlap = self.recurring[job_id]
        if overlap == "cancel_other" and ticks:
            for key in self._of(job_id):
                self.runs[key].asked = True
                if self.runs[key].owner is None:
                    del self.runs[key]
                    self.past.append(key)
        live = len(self._of(job_id))
        waiting = len(self._of(job_id, buffered=True))
        room = {
            "allow": len(ticks),
            "skip": int(not live),
            "buffer_one": 1 + int(not live) - waiting,
            "buffer_all": BUFFER + int(not live) - waiting,
            "cancel_other": 1,
        }[overlap]
        first = max(0, len(ticks) - room) if overlap == "cancel_other" else 0
        taken = ticks[first : first + max(0, room)]
        for n, key in enumerate(taken):
            assert key not in {*self.runs, *self.dead, *self.past}, "a tick is claimed once"
            waits = overlap != "allow" and bool(live or n)
            assert waits != (key in told), "what waits for its turn is not dispatched"
            self._enter(key, Run(told.pop(key, 0), buffered=waits))
        left = [key for key in ticks if key not in taken]
        self.past += left[:1]  # one row tells of them all

    def _of(self, job_id: str, *, buffered: bool | None = None) -> list[RunKey]:
        mine = ((key, run) for key, run in self.runs.items() if key.job_id == job_id)
        return [key for key, run in mine if buffered is None or run.buffered == buffered]

    def _enter(self, key: RunKey, run: Run) -> None:
        self.places += 1
        run.place = self.places
        self.runs[key] = run

    @rule(n=nth, lost=rarely)
    def ready(self, n: int, lost: bool) -> None:
        s = pick(self.schedulers, n)
        dispatches = self.house.ready(s.member)
        assert s.member not in self.gone or not dispatches, "the dead dispatch nothing"
        for d in dispatches:
            run = self.runs[key_of(d)]
            assert run.owner is None, "what runs is not dispatched"
            assert not run.buffered, "what waits for its turn is not dispatched"
            assert run.dispatch < d.dispatch, "dispatch numbers rise"
            assert run.due <= self.now, "a retry waits for its time"
            run.dispatch, run.retrying = d.dispatch, False
        self._given(s, dispatches, lost)

    def _given(self, s: Scheduler, dispatches: Sequence[Dispatch], lost: bool) -> None:
        """What a scheduler does with its dispatches; whose answer is lost gives up its id."""
        if lost:
            self._leave(s.member)
            self._join_anew(s)
        else:
            s.take(dispatches)

    @rule(n=nth, m=nth, confirmed=st.sampled_from([True, True, False]))
    def publish(self, n: int, m: int, confirmed: bool) -> None:
        s = pick(self.schedulers, n)
        if s.outstanding:
            self._publish(s, pick(sorted(s.outstanding), m), confirmed=confirmed)

    def _publish(self, s: Scheduler, number: int, *, confirmed: bool = True) -> None:
        self.messages.append(s.outstanding[number])
        if confirmed:
            del s.outstanding[number]
            s.watermark.confirm(number)

    @rule(n=nth)
    def beats(self, n: int) -> None:
        self._beats(self._process(n))

    def _beats(self, process: Scheduler | Worker) -> None:
        mark = process.watermark.value if isinstance(process, Scheduler) else None
        if not self._beat(process.member, mark):
            self._join_anew(process)

    @rule(n=nth, dies=st.booleans(), judged=st.booleans())
    def falls_silent(self, n: int, dies: bool, judged: bool) -> None:
        """Past its lease. One that only stood still goes on afterwards, and knows of nothing."""
        self._something_runs(n)
        process = self._process(n)
        self.house.bed.silence(process.member)
        self.silent.add(process.member)
        if dies:
            self._join_anew(process)
        if judged:
            self.recover(n)

    @rule(n=nth, in_order=st.booleans())
    def leaves(self, n: int, in_order: bool) -> None:
        process = self._process(n)
        mark = None
        if isinstance(process, Scheduler):
            for number in list(process.outstanding) if in_order else []:
                self._publish(process, number)
            mark = process.watermark.value
        else:
            for attempt in list(process.running) if in_order else []:
                self._end(process, attempt, "release")
        self._leave(process.member, mark)
        self._join_anew(process)

    def _process(self, n: int) -> Scheduler | Worker:
        everybody: list[Scheduler | Worker] = [*self.workers, *self.schedulers]
        return pick(everybody, n)

    def _beat(self, member: int, watermark: int | None = None) -> bool:
        live = self.house.run(self.store.beat(member, {}, watermark)) is not None
        assert live == (member not in self.gone), "a heartbeat revives nobody"
        self.silent.discard(member)
        return live

    def _leave(self, member: int, watermark: int | None = None) -> None:
        self.house.run(self.store.leave(member, {}, watermark))
        self.gone.append(member)

    def _join_anew(self, process: Scheduler | Worker) -> None:
        """The process starts over with nothing, or another one does in its place."""
        if isinstance(process, Scheduler):
            process.__init__(self.house.join("scheduler"))  # type: ignore[misc]
        else:
            process.__init__(self.house.join("worker"))  # type: ignore[misc]

    @rule(n=nth)
    def recover(self, n: int) -> None:
        done = self.house.run(self.store.recover(pick(self.schedulers, n).member, LEASE, 0))
        assert set(done.dead_members) <= self.silent, "only the silent are judged dead"
        self.gone += done.dead_members
        lost = {key: run for key, run in self.runs.items() if run.owner in self.gone}
        cancelled = [key for key, run in lost.items() if run.asked]
        poisoned = [key for key, run in lost.items() if not run.asked and run.losses + 1 >= LOSSES_LIMIT]
        requeued = [key for key in lost if key not in {*cancelled, *poisoned}]
        assert (done.cancelled, done.poisoned, done.requeued) == (len(cancelled), len(poisoned), len(requeued))
        for key in cancelled:
            self._ended(key)
        for key in poisoned:
            self._ended(key, self.dead)
        for key in requeued:
            self.runs[key].given_up()
            self.runs[key].losses += 1

    def _something_runs(self, n: int) -> None:
        """Steps that need an attempt are no use without one."""
        if not any(w.running for w in self.workers):
            self.all_goes_well(n, n)

    @rule(n=nth, m=nth)
    def all_goes_well(self, n: int, m: int) -> None:
        """What most of a day is: a new job and whatever else can begin have begun. One by one it takes many steps."""
        self.submit(1, lost=False)
        s, w = pick(self.schedulers, n), pick(self.workers, m)
        self._claim(s)
        self.ready(n, lost=False)
        for number in list(s.outstanding):
            self._publish(s, number)
        newest = {key_of(m): m for m in self.messages}
        if newest:
            self._begin(w, list(newest.values()), alone=False)

    @rule(n=nth, m=nth, overlap=st.sampled_from(OVERLAPS))
    def a_tick_comes_while_a_run_is_alive(self, n: int, m: int, overlap: Overlap) -> None:
        """Or has: by its policy."""
        self.schedule(overlap)
        for _ in range(2):
            self.time_passes()
            self.all_goes_well(n, m)

    # The broker.

    @precondition(lambda self: self.messages)
    @rule(n=nth, doubled=st.booleans(), lost=rarely)
    def a_message_is_dead_lettered(self, n: int, doubled: bool, lost: bool) -> None:
        """Or a copy of it is."""
        message = pick(self.messages, n)
        if doubled:
            self.messages.append(message)
        key, run = key_of(message), self.runs.get(key_of(message))
        mine = run is not None and run.state in {"waiting", "retrying"} and run.dispatch == message.dispatch
        for _ in range(1 + lost):
            assert self.house.run(self.store.ready_again([(key, message.dispatch)])) == ({key} if mine else set())
        self.messages.remove(message)

    def _keep(self, message: Dispatch) -> None:
        """Given back, or sent anew through the ladder."""
        if message not in self.messages:
            self.messages.append(message)

    def _ack(self, message: Dispatch) -> None:
        if message in self.messages:
            self.messages.remove(message)

    # Workers. A message stays with the broker until it is acknowledged: another worker may get it at any time.

    @precondition(lambda self: self.messages)
    @rule(n=nth, first=nth, count=st.integers(1, 3), alone=rarely, lost=rarely)
    def begin(self, n: int, first: int, count: int, alone: bool, lost: bool) -> None:
        chosen = {key_of(m): m for m in (pick(self.messages, first + i) for i in range(count))}
        self._begin(pick(self.workers, n), list(chosen.values()), alone=alone, lost=lost)

    def _begin(self, w: Worker, messages: list[Dispatch], *, alone: bool, lost: bool = False) -> None:
        try:
            begun = self.house.begin(w.member, *messages, alone=alone)
        except Superseded:
            assert w.member in self.gone
            self._join_anew(w)
            return
        assert w.member not in self.gone, "the dead begin nothing"
        by_key = {key_of(m): m for m in messages}
        for b in begun:
            run, attempt = self.runs[b.key], Attempt(by_key.pop(b.key), b.fence, w.member)
            assert run.owner is None, "what runs is not begun again"
            assert not run.buffered, "what waits for its turn is not begun"
            assert run.dispatch == attempt.message.dispatch, "only the newest message begins a run"
            assert run.due <= self.now, "a retry waits for its time"
            assert alone or run.losses < ALONE_FROM, "what lost its workers is begun alone"
            run.begun(b.fence, w.member)
            assert (b.attempt, b.losses) == (run.attempt, run.losses)
            self.attempts.append(attempt)
            if not lost:
                w.running.append(attempt)
        if not lost:
            for message in by_key.values():
                self._settle(message)

    def _settle(self, message: Dispatch) -> None:
        """By where its run stands: a message that may be the only one its run has is kept."""
        standing, run = self.house.standing(key_of(message)), self.runs.get(key_of(message))
        assert standing.state == (run.state if run else None)
        if run is None or standing.dispatch != message.dispatch:
            self._ack(message)
        else:
            self._keep(message)

    @rule(n=nth, m=nth, fate=st.sampled_from(FATES), lost=rarely)
    def an_attempt_ends(self, n: int, m: int, fate: Fate, lost: bool) -> None:
        """Whose answer is lost will be written again, or end otherwise."""
        self._something_runs(n)
        w = pick([w for w in self.workers if w.running] or self.workers, n)
        if w.running:
            self._end(w, pick(w.running, m), fate, lost=lost)

    def _end(self, w: Worker, attempt: Attempt, fate: Fate, *, lost: bool = False) -> None:
        run = self.runs.get(attempt.key)
        shall_stop = run is not None and run.asked and run.fence == attempt.fence
        written = self._write(attempt, fate)
        if lost:
            return
        w.running.remove(attempt)
        if not written and shall_stop:
            self._write(attempt, "cancelled")
            self._ack(attempt.message)
        elif not written:
            self._settle(attempt.message)
        elif fate in {"retry", "snooze", "release"}:
            self._keep(attempt.message)
        else:
            self._ack(attempt.message)

    @precondition(lambda self: self.attempts)
    @rule(n=nth, fate=st.sampled_from(FATES))
    def a_late_statement_is_carried_out(self, n: int, fate: Fate) -> None:
        """Of any attempt there ever was: a connection that was lost, a thread that ran on, a process that woke up."""
        self._write(pick(self.attempts[::-1], n), fate)

    def _write(self, attempt: Attempt, fate: Fate | Literal["cancelled"]) -> bool:
        """Ends an attempt in the store, which takes it from the run's one valid attempt and from nobody else."""
        key, run = attempt.key, self.runs.get(attempt.key)
        mine = run is not None and run.fence == attempt.fence
        if fate == "succeeded" or fate == "dead" or fate == "cancelled":  # noqa: PLR1714 - narrows the type
            end = End(key, attempt.fence, fate, fate)
            written = self.house.run(self.store.finish_unfollowed([end])) or self.house.run(self.store.finish([end]))
            assert written == ({key} if mine else set()), "a fenced write"
            if mine:
                self._ended(key, self.dead if fate == "dead" else self.past)
            if mine and fate == "succeeded":
                assert key not in self.effects, "a tick has one effect"
                self.effects.append(key)
            return mine
        kind = "retry" if fate == "retry by the store" else fate
        seconds = 0.0 if fate == "release" else DELAY
        error = ERROR if kind == "retry" else None
        back = Return(key, attempt.fence, kind, seconds, error, from_store=fate == "retry by the store")
        written = self.house.run(self.store.give_back([back]))
        mine = mine and run is not None and not run.asked
        assert written == ({key} if mine else set()), "a fenced write"
        if run is not None and mine:
            run.given_up(spent=kind == "retry", due=None if fate == "release" else self.now + DELAY)
        return mine

    @rule(n=nth)
    def worker_compares(self, n: int) -> None:
        self._compare(pick(self.workers, n))

    def _compare(self, w: Worker) -> None:
        """Whose begin had no answer goes back."""
        owned = self.house.run(self.store.owned(w.member))
        assert {o.key: (o.fence, w.member) for o in owned} == {
            key: (run.fence, run.owner) for key, run in self.runs.items() if run.owner == w.member
        }
        held = {(a.key, a.fence) for a in w.running}
        strangers = [o for o in owned if (o.key, o.fence) not in held]
        assert self.house.run(self.store.disown(strangers)) == len(strangers)
        for o in strangers:
            if self.runs[o.key].asked:
                self._ended(o.key)
            else:
                self.runs[o.key].given_up()

    # What must hold.

    def _ended(self, key: RunKey, where: list[RunKey] | None = None) -> None:
        del self.runs[key]
        (self.past if where is None else where).append(key)
        waiting = self._of(key.job_id, buffered=True)
        if waiting and not self._of(key.job_id, buffered=False):
            self.runs[min(waiting, key=lambda k: self.runs[k].place)].buffered = False

    @invariant()
    def runs_of_a_job_follow_one_another(self) -> None:
        for job_id, overlap in self.recurring.items():
            live = self._of(job_id, buffered=False)
            if self._of(job_id, buffered=True):
                assert live, "what is buffered waits for something that is alive"
            if overlap != "allow" and job_id in self.future:
                assert len(live) <= 1, "no two of them are alive at a time"

    @invariant()
    def runs_are_what_they_must_be(self) -> None:
        rows = self.house.run(self.store.list_runs(EVERYTHING))
        runs = {key_in(row): (row["state"], row["dispatch"], row["fence"], row["owner"]) for row in rows}
        assert runs == {key: (run.state, run.dispatch, run.fence, run.owner) for key, run in self.runs.items()}
        self.steps += 1
        if self.steps % LOOK_EVERY == 0:
            self.every_tick_is_where_it_must_be_and_nowhere_else()

    def every_tick_is_where_it_must_be_and_nowhere_else(self) -> None:
        assert {row["id"] for row in self.house.run(self.store.list_jobs(EVERYTHING))} == self.future
        assert sorted(key_in(row) for row in self.house.run(self.store.list_dead(EVERYTHING))) == sorted(self.dead)
        assert sorted(key_in(row) for row in self.house.run(self.store.list_history(EVERYTHING))) == sorted(self.past)

    def _end_everything(self) -> None:
        """Nobody dies or loses an answer any more: everything ends within a few rounds of what everybody does anyway."""
        for job_id in self.recurring:
            if job_id in self.future:
                self.cancel(self.jobs.index(job_id), running=False)
        for _ in range(ROUNDS):
            for s in self.schedulers:
                for number in list(s.outstanding):
                    self._publish(s, number)
            for n, s in enumerate(self.schedulers):
                self._beats(s)
                self.recover(n)
                self._claim(s)
                self.ready(n, lost=False)
                for number in list(s.outstanding):
                    self._publish(s, number)
            for w in self.workers:
                self._beats(w)
                self._compare(w)
                for attempt in list(w.running):
                    self._end(w, attempt, "succeeded")
            for message in list(self.messages):
                self._begin(self.workers[0], [message], alone=True)
                for attempt in list(self.workers[0].running):
                    self._end(self.workers[0], attempt, "succeeded")
            if not self.runs and not self.future:
                break
            self.time_passes()
        self.runs_are_what_they_must_be()
        self.every_tick_is_where_it_must_be_and_nowhere_else()
        assert not self.future, "every job is claimed"
        assert not self.runs, "every run ends"


def pick(among: Sequence[T], n: int) -> T:
    return among[n % len(among)]


def _between(job_id: str, start: datetime, end: datetime) -> list[RunKey]:
    """The ticks of a schedule from one cursor to the next."""
    count = round((end - start).total_seconds() / DELAY)
    return [RunKey(job_id, rfc3339(start + timedelta(seconds=n * DELAY))) for n in range(count)]


def key_in(row: Row) -> RunKey:
    return RunKey(row["job_id"], row["scheduled_for"])
