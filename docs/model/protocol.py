"""The protocol as a state machine: what the processes, the store and the broker may do next, one step at a time.

A step is one statement of the store, one action of the broker or one event of a process. A statement is as atomic as
its transaction; its answer may be lost, and then it may still be carried out later. What a step may do is a rule, a key
of `Rules`, whose default is what the code does; README.md says where. `explore.py` walks all orders of steps.

Dispatch numbers, fences and watermarks come from one sequence and are only compared, so each state numbers them by
rank, and members likewise: that keeps the graph finite without a bound on retries and deferrals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

NORMAL, USER, FAULT = 0, 1, 2
"""Kinds of steps: what goes on by itself, what a user wants, and bad luck. Only the first may be counted on."""
ATTEMPTS = 2
"""So many real failures kill a run."""

CRASHES = ("scheduler crashes", "worker crashes", "scheduler pauses", "worker pauses")
ANSWERS = (
    "claim lost",
    "ready lost",
    "begin lost",
    "begin late",
    "finish lost",
    "finish late",
    "fail lost",
    "fail late",
)
BROKER = ("confirm lost", "returned", "cut", "duplicate", "dead letter", "deferral lost")
ALL = (*CRASHES, *ANSWERS, *BROKER, "release")


@dataclass(frozen=True)
class Rules:
    """What the protocol does, then how much of the world is looked at. The first value is the code's."""

    # Rule 1: finish, retry and the handler's transaction.
    ask_state: bool = True
    ask_fence: bool = True
    recovery_fence: Literal["clear", "keep"] = "clear"
    retry_fence: Literal["clear", "keep"] = "clear"
    effect: Literal["in the finish", "before it"] = "in the finish"
    # Rule 2: what a refused finish or retry does with its delivery.
    refused: Literal["look", "ack"] = "look"
    # Rule 3: a worker finds runs that are its own and that it does not hold.
    disown: bool = True
    # Rule 4: waiting runs of dead schedulers, above their watermark.
    adoption: Literal["sweep", "once"] = "sweep"
    # Rule 5: dispatching transactions and the watermark.
    one_claim: bool = True
    claim_lost: Literal["new id", "go on"] = "new id"
    watermark: Literal["confirmed", "sequence"] = "confirmed"
    # Rule 6: what a new dispatch number makes of a retrying run.
    dispatched_anew: Literal["waiting", "as it was"] = "waiting"
    # Rule 7: who suspects that a message is gone.
    reconciler: Literal["checked", "off", "hasty"] = "checked"
    # Rule 8: what becomes of a dead letter.
    collector: Literal["checked", "drops", "verdict"] = "checked"
    # Rule 9: publishes.
    returned: Literal["repeated", "confirmed"] = "repeated"
    deferral: Literal["confirmed", "trusted"] = "confirmed"
    # Rule 10: numbers and heartbeats.
    begin_asks_dispatch: bool = True
    fence_column: bool = True
    late_beat: Literal["refused", "revives"] = "refused"
    # Rule 11: the dead.
    recovery: Literal["sweep", "once", "none"] = "sweep"
    live_claim: bool = True
    live_begin: bool = True
    begin_judges: bool = False
    handed_back: Literal["cancelled", "goes on"] = "cancelled"  # what was asked to stop and is released or disowned
    poison: int = 0  # losses that make a run dead; 0 counts none, which is smaller (the code: LOSSES_LIMIT)

    # The world.
    ticks: int = 1
    recurring: bool = True
    workers: int = 2
    schedulers: int = 2
    prefetch: int = 1
    messages: int = 6  # states with more, those on their way to the broker included, are not looked at
    guard_copies: bool = False
    faults: tuple[str, ...] = ()
    at_once: int = 1  # how many faults one history has
    cancels: int = 0
    redrives: int = 0
    suspicions: int = 0  # how often the reconciler may be wrong

    def without(self, **changes: object) -> Rules:
        """These rules but for some."""
        return replace(self, **changes)  # type: ignore[arg-type]


class Row(NamedTuple):
    """A row of `run`. state: w(aiting), r(unning), re(t)rying. holder and failures are the checker's, not the store's."""

    state: str
    dispatch: int
    fence: int = 0
    owner: int = 0
    attempt: int = 1
    scheduler: int = 0
    cancel: int = 0
    due: int = 0
    ready: int = 0
    holder: int = 0  # the attempt of this fence has not been taken away
    failures: int = 0  # real ones
    losses: int = 0


class Message(NamedTuple):
    """place: Q(ueue), L(adder), D(ead letters, the broker's verdict), R(ejected by a worker)."""

    tick: int
    dispatch: int
    place: str


class Sent(NamedTuple):
    """A dispatch in its scheduler's hands. phase: c(laim open), o(utstanding), p(ublished)."""

    tick: int
    dispatch: int
    phase: str


class Scheduler(NamedTuple):
    """mode: u(p), p(aused). highest: the highest number that was confirmed."""

    mode: str
    id: int
    highest: int = 0
    sent: tuple[Sent, ...] = ()


class Held(NamedTuple):
    """A delivery, or what a worker does about it.

    phase: h(eld), r(uns), f(ailed, to be written), d(efer), a(ck). here: the broker still counts it as this worker's.
    """

    tick: int
    dispatch: int
    phase: str
    fence: int = 0
    here: int = 1


class Worker(NamedTuple):
    """mode: u(p), p(aused). channel: the broker has not given up on it."""

    mode: str
    id: int
    channel: int = 1
    held: tuple[Held, ...] = ()


class Member(NamedTuple):
    """A scheduler's member row."""

    id: int
    live: int
    watermark: int


class Late(NamedTuple):
    """A statement whose answer was lost and that the store may still carry out."""

    what: str
    member: int
    tick: int
    number: int


class Budget(NamedTuple):
    """What may still happen."""

    faults: int
    cancels: int
    redrives: int
    suspicions: int


class State(NamedTuple):
    """Everything. `job` by tick: 0 gone, 1 due, 2 not yet. `past` by tick: how it ended."""

    job: tuple[int, ...]
    runs: tuple[Row | None, ...]
    past: tuple[str, ...]
    effects: tuple[int, ...]
    messages: tuple[Message, ...]
    schedulers: tuple[Scheduler, ...]
    members: tuple[Member, ...]
    late: tuple[Late, ...]
    workers: tuple[Worker, ...]
    live: tuple[int, ...]  # workers whose member row is live
    budget: Budget
    top: int  # the highest number

    @property
    def ended(self) -> bool:
        """Whether every tick has."""
        return all(self.past) and not any(self.runs) and not any(self.job)


class Names(NamedTuple):
    """How a canonical state calls what another one called otherwise: schedulers, workers, numbers."""

    schedulers: dict[int, int]
    workers: dict[int, int]
    numbers: dict[int, int]


class Step(NamedTuple):
    """What happened, its kind, the state after it, and what must never happen if it has."""

    label: str
    kind: int
    state: State
    bad: str | None


def put(row: tuple[Any, ...], i: int, value: object) -> tuple[Any, ...]:
    """The tuple with another value at `i`."""
    return (*row[:i], value, *row[i + 1 :])


def drop(row: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    """The tuple without one of a value."""
    i = row.index(value)
    return row[:i] + row[i + 1 :]


def add(row: tuple[Any, ...], *values: object) -> tuple[Any, ...]:
    """A sorted tuple with more."""
    return tuple(sorted(row + values))


def initial(rules: Rules) -> State:
    """Everybody is up, the first tick is due."""
    ids = range(1, rules.schedulers + 1)
    return canonical(
        State(
            job=tuple(1 if i == 0 or not rules.recurring else 2 for i in range(rules.ticks)),
            runs=(None,) * rules.ticks,
            past=("",) * rules.ticks,
            effects=(0,) * rules.ticks,
            messages=(),
            schedulers=tuple(Scheduler("u", i) for i in ids),
            members=tuple(Member(i, 1, 0) for i in ids),
            late=(),
            workers=tuple(Worker("u", i + 1) for i in range(rules.workers)),
            live=tuple(range(1, rules.workers + 1)),
            budget=Budget(rules.at_once, rules.cancels, rules.redrives, rules.suspicions),
            top=0,
        )
    )[0]


def canonical(s: State) -> tuple[State, Names]:
    """The one state that stands for all that behave alike, and what it calls things.

    What no later step can compare is forgotten; members are numbered in the order of what they do, numbers by rank.
    """
    s = _forget(s)
    schedulers, workers = _order(s)
    members = _ranks([p.id for p in schedulers], {m.id for m in s.members} | _schedulers_named(s))
    names = _ranks([p.id for p in workers], set(s.live) | _workers_named(s))
    numbers = {0}
    for r in s.runs:
        if r:
            numbers.update((r.dispatch, r.fence))
    for p in schedulers:
        numbers.add(p.highest)
        numbers.update(x.dispatch for x in p.sent)
    numbers.update(m.watermark for m in s.members)
    numbers.update(x.number for x in s.late)
    z = {v: i for i, v in enumerate(sorted(numbers))}
    named = State(
        s.job,
        tuple(
            r
            and r._replace(
                dispatch=z[r.dispatch], fence=z[r.fence], owner=names[r.owner], scheduler=members[r.scheduler]
            )
            for r in s.runs
        ),
        s.past,
        s.effects,
        tuple(sorted(Message(m.tick, z[m.dispatch], m.place) for m in s.messages)),
        tuple(
            Scheduler(
                p.mode, members[p.id], z[p.highest], tuple(sorted(Sent(x.tick, z[x.dispatch], x.phase) for x in p.sent))
            )
            for p in schedulers
        ),
        tuple(sorted(Member(members[m.id], m.live, z[m.watermark]) for m in s.members)),
        tuple(
            sorted(
                Late(x.what, {"claim": members, "begin": names}.get(x.what, _NOBODY)[x.member], x.tick, z[x.number])
                for x in s.late
            )
        ),
        tuple(
            Worker(
                p.mode,
                names[p.id],
                p.channel,
                tuple(sorted(Held(x.tick, z[x.dispatch], x.phase, z[x.fence], x.here) for x in p.held)),
            )
            for p in workers
        ),
        tuple(sorted(names[w] for w in s.live)),
        s.budget,
        len(z) - 1,
    )
    return named, Names(members, names, z)


_NOBODY = {0: 0}


def _forget(s: State) -> State:
    """Without numbers that can match no row again, and without members that nothing names."""
    dispatches = [r.dispatch if r else -1 for r in s.runs]
    fences = [r.fence if r else 0 for r in s.runs]
    used = set()
    workers = []
    for p in s.workers:
        held = []
        for x in p.held:
            fence = x.fence if x.fence == fences[x.tick] else 0
            if fence:
                used.add((x.tick, fence))
            held.append(x._replace(dispatch=x.dispatch if x.dispatch == dispatches[x.tick] else 0, fence=fence))
        workers.append(Worker(p.mode, p.id, p.channel, tuple(held)))
    late = []
    for x in s.late:
        if x.what == "claim" or (x.what == "begin" and x.number == dispatches[x.tick]):
            late.append(x)
        elif x.what in {"finish", "fail"} and x.number and x.number == fences[x.tick]:
            late.append(x)
            used.add((x.tick, x.number))
    runs = tuple(
        r._replace(fence=0) if r and r.state != "r" and r.fence and (t, r.fence) not in used else r
        for t, r in enumerate(s.runs)
    )

    compared: dict[int, set[int]] = {}
    for r in runs:
        if r:
            compared.setdefault(r.scheduler, set()).add(r.dispatch)
    for p in s.schedulers:
        compared.setdefault(p.id, set()).update(x.dispatch for x in p.sent)
    for x in late:
        if x.what == "claim":
            compared.setdefault(x.member, set()).add(x.number)

    def seen(member: int, mark: int) -> int:
        """A watermark as the only comparisons with it see it: by the dispatches of its member."""
        return max((d for d in compared.get(member, ()) if d <= mark), default=0)

    s = s._replace(
        runs=runs,
        messages=tuple(
            Message(m.tick, m.dispatch if m.dispatch == dispatches[m.tick] else 0, m.place) for m in s.messages
        ),
        schedulers=tuple(Scheduler(p.mode, p.id, seen(p.id, p.highest), p.sent) for p in s.schedulers),
        workers=tuple(workers),
        late=tuple(late),
    )
    there = {p.id for p in s.schedulers} | _schedulers_named(s)
    working = {p.id for p in s.workers} | _workers_named(s)
    return s._replace(
        members=tuple(Member(m.id, m.live, seen(m.id, m.watermark)) for m in s.members if m.id in there),
        live=tuple(w for w in s.live if w in working),
    )


def _schedulers_named(s: State) -> set[int]:
    return {r.scheduler for r in s.runs if r} | {x.member for x in s.late if x.what == "claim"}


def _workers_named(s: State) -> set[int]:
    return {r.owner for r in s.runs if r} | {x.member for x in s.late if x.what == "begin"}


def _order(s: State) -> tuple[list[Scheduler], list[Worker]]:
    """The processes, sorted by what they do."""
    rows = {m.id: (m.live, m.watermark) for m in s.members}

    def ticks(member: int, field: Literal["scheduler", "owner"]) -> tuple[int, ...]:
        return tuple(t for t, r in enumerate(s.runs) if r and getattr(r, field) == member)

    schedulers = sorted(
        s.schedulers, key=lambda p: (p.mode, p.highest, p.sent, rows.get(p.id, (9, 0)), ticks(p.id, "scheduler"), p.id)
    )
    workers = sorted(s.workers, key=lambda p: (p.mode, p.channel, p.held, p.id in s.live, ticks(p.id, "owner"), p.id))
    return schedulers, workers


def _ranks(first: list[int], then: set[int]) -> dict[int, int]:
    """New names: the processes in their order, then the others; nobody stays nobody."""
    order = dict.fromkeys([0, *first, *sorted(then)])
    return {old: new for new, old in enumerate(order)}


def successors(s: State, rules: Rules, *, raw: bool = False) -> list[Step]:
    """All that may happen next; `raw`: with the names of `s`."""
    return _Next(s, rules, raw=raw).steps()


class _Next:
    """The steps from one state, actor by actor."""

    def __init__(self, s: State, rules: Rules, *, raw: bool) -> None:
        self.s = s
        self.rules = rules
        self.raw = raw
        self.out: list[Step] = []
        self.number = s.top + 1
        """The next of the sequence."""
        self.faults = frozenset(rules.faults if s.budget.faults else ())
        self.rows = {m.id: m for m in s.members}

    def steps(self) -> list[Step]:
        for i, p in enumerate(self.s.schedulers):
            self.scheduler(i, p)
        self.recovery()
        self.time_and_users()
        self.late_statements()
        self.broker()
        for i, w in enumerate(self.s.workers):
            self.worker(i, w)
        return self.out

    # What a step is.

    def emit(self, label: str, s: State, bad: str | None = None, kind: int = NORMAL) -> None:
        if len(s.messages) + sum(len(p.sent) for p in s.schedulers) > self.rules.messages:
            return
        if any(row and past for row, past in zip(s.runs, s.past, strict=True)):
            bad = bad or "S5 a tick in run and in history at once"
        self.out.append(Step(label, kind, s if self.raw else canonical(s)[0], bad))

    def fault(self, name: str, label: str, s: State, bad: str | None = None) -> None:
        if name in self.faults:
            self.emit(label, s._replace(budget=s.budget._replace(faults=s.budget.faults - 1)), bad, FAULT)

    def run(self, s: State, t: int, row: Row | None) -> State:
        return s._replace(runs=put(s.runs, t, row))

    def over(self, s: State, t: int, outcome: str) -> tuple[State, str | None]:
        """The tick's run ends."""
        bad = "S5 a second row in history" if s.past[t] else None
        return self.run(s, t, None)._replace(past=put(s.past, t, outcome)), bad

    # Schedulers.

    def live(self, scheduler: int) -> bool:
        row = self.rows.get(scheduler)
        return row is not None and row.live == 1

    def watermark(self, scheduler: int) -> int:
        row = self.rows.get(scheduler)
        return row.watermark if row else 0

    def dead(self, s: State, scheduler: int) -> State:
        return s._replace(members=tuple(m._replace(live=0) if m.id == scheduler else m for m in s.members))

    def joins(self, s: State, i: int) -> State:
        """The scheduler at `i` has a new id."""
        named = [m.id for m in s.members] + [p.id for p in s.schedulers]
        new = max(named + list(_schedulers_named(s))) + 1
        return s._replace(schedulers=put(s.schedulers, i, Scheduler("u", new)), members=(*s.members, Member(new, 1, 0)))

    def claimed(self, s: State, t: int, dispatch: int, scheduler: int) -> State:
        job = put(s.job, t, 0)
        if t + 1 < len(job) and job[t + 1] == 2:
            job = put(job, t + 1, 1)
        return self.run(s._replace(job=job), t, Row("w", dispatch, scheduler=scheduler))

    def locked(self, t: int) -> bool:
        """Whether the job's row is in a claim that is open."""
        return any(x.tick == t and x.phase == "c" for p in self.s.schedulers for x in p.sent) or any(
            x.what == "claim" and x.tick == t for x in self.s.late
        )

    def scheduler(self, i: int, p: Scheduler) -> None:
        s, name, alive = self.s, f"S{p.id}", self.live(p.id)

        def become(after: State, **changes: object) -> State:
            return after._replace(schedulers=put(after.schedulers, i, p._replace(**changes)))

        for x in p.sent:
            if x.phase == "c":  # the store commits, whatever the process does
                if alive or not self.rules.live_claim:
                    after = become(s, sent=add(drop(p.sent, x), x._replace(phase="o")))
                    self.emit(
                        f"{name}'s claim of tick {x.tick} commits (dispatch {x.dispatch})",
                        self.claimed(after, x.tick, x.dispatch, p.id),
                    )
                else:
                    self.emit(f"{name}'s claim finds its member dead", become(s, sent=drop(p.sent, x)))
        if p.mode == "p":
            self.emit(f"{name} resumes", become(s, mode="u"))
            if alive:
                self.scheduler_dies(f"{name}'s lease expires", s, p.id)
        else:
            self.fault("scheduler pauses", f"{name} is paused", become(s, mode="p"))
            if alive or not self.rules.live_claim:
                self.dispatching(i, p, name)
            if alive:
                self.heartbeat(p, name)
            else:
                self.emit(f"{name} notices that it was taken for dead and joins anew", self.joins(s, i))
                if self.rules.late_beat == "revives" and p.id in self.rows:
                    members = tuple(m._replace(live=1) if m.id == p.id else m for m in s.members)
                    self.emit(f"{name}'s late heartbeat is accepted", s._replace(members=members))
            self.publishing(i, p, name)
        crash = s._replace(
            late=add(s.late, *(Late("claim", p.id, x.tick, x.dispatch) for x in p.sent if x.phase == "c"))
        )
        self.fault("scheduler crashes", f"{name} crashes, another starts", self.joins(crash, i))

    def dispatching(self, i: int, p: Scheduler, name: str) -> None:
        """Claim, and ready: what gives a run a dispatch number."""
        s, n = self.s, self.number
        opened = any(x.phase == "c" for x in p.sent)
        if opened and self.rules.one_claim:
            return
        for t, r in enumerate(s.runs):
            if s.job[t] == 1 and r is None and not s.past[t] and not self.locked(t):
                sent = add(p.sent, Sent(t, n, "c"))
                after = s._replace(schedulers=put(s.schedulers, i, p._replace(sent=sent)))
                self.emit(f"{name} claims tick {t}, draws dispatch {n}", after)
            if r and r.ready and (r.state == "w" or (r.state == "t" and r.due)):
                if self.rules.dispatched_anew == "waiting":
                    row = r._replace(state="w", dispatch=n, scheduler=p.id, ready=0, due=0, fence=0)
                else:
                    row = r._replace(dispatch=n, scheduler=p.id, ready=0)
                after = self.run(s, t, row)
                sent = add(p.sent, Sent(t, n, "o"))
                self.emit(
                    f"{name} gives ready tick {t} a new number (dispatch {r.dispatch} -> {n})",
                    after._replace(schedulers=put(s.schedulers, i, p._replace(sent=sent))),
                )
                lost = self.joins(self.dead(after, p.id), i)
                self.fault(
                    "ready lost", f"{name} loses the answer that tick {t} has dispatch {n} and gives up its id", lost
                )

    def heartbeat(self, p: Scheduler, name: str) -> None:
        outstanding = [x.dispatch for x in p.sent if x.phase != "c"]
        mark = min(outstanding) - 1 if outstanding else p.highest
        if not outstanding and self.rules.watermark == "sequence":
            mark = self.s.top
        if mark > self.watermark(p.id):
            members = tuple(m._replace(watermark=mark) if m.id == p.id else m for m in self.s.members)
            self.emit(f"{name} beats, watermark {mark}", self.s._replace(members=members))

    def publishing(self, i: int, p: Scheduler, name: str) -> None:
        s = self.s

        def become(sent: tuple[Sent, ...], highest: int = p.highest) -> State:
            return s._replace(schedulers=put(s.schedulers, i, p._replace(sent=sent, highest=highest)))

        for x in p.sent:
            t, n = x.tick, x.dispatch
            rest = drop(p.sent, x)
            if x.phase == "c":
                late = Late("claim", p.id, t, n)
                label = f"{name} loses the answer of its claim of tick {t}"
                if self.rules.claim_lost == "go on":
                    self.fault("claim lost", f"{label} and goes on", become(rest)._replace(late=add(s.late, late)))
                else:
                    gone = self.dead(s, p.id)._replace(late=add(s.late, late))
                    self.fault("claim lost", f"{label} and gives up its id", self.joins(gone, i))
            elif x.phase == "o":
                after = become(add(rest, x._replace(phase="p")))
                label = f"{name} publishes tick {t} (dispatch {n})"
                self.emit(label, after._replace(messages=add(s.messages, Message(t, n, "Q"))))
                if self.rules.returned == "confirmed":
                    self.fault("returned", f"{label}: returned, counted as confirmed", after)
            else:
                self.emit(f"{name} gets the confirm of dispatch {n}", become(rest, max(p.highest, n)))
                self.fault(
                    "confirm lost",
                    f"{name} loses the confirm of dispatch {n} and will publish it again",
                    become(add(rest, x._replace(phase="o"))),
                )

    # Recovery: every step of it is one scheduler's duty, and there is always one.

    def scheduler_dies(self, label: str, s: State, member: int) -> None:
        s = self.dead(s, member)
        if self.rules.adoption == "once":
            for t, r in enumerate(s.runs):
                if r and self.unconfirmed(r, member):
                    s = self.run(s, t, r._replace(ready=1))
        self.emit(label, s)

    def worker_dies(self, label: str, member: int) -> None:
        s = self.s._replace(live=tuple(w for w in self.s.live if w != member))
        bad = None
        if self.rules.recovery == "once":
            for t, r in enumerate(s.runs):
                if r and r.state == "r" and r.owner == member:
                    _, s, bad = self.recovered(s, t, r)
        self.emit(label, s, bad)

    def unconfirmed(self, r: Row, member: int) -> bool:
        """Whether a run waits under a scheduler that may never have published it."""
        return r.state == "w" and not r.ready and r.scheduler == member and r.dispatch > self.watermark(member)

    def recovered(self, s: State, t: int, r: Row) -> tuple[str, State, str | None]:
        if r.cancel:
            return "cancelled", *self.over(s, t, "cancelled")
        losses = r.losses + 1 if self.rules.poison else 0
        if losses and losses >= self.rules.poison:
            return "dead as poison", *self.over(s, t, "dead")
        fence = 0 if self.rules.recovery_fence == "clear" else r.fence
        row = r._replace(state="w", owner=0, fence=fence, holder=0, losses=losses, ready=1)
        return "waiting and ready", self.run(s, t, row), None

    def recovery(self) -> None:
        s = self.s
        processes = {p.id for p in s.schedulers}
        for m in s.members:
            if m.id not in processes and m.live:
                self.scheduler_dies(f"the lease of S{m.id}, which is gone, expires", s, m.id)
        at_work = {w.id for w in s.workers}
        for w in s.live:
            if w not in at_work:
                self.worker_dies(f"the lease of W{w}, which is gone, expires", w)
        for t, r in enumerate(s.runs):
            if r and r.state == "r" and r.owner not in s.live and self.rules.recovery == "sweep":
                what, after, bad = self.recovered(s, t, r)
                self.emit(f"recovery: tick {t} of dead W{r.owner}: {what}", after, bad)
            if r and self.rules.adoption == "sweep" and not self.live(r.scheduler) and self.unconfirmed(r, r.scheduler):
                after = self.run(s, t, r._replace(ready=1))
                self.emit(f"recovery: waiting tick {t} of dead S{r.scheduler} (dispatch {r.dispatch}) is ready", after)
            if r and self.suspected(t, r):
                budget = s.budget._replace(suspicions=max(0, s.budget.suspicions - 1))
                after = self.run(s, t, r._replace(ready=1))._replace(budget=budget)
                self.emit(f"the reconciler misses the message of tick {t}: ready", after)

    def suspected(self, t: int, r: Row) -> bool:
        if self.rules.reconciler == "off" or r.ready or not (r.state == "w" or (r.state == "t" and r.due)):
            return False
        if self.rules.reconciler == "hasty":
            return True
        if self.live(r.scheduler) and r.dispatch > self.watermark(r.scheduler):
            return False  # it may still be on its way
        return self.s.budget.suspicions > 0 or not self.has_message(t, r.dispatch)

    def has_message(self, t: int, dispatch: int) -> bool:
        """What the reconciler finds out by waiting longer than anything takes."""
        everywhere = [*self.s.messages]
        everywhere += [x for p in self.s.schedulers for x in p.sent]
        everywhere += [x for w in self.s.workers for x in w.held if x.here]
        return any((x.tick, x.dispatch) == (t, dispatch) for x in everywhere)

    # Time and users.

    def time_and_users(self) -> None:
        s, budget = self.s, self.s.budget
        for t, r in enumerate(s.runs):
            if r and r.state == "t" and not r.due:
                self.emit(f"tick {t}'s retry is due", self.run(s, t, r._replace(due=1)))
            if budget.cancels:
                paid = s._replace(budget=budget._replace(cancels=budget.cancels - 1))
                if s.job[t] == 1 and not self.locked(t):
                    past = tuple(
                        "cancelled" if left and not how else how for left, how in zip(s.job, s.past, strict=True)
                    )
                    self.emit("the job is cancelled", paid._replace(job=(0,) * len(s.job), past=past), None, USER)
                if r and r.state != "r":
                    self.emit(f"tick {t} is cancelled", *self.over(paid, t, "cancelled"), USER)
                elif r and not r.cancel:
                    self.emit(f"tick {t} is asked to stop", self.run(paid, t, r._replace(cancel=1)), None, USER)
            if budget.redrives and s.past[t] == "dead" and r is None:
                bad = "S4 a redrive of a tick whose effect happened" if s.effects[t] else None
                after = self.run(s, t, Row("w", self.number, ready=1))  # a number that no message has
                after = after._replace(past=put(s.past, t, ""), budget=budget._replace(redrives=budget.redrives - 1))
                self.emit(f"tick {t} is redriven", after, bad, USER)

    # The worker's statements.

    def begun(self, r: Row, worker: int) -> Row | None:
        """The row after a begin that takes it."""
        lives = worker in self.s.live or not self.rules.live_begin
        stolen = r.state == "r" and self.rules.begin_judges and r.owner not in self.s.live
        if not lives or not (r.state == "w" or (r.state == "t" and r.due) or stolen):
            return None
        fence = self.number
        row = r._replace(state="r", fence=fence, owner=worker, due=0, ready=0, holder=1)
        return row if self.rules.fence_column else row._replace(dispatch=fence)

    def mine(self, r: Row | None, fence: int) -> bool:
        """Whether a fenced write finds its row."""
        if r is None or (self.rules.ask_state and r.state != "r"):
            return False
        return not self.rules.ask_fence or (fence > 0 and r.fence == fence)

    def superseded(self, r: Row, fence: int) -> bool:
        return not r.holder or r.fence != fence

    def finish(self, s: State, t: int, fence: int) -> tuple[State, bool, str | None]:
        """(after, whether it was written, what must not be) of the end with success, effect included."""
        r = s.runs[t]
        written = self.mine(r, fence)
        bad = None
        if written:
            bad = "S2 a finish of an attempt that was taken away" if self.superseded(r, fence) else None
            s, twice = self.over(s, t, "succeeded")
            bad = bad or twice
        if written or self.rules.effect == "before it":
            s = s._replace(effects=put(s.effects, t, min(2, s.effects[t] + 1)))
            bad = "S1 a second effect" if s.effects[t] > 1 else bad
        return s, written, bad

    def fail(self, s: State, t: int, fence: int) -> tuple[State, str, str | None]:
        """(after, what was written, what must not be) of the end with an error; written is empty if refused."""
        r = s.runs[t]
        if not self.mine(r, fence):
            return s, "", None
        bad = "S2 a retry of an attempt that was taken away" if self.superseded(r, fence) else None
        if r.attempt >= ATTEMPTS:
            if r.failures < ATTEMPTS:
                bad = bad or f"S6 dead after {r.failures} real failures of {ATTEMPTS}"
            s, twice = self.over(s, t, "dead")
            return s, "dead", bad or twice
        if r.cancel:
            s, twice = self.over(s, t, "cancelled")
            return s, "cancelled", bad or twice
        fence = 0 if self.rules.retry_fence == "clear" else r.fence
        row = r._replace(state="t", attempt=r.attempt + 1, owner=0, due=0, fence=fence, holder=0)
        return self.run(s, t, row), "retrying", bad

    def late_statements(self) -> None:
        for x in self.s.late:
            s, t = self.s._replace(late=drop(self.s.late, x)), x.tick
            r = s.runs[t]
            label = f"the {x.what} of tick {t} whose answer was lost"
            self.emit(f"{label} does nothing", s)
            if x.what == "claim" and (self.live(x.member) or not self.rules.live_claim):
                self.emit(f"{label} commits (dispatch {x.number})", self.claimed(s, t, x.number, x.member))
            elif x.what == "begin" and r and r.dispatch == x.number:
                row = self.begun(r, x.member)
                if row:
                    self.emit(f"{label} is carried out for W{x.member} (fence {row.fence})", self.run(s, t, row))
            elif x.what == "finish":
                after, written, bad = self.finish(s, t, x.number)
                if written:
                    self.emit(f"{label} commits (fence {x.number})", after, bad)
            elif x.what == "fail":
                after, what, bad = self.fail(s, t, x.number)
                if what:
                    self.emit(f"{label} commits (fence {x.number}): {what}", after, bad)

    # The broker, and the collector.

    def broker(self) -> None:
        s = self.s
        for m in sorted(set(s.messages)):
            rest = s._replace(messages=drop(s.messages, m))
            what = f"tick {m.tick}'s message (dispatch {m.dispatch})"
            if m.place in "DR":
                self.dead_letter(m, rest)
                continue
            if m.place == "L":
                self.emit(
                    f"the ladder returns {what}", rest._replace(messages=add(rest.messages, m._replace(place="Q")))
                )
            else:
                dead = rest._replace(messages=add(rest.messages, m._replace(place="D")))
                self.fault("dead letter", f"the broker dead-letters {what}", dead)
            self.fault("duplicate", f"the broker duplicates {what}", s._replace(messages=add(s.messages, m)))
            self.fault("message lost", f"the broker loses {what}", rest)

    def dead_letter(self, m: Message, s: State) -> None:
        t, r = m.tick, s.runs[m.tick]
        label = f"the collector takes tick {t}'s dead letter (dispatch {m.dispatch})"
        if self.rules.collector == "verdict":
            if r is None:
                self.emit(f"{label}: nothing to do", s)
                return
            stale = r.dispatch != m.dispatch
            bad = f"S7 a letter of dispatch {m.dispatch} ends dispatch {r.dispatch}" if stale else None
            if r.state == "r" and r.owner in s.live:
                bad = bad or "S7 a letter ends a run that a live worker runs"
            s, twice = self.over(s, t, "dead")
            self.emit(f"{label}: its run is dead", s, bad or twice)
        elif self.rules.collector == "checked" and r and r.dispatch == m.dispatch and r.state != "r":
            self.emit(f"{label}: ready", self.run(s, t, r._replace(ready=1)))
        else:
            self.emit(f"{label}: dropped", s)

    # Workers.

    def worker(self, i: int, w: Worker) -> None:
        s, name = self.s, f"W{w.id}"
        here = tuple(x for x in w.held if x.here)
        back = s._replace(messages=add(s.messages, *(Message(x.tick, x.dispatch, "Q") for x in here)))
        kept = tuple(sorted(x._replace(here=0) for x in w.held if x.phase in "rf"))

        def become(after: State, **changes: object) -> State:
            return after._replace(workers=put(after.workers, i, w._replace(**changes)))

        def anew(after: State) -> State:
            new = max([p.id for p in s.workers] + list(s.live) + list(_workers_named(s))) + 1
            return after._replace(workers=put(after.workers, i, Worker("u", new)), live=(*after.live, new))

        self.fault("worker crashes", f"{name} crashes, another starts", anew(back))
        if w.mode == "p":
            self.emit(f"{name} resumes", become(s, mode="u", channel=1))
            if w.id in s.live:
                self.worker_dies(f"{name}'s lease expires", w.id)
            if w.channel and here:
                given_up = become(back, channel=0, held=kept)
                self.emit(f"the broker gives up on {name}: its deliveries go back", given_up)
            return
        self.fault("worker pauses", f"{name} is paused", become(s, mode="p"))
        if here:
            self.fault("cut", f"{name}'s channel is cut: its deliveries go back", become(back, held=kept))
        if w.id not in s.live:
            # Its handlers' threads run on; what they still commit is one more late statement.
            running_on = (Late("finish", 0, x.tick, x.fence) for x in w.held if x.phase == "r" and x.fence)
            self.emit(
                f"{name} notices that it was taken for dead and joins anew",
                anew(back._replace(late=add(s.late, *running_on))),
            )
            if self.rules.late_beat == "revives":
                self.emit(f"{name}'s late heartbeat is accepted", s._replace(live=tuple(sorted((*s.live, w.id)))))
        if len(here) < self.rules.prefetch:
            for m in sorted({m for m in s.messages if m.place == "Q"}):
                held = add(w.held, Held(m.tick, m.dispatch, "h"))
                after = become(s, held=held)._replace(messages=drop(s.messages, m))
                self.emit(f"{name} receives tick {m.tick}'s message (dispatch {m.dispatch})", after)
        if self.rules.disown:
            self.disown(w)
        for x in set(w.held):
            _Hand(self, i, w, x).steps()

    def disown(self, w: Worker) -> None:
        """A worker hands back what it runs by the ledger alone."""
        s, name = self.s, f"W{w.id}"
        known = {(x.tick, x.fence) for x in w.held if x.phase in "rf"}
        for t, r in enumerate(s.runs):
            if r is None or r.state != "r" or r.owner != w.id or (t, r.fence) in known:
                continue
            if r.cancel and self.rules.handed_back == "cancelled":
                self.emit(f"{name} disowns tick {t}, which shall stop", *self.over(s, t, "cancelled"))
            else:
                row = r._replace(state="w", owner=0, fence=0, holder=0, ready=1)
                self.emit(f"{name} disowns tick {t}, which it does not hold", self.run(s, t, row))


class _Hand:
    """What a worker does with one delivery."""

    def __init__(self, around: _Next, i: int, w: Worker, x: Held) -> None:
        self.around = around
        self.rules = around.rules
        self.i = i
        self.w = w
        self.x = x
        self.name = f"W{w.id}"
        self.rest = drop(w.held, x)
        self.refused = (x._replace(phase="h", fence=0),) if x.here and self.rules.refused == "look" else ()
        """What is left of a delivery whose write was refused; one that the broker took back comes again by itself."""

    def steps(self) -> None:
        s, x = self.around.s, self.x
        message = Message(x.tick, x.dispatch, "L")
        if x.phase == "h":
            self.begin()
        elif x.phase == "r":
            self.runs()
        elif x.phase == "f":
            self.fails(f"{self.name} repeats the failure of tick {x.tick} (fence {x.fence})", s)
        elif x.phase == "d":
            label = f"{self.name} puts tick {x.tick}'s message (dispatch {x.dispatch}) into the ladder"
            after = self.left(s, x._replace(phase="a"))
            self.around.emit(f"{label}, confirmed", after._replace(messages=add(s.messages, message)))
            if self.rules.deferral == "trusted":
                self.around.fault("deferral lost", f"{label} and acks; it never arrives", self.left(s))
        else:
            self.around.emit(f"{self.name} acks tick {x.tick}'s message", self.left(s))

    def left(self, s: State, *held: Held) -> State:
        """The state after the delivery has become something else, or nothing."""
        w = self.w._replace(held=tuple(sorted(self.rest + held)))
        return s._replace(workers=put(s.workers, self.i, w))

    def begin(self) -> None:
        around, x, name, s = self.around, self.x, self.name, self.around.s
        t, r = x.tick, self.around.s.runs[x.tick]
        if r is None or (r.dispatch != x.dispatch and self.rules.begin_asks_dispatch):
            why = "no run" if r is None else f"the run has dispatch {r.dispatch}, the message {x.dispatch}"
            around.emit(f"{name} begins tick {t}: {why}: drops it", self.left(s))
            return
        late = Late("begin", self.w.id, t, x.dispatch)
        around.fault(
            "begin late", f"{name} loses the answer of its begin of tick {t}", s._replace(late=add(s.late, late))
        )
        row = around.begun(r, self.w.id)
        if row:
            after = around.run(s, t, row)
            label = f"{name} begins tick {t} (fence {row.fence})"
            bad = "S8 a run that was asked to stop begins again" if r.cancel else None
            around.emit(label, self.left(after, x._replace(phase="r", fence=row.fence)), bad)
            around.fault("begin lost", f"{label}, the answer is lost", after)
        elif self.w.id in s.live or not self.rules.live_begin:  # else it is refused, and joins anew
            around.emit(f"{name} begins tick {t}: not now: defers it", self.left(s, x._replace(phase="d")))

    def runs(self) -> None:
        around, x, name, s = self.around, self.x, self.name, self.around.s
        t, fence, r = x.tick, x.fence, self.around.s.runs[x.tick]
        again = x._replace(phase="f")
        if r and r.cancel and around.mine(r, fence):
            after, bad = around.over(self.left(s), t, "cancelled")
            around.emit(f"{name} stops tick {t}: cancelled", after, bad)
        after, written, bad = around.finish(s, t, fence)
        label = f"{name} finishes tick {t} (fence {fence})"
        if written:
            around.emit(label, self.left(after), bad)
            around.fault("finish lost", f"{label}, the answer is lost", self.left(after, again), bad)
        else:
            around.emit(f"{label}: refused", self.left(after, *self.refused), bad)
        late = add(s.late, Late("finish", 0, t, fence))
        failed = self.failed(s)
        label = f"{name} loses the connection in its finish of tick {t} (fence {fence})"
        around.fault("finish late", f"{label}: the handler raises", self.left(failed, again)._replace(late=late))
        around.fault("finish late", f"{label} and will repeat it", s._replace(late=late))
        self.fails(f"{name}'s handler fails in tick {t} (fence {fence})", failed)
        late = add(s.late, Late("fail", 0, t, fence))
        around.fault(
            "fail late",
            f"{name} loses the connection in its retry of tick {t} (fence {fence})",
            self.left(failed, again)._replace(late=late),
        )
        if r and r.cancel and self.rules.handed_back == "cancelled":
            pass  # its release is refused, and it stops as above
        elif around.mine(r, fence) and x.here:
            row = r._replace(state="w", owner=0, fence=0, holder=0)
            after = around.run(self.left(s), t, row)
            after = after._replace(messages=add(s.messages, Message(t, x.dispatch, "Q")))
            around.fault("release", f"{name} drains: hands tick {t} back", after)
        if self.rules.guard_copies and x.here:
            copied = self.left(s, x._replace(here=0))._replace(messages=add(s.messages, Message(t, x.dispatch, "L")))
            around.emit(f"{name} puts a guard copy of tick {t} into the ladder and acks", copied)

    def failed(self, s: State) -> State:
        """The handler has failed, by this attempt's own right."""
        r = s.runs[self.x.tick]
        if r is None or not self.x.fence or self.around.superseded(r, self.x.fence):
            return s
        return s._replace(runs=put(s.runs, self.x.tick, r._replace(failures=min(ATTEMPTS, r.failures + 1))))

    def fails(self, label: str, s: State) -> None:
        """The fenced write of a failure, and what becomes of the message."""
        around, x = self.around, self.x
        message = Message(x.tick, x.dispatch, "L")
        after, what, bad = around.fail(s, x.tick, x.fence)
        if not what:
            around.emit(f"{label}: refused", self.left(after, *self.refused), bad)
            return
        if what == "retrying" and x.here:
            settled = self.left(after, x._replace(phase="d", fence=0))
        elif what == "retrying":  # its delivery is the broker's again; the copy is one too many
            settled = self.left(after)._replace(messages=add(after.messages, message))
        elif what == "dead" and self.rules.collector == "verdict":
            settled = self.left(after)._replace(messages=add(after.messages, message._replace(place="R")))
        else:
            settled = self.left(after)
        around.emit(f"{label}: {what}", settled, bad)
        around.fault("fail lost", f"{label}: {what}, the answer is lost", self.left(after, x._replace(phase="f")), bad)
