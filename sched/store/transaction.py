"""A store's method as a value: what one transaction does, apart from the connection that runs it.

A store describes its transactions as generators that yield a `Query` and get its rows back. They know no connection,
so the same text serves a worker's asyncio link, a heartbeat thread's synchronous one, and the caller's own
transaction (`submit(connection=...)`, `ctx.transaction()`). The runner begins, drives the generator, commits; after
a deadlock or a serialization failure it starts the generator anew, so every transaction is safe to send again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Rows = list[tuple[Any, ...]]
Steps = Generator["Query", Rows, T]


@dataclass(frozen=True, slots=True)
class Query:
    """One statement with its bound parameters."""

    sql: str
    params: Mapping[str, Any] | Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class Transaction(Generic[T]):
    """What a store's method returns: run it with a link.

    `pinned` fixes the planner's choice for a hot statement. `single`: it is one statement whatever that answers, so it is
    its own transaction.
    """

    name: str
    steps: Callable[[], Steps[T]]
    pinned: bool
    single: bool = False


def transaction(
    *, pinned: bool = False, single: bool = False
) -> Callable[[Callable[P, Steps[T]]], Callable[P, Transaction[T]]]:
    """Makes of a generator function a method that gives a Transaction."""

    def decorate(function: Callable[P, Steps[T]]) -> Callable[P, Transaction[T]]:
        @wraps(function)
        def describe(*args: P.args, **kwargs: P.kwargs) -> Transaction[T]:
            return Transaction(function.__name__, lambda: function(*args, **kwargs), pinned, single)

        return describe

    return decorate
