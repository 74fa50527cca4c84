"""Waiting for what a broker does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.conftest import BOUND

if TYPE_CHECKING:
    from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = BOUND) -> None:
    """Wait for a condition; raises TimeoutError after a bound."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is the broker's, it sets no event
            await asyncio.sleep(0.01)
