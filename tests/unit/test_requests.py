"""What a submit is checked for before any I/O."""

import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched import commands, dead, plans, requests
from rota.sched.app import App, Call
from rota.sched.broker.messages import Delivery
from rota.sched.errors import Conflict, Unreachable, UsageError
from rota.sched.requests import Submission, args_text, new_job, waves
from rota.sched.store.transaction import Transaction
from rota.sched.store.values import Submitted
from rota.sched.when import Once, after, at, cron, every

app = App("billing")


@app.handler(queue="mail")
def send(to: str, n: int = 0) -> None:
    """A handler."""


def a_job(**options):
    return new_job(send.call("a@b"), Once(), **options)


def test_a_job_takes_queue_and_arguments_from_its_call():
    job = a_job()
    assert (job.queue, job.handler, job.args) == ("mail", "send", '{"to":"a@b"}')


def test_a_queue_given_at_submit_overrides_the_handlers():
    assert a_job(queue="slow").queue == "slow"


def test_every_job_has_an_id_of_its_own_and_equal_requests_hash_alike():
    one, two = a_job(key="k"), a_job(key="k")
    assert one.id != two.id
    assert one.request == two.request


@pytest.mark.parametrize(
    ("call", "when", "options"),
    [
        (send.call("other"), Once(), {}),
        (send.call("a@b"), after(5), {}),
        (send.call("a@b"), at(datetime(2030, 1, 1, tzinfo=UTC)), {}),
        (send.call("a@b"), cron("0 2 * * *"), {}),
        (send.call("a@b"), Once(), {"queue": "slow"}),
        (send.call("a@b"), Once(), {"tenant": "t"}),
    ],
)
def test_another_request_has_another_hash(call, when, options):
    assert new_job(call, when, **options).request != a_job().request


def test_the_order_of_arguments_does_not_make_another_request():
    assert args_text({"a": 1, "b": {"x": 1, "y": 2}}) == args_text({"b": {"y": 2, "x": 1}, "a": 1})


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"a": ["x", {"b": "nul\0"}]}, r"args\.a\[1\]\.b contains a NUL"),
        ({"a": "\ud800"}, r"args\.a contains a lone surrogate"),
        ({"a\0": 1}, "a key of args contains a NUL"),
        ({"a": float("nan")}, r"args\.a is nan"),
        ({"a": {1: 2}}, r"args\.a has the key 1"),
        ({"a": {1, 2}}, r"args\.a is \{1, 2\}, a set"),
        ({"a": 1 << 5000}, r"args\.a is a whole number of more than"),
        ({"a": "x" * 70_000}, "args have 700.. bytes of JSON, the limit is 65536"),
        ([1], "are not an object"),
    ],
)
def test_arguments_that_cannot_be_stored_are_refused_with_their_place(args, told):
    with pytest.raises(UsageError, match=told):
        args_text(args)


def test_arguments_nested_without_end_are_refused():
    value: list = []
    value.append(value)
    with pytest.raises(UsageError, match="nested"):
        args_text({"a": value})


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(), st.lists, max_leaves=20))
def test_any_json_value_is_either_stored_as_text_or_refused_as_usage(value):
    with contextlib.suppress(UsageError):
        args_text({"a": value})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"key": ""}, "key is empty"),
        ({"key": "k" * 201}, "at most 200 characters"),
        ({"key": "a\0"}, "key contains a NUL"),
        ({"key": 7}, "must be text"),
        ({"queue": "no blanks"}, "queue 'no blanks' is not a name"),
        ({"tenant": "ö"}, "tenant 'ö' is not a name"),
        ({"name": "nightly"}, "runs once"),
    ],
)
def test_a_wrong_word_is_refused_with_its_name(options, told):
    with pytest.raises(UsageError, match=told):
        a_job(**options)


def test_a_schedule_has_a_name_or_a_key_and_not_both():
    assert new_job(send.call("x"), every(5), name="often").name == "often"
    with pytest.raises(UsageError, match="leave out the key"):
        new_job(send.call("x"), every(5), name="often", key="k")


def test_a_bare_function_is_refused_with_what_to_write():
    with pytest.raises(UsageError, match=r"write submit\(send\.call\(\.\.\.\)\)"):
        new_job(send, Once())

    def plain() -> None: ...

    with pytest.raises(UsageError, match=r"submit\(plain\.call"):
        new_job(plain, Once())


def test_a_time_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"give at\(\.\.\.\)"):
        new_job(send.call("x"), datetime(2030, 1, 1, tzinfo=UTC))


def test_submit_many_takes_calls_pairs_and_submissions_and_numbers_what_is_wrong():
    jobs = plans.new_jobs([send.call("a"), (send.call("b"), after(9)), Submission(send.call("c"), key="k")])
    assert [job.args for job in jobs] == ['{"to":"a"}', '{"to":"b"}', '{"to":"c"}']
    assert (jobs[1].when, jobs[2].key) == (after(9), "k")
    with pytest.raises(UsageError, match="item 1: "):
        plans.new_jobs([send.call("a"), send])


@given(st.lists(st.sampled_from(["a", "b", None]), max_size=12))
def test_waves_keep_every_job_once_and_no_key_twice(keys):
    jobs = [a_job(key=key) for key in keys]
    found = waves(jobs)
    assert sorted(n for wave in found for n in wave) == list(range(len(jobs)))
    for wave in found:
        mine = [jobs[n].key for n in wave if jobs[n].key is not None]
        assert len(mine) == len(set(mine))
    for key in ("a", "b"):
        order = [n for wave in found for n in wave if jobs[n].key == key]
        assert order == sorted(order)


class StoreThatAnswers:
    """Gives each submit as a transaction without statements, and notes how it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def submit(self, jobs, *, repeated=False, own_transaction=True):
        def steps():
            self.asked.append(([job.id for job in jobs], repeated, own_transaction))
            answer = self.answers.pop(0) if self.answers else None
            if isinstance(answer, Exception):
                raise answer
            return answer or [Submitted(job.id, duplicate=False) for job in jobs]
            yield

        return Transaction("submit", steps, pinned=True)


def carry_out(plan):
    """Runs a plan, without its pauses."""
    step, pauses = plan.__next__, []
    while True:
        try:
            order = step()
        except StopIteration as done:
            return done.value, pauses
        try:
            if isinstance(order, float):
                pauses.append(order)
                outcome = None
            else:
                next(order.steps())
        except StopIteration as done:
            outcome = done.value
        except Unreachable as error:
            step = lambda error=error: plan.throw(error)  # noqa: E731
            continue
        step = lambda outcome=outcome: plan.send(outcome)  # noqa: E731


def test_a_submit_whose_answer_is_lost_is_sent_again_with_the_same_id_as_a_repetition():
    store, job = StoreThatAnswers(Unreachable("x"), Unreachable("x")), a_job()
    refs, pauses = carry_out(plans.submitting(store, [job], borrowed=False))
    assert [ref.id for ref in refs] == [job.id]
    assert store.asked == [([job.id], False, True), ([job.id], True, True), ([job.id], True, True)]
    assert pauses == list(plans.SUBMIT_PAUSES[:2])


def test_a_submit_gives_up_after_four_tries():
    store = StoreThatAnswers(*[Unreachable("x")] * 4)
    with pytest.raises(Unreachable):
        carry_out(plans.submitting(store, [a_job()], borrowed=False))
    assert len(store.asked) == 4


def test_a_submit_in_the_callers_transaction_is_not_tried_again():
    store = StoreThatAnswers(Unreachable("x"))
    with pytest.raises(Unreachable):
        carry_out(plans.submitting(store, [a_job()], borrowed=True))
    assert [asked[2] for asked in store.asked] == [False]


def test_many_jobs_go_in_portions_of_a_thousand():
    store = StoreThatAnswers()
    refs, _ = carry_out(plans.submitting(store, [a_job() for _ in range(2500)], borrowed=False))
    assert len(refs) == 2500
    assert [len(ids) for ids, _, _ in store.asked] == [1000, 1000, 500]


def test_a_conflict_says_what_with_which_value_and_what_to_do():
    job = a_job(key="k")
    store = StoreThatAnswers([Submitted("the-other", duplicate=False, conflict="key 'k'")])
    with pytest.raises(Conflict, match=r"key 'k' belongs to job the-other.*use another key"):
        carry_out(plans.submitting(store, [job], borrowed=False))


def test_a_redrive_must_say_which_runs():
    with pytest.raises(UsageError, match="which dead runs"):
        dead.dead_filter([])
    with pytest.raises(UsageError, match="together"):
        dead.dead_filter(["a@b"], queue="mail")
    with pytest.raises(UsageError, match="limit 0"):
        dead.dead_filter([], queue="mail", limit=0)
    with pytest.raises(UsageError, match="max_redrives -1"):
        dead.dead_filter([], everything=True, max_redrives=-1)
    with pytest.raises(UsageError, match="per_second 0"):
        dead.how_to_redrive("ann@here", None, 0)


class Props:
    def __init__(self, **given):
        self.message_id = self.type = self.headers = self.correlation_id = None
        self.reply_to = self.app_id = self.user_id = self.content_type = None
        vars(self).update(given)


def delivered(body, **properties):
    return Delivery(1, 1, "rota.submit", body, Props(**{"type": "job.submit", "message_id": "m1", **properties}), False)


def test_the_message_id_is_the_key_unless_the_body_has_one_and_the_sender_its_scope():
    command = commands.read(delivered(b'{"handler": "send"}', user_id="web", app_id="shop"))
    assert (command.key, command.scope) == ("m1", "web/shop")
    assert commands.read(delivered(b'{"handler": "send", "key": "mine"}')).key == "mine"


@pytest.mark.parametrize(
    ("body", "properties", "told"),
    [
        (b"\xff", {}, "not UTF-8 JSON"),
        (b'{"handler": "send", "args": {"a": NaN}}', {}, "NaN is no JSON"),
        (b"[" * 100_000, {}, "not UTF-8 JSON"),
        (b"[]", {}, "JSON list"),
        (b"{}", {}, "handler"),
        (b'{"handler": "send"}', {"message_id": None}, "no idempotency key"),
        (b'{"handler": "send"}', {"type": "job.sumbit"}, "'job.sumbit' is no command"),
        (b'{"handler": "send"}', {"reply_to": "rota.jobs"}, "Rota's own"),
        (b'{"handler": "send", "when": {"at": "2030-01-01T00:00:00"}}', {}, "offset"),
        (b'{"handler": "send", "surprise": 1}', {}, "surprise"),
        (b" " * 600_000, {}, "600000 bytes"),
        (b"{}", {"type": "job.cancel"}, "id"),
        (b"{}", {"type": "job.redrive"}, "which dead runs"),
    ],
)
def test_a_message_that_is_no_command_is_refused_with_a_reason(body, properties, told):
    with pytest.raises(UsageError, match=told):
        commands.read(delivered(body, **properties))


def test_a_call_is_what_a_handler_makes():
    assert isinstance(send.call("x"), Call)
    assert requests.submission(send.call("x")).when == Once()
