"""Connections for handlers: pools for their transactions, and a link for what they submit outside of one."""

from __future__ import annotations

import asyncio
import threading
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import sqlalchemy as sa
    from rota.sched.store.protocols import Store
    from rota.sched.store.transaction import Transaction
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

_MOST = 20


class Pools:
    """Opened at first use: a worker whose handlers need no database holds no connection for them."""

    def __init__(self, store: Store, concurrency: int) -> None:
        self.store = store
        self._size = min(_MOST, concurrency)
        self._link = store.link("handlers")
        self._async_link = store.async_link("handlers")
        self._lock = threading.Lock()
        self._opened: list[str] = []

    @cached_property
    def engine(self) -> sa.Engine:
        """For sync handlers."""
        with self._lock:
            self._opened.append("engine")
        return self.store.engine("handlers", self._size)

    @cached_property
    def async_engine(self) -> AsyncEngine:
        """For async handlers."""
        self._opened.append("async_engine")
        return self.store.async_engine("handlers", self._size)

    def run(self, txn: Transaction[T]) -> T:
        """One transaction of the store, from any thread."""
        with self._lock:
            return self._link.run(txn)

    async def arun(self, txn: Transaction[T]) -> T:
        """One transaction of the store, in the loop."""
        return await self._async_link.run(txn)

    async def close(self) -> None:
        """Closes what was opened."""
        if "async_engine" in self._opened:
            await self.async_engine.dispose()
        if "engine" in self._opened:
            await asyncio.to_thread(self.engine.dispose)
        await self._async_link.close()
        await asyncio.to_thread(self._link.close)
