"""A TCP proxy that cuts the connections through it after so many bytes, wherever in a message that is.

It has a thread and an event loop of its own; `cut` may be called from any other thread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

CHUNK = 65536
BIND_SECONDS = 60.0
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of none: closing sends RST, as a crashed peer or a firewall does."""


class Link:
    """One connection through the proxy. `left` is how many more bytes it carries, None for no end."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.left: int | None = None

    async def pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Carries one direction until it ends or the link is cut."""
        while data := await source.read(CHUNK):
            if self.left is not None:
                data = data[: self.left]
                self.left -= len(data)
            target.write(data)
            await target.drain()
            if self.left == 0:
                self.cut()

    def cut(self) -> None:
        """Resets both ends at once."""
        for writer in (self.client, self.server):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.close()


class Proxy:
    """Listens on a port of 127.0.0.1 and carries each connection to one of `targets`, ports there too. A context manager.

    The targets take turns; one that does not answer is passed over.
    """

    def __init__(self, *targets: int) -> None:
        self.port = 0
        self._targets = deque(targets)
        self._links: list[Link] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Self:
        self._stop = asyncio.Event()
        self._thread.start()
        if not self._ready.wait(BIND_SECONDS):
            raise OSError("the proxy does not listen")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def cut(self, after: int, pick: float | None, seconds: float) -> int:
        """Cuts one of the connections (the share `pick` through their list) or all (None); returns how many.

        Each is cut after `after` more bytes, or after `seconds` if it has not carried so many by then.
        """
        done: threading.Event = threading.Event()
        counts: list[int] = []

        async def order() -> None:
            links = list(self._links)
            if pick is not None and links:
                links = [links[int(pick * len(links))]]
            for link in links:
                link.left = after
            counts.append(len(links))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while any(link in self._links for link in links):  # noqa: ASYNC110 - bytes decide
                        await asyncio.sleep(0.02)
            for link in links:
                link.cut()
            done.set()

        asyncio.run_coroutine_threadsafe(order(), self._loop)
        done.wait(seconds + BIND_SECONDS)
        return counts[0] if counts else 0

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for link in list(self._links):
            link.cut()
        await asyncio.sleep(0.1)  # the pumps notice

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams = await self._connect()
        if streams is None:
            writer.close()
            return
        there, back = streams
        link = Link(writer, back)
        self._links.append(link)
        try:
            pumps = [asyncio.ensure_future(link.pump(*way)) for way in ((reader, back), (there, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._links.remove(link)
            for each in (writer, back):
                each.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self._targets)):
            self._targets.rotate()
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", self._targets[0])
        return None
