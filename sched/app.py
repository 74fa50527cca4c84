"""What users write handlers with: App, the handler decorator, calls, and a handler's signals.

An App does no I/O and reads no environment. A worker loads it by `module:app`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from rota.sched.context import Context
from rota.sched.durations import seconds
from rota.sched.errors import UsageError
from rota.sched.ids import check_name
from rota.sched.policy import Retry
from rota.sched.signature import args_schema, bind, check_args, parameters, wants_context

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from rota.sched.when import When

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "App",
    "Call",
    "Cancel",
    "Handler",
    "NoRetry",
    "Retry",
    "RetryAfter",
    "Schedule",
    "Snooze",
    "check_args",
    "load_app",
]


class NoRetry(Exception):  # noqa: N818 - a signal to the worker
    """Raised by a handler: this will never work. The run is dead now, with the reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Cancel(Exception):  # noqa: N818
    """Raised by a handler: no need any more. The run ends as cancelled, with the reason and no alarm."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Snooze(Exception):  # noqa: N818
    """Raised by a handler: not now. The run comes again after the delay and no attempt is spent."""

    def __init__(self, delay: float | str | timedelta) -> None:
        self.seconds = seconds(delay, "Snooze")
        super().__init__(f"later, in {self.seconds:g} s")


class RetryAfter(Exception):  # noqa: N818
    """Raised by a handler: failed, and the next attempt is better made after the delay than by the backoff."""

    def __init__(self, delay: float | str | timedelta) -> None:
        self.seconds = seconds(delay, "RetryAfter")
        super().__init__(f"failed; again in {self.seconds:g} s")


@dataclass(frozen=True, slots=True)
class Call:
    """A handler with its arguments by name, ready to be submitted. `queue` None: the handler's."""

    handler: str
    args: dict[str, Any]
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A named schedule of an app. `expect`: seconds within which it should have succeeded once."""

    name: str
    call: Call
    when: When
    expect: float | None = None


class Handler(Generic[P, R]):
    """A user's function that jobs can run. Calling it calls the function."""

    def __init__(  # noqa: PLR0913 - the words of the decorator
        self,
        function: Callable[..., R],
        name: str,
        queue: str,
        retry: Retry,
        timeout: float | None,
    ) -> None:
        self.function = function
        self.name = check_name(name, "handler name")
        self.queue = check_name(queue, "queue")
        self.retry = retry
        self.timeout = timeout
        self.is_async = inspect.iscoroutinefunction(function)
        self._wants_context = wants_context(function)
        self._signature = parameters(function, name)
        self.schema = args_schema(function, self._signature)
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.name}>"

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """A call of this handler with these arguments (without `ctx`). UsageError if they do not fit."""
        values = bind(self._signature, self.name, args, kwargs)
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
        self.schedules: dict[str, Schedule] = {}

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.handlers)} handlers>"

    @overload
    def handler(self, function: Callable[Concatenate[Context, P], R], /) -> Handler[P, R]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> Handler[P, R]: ...
    @overload
    def handler(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: float | str | timedelta | None = None,
    ) -> _Decorator: ...
    def handler(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Makes a function a handler, with or without options.

        `queue` (default: the app's name), `retry` (a Retry), `timeout` (seconds or text; an async handler is stopped
        then, a sync one sees it in `ctx.deadline` and `ctx.cancelled`), `name` (default: the function's).
        """
        if function is not None:
            return self._add(function)
        return _Decorator(self, options)

    def _add(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: float | str | timedelta | None = None,
    ) -> Handler[..., Any]:
        limit = None if timeout is None else seconds(timeout, "timeout")
        handler: Handler[..., Any] = Handler(
            function, name or function.__name__, queue or self.name, retry or Retry(), limit
        )
        if handler.name in self.handlers:
            raise UsageError(f"app {self.name} has a handler {handler.name!r} already: give this one another name=")
        self.handlers[handler.name] = handler
        return handler

    def schedule(self, name: str, call: Call, when: When, expect: float | str | None = None) -> None:
        """Declares a named schedule. `expect`: within which time it should have succeeded once."""
        check_name(name, "schedule name")
        if name in self.schedules:
            raise UsageError(f"app {self.name} has a schedule {name!r} already")
        limit = None if expect is None else seconds(expect, "expect")
        self.schedules[name] = Schedule(name, call, when, limit)


def load_app(reference: str) -> App:
    """The App that `module:attribute` names; the current folder is looked in too. UsageError if there is none."""
    module_name, mark, attribute = reference.partition(":")
    if not (module_name and mark and attribute):
        raise UsageError(f"app {reference!r}: write MODULE:ATTRIBUTE, for example billing:app (--app or ROTA_APP)")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"app {reference!r}: there is no module {error.name!r} here or on PYTHONPATH") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        found = "has no such attribute" if app is None else f"has a {type(app).__name__} there"
        raise UsageError(f"app {reference!r}: module {module_name} {found}, not a rota.App")
    return app
