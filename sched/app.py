"""What users write handlers with: App, the handler decorator, calls, and a handler's signals.

An App does no I/O and reads no environment. A worker loads it by `module:app`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from rota.sched import durations
from rota.sched.errors import UsageError
from rota.sched.ids import check_name
from rota.sched.policy import Retry, positive
from rota.sched.signature import args_schema, bind, check_args, parameters, surely_fits, wants_context
from rota.sched.when import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import ModuleType

    from rota.sched.context import Context

P = ParamSpec("P")
R = TypeVar("R")
Isolate = Literal["process"]

__all__ = [
    "App",
    "Call",
    "Cancel",
    "Handler",
    "NamedSchedule",
    "NoRetry",
    "Retry",
    "RetryAfter",
    "Snooze",
    "check_args",
    "load_app",
]


class NoRetry(Exception):  # noqa: N818 - a signal to the worker
    """Raised by a handler: this will never work. The run is dead now, with the reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(Exception):  # noqa: N818
    """Raised by a handler: no need any more. The run ends as cancelled, with the reason and no alarm."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Exception):  # noqa: N818
    """Raised by a handler: not now. The run comes again after that long (seconds or text); no attempt is spent."""

    def __init__(self, seconds: float | str | timedelta) -> None:
        self.seconds = durations.seconds(seconds, "Snooze")
        super().__init__(f"later, in {self.seconds:g} s")


class RetryAfter(Exception):  # noqa: N818
    """Raised by a handler: failed, and the next attempt is better made that much later than by the backoff."""

    def __init__(self, seconds: float | str | timedelta) -> None:
        self.seconds = durations.seconds(seconds, "RetryAfter")
        super().__init__(f"failed; again in {self.seconds:g} s")


@dataclass(frozen=True, slots=True)
class Call:
    """A handler with its arguments by name, ready to be submitted. `queue` None: the handler's."""

    handler: str
    args: dict[str, Any]
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A named schedule of an app. `expect`: seconds within which it should have succeeded once."""

    name: str
    call: Call
    when: Schedule
    expect: float | None = None


class Handler(Generic[P, R]):
    """A user's function that jobs can run. Calling it calls the function."""

    def __init__(  # noqa: PLR0913 - the options of `App.handler`
        self,
        function: Callable[..., R],
        name: str,
        queue: str,
        retry: Retry,
        timeout: float | None,
        *,
        isolate: Isolate | None = None,
    ) -> None:
        update_wrapper(self, function)  # first: it copies the function's own attributes
        self.function = function
        self.name = check_name(name, "handler name")
        self.queue = check_name(queue, "queue")
        self.retry = retry
        self.timeout = timeout
        self.isolate = isolate
        self.is_async = inspect.iscoroutinefunction(function)
        self._wants_context = wants_context(function)
        self._signature = parameters(function, name)
        self.schema = args_schema(function, self._signature)
        self._surely_fits = surely_fits(self.schema)

    @property
    def options(self) -> dict[str, Any]:
        """What it declares for itself, for people who look at its runs."""
        found = {"retry": self.retry.numbers(), "timeout": self.timeout}
        return {name: value for name, value in found.items() if value is not None}

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.name}>"

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """A call of this handler with these arguments (without `ctx`). UsageError if they do not fit."""
        values = bind(self._signature, self.name, args, kwargs)
        if not self._surely_fits(values):
            check_args(self.schema, values, self.name)
        return Call(self.name, values, self.queue)

    def invoke(self, ctx: Context, args: dict[str, Any]) -> Any:
        """Calls the function with arguments by name, and with the context if it asks for one."""
        return self.function(ctx, **args) if self._wants_context else self.function(**args)


class _Decorator:
    """`@app.handler(...)`: takes the function."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self._app = app
        self._options = options

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Handler[..., Any]:
        return self._app._add(function, **self._options)  # noqa: SLF001 - one thing in two classes


class App:
    """A set of handlers and named schedules. `name` is also the default queue."""

    def __init__(self, name: str) -> None:
        self.name = check_name(name, "app name")
        self.handlers: dict[str, Handler[..., Any]] = {}
        self.schedules: dict[str, NamedSchedule] = {}

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.handlers)} handlers>"

    @overload
    def handler(self, function: Callable[Concatenate[Context, P], R], /) -> Handler[P, R]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> Handler[P, R]: ...
    @overload
    def handler(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: float | str | timedelta | None = None,
        isolate: Isolate | None = None,
    ) -> _Decorator: ...
    def handler(  # noqa: PLR0913 - its options
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: float | str | timedelta | None = None,
        isolate: Isolate | None = None,
    ) -> Any:
        """Makes a function a handler, with or without options.

        `queue` (default: the app's name), `retry` (a Retry), `timeout` (seconds or text; an async handler is stopped
        then, a sync one sees it in `ctx.deadline` and `ctx.cancelled`), `name` (default: the function's), `isolate`
        ("process": each attempt runs in a process of its own that the timeout kills, whatever it does). Raises
        UsageError for a name that is taken, and for a function whose arguments cannot be JSON by name.
        """
        options = {"name": name, "queue": queue, "retry": retry, "timeout": timeout, "isolate": isolate}
        decorate = _Decorator(self, options)
        return decorate if function is None else decorate(function)

    def _add(  # noqa: PLR0913 - as above
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: float | str | timedelta | None = None,
        isolate: Isolate | None = None,
    ) -> Handler[..., Any]:
        _check_function(function)
        name = getattr(function, "__name__", "") if name is None else name
        queue = self.name if queue is None else queue
        if retry is not None and not isinstance(retry, Retry):
            raise UsageError(f"handler {name}: retry is {retry!r:.100}: give Retry(attempts=...)")
        if isolate is not None and isolate != "process":
            raise UsageError(f'handler {name}: isolate is {isolate!r:.100}: give "process", or leave it out')
        seconds = positive(timeout, "timeout")
        handler: Handler[..., Any] = Handler(function, name, queue, retry or Retry(), seconds, isolate=isolate)
        if name in self.handlers:
            raise UsageError(f"app {self.name} has a handler {name!r} already: give this one another name=")
        self.handlers[name] = handler
        return handler

    def schedule(self, name: str, call: Call, when: Schedule, expect: float | str | timedelta | None = None) -> None:
        """Declares a named schedule: `when` is cron(...) or every(...). `expect`: how often it should succeed at least.

        Raises UsageError for a name that is taken, and for what is no call or no schedule.
        """
        check_name(name, "schedule name")
        if name in self.schedules:
            raise UsageError(f"app {self.name} has a schedule {name!r} already: give this one another name")
        if not isinstance(call, Call):
            raise UsageError(f"schedule {name}: {call!r:.100} is not a call of a handler: write handler.call(...)")
        if not isinstance(when, Schedule):
            raise UsageError(f"schedule {name}: when is {when!r:.100}: give cron(...) or every(...)")
        self.schedules[name] = NamedSchedule(name, call, when, positive(expect, "expect"))


def _check_function(function: object) -> None:
    if not callable(function) or isinstance(function, Handler | type):
        raise UsageError(f"{function!r:.100} cannot be a handler: write @app.handler(queue=...) above a plain function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{function!r:.100} is a generator, whose body would never run: return a value, do not yield")


def load_app(reference: str) -> App:
    """The App that `module:attribute` names; the current folder is looked in too.

    Raises UsageError if there is none, or if its module cannot be imported: then with the module's own error as cause.
    """
    module_name, mark, attribute = reference.partition(":")
    if not (module_name and mark and attribute) or module_name.startswith("."):
        raise UsageError(f"app {reference!r}: write MODULE:ATTRIBUTE, for example billing:app (--app or ROTA_APP)")
    module = _import(module_name, reference)
    app = getattr(module, attribute, None)
    if isinstance(app, App):
        return app
    found = f"has a {type(app).__name__} there" if hasattr(module, attribute) else "has no such attribute"
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    remedy = f"did you mean {module_name}:{apps[0]}?" if apps else f"put {attribute} = App({module_name!r}) there"
    raise UsageError(f"app {reference!r}: module {module_name} {found}, not a rota.App: {remedy}")


def _import(name: str, reference: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            remedy = "check the name, the current folder and PYTHONPATH"
            raise UsageError(f"app {reference!r}: there is no module {error.name!r}: {remedy}") from None
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}, line {last.lineno}"
        why = f"{type(error).__name__}: {error} ({where})"
        raise UsageError(f"app {reference!r}: importing module {name} failed with {why}") from error
