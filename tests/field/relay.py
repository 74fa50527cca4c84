"""TCP relays between a member and a server: they hold everything, or lose the answer of a commit."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections import Counter
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_CHUNK = 1 << 16
_ENCRYPTION = {80877103, 80877104}
"""Codes of Postgres' requests for encryption: the start-up message is still to come."""


class Relay:
    """Passes on what comes for the server of `url`, both ways, while it is open. `url` is then the relay's own."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._passing = threading.Event()
        self._passing.set()
        self._over = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        credentials = self._server.netloc.rpartition("@")[0]
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(self._server._replace(netloc=f"{credentials}@127.0.0.1:{port}"))

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._passing.set()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for each in (self._listener, *self._sockets):
            each.close()

    def hold(self) -> None:
        """From now on nothing passes, and nobody is told: a half-open connection."""
        self._passing.clear()

    def release(self) -> None:
        """What was held passes."""
        self._passing.set()

    def cut(self) -> None:
        """Every connection ends; new ones are taken."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._over:
            if not select.select([self._listener], [], [], 0.1)[0]:
                continue
            client, _ = self._listener.accept()
            try:
                self._begin(self._connection(client))
            except OSError:
                client.close()  # nobody is there to be connected with

    def _connection(self, client: socket.socket) -> Connection:
        return Connection(client, (self._server.hostname or "127.0.0.1", self._server.port or 0))

    def _begin(self, connection: Connection) -> None:
        self._sockets += [connection.client, connection.server]
        for source, step in (
            (connection.client, connection.pass_on),
            (connection.server, connection.pass_back),
        ):
            thread = threading.Thread(target=self._pump, args=(connection, source, step), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pump(self, connection: Connection, source: socket.socket, step: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._passing.wait()
                step(data)
        connection.end()


class Connection:
    """One connection through a relay."""

    def __init__(self, client: socket.socket, server: tuple[str, int]) -> None:
        self.client = client
        self.server = socket.create_connection(server, timeout=60)
        self.server.settimeout(None)

    def pass_on(self, data: bytes) -> None:
        """From the client to the server."""
        self.server.sendall(data)

    def pass_back(self, data: bytes) -> None:
        """From the server to the client."""
        self.client.sendall(data)

    def end(self) -> None:
        """Ends both sides."""
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class LostCommits(Relay):
    """Loses the answers of commits, and the connection with them; the server has committed by then.

    A statement outside of a transaction block is a commit of its own. `marks` says which: a transaction is called by the first of them whose text is in one of its statements. `left` is how
    many of each are still to be lost.
    """

    def __init__(self, url: str, marks: Mapping[str, str], each: int) -> None:
        super().__init__(url)
        self.marks = marks
        self.left = Counter(dict.fromkeys(marks, each))
        self._counting = threading.Lock()

    def loses(self, statements: list[str]) -> bool:
        """Whether the answer of this transaction's commit is one to be lost."""
        name = next((name for name, mark in self.marks.items() if any(mark in each for each in statements)), None)
        with self._counting:
            if name is None or not self.left[name]:
                return False
            self.left[name] -= 1
            return True

    def _connection(self, client: socket.socket) -> Connection:
        return _Postgres(client, (self._server.hostname or "127.0.0.1", self._server.port or 0), self)


class _Postgres(Connection):
    """Reads along what the client says in Postgres' protocol."""

    def __init__(self, client: socket.socket, server: tuple[str, int], relay: LostCommits) -> None:
        super().__init__(client, server)
        self._relay = relay
        self._buffer = b""
        self._greeted = False
        self._prepared: dict[bytes, str] = {}
        self._statements: list[str] = []
        self._in_block = False
        self._losing = False

    def pass_on(self, data: bytes) -> None:
        self._buffer += data
        while self._read():
            pass
        super().pass_on(data)

    def pass_back(self, data: bytes) -> None:
        if self._losing:
            self.end()
        else:
            super().pass_back(data)

    def _read(self) -> bool:
        """Takes one message off the buffer, if a whole one is there."""
        kind = 1 if self._greeted else 0
        if len(self._buffer) < kind + 4:
            return False
        (size,) = struct.unpack_from("!i", self._buffer, kind)
        if len(self._buffer) < kind + size:
            return False
        message, self._buffer = self._buffer[: kind + size], self._buffer[kind + size :]
        if self._greeted:
            self._hear(message[:1], message[5:])
        else:
            self._greeted = struct.unpack_from("!i", message, 4)[0] not in _ENCRYPTION
        return True

    def _hear(self, kind: bytes, body: bytes) -> None:
        if kind == b"P":
            name, text = body.split(b"\0", 2)[:2]
            self._prepared[name] = text.decode()
        elif kind == b"B":
            statement = self._prepared[body.split(b"\0", 2)[1]]
            if self._in_block:
                self._statements.append(statement)
            else:
                self._losing = self._relay.loses([statement])
        elif kind == b"Q":
            text = body.rstrip(b"\0").decode().lower()
            if text == "commit":
                self._losing = self._relay.loses(self._statements)
            if text.startswith(("begin", "commit", "rollback")):
                self._statements.clear()
                self._in_block = text.startswith("begin")
