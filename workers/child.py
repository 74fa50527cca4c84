"""The process of isolated handlers, from its own side: loads the app once, then one attempt after the other.

The worker's orders come over a socket as pickles of its own making; what goes back is JSON, each piece behind its
length. The process leads a session of its own, so that it can be killed with all that it has started, and so that a
terminal's Ctrl-C reaches the worker only.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import json
import math
import os
import pickle
import signal
import struct
import sys
import threading
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rota.sched.app import load_app
from rota.sched.errors import UsageError
from rota.sched.heartbeat import Trust
from rota.sched.store import open_store
from rota.workers.attempt import Attempt, describe, judge
from rota.workers.carried import carry
from rota.workers.context import RunContext
from rota.workers.family import die_with_parent
from rota.workers.pools import Pools

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from rota.sched.app import App
    from rota.sched.settings import Settings

LENGTH = struct.Struct(">I")
"""Stands before each piece of JSON: its bytes."""
TOLD = ("completed", "committing", "progress")
"""What an attempt's context sets in it, and the worker has to know at once: the process may die the next moment."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def order(attempt: Attempt) -> bytes:
    """An attempt as a process of its handler gets it: without delivery, which is the worker's."""
    told = {f.name: getattr(attempt, f.name) for f in fields(attempt) if f.name != "handler"}
    told["job"] = replace(attempt.job, delivery=None, body=b"")
    return pickle.dumps((attempt.handler.name, told))


def live(settings: Settings, connection: socket.socket, prepare: Callable[[], None] | None) -> None:
    """The process's life. `prepare` is called first; it sets up logging as the worker's is."""
    os.setsid()
    die_with_parent()
    faulthandler.enable()
    for number in _SIGNALS:
        # Not SIG_IGN, which programs that a handler starts would inherit: terminate() could not end them.
        signal.signal(number, _leave_to_worker)
    os.register_at_fork(after_in_child=partial(_forked, connection))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # who is killed flushes nothing
    if prepare is not None:
        prepare()
    _Child(settings, connection).run()


def _leave_to_worker(*_: object) -> None:
    """A service manager may signal all processes; the worker is who drains."""


def _forked(connection: socket.socket) -> None:
    """In a process that a handler has forked: the worker must see the end of this one, and signals mean what they do."""
    os.close(connection.detach())
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class _Told(Attempt):
    """An attempt in the process of its handler."""

    tell: Callable[[str, Any], None] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in TOLD and self.tell is not None:
            self.tell(name, value)


class _Child:
    def __init__(self, settings: Settings, connection: socket.socket) -> None:
        self._settings = settings
        self._connection = connection
        self._orders = connection.makefile("rb")
        self._sending = threading.Lock()
        self._store = open_store(settings.store)
        self._pools = Pools(self._store, 1)
        self._trust = Trust(math.inf)  # the membership is the worker's, which kills this process when it is over
        self._trust.renewed(0.0)

    def run(self) -> None:
        """Until the worker closes the connection."""
        try:
            app = load_app(self._settings.app)
        except BaseException as error:  # noqa: BLE001 - a module may raise anything
            self._send({"failed": carry(error, describe(0, error))})
            return
        self._send({"ready": True})
        while True:
            try:
                name, told = pickle.load(self._orders)  # noqa: S301 - written by `order`, in the worker
            except EOFError:
                return
            self._send(self._execute(app, name, told))

    def _execute(self, app: App, name: str, told: dict[str, Any]) -> dict[str, Any]:
        """One attempt, and how it ended."""
        try:
            if name not in app.handlers:
                raise UsageError(f"{self._settings.app} has no handler {name!r} any more: restart the worker")  # noqa: TRY301
            attempt = _Told(handler=app.handlers[name], **told)
            self._send({"begun": True})
            attempt.tell = lambda name, value: self._send({"set": [name, value]})
            try:
                return {"verdict": judge(attempt, self._call(attempt), None, 0.0)}
            finally:
                attempt.tell = None  # a thread that it left behind may still have its context
        except BaseException as error:  # noqa: BLE001 - as any handler's
            return {"error": carry(error, describe(told["number"], error))}

    def _call(self, attempt: Attempt) -> Any:
        if attempt.handler.is_async:
            return asyncio.run(self._await(attempt))
        return RunContext(attempt, self._pools, self._trust).call()

    async def _await(self, attempt: Attempt) -> Any:
        pools = Pools(self._store, 1)  # asyncio's connections belong to one loop
        try:
            return await RunContext(attempt, pools, self._trust).call()
        finally:
            await pools.close()

    def _send(self, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        with self._sending:
            self._connection.sendall(LENGTH.pack(len(body)) + body)
