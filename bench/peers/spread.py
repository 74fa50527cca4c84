"""Publishing with several threads, for clients that wait for the confirm of each message before the next."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def spread(publish: Callable[[], object], jobs: int, threads: int) -> None:
    """Calls `publish` `jobs` times from `threads` threads; raises what any call raised."""

    def some(count: int) -> None:
        for _ in range(count):
            publish()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, [jobs // threads + (n < jobs % threads) for n in range(threads)]))
