"""Known ways to break the product, and the tests that must notice each.

A mutation replaces text that occurs exactly once in its file. Texts are as short as they can be, so that they survive
changes around them; one that no longer applies fails the run and is to be brought into line.
"""

from __future__ import annotations

from typing import NamedTuple

DISPATCH = "sched/scheduler/dispatch.py"
COLLECTOR = "sched/scheduler/collector.py"
SCHEDULER = "sched/scheduler/service.py"
WATERMARK = "sched/scheduler/watermark.py"
SCHEDULING = "sched/store/postgres/scheduling.py"
WORKING = "sched/store/postgres/working.py"
HEARTBEAT = "sched/heartbeat.py"
DAYS = "sched/store/postgres/days.py"
DUTIES = "sched/store/postgres/duties.py"
MEMBERS = "sched/store/postgres/members.py"
DEAD = "sched/store/postgres/dead.py"
SUBMISSION = "sched/store/postgres/submission.py"
TURNS = "sched/store/postgres/turns.py"
CHANGING = "sched/store/postgres/changing.py"
EDIT = "sched/timing/edit.py"
SHARED = "sched/store/postgres/text.py"
SETTLE = "workers/settle.py"
SLEEP = "sched/scheduler/sleep.py"
LANES = "sched/scheduler/lanes.py"
SERVICE = "workers/service.py"
CONTEXT = "workers/context.py"
CHILD = "workers/child.py"
ISOLATED = "workers/isolated.py"

CONFORMANCE = "tests/store/test_conformance.py::"
POSTGRES = "tests/store/test_postgres.py::"
RETENTION = "tests/store/test_retention.py::"
AT_ONCE = "tests/store/test_turns.py::"
MACHINE = "tests/store/test_machine.py"
EDITS = "tests/store/test_edits.py::"
ASLEEP = "tests/store/test_sleep.py::"
PLANS = "tests/store/test_plans.py::"
HANDLERS = "tests/store/test_context.py::"
PROCESSES = "tests/integration/test_isolated.py::"
INGEST = "tests/integration/test_ingest.py::"
UNIT_SETTLE = "tests/unit/test_settle.py::"
UNIT_DISPATCH = "tests/unit/test_dispatch.py::"
UNIT_SLEEP = "tests/unit/test_sleep.py::"
UNIT_LANES = "tests/unit/test_lanes.py::"
UNIT_HEARTBEAT = "tests/unit/test_heartbeat.py::"


class Edit(NamedTuple):
    """`old` in `file` becomes `new`."""

    file: str
    old: str
    new: str


class Mutation(NamedTuple):
    """`rule` is its number in docs/protocol.md, 0 for none of those. One of `tests` must fail."""

    name: str
    rule: int
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


FINISH_STATE = Edit(WORKING, "= x.xfence and r.state = 'running'\n  returning r.*", "= x.xfence\n  returning r.*")
RETRY_FENCE = Edit(WORKING, "state = x.state, owner = null, fence = null,", "state = x.state, owner = null,")
RECOVERY_FENCE = Edit(DUTIES, "owner = null, fence = null, losses", "owner = null, losses")

MUTATIONS = (
    # Rule 1: state running and fence.
    Mutation(
        "finish-without-fence",
        1,
        (
            Edit(
                WORKING,
                "r.fence = x.xfence and r.state = 'running'\n  returning r.*",
                "r.state = 'running'\n  returning r.*",
            ),
        ),
        (CONFORMANCE + "test_a_finish_under_another_fence_writes_nothing",),
    ),
    Mutation(
        "return-without-fence",
        1,
        (Edit(WORKING, "r.fence = x.xfence and r.state = 'running'\n  and not", "r.state = 'running'\n  and not"),),
        (CONFORMANCE + "test_a_return_under_another_fence_writes_nothing",),
    ),
    Mutation(
        "finish-without-state-after-retry",
        1,
        (FINISH_STATE, RETRY_FENCE),
        (CONFORMANCE + "test_a_finish_that_commits_after_the_retry_is_refused",),
    ),
    Mutation(
        "finish-without-state-after-recovery",
        1,
        (FINISH_STATE, RECOVERY_FENCE),
        (CONFORMANCE + "test_between_its_loss_and_the_next_begin_a_run_is_nobodys",),
    ),
    Mutation(
        "recovery-keeps-the-fence",
        1,
        (RECOVERY_FENCE,),
        (CONFORMANCE + "test_between_its_loss_and_the_next_begin_a_run_is_nobodys",),
    ),
    Mutation(
        "retry-keeps-the-fence",
        1,
        (RETRY_FENCE,),
        (CONFORMANCE + "test_a_failed_attempt_is_retried_when_its_time_has_come",),
    ),
    Mutation(
        "handlers-transaction-is-not-fenced",
        1,
        (
            Edit(
                CONTEXT,
                "self, written: set[Any]) -> None:\n        if not written:",
                "self, written: set[Any]) -> None:\n        if False:",
            ),
        ),
        (HANDLERS + "test_a_run_that_was_taken_away_takes_the_writes_with_it_and_the_connection_can_be_used_again",),
    ),
    # Rule 2: zero rows are not "ack", and nothing is settled before its commit.
    Mutation(
        "refused-is-acked",
        2,
        (Edit(SETTLE, "        self.explain(attempt.job, standing)", "        self.ack(attempt.job)"),),
        (UNIT_SETTLE + "test_a_refused_write_whose_run_lives_under_this_message_is_deferred",),
    ),
    Mutation(
        "deferral-of-live-runs-is-acked",
        2,
        (Edit(SETTLE, "self.defer(job, max(1.0, standing.seconds))", "self.ack(job)"),),
        (UNIT_SETTLE + "test_a_refused_write_whose_run_lives_under_this_message_is_deferred",),
    ),
    Mutation(
        "ack-before-the-commit",
        2,
        (
            Edit(
                SETTLE,
                "        ends = [_end(",
                "        for a, _ in batch:\n            self.ack(a.job)\n        ends = [_end(",
            ),
        ),
        (UNIT_SETTLE + "test_nothing_is_settled_while_the_store_is_away",),
    ),
    # Rule 3: a begin whose answer was lost.
    Mutation(
        "worker-never-disowns",
        3,
        (Edit(SERVICE, "self._finish_link.run(self._store.disown(strangers))", "asyncio.sleep(0)"),),
        ("tests/unit/test_compare.py",),
    ),
    Mutation(
        "disowned-runs-are-not-ready",
        3,
        (
            Edit(
                WORKING,
                "attempt = r.attempt - 1, ready_at = clock_timestamp()\nfrom unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s",
                "attempt = r.attempt - 1\nfrom unnest(%(ids)s::uuid[], %(ticks)s::timestamptz[], %(fences)s",
            ),
        ),
        (CONFORMANCE + "test_runs_whose_begin_was_not_answered_are_found_and_handed_back",),
    ),
    # Rule 4: adoption is a standing sweep.
    Mutation(
        "adoption-only-at-a-death",
        4,
        (Edit(DUTIES, "if whole or ended or dead:", "if dead:"),),
        (CONFORMANCE + "test_what_a_scheduler_left_unconfirmed_is_adopted",),
    ),
    Mutation(
        "no-adoption",
        4,
        (Edit(DUTIES, "strays = yield Query(STRAYS)", "strays: Rows = []"),),
        (MACHINE,),
    ),
    Mutation(
        "adoption-without-watermark",
        4,
        (Edit(DUTIES, "(m.state = 'live' or o.dispatch <= m.watermark)", "m.state = 'live'"),),
        (CONFORMANCE + "test_unconfirmed_runs_of_a_dead_scheduler_are_adopted_and_confirmed_ones_are_not",),
    ),
    # Rule 5: claims in doubt, and the watermark.
    Mutation(
        "watermark-moved-early",
        5,
        (Edit(WATERMARK, "next(iter(self._open)) - 1 if self._open else self._highest", "self._highest"),),
        ("tests/unit/test_watermark.py",),
    ),
    Mutation(
        "watermark-not-told-of-claims",
        5,
        (Edit(DISPATCH, "        self.watermark.add(d.dispatch for d in runs)\n", ""),),
        (UNIT_DISPATCH + "test_what_is_not_confirmed_lies_above_the_watermark",),
    ),
    Mutation(
        "claim-in-doubt-keeps-the-id",
        5,
        (
            Edit(
                DISPATCH,
                "        await self._repeat()\n        limit",
                "        try:\n            return await self.doubtful()\n        except Exception:\n            return 0\n\n"
                "    async def doubtful(self) -> int:\n        await self._repeat()\n        limit",
            ),
        ),
        (UNIT_DISPATCH + "test_a_claim_without_an_answer_ends_the_pipeline",),
    ),
    # Rule 6: a new number makes the run waiting under the scheduler that gave it.
    Mutation(
        "new-number-under-the-old-scheduler",
        6,
        (
            Edit(
                SCHEDULING,
                "dispatch = nextval('rota.number'), scheduler = %(member)s, fence",
                "dispatch = nextval('rota.number'), fence",
            ),
        ),
        (CONFORMANCE + "test_a_run_under_a_new_number_is_adopted_from_the_scheduler_that_gave_it",),
    ),
    Mutation(
        "new-number-leaves-it-retrying",
        6,
        (Edit(SCHEDULING, "update rota.run r set state = 'waiting', dispatch", "update rota.run r set dispatch"),),
        (CONFORMANCE + "test_a_retry_whose_message_is_a_dead_letter_keeps_its_time_and_is_waiting_then",),
    ),
    Mutation(
        "ready-is-not-cleared",
        6,
        (Edit(SCHEDULING, "retry_at = null, ready_at = null, dispatched_at", "retry_at = null, dispatched_at"),),
        (CONFORMANCE + "test_ready_runs_get_a_new_number_and_are_waiting_under_the_scheduler",),
    ),
    # Rule 8: dead letters.
    Mutation(
        "collector-ignores-the-dispatch-number",
        8,
        (Edit(DUTIES, "r.dispatch = x.xdispatch and r.state in", "r.state in"),),
        (CONFORMANCE + "test_a_waiting_run_whose_message_is_a_dead_letter_is_dispatched_anew_once",),
    ),
    Mutation(
        "collector-ignores-the-state",
        8,
        (Edit(DUTIES, "r.dispatch = x.xdispatch and r.state in ('waiting', 'retrying')", "r.dispatch = x.xdispatch"),),
        (CONFORMANCE + "test_a_running_run_is_left_to_recovery_by_the_dead_letter_of_its_message",),
    ),
    Mutation(
        "collector-drops-letters",
        8,
        (Edit(COLLECTOR, "        if lost:", "        if False:"),),
        (INGEST + "test_a_dead_letter_that_is_no_verdict_has_its_run_dispatched_anew",),
    ),
    Mutation(
        "collector-takes-our-rejections-for-losses",
        8,
        (Edit(COLLECTOR, "if reason_of(delivery.properties) != REJECTED:", "if True:"),),
        (INGEST + "test_a_dead_letter_that_is_no_verdict_has_its_run_dispatched_anew",),
    ),
    # Rule 9: returned is not confirmed, a deferral is confirmed before its ack.
    Mutation(
        "returned-counts-as-confirmed",
        9,
        (Edit(DISPATCH, "if outcome is Publish.CONFIRMED:", "if outcome in {Publish.CONFIRMED, Publish.RETURNED}:"),),
        (UNIT_DISPATCH + "test_what_came_back_or_is_unknown_is_not_confirmed_and_is_published_again",),
    ),
    Mutation(
        "unknown-counts-as-confirmed",
        9,
        (Edit(DISPATCH, "if outcome is Publish.CONFIRMED:", "if outcome in {Publish.CONFIRMED, Publish.UNKNOWN}:"),),
        (UNIT_DISPATCH + "test_what_came_back_or_is_unknown_is_not_confirmed_and_is_published_again",),
    ),
    Mutation(
        "deferral-acked-before-its-confirm",
        9,
        (Edit(SETTLE, "        self._deferring += 1\n", "        self._deferring += 1\n        self.ack(job)\n"),),
        (UNIT_SETTLE + "test_a_retry_is_acknowledged_when_the_ladder_has_its_message",),
    ),
    Mutation(
        "returned-deferral-is-acked",
        9,
        (Edit(SETTLE, "if outcome is Publish.CONFIRMED:", "if True:"),),
        (UNIT_SETTLE + "test_a_deferral_that_is_not_confirmed_is_no_reason_to_acknowledge",),
    ),
    Mutation(
        "delivery-outlives-its-ack",
        9,
        (
            Edit(
                SETTLE,
                "self._consumer.ack(job.delivery)\n            job.delivery = None\n",
                "self._consumer.ack(job.delivery)\n",
            ),
        ),
        (UNIT_SETTLE + "test_what_is_handed_back_after_a_guard_copy_took_its_message_comes_back_at_once",),
    ),
    # Rule 7: the reconciler.
    Mutation(
        "reconciler-suspects-what-is-being-published",
        7,
        (Edit(DUTIES, "m.state = 'live' and r.dispatch > m.watermark)", "false)"),),
        (CONFORMANCE + "test_what_a_live_scheduler_may_still_be_publishing_is_left_alone",),
    ),
    Mutation(
        "reconciler-does-not-back-off",
        7,
        (Edit(DUTIES, "%(after)s * (1 << least(r.audits, 10))", "%(after)s"),),
        (CONFORMANCE + "test_the_reconciler_waits_twice_as_long_each_time",),
    ),
    # What saves work: a member does not trust its lease for longer than others do.
    Mutation(
        "lease-counts-from-the-answer",
        0,
        (Edit(HEARTBEAT, "self._until = sent + self._seconds", "self._until = now() + self._seconds"),),
        (UNIT_HEARTBEAT + "test_a_lease_counts_from_when_its_renewal_was_sent",),
    ),
    Mutation(
        "claims-without-a-lease",
        0,
        (Edit(DISPATCH, "self._publisher.blocked or not self._trust.held", "self._publisher.blocked"),),
        (UNIT_DISPATCH + "test_a_scheduler_whose_lease_is_over_claims_and_publishes_nothing_until_it_is_renewed",),
    ),
    Mutation(
        "publishes-without-a-lease",
        0,
        (Edit(DISPATCH, "        if not self._trust.held:", "        if False:"),),
        (UNIT_DISPATCH + "test_a_scheduler_whose_lease_is_over_claims_and_publishes_nothing_until_it_is_renewed",),
    ),
    # Rule 10: numbers and heartbeats.
    Mutation(
        "heartbeat-revives-the-dead",
        10,
        (Edit(MEMBERS, "where id = %s and state = 'live' returning {_DAY}", "where id = %s returning {_DAY}"),),
        (CONFORMANCE + "test_a_dead_member_does_not_come_back_to_life",),
    ),
    Mutation(
        "fence-is-the-dispatch-number",
        10,
        (Edit(WORKING, "fence = nextval('rota.number'), attempt", "fence = r.dispatch, attempt"),),
        (CONFORMANCE + "test_a_begun_run_is_running_under_its_worker_with_a_fence",),
    ),
    Mutation(
        "begin-ignores-the-dispatch-number",
        10,
        (Edit(WORKING, "{SAME_RUN} and r.dispatch = x.dispatch\n", "{SAME_RUN}\n"),),
        (CONFORMANCE + "test_a_stale_dispatch_number_begins_nothing",),
    ),
    Mutation(
        "redriven-runs-are-not-ready",
        10,
        (
            Edit(
                DEAD,
                "case when not {_IN_TURN} then at end, at + make_interval",
                "null, at + make_interval",
            ),
        ),
        (CONFORMANCE + "test_a_redriven_run_starts_anew_with_other_arguments",),
    ),
    Mutation(
        "redrive-leaves-the-dead-row",
        10,
        (
            Edit(
                DEAD,
                "  delete from rota.dead d using again a where d.job_id = a.job_id and d.scheduled_for = a.scheduled_for\n",
                "  select from again\n",
            ),
        ),
        (MACHINE, CONFORMANCE + "test_a_redriven_run_starts_anew_with_other_arguments"),
    ),
    # Rule 11: the dead.
    Mutation(
        "recovery-only-at-a-death",
        11,
        (Edit(DUTIES, "if whole or ended or dead:", "if dead:"),),
        (CONFORMANCE + "test_what_a_worker_left_running_is_recovered",),
    ),
    Mutation(
        "the-dead-claim-and-begin",
        11,
        (Edit(SHARED, "where id = %(member)s and state = 'live' for", "where id = %(member)s for"),),
        (CONFORMANCE + "test_the_dead_begin_nothing", CONFORMANCE + "test_the_dead_claim_nothing"),
    ),
    Mutation(
        "begin-does-not-lock-its-member",
        11,
        (Edit(SHARED, "state = 'live' for key share", "state = 'live'"),),
        (POSTGRES + "test_a_begin_under_way_keeps_its_member_alive_until_it_is_over",),
    ),
    Mutation(
        "begin-judges-the-dead",
        11,
        (
            Edit(
                WORKING,
                "(r.state = 'waiting' or",
                "(r.state = 'waiting' or (r.state = 'running' and exists (select from rota.member m where m.id = r.owner"
                " and m.beat_at < clock_timestamp() - interval '15 s')) or",
            ),
        ),
        (CONFORMANCE + "test_only_recovery_judges_the_dead",),
    ),
    Mutation(
        "recovered-runs-are-not-ready",
        11,
        (Edit(DUTIES, "attempt = attempt - 1,\n  ready_at = clock_timestamp() from", "attempt = attempt - 1\n  from"),),
        (CONFORMANCE + "test_a_lost_worker_spends_no_attempt_and_counts_as_a_loss",),
    ),
    Mutation(
        "ended-members-are-settled-unseen",
        11,
        (Edit(DUTIES, "[member for member in ended if member not in busy]", "ended"),),
        (POSTGRES + "test_a_run_that_a_frozen_worker_is_about_to_end_does_not_hold_up_recovery_of_the_others",),
    ),
    Mutation(
        "unsettled-members-are-forgotten",
        11,
        (Edit("sched/store/postgres/retention.py", "and m.settled and", "and"),),
        (POSTGRES + "test_ended_members_are_settled_when_nothing_is_left_of_them_and_kept_until_then",),
    ),
    Mutation(
        "the-low-watermark-passes-claims-that-are-open",
        11,
        (Edit(DUTIES, "coalesce(due.horizon <= pg_snapshot_xmin(pg_current_snapshot()), true)", "true"),),
        ("tests/store/test_plans.py::test_a_claim_that_commits_late_is_not_below_the_low_watermark",),
    ),
    Mutation(
        "begins-without-an-answer-are-forgotten",
        3,
        (Edit("workers/intake.py", "        self._doubtful |= dict.fromkeys(", "        dict.fromkeys("),),
        ("tests/unit/test_intake.py::test_what_a_begin_without_an_answer_asked_for_is_suspected_for_a_while",),
    ),
    # What is no rule of its own.
    Mutation(
        "a-lost-worker-spends-an-attempt",
        0,
        (Edit(DUTIES, "losses = losses + 1, attempt = attempt - 1,", "losses = losses + 1,"),),
        (CONFORMANCE + "test_a_lost_worker_spends_no_attempt_and_counts_as_a_loss",),
    ),
    Mutation(
        "losses-are-not-counted",
        0,
        (Edit(DUTIES, "losses = losses + 1, attempt", "losses = losses, attempt"),),
        (CONFORMANCE + "test_a_lost_worker_spends_no_attempt_and_counts_as_a_loss",),
    ),
    Mutation(
        "poison-is-begun-with-neighbours",
        0,
        (Edit(WORKING, "(r.losses < 2 or %(alone)s)", "true"),),
        (CONFORMANCE + "test_a_run_that_lost_two_workers_is_begun_alone_and_the_third_loss_kills_it",),
    ),
    Mutation(
        "retries-are-begun-early",
        0,
        (Edit(WORKING, "(r.state = 'retrying' and r.retry_at <= clock_timestamp())", "r.state = 'retrying'"),),
        (CONFORMANCE + "test_a_failed_attempt_is_retried_when_its_time_has_come",),
    ),
    Mutation(
        "stopped-runs-run-again-after-a-loss",
        0,
        (
            Edit(DUTIES, "_orphans([o for o in orphans if o[3]])", "_orphans([])"),
            Edit(DUTIES, "if not o[4] and not o[3]", "if not o[4]"),
        ),
        (CONFORMANCE + "test_a_cancelled_run_whose_worker_is_lost_does_not_run_again",),
    ),
    Mutation(
        "all-are-judged-after-a-pause",
        0,
        (Edit(DUTIES, "if late and pause < lease:", "if late:"),),
        (CONFORMANCE + "test_after_a_pause_of_all_nobody_is_judged_at_once",),
    ),
    Mutation(
        "one-offs-stay-in-job",
        0,
        (
            Edit(
                SCHEDULING,
                "  delete from rota.job j using due x where {SAME_JOB} and x.schedule is null\n  returning x.n, j.*",
                "  select due.n, j.* from rota.job j join due on j.id = due.id and due.schedule is null",
            ),
        ),
        (CONFORMANCE + "test_a_job_that_is_due_is_claimed_once", MACHINE),
    ),
    Mutation(
        "history-takes-a-second-row",
        0,
        (
            Edit(
                WORKING,
                "  from gone where outcome <> 'dead'\n",
                "  from gone where outcome <> 'dead'\n  union all select {PAST}, clock_timestamp(), outcome, reason, errors,"
                " result from gone where outcome = 'succeeded'\n",
            ),
        ),
        (MACHINE,),
    ),
    # Runs that follow one another.
    *(
        Mutation(
            f"{name}-releases-nothing",
            0,
            (Edit(file, old, new),),
            (CONFORMANCE + f"test_every_end_of_a_run_lets_the_next_one_go[{test}]",),
        )
        for name, file, old, new, test in (
            (
                "finish",
                WORKING,
                "        yield from release((key.job_id, followed) for key, (_, followed) in zip(written, rows, strict=True))\n",
                "",
                "succeeded",
            ),
            ("disown", WORKING, "        yield from release(cancelled)\n", "", "cancelled and disowned"),
            (
                "unknown-handler",
                WORKING,
                "        yield from release(row[-2:] for row in rows)\n",
                "",
                "of an unknown handler",
            ),
            (
                "cancel",
                SUBMISSION,
                "        yield from release([(job_id, followed)])\n",
                "",
                "cancelled while retrying",
            ),
            (
                "recovery",
                DUTIES,
                "release([*left.cancelled, *left.poisoned",
                "release([*left.poisoned",
                "cancelled and lost",
            ),
            ("poison", DUTIES, "*left.poisoned, ", "", "poisoned"),
        )
    ),
    Mutation(
        "expiry-in-recovery-releases-nothing",
        0,
        (Edit(DUTIES, ", *left.poisoned, *expired])", ", *left.poisoned])"),),
        (CONFORMANCE + "test_a_run_that_expires_lets_the_next_one_go[recover]",),
    ),
    Mutation(
        "expiry-releases-nothing",
        0,
        (Edit(DUTIES, "        yield from release(rows)\n        return len(rows)\n", "        return len(rows)\n"),),
        (CONFORMANCE + "test_a_run_that_expires_lets_the_next_one_go[expire]",),
    ),
    Mutation(
        "redriven-runs-do-not-wait-for-their-turn",
        0,
        (Edit(DEAD, "coalesce(j.schedule ->> 'overlap', 'allow') <> 'allow')", "false)"),),
        (CONFORMANCE + "test_a_redriven_run_waits_for_its_turn", MACHINE),
    ),
    Mutation(
        "redriven-runs-are-left-behind",
        0,
        (Edit(DEAD, "        yield from line_up(key.job_id for key in batch.taken)\n", ""),),
        (CONFORMANCE + "test_a_redriven_run_runs_at_once_where_nothing_is_alive_or_its_schedule_is_gone", MACHINE),
    ),
    Mutation(
        "the-next-goes-before-all-have-ended",
        0,
        (
            Edit(
                TURNS,
                "    and not exists (select from rota.run o where o.job_id = r.job_id and o.state <> 'buffered')\n  returning",
                "  returning",
            ),
        ),
        (CONFORMANCE + "test_what_was_begun_under_another_policy_is_followed",),
    ),
    Mutation(
        "claims-do-not-mark-what-is-followed",
        0,
        (Edit(SCHEDULING, "  update rota.run set followed = true\n", "  update rota.run set followed = followed\n"),),
        (AT_ONCE + "test_an_end_that_comes_while_a_tick_is_buffered_lets_it_go", MACHINE),
    ),
    Mutation(
        "claims-buffer-behind-what-is-about-to-end",
        0,
        (Edit(TURNS, "Abreast(live, waiting, live == held)", "Abreast(live, waiting, True)"),),
        (AT_ONCE + "test_a_tick_is_not_buffered_behind_a_run_that_is_about_to_end",),
    ),
    Mutation(
        "two-ends-overlook-each-other",
        0,
        (Edit(TURNS, "  order by {IN_ORDER} limit 1 for update) b\n", "  order by {IN_ORDER} limit 1) b\n"),),
        (AT_ONCE + "test_of_two_runs_that_end_at_the_same_time_one_lets_the_next_go",),
    ),
    Mutation(
        "redrives-do-not-mark-what-is-followed",
        0,
        (Edit(TURNS, '        yield Query(FOLLOWED, {"ids": ids})\n', ""),),
        (AT_ONCE + "test_an_end_that_comes_during_a_redrive_lets_it_go",),
    ),
    Mutation(
        "redrives-do-not-lock-the-cursor",
        0,
        (Edit(TURNS, '        yield Query(CURSORS, {"ids": ids})\n', ""),),
        (AT_ONCE + "test_a_redrive_and_a_claim_at_the_same_time_make_no_two_that_are_alive",),
    ),
    Mutation(
        "nobody-looks-for-what-waits-behind-nothing",
        0,
        (Edit(DUTIES, "stranded = (yield from release_stranded()) if whole else 0", "stranded = 0"),),
        (AT_ONCE + "test_what_somebody_else_has_ended_is_found_by_recovery",),
    ),
    Mutation(
        "more-runs-than-max-runs",
        0,
        (Edit(SCHEDULING, "runs_left = j.runs_left - x.runs", "runs_left = j.runs_left"),),
        (CONFORMANCE + "test_a_job_with_max_runs_ends_after_so_many",),
    ),
    Mutation(
        "missed-ticks-are-forgotten-by-the-next-claim",
        0,
        (Edit(SCHEDULING, "missed = x.missed", "missed = 0"),),
        (CONFORMANCE + "test_ticks_that_an_overlap_skipped_are_counted_until_one_runs",),
    ),
    # What ends otherwise.
    Mutation(
        "asked-to-cancel-and-handed-back",
        0,
        (Edit(WORKING, "  and not r.cancel_requested\nreturning", "returning"),),
        (CONFORMANCE + "test_what_was_asked_to_stop_does_not_go_on", MACHINE),
    ),
    Mutation(
        "asked-to-cancel-and-disowned",
        0,
        (
            Edit(WORKING, "[o for o in owned if o.cancel_requested]", "[]"),
            Edit(WORKING, "[o for o in owned if not o.cancel_requested]", "owned"),
            Edit(WORKING, "and r.state = 'running' and not r.cancel_requested\n", "and r.state = 'running'\n"),
        ),
        (CONFORMANCE + "test_what_was_asked_to_stop_and_begun_without_an_answer_ends",),
    ),
    Mutation(
        "too-late-and-begun",
        0,
        (Edit(WORKING, " and (r.expires_at is null or r.expires_at > clock_timestamp())", ""),),
        (CONFORMANCE + "test_what_cannot_begin_in_time_expires_and_says_so",),
    ),
    Mutation(
        "running-and-expired",
        0,
        (
            Edit(
                DUTIES,
                "expires_at <= (select clock_timestamp()) and state <> 'running'",
                "expires_at <= (select clock_timestamp())",
            ),
        ),
        (CONFORMANCE + "test_what_runs_does_not_expire_and_its_retry_does",),
    ),
    Mutation(
        "unknown-handlers-die-though-somebody-has-them",
        0,
        (Edit(WORKING, "greatest(x.since, x.seen_at)", "x.since"),),
        (CONFORMANCE + "test_a_handler_that_somebody_announces_keeps_its_runs_alive",),
    ),
    Mutation(
        "checkpoint-without-fence",
        1,
        (
            Edit(
                WORKING,
                "scheduled_for = %s and fence = %s and state",
                "scheduled_for = %s and %s is not null and state",
            ),
        ),
        (CONFORMANCE + "test_a_checkpoint_outlives_its_worker",),
    ),
    Mutation(
        "errors-without-bound",
        0,
        (Edit(SHARED, "when jsonb_array_length({errors}) >= {KEPT}", "when jsonb_array_length({errors}) >= 1000000"),),
        (CONFORMANCE + "test_the_first_error_and_the_latest_are_kept",),
    ),
    Mutation(
        "what-a-handler-started-outlives-it",
        0,
        (Edit(ISOLATED, "            os.killpg(self._pid, signal.SIGKILL)\n", ""),),
        (PROCESSES + "test_the_timeout_kills_whatever_a_handler_does_and_what_it_has_started",),
    ),
    Mutation(
        "commits-of-processes-are-not-told",
        0,
        (Edit(CHILD, '("completed", "committing", "progress")', '("progress",)'),),
        (PROCESSES + "test_the_worker_knows_whether_a_process_that_died_had_committed",),
    ),
    Mutation(
        "forks-hold-the-connection",
        0,
        (Edit(CHILD, "    os.close(connection.detach())\n", ""),),
        (PROCESSES + "test_a_process_that_dies_by_itself_is_an_error_that_says_how",),
    ),
    Mutation(
        "what-was-due-before-a-change-is-lost",
        0,
        (
            Edit(
                EDIT,
                "settled, ready = _settle(old, job_id, place, now)",
                "settled, ready = Advance((), (), None, None, 0), ()",
            ),
        ),
        (EDITS + "test_through_any_changes_at_any_time_each_tick_runs_once",),
    ),
    Mutation(
        "a-change-lets-nothing-go",
        0,
        (Edit(CHANGING, "        yield from line_up([job.id])\n", ""),),
        (AT_ONCE + "test_a_change_lets_go_what_it_buffers_behind_a_run_that_ends_meanwhile",),
    ),
    Mutation(
        "a-batch-is-forgotten-when-its-membership-ends",
        0,
        (
            Edit(
                "workers/intake.py",
                "source.extendleft(reversed([job for job in batch if job not in aside and job not in begun]))",
                "del begun",
            ),
        ),
        ("tests/unit/test_intake.py::test_what_was_being_begun_when_something_ended_it_is_not_forgotten",),
    ),
    Mutation(
        "a-change-makes-ticks-of-the-time-before-it",
        0,
        (Edit(EDIT, "after = max(now, place.since,", "after = max(place.since,"),),
        ("tests/field/test_mis.py::test_mis_02_a_shorter_period_makes_nothing_missed_of_the_time_before",),
    ),
    Mutation(
        "a-change-starts-everything-at-once",
        0,
        (Edit(EDIT, "following = first_tick(new, after, anchor)", "following = after"),),
        (CONFORMANCE + "test_a_changed_schedule_goes_on_after_now_and_nothing_of_it_is_due_at_once",),
    ),
    Mutation(
        "settled-runs-are-not-published",
        0,
        (Edit(CHANGING, "    if plan.ready:\n", "    if False:\n"),),
        (CONFORMANCE + "test_a_tick_that_is_due_when_its_schedule_changes_runs_once_as_it_was",),
    ),
    Mutation(
        "stale-versions-win",
        0,
        (Edit(CHANGING, "edit.version is not None and edit.version != job.version", "False"),),
        (CONFORMANCE + "test_a_change_of_an_older_version_is_refused_with_who_changed_what",),
    ),
    Mutation(
        "repeated-requests-are-others",
        0,
        (Edit(CHANGING, 'c["id"] == note.id and', "False and"),),
        (CONFORMANCE + "test_a_trigger_is_one_run_now_and_moves_no_tick",),
    ),
    Mutation(
        "triggers-beside-what-must-run-alone",
        0,
        (Edit(CHANGING, "job.place.live and isinstance", "False and isinstance"),),
        (CONFORMANCE + "test_a_trigger_beside_a_live_run_is_the_overlap_policys",),
    ),
    Mutation(
        "resumed-long-ago",
        0,
        (
            Edit(
                CHANGING,
                "greatest(next_run_at, clock_timestamp())\nwhere id = %(id)s and paused",
                "next_run_at\nwhere id = %(id)s and paused",
            ),
        ),
        (CONFORMANCE + "test_a_resumed_job_wakes_no_scheduler_for_nothing",),
    ),
    Mutation(
        "days-are-made-under-an-exclusive-lock",
        0,
        (
            Edit(
                DAYS,
                "(like rota.history including defaults including constraints) with ({storage})",
                "partition of rota.history for values from ('{start}') to ('{end}')",
            ),
        ),
        (RETENTION + "test_runs_end_and_days_are_made_while_the_duty_waits_for_a_reader",),
    ),
    Mutation(
        "a-day-goes-before-its-last-run-is-old",
        0,
        (Edit(DAYS, "{DAY} < to_char(", "{DAY} <= to_char("),),
        (RETENTION + "test_a_day_is_kept_until_its_last_run_is_older_than_the_keep",),
    ),
    Mutation(
        "asleep-after-one-look",
        0,
        (Edit(SLEEP, "if not look.kept and not look.due:", "if False:"),),
        (UNIT_SLEEP + "test_who_had_no_promise_out_looks_twice_before_it_sleeps",),
    ),
    Mutation(
        "nobody-who-writes-is-waited-for",
        0,
        (Edit(SLEEP, "look.oldest > second", "True"),),
        (UNIT_SLEEP + "test_who_was_writing_during_the_second_look_is_waited_for",),
    ),
    Mutation(
        "a-promise-is-never-made",
        0,
        (
            Edit(
                SCHEDULING,
                "least(clock_timestamp() + make_interval(secs => %(longest)s), (select min(at) from head)))",
                "clock_timestamp())",
            ),
            Edit(SCHEDULING, "secs => least({MOMENT}, %(longest)s)", "secs => 0 * %(longest)s"),
        ),
        (POSTGRES + "test_a_submit_of_something_earlier_wakes_a_sleeping_scheduler",),
    ),
    Mutation(
        "looks-pass-open-transactions-by",
        0,
        (Edit(LANES, "if marks and (marks[0][1] < look.oldest or", "if marks and (True or"),),
        (UNIT_LANES + "test_what_a_look_has_seen_does_not_pass_a_transaction_that_is_still_open",),
    ),
    Mutation(
        "what-a-look-finds-is-not-claimed",
        0,
        (Edit(LANES, "lows.lower(first)", "pass"),),
        (
            ASLEEP + "test_a_job_whose_row_was_locked_while_it_was_due_is_found",
            UNIT_LANES + "test_what_a_look_finds_that_claims_have_passed_by_is_claimed_and_looked_for_until_it_is_gone",
        ),
    ),
    Mutation(
        "a-clock-that-steps-back-is-not-seen",
        0,
        (Edit(LANES, "if now < self._latest:", "if False:"),),
        (UNIT_LANES + "test_a_clock_that_was_set_back_makes_all_watermarks_start_over",),
    ),
    Mutation(
        "looks-read-from-the-start",
        0,
        (Edit(SCHEDULING, "and not j.paused and j.next_run_at >= lane.low\n    order", "and not j.paused\n    order"),),
        (PLANS + "test_what_left_the_tables_under_an_old_snapshot_costs_looks_claims_and_what_is_ready_nothing",),
    ),
    Mutation(
        "ready-runs-are-read-from-the-start",
        0,
        (Edit(SCHEDULING, "r.ready_at >= lane.low and r.ready_at <= now()", "r.ready_at <= now()"),),
        (PLANS + "test_what_left_the_tables_under_an_old_snapshot_costs_looks_claims_and_what_is_ready_nothing",),
    ),
    Mutation(
        "a-late-change-is-not-told",
        0,
        (Edit(CHANGING, " or (not j.paused and {_LATE})", ""),),
        (ASLEEP + "test_who_changes_what_is_late_tells_from_when_on_to_look",),
    ),
    Mutation(
        "what-comes-back-wakes-nobody",
        0,
        (Edit(DISPATCH, "        self._wake.set()\n", ""),),
        (ASLEEP + "test_what_the_broker_gives_back_wakes_its_scheduler",),
    ),
    Mutation(
        "who-has-to-publish-again-sleeps",
        0,
        (
            Edit(
                SCHEDULER,
                "            elif dispatcher.repeating:\n                await dispatcher.progress(AGAIN_SECONDS)\n",
                "",
            ),
        ),
        (UNIT_DISPATCH + "test_who_has_something_to_publish_again_does_not_go_to_sleep",),
    ),
    # What is cheaper at a trickle.
    Mutation(
        "a-run-that-is-waited-for-ends-by-itself",
        0,
        (Edit(WORKING, '" and not r.followed\\n  returning r.*"', '"\\n  returning r.*"'),),
        (CONFORMANCE + "test_what_a_tick_waits_for_is_no_run_that_nothing_waits_for",),
    ),
    Mutation(
        "what-recurs-is-taken-for-claimed",
        0,
        (Edit(DISPATCH, "            if not claimed.recurring:\n", "            if claimed:\n"),),
        (UNIT_DISPATCH + "test_what_recurs_is_claimed_whole_until_nothing_is_due_that_recurs",),
    ),
    Mutation(
        "what-is-ready-waits-for-the-end-of-all-claims",
        0,
        (Edit(DISPATCH, "if moved and time.monotonic() < self._looked_ready + READY_SECONDS:", "if moved:"),),
        (UNIT_DISPATCH + "test_what_is_ready_is_looked_for_while_claims_go_on",),
    ),
)
