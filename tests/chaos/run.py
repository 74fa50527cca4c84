"""Chaos that anyone can start: `make chaos SECONDS=120 JOBS=1500 SEED=7 FAULTS=broker,cut` (all optional).

Jobs of every sort are submitted all the while, and processes, servers, connections, messages and clocks fail as the seed
says (plan.py). Then everything is let alone until nothing is owed, and what was acknowledged is looked for among the
effects. The last line is one JSON object. Exit 1 if anything was lost or had its effect twice, or if a member ended as it
should not; logs are kept then.

Beside the figures that the demo has: `ticks` that the schedules owed; `faults` by kind, `n` with how many of them had a
run in flight where they struck (`in_flight`); `guard_copies`, messages that were held for long and replaced by a copy; `stale_writes_rejected`, writes of attempts that had lost their run;
`recovery`, seconds from a fault to the first effect of a run that it hit in flight (the time that its handler takes
included).
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "compose"))

from accounts import Accounts, Acknowledged  # noqa: E402 - found by the line above, as are the others
from faults import Faults  # noqa: E402
from load import ByAmqp, ByApi, Canceller, Order, insist, schedules  # noqa: E402
from plan import JOBS_PER_SECOND, KINDS, SHORTEST, USUAL, Plan, draw  # noqa: E402
from progress import Progress  # noqa: E402
from rota import Client, Unreachable  # noqa: E402
from servers import signals  # noqa: E402
from servers.errors import ServerError  # noqa: E402
from world import World, world  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plan import Batch

ANSWERED = 120.0
"""Seconds for the submissions that are not answered yet, after the last fault."""
SETTLE = 240.0
"""Seconds for what is still owed then."""
SLOW = 30.0
"""Seconds; a recovery that took longer is told with all that is known of its job."""
NOTICE = 60.0
"""Seconds for threads to end that are in the middle of a fault."""

TABLES = {
    "rota.job": "id",
    "rota.run": "job_id",
    "rota.dead": "job_id",
    "rota.history": "job_id",
    "demo_effect": "job",
    "demo_plain": "job",
    "demo_seen": "job",
}
"""Where there may be traces of a job, and the column with its id."""
DEAD = """
select job_id::text || '@' || to_char(scheduled_for at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), handler, args
from rota.dead
"""
FIXED = ("broken", "poison")
"""Handlers that work when they are redriven with `fixed`."""
RECOVERED = """
select extract(epoch from e.time - %s)::float8, e.job::text from unnest(%s::uuid[], %s::timestamptz[]) as r (job, tick)
join (select * from demo_effect union all select * from demo_plain) e using (job, tick) where e.time > %s
order by e.time limit 1
"""


class Run:
    """One run of chaos."""

    def __init__(self, made: World, plan: Plan, progress: Progress) -> None:
        self.world = made
        self.plan = plan
        self.progress = progress
        self.acks = Acknowledged()
        self.accounts = Accounts(self.acks, made.database.rows)
        self.amqp = ByAmqp(made, self.acks)
        self.senders: dict[str, ByApi | ByAmqp] = {"api": ByApi(made, self.acks), "amqp": self.amqp}
        self.canceller = Canceller(made, self.acks, self.amqp)
        self.faults = Faults(made, self.submit)
        self.client = Client.open(made.store_url)
        self._redriving: set[str] = set()
        """What is being redriven by AMQP."""
        self._redriven: SimpleQueue[tuple[str, int]] = SimpleQueue()
        """And what was, with how many."""
        self._redrives = 0
        self.threads: list[threading.Thread] = []

    def go(self) -> dict[str, Any]:
        """Breaks things, waits, counts."""
        try:
            self._break()
            self._settle()
        finally:
            with signals.ignored():
                self.world.stopping.set()
                for thread in self.threads:
                    thread.join(NOTICE)
                self.client.close()
        self.progress.say("draining the members")
        self.world.crew.finish()
        return self._figures()

    def submit(self, batch: Batch) -> None:
        """Hands a batch to whom it is for."""
        self.senders[batch.sender].put(batch)

    def _break(self) -> None:
        """Load and faults until the plan is done."""
        self.progress.restart()
        schedules(self.world.store_url, self.acks)
        for sender in self.senders.values():
            self._thread(sender.run)
        self._thread(self.canceller.run)
        lanes = {kind.lane for kind in KINDS.values()}
        busy = [self._thread(self._feed), *(self._thread(self._lane, lane) for lane in lanes)]
        while any(thread.is_alive() for thread in busy):
            self._show()
            self._redrive()
            time.sleep(0.5)

    def _thread(self, target: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                target(*args)
            except BaseException as error:  # noqa: BLE001 - told in the figures
                if not self.world.stopping.is_set():
                    self.acks.errors.append(f"{target.__name__}: {error!r}")

        thread = threading.Thread(target=guarded, name=target.__name__, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def _feed(self) -> None:
        for batch in self.plan.batches:
            self._wait_for(batch.at)
            self.submit(batch)

    def _lane(self, lane: Any) -> None:
        for fault in self.plan.of(lane):
            self._wait_for(fault.at)
            if self.world.stopping.is_set():
                return
            self.faults.run(fault)

    def _wait_for(self, at: float) -> None:
        self.world.stopping.wait(max(0.0, self.progress.begun + at - time.monotonic()))

    def _settle(self) -> None:
        """Lets everything answer, tick once more, end, and be redriven."""
        self.progress.say("no more faults: waiting for what is owed")
        if not self._until(lambda: all(sender.idle for sender in self.senders.values()), ANSWERED):
            self.acks.errors.append("some submissions were never answered")
        if not self._until(lambda: self.canceller.idle, ANSWERED):
            self.acks.errors.append("some jobs could not be cancelled")
        last = self.accounts.value("select count(*) from demo_effect")
        newer = "select count(distinct job) from (select job from demo_effect order by time offset %s) e where job = any(%s::uuid[])"
        ids = list(self.acks.schedules)
        self._until(lambda: self.accounts.value(newer, last, ids) == len(ids), ANSWERED / 2)
        for job in self.acks.schedules:
            insist(self.world, partial(self.client.cancel, job))
        self._until(lambda: self._redrive() and self.accounts.settled(), SETTLE)

    def _redrive(self) -> bool:
        """Everything dead, the broken with a fixed argument, every other by AMQP; whether nothing was.

        A store that is away is not waited for, nor an answer by AMQP.
        """
        while not self._redriven.empty():
            run, count = self._redriven.get()
            self._redriving.discard(run)
            self._count_redriven(count)
        dead = self.world.database.rows(DEAD)
        for run, handler, args in dead:
            if run in self._redriving:
                continue
            fixed = {**args, "fixed": True} if handler in FIXED else None
            self._redrives += 1
            if self._redrives % 2:
                with suppress(Unreachable):
                    self._count_redriven(len(self.client.redrive(run, args=fixed)))
            else:
                self._redriving.add(run)
                body = {"runs": [run], **({} if fixed is None else {"args": fixed})}
                done = partial(self._redriven_by_amqp, run)
                self.amqp.ask(Order(f"redrive-{self._redrives}-{run}", "job.redrive", body, done))
        return not dead and self.amqp.idle

    def _redriven_by_amqp(self, run: str, answer: Mapping[str, Any]) -> None:
        self._redriven.put((run, answer["redriven"]))

    def _count_redriven(self, count: int) -> None:
        self.accounts.died += count
        self.accounts.redriven += count

    def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                return False
            self._show()
            time.sleep(0.3)
        return True

    def _show(self) -> None:
        self.progress.show(self._picture)

    def _picture(self) -> Mapping[str, str]:
        runs = self.world.database.rows("select state, count(*) from rota.run group by 1 order by 1")
        return {
            "faults": f"{len(self.faults.hits)} of {len(self.plan.faults)}",
            "submitted": str(self.acks.total),
            "effects": str(self.accounts.effects()),
            "runs": ", ".join(f"{state} {n}" for state, n in runs),
        }

    def _figures(self) -> dict[str, Any]:
        recovered = self._recoveries()
        for seconds, job, what in recovered:
            if seconds > SLOW:
                self.progress.say(f"it took {seconds:.1f} s to recover from: {what}")
                self._tell(job)
        hits = Counter(hit.kind for hit in self.faults.hits)
        in_flight = Counter(hit.kind for hit in self.faults.hits if hit.runs)
        return {
            **self.accounts.figures(),
            "seed": self.plan.seed,
            "ticks": self.accounts.ticks(),
            "faults": {kind: {"n": n, "in_flight": in_flight[kind]} for kind, n in sorted(hits.items())},
            "guard_copies": self.world.guard_copies(),
            "stale_writes_rejected": self.world.stale_writes_rejected(),
            "recovery_p50_s": round(statistics.median(seconds for seconds, _, _ in recovered), 2)
            if recovered
            else None,
            "recovery_max_s": round(recovered[-1][0], 2) if recovered else None,
            "bad_exits": len(self.world.crew.bad_exits),
        }

    def _recoveries(self) -> list[tuple[float, str, str]]:
        """For each fault that had something in flight: the seconds, the job of that first effect, and what it was."""
        found = []
        for hit in self.faults.hits:
            runs = [(job, tick) for job, tick in hit.runs if job not in self.acks.broken]
            if runs:
                ids, ticks = map(list, zip(*runs, strict=True))
                rows = self.world.database.rows(RECOVERED, hit.at, ids, ticks, hit.at)
                found += [(seconds, job, hit.what) for seconds, job in rows]
        return sorted(found)

    def explain(self) -> None:
        """Prints what the store knows of everything that is lost or was done twice."""
        twice = self.world.database.rows("select job::text from demo_effect group by job, tick having count(*) > 1")
        gaps = {job: found for job in self.acks.schedules if (found := self.accounts.gaps(job))}
        for job in [*self.accounts.lost_jobs(), *(job for (job,) in twice), *gaps]:
            self._tell(job)
        for job, found in gaps.items():
            self.progress.console.print(f"job {job}: no trace of the ticks {found[:20]} (us)", soft_wrap=True)

    def _tell(self, job: str) -> None:
        self.progress.console.print(f"job {job}")
        for table, key in TABLES.items():
            for (row,) in self.world.database.rows(
                f"select row_to_json(t) from {table} t where {key} = %s limit 20", job
            ):
                self.progress.console.print(f"  {table}: {json.dumps(row)}", markup=False, soft_wrap=True)


def main() -> int:
    """Runs it; whatever asks it to end leaves nothing running."""
    options = _options()
    kinds = tuple(kind for kind in KINDS if kind in options.faults)
    progress = Progress(f"rota chaos, seed {options.seed}")
    try:
        with signals.raised(), progress, world(progress, kinds) as made:
            plan = draw(options.seed, options.seconds, options.jobs, made.kinds)
            progress.say(f"seed {plan.seed}: {len(plan.faults)} faults in {plan.seconds:.0f} s")
            run = Run(made, plan, progress)
            figures = run.go()
            bad = bool(figures["lost"] or figures["duplicate_effects"] or made.crew.bad_exits)
            made.keep_logs = bad or options.keep_logs
            if bad:
                run.explain()
    except ServerError as error:
        print(error, file=sys.stderr)
        return 3
    except signals.Interrupted as interrupted:
        return interrupted.status
    hits = [f"{kind}: {hit['in_flight']} of {hit['n']} in flight" for kind, hit in figures["faults"].items()]
    progress.summary({**figures, "faults": "\n".join(hits)}, [*run.acks.errors, *map(str, made.crew.bad_exits)])
    if made.keep_logs:
        progress.console.print(f"logs: {made.kept_logs}")
    print(json.dumps(figures))
    return int(bad)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long things go wrong (default 120)")
    parser.add_argument("--jobs", type=int, help=f"one-off jobs beside the baits (default {JOBS_PER_SECOND} a second)")
    parser.add_argument("--seed", type=int, help="draws jobs and faults (default: another each time)")
    parser.add_argument("--faults", default=",".join(USUAL), help="kinds, separated by commas")
    parser.add_argument("--keep-logs", action="store_true", help="keep the members' logs in any case")
    options = parser.parse_args()
    if options.seconds < SHORTEST:
        parser.error(f"{options.seconds:g} seconds are too few for all kinds of faults: give at least {SHORTEST}")
    options.faults = options.faults.split(",")
    if unknown := set(options.faults) - set(KINDS):
        parser.error(f"unknown faults {', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")
    if options.jobs is None:
        options.jobs = round(JOBS_PER_SECOND * options.seconds)
    if options.seed is None:
        options.seed = secrets.randbelow(1_000_000)
    return options


if __name__ == "__main__":
    sys.exit(main())
