"""Apps, handlers, calls, and what a handler raises on purpose."""

import asyncio
import sys
import uuid
from datetime import timedelta

import pytest
from rota.sched.app import App, Call, Cancel, Handler, NoRetry, Retry, RetryAfter, Snooze, load_app
from rota.sched.context import Context
from rota.sched.errors import RotaError, UsageError
from rota.sched.when import after, cron, every


@pytest.fixture
def app():
    return App("billing")


def test_a_handler_without_options_takes_the_apps_queue_and_the_functions_name(app):
    @app.handler
    def send(to: str) -> str:
        """Sends."""
        return to

    assert isinstance(send, Handler)
    assert (send.name, send.queue, send.retry, send.timeout, send.is_async) == ("send", "billing", Retry(), None, False)
    assert send.__doc__ == "Sends."
    assert app.handlers == {"send": send}


def test_options_of_a_handler_are_kept(app):
    @app.handler(name="other", queue="mail", retry=Retry(attempts=2), timeout="1m")
    async def send(): ...

    assert (send.name, send.queue, send.retry, send.timeout, send.is_async) == ("other", "mail", Retry(2), 60.0, True)


def test_a_handler_may_be_isolated_in_a_process_and_in_nothing_else(app):
    @app.handler(isolate="process", timeout=3)
    def parse(): ...

    @app.handler(isolate="process")
    async def fetch(): ...

    @app.handler
    def send(): ...

    assert (parse.isolate, fetch.isolate, send.isolate) == ("process", "process", None)
    with pytest.raises(UsageError, match="handler other: isolate is 'thread': give \"process\", or leave it out"):
        app.handler(name="other", isolate="thread")(lambda: None)


def test_attributes_of_the_function_do_not_replace_the_handlers(app):
    def send(): ...

    send.name = send.queue = "wrong"
    assert (app.handler(send).name, app.handlers["send"].queue) == ("send", "billing")


def test_calling_a_handler_calls_its_function(app):
    @app.handler
    def double(ctx: Context, n: int) -> tuple:
        return ctx, n * 2

    @app.handler
    async def later(n: int) -> int:
        return n

    assert double("a context", 2) == ("a context", 4)
    assert asyncio.run(later(3)) == 3


def test_invoke_passes_the_context_only_to_those_who_ask(app):
    @app.handler
    def with_it(ctx, n):
        return ctx, n

    @app.handler
    def without(n):
        return n

    assert with_it.invoke("ctx", {"n": 1}) == ("ctx", 1)
    assert without.invoke("ctx", {"n": 1}) == 1


def test_a_call_has_its_arguments_by_name_and_the_handlers_queue(app):
    @app.handler(queue="mail")
    def send(ctx: Context, to: str, n: int = 0) -> None: ...

    assert send.call("a@b") == Call("send", {"to": "a@b"}, "mail")
    assert send.call("a@b", n=2) == Call("send", {"to": "a@b", "n": 2}, "mail")


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 101, "send\n"])
def test_names_that_cannot_route_are_refused(app, name):
    with pytest.raises(UsageError, match="is not a name"):
        App(name)
    with pytest.raises(UsageError, match="handler name"):
        app.handler(name=name)(lambda: None)
    with pytest.raises(UsageError, match="queue"):
        app.handler(name="fine", queue=name)(lambda: None)
    assert not app.handlers


def test_a_second_handler_of_one_name_is_refused_and_the_first_stays(app):
    first = app.handler(name="send")(lambda: 1)
    with pytest.raises(UsageError, match="has a handler 'send' already"):
        app.handler(name="send")(lambda: 2)
    assert app.handlers["send"] is first


def _generator():
    yield


async def _async_generator():
    yield


@pytest.mark.parametrize("what", ["mail", 5, _generator, _async_generator, int])
def test_what_is_no_plain_function_is_refused(app, what):
    with pytest.raises(UsageError, match=r"cannot be a handler|is a generator"):
        app.handler(what)


def test_a_handler_is_not_decorated_twice(app):
    with pytest.raises(UsageError, match="cannot be a handler"):
        App("other").handler(app.handler(name="x")(lambda: None))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retry": 3}, r"give Retry\(attempts="),
        ({"timeout": 0}, "more than 0"),
        ({"timeout": "soon"}, "timeout is 'soon'"),
    ],
)
def test_options_that_make_no_sense_are_refused(app, options, told):
    with pytest.raises(UsageError, match=told):
        app.handler(name="x", **options)(lambda: None)


def test_schedules_are_kept_by_name_with_their_expectation_in_seconds(app):
    send = app.handler(name="send")(lambda: None)
    app.schedule("nightly", send.call(), cron("0 2 * * *", tz="Europe/Paris"), expect="26h")
    app.schedule("often", send.call(), every("30s"))
    assert list(app.schedules) == ["nightly", "often"]
    assert app.schedules["nightly"].expect == 26 * 3600
    assert app.schedules["often"].expect is None


def test_schedules_that_make_no_sense_are_refused(app):
    send = app.handler(name="send")(lambda: None)
    app.schedule("nightly", send.call(), every(5))
    for arguments, told in [
        (("nightly", send.call(), every(5)), "already"),
        (("a b", send.call(), every(5)), "schedule name"),
        (("x", send, every(5)), r"write handler\.call"),
        (("x", send.call(), after(5)), r"give cron\(\.\.\.\) or every"),
        (("x", send.call(), "0 2 * * *"), r"give cron\(\.\.\.\) or every"),
        (("x", send.call(), every(5), 0), "expect is 0"),
    ]:
        with pytest.raises(UsageError, match=told):
            app.schedule(*arguments)
    assert list(app.schedules) == ["nightly"]


def test_signals_are_not_errors_of_rota_and_carry_their_data():
    for kind in (NoRetry, Cancel, Snooze, RetryAfter):
        assert not issubclass(kind, RotaError)
    assert (NoRetry("gone").reason, str(Cancel("no need"))) == ("gone", "no need")
    assert (Snooze("5m").seconds, Snooze(seconds=2).seconds, RetryAfter(timedelta(hours=1)).seconds) == (300, 2, 3600)


@pytest.mark.parametrize("delay", [-1, float("nan"), "soon", None])
def test_signals_with_a_delay_that_is_none_are_refused(delay):
    for kind in (Snooze, RetryAfter):
        with pytest.raises(UsageError, match=kind.__name__):
            kind(delay)


# Loading


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of a name of its own and makes it importable."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(text):
        name = f"app_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("app_"):
            del sys.modules[name]


def test_an_app_is_loaded_by_module_and_attribute(module):
    name = module("from rota import App\nmine = App('billing')\n")
    assert load_app(f"{name}:mine").name == "billing"


@pytest.mark.parametrize("reference", ["", "billing", ":app", "billing:", ".billing:app"])
def test_a_reference_of_another_form_is_refused(reference):
    with pytest.raises(UsageError, match="write MODULE:ATTRIBUTE"):
        load_app(reference)


@pytest.mark.parametrize("name", ["nowhere_at_all", "nowhere_at_all.deep", "json.nowhere"])
def test_a_module_that_is_not_there_is_told(name):
    with pytest.raises(UsageError, match="there is no module"):
        load_app(f"{name}:app")


def test_an_attribute_that_is_no_app_is_told_with_the_one_that_is(module):
    name = module("from rota import App\nmine = App('billing')\nother = 5\n")
    with pytest.raises(UsageError, match=f"has no such attribute.*did you mean {name}:mine"):
        load_app(f"{name}:app")
    with pytest.raises(UsageError, match="has a int there"):
        load_app(f"{name}:other")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import nowhere_at_all\n", ModuleNotFoundError),
        ("from json import nothing\n", ImportError),
        ("def (\n", SyntaxError),
        ("\n1 / 0\n", ZeroDivisionError),
    ],
)
def test_an_error_inside_the_module_shows_its_own_cause_and_place(module, text, cause):
    name = module(text)
    with pytest.raises(UsageError, match=f"importing module {name} failed with {cause.__name__}") as caught:
        load_app(f"{name}:app")
    assert isinstance(caught.value.__cause__, cause)
    assert "no module 'app" not in str(caught.value)


def test_the_place_of_an_error_inside_the_module_is_its_line(module):
    name = module("\n\n1 / 0\n")
    with pytest.raises(UsageError, match=rf"{name}\.py, line 3"):
        load_app(f"{name}:app")
