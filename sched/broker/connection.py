"""One AMQP connection over pika's asyncio adapter: opening it, writing to it, ending it.

`Wire` joins the frames of one turn of the event loop into one write (pika sends each by itself, three a
message), has the publish path without pika's per-message method objects, and takes a delivery out of what was read
without making frames of it. It depends on private parts of pika, whose version is therefore bounded in pyproject.toml.

An exception inside a callback would make pika close the whole connection, so callbacks are made by `guarded`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

import pika
from pika import exceptions, frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection
from rota.sched.broker.messages import ServerInfo
from rota.sched.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.sched.urls import BrokerAddress, Tls

log = logging.getLogger(__name__)
P = ParamSpec("P")

STACK_TIMEOUT = 10.0
"""Seconds from the TCP connection to an open AMQP connection."""
CLOSE_TIMEOUT = 5.0
"""Seconds for the closing handshake; after that the socket is dropped."""
_ROUTES = 4096
_FRAME = struct.Struct(">BHL")
"""How a frame begins (AMQP 0-9-1, 4.2.3): type, channel, length of its payload; an octet FRAME_END closes it."""
_AROUND = _FRAME.size + 1
_SIZE = struct.Struct(">Q")
_CONTENT = struct.Struct(">HxxQ")
"""What a content header has before its properties: class, weight, size of the body."""
_END = bytes([spec.FRAME_END])
_DELIVER = struct.pack(">I", spec.Basic.Deliver.INDEX)

Receiver = Callable[[int, bool, Any, bytes], None]
"""Takes a delivery: its tag, whether it was delivered before, its properties, its body. Raises nothing."""


class LoginRefused(Unreachable):
    """The broker answered and refused the login or the vhost: trying again does not help until someone acts."""


def guarded(callback: Callable[P, None], on_error: Callable[[], None] | None = None) -> Callable[P, None]:
    """`callback` for pika: what it raises is logged, then `on_error` is called; nothing escapes."""

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(*args, **kwargs)
        except Exception:
            log.exception("a callback of the broker connection failed")
            if on_error is not None:
                on_error()

    return call


class Wire(AsyncioConnection):  # type: ignore[misc]  # pika comes without types
    """An AMQP connection. Made by `connect`; all of it belongs to the event loop that runs then."""

    def __init__(self, parameters: pika.ConnectionParameters, **callbacks: Any) -> None:
        self._turn: list[bytes] = []
        self._publish_frames: dict[tuple[int, str, str, bool], bytes] = {}
        self._loop = asyncio.get_running_loop()
        self.receivers: dict[tuple[int, bytes], Receiver] = {}
        """By channel and consumer tag: who takes deliveries without pika's help."""
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done when the connection has ended, with the reason for people."""
        super().__init__(parameters, custom_ioloop=self._loop, **callbacks)

    def publish(self, channel: int, route: tuple[str, str, bool], properties: bytes, body: bytes) -> None:
        """Send one message on the numbered channel; `route` is exchange, routing key and mandatory.

        `properties` are encoded. What cannot be encoded raises before anything is sent; ValueError says that the
        properties are too big.
        """
        content = _CONTENT.pack(spec.BasicProperties.INDEX, len(body)) + properties
        if len(content) + _AROUND > self.params.frame_max:
            raise ValueError(f"headers and properties take {len(content)} bytes, over {self.params.frame_max}")
        frames = [self._publish_frame(channel, *route), _frame(spec.FRAME_HEADER, channel, content)]
        size = self._body_max_length
        frames += [_frame(spec.FRAME_BODY, channel, body[at : at + size]) for at in range(0, len(body), size)]
        self._output_marshaled_frames(frames)

    def _publish_frame(self, channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:  # noqa: FBT001 - unpacked from the route
        key = (channel, exchange, routing_key, mandatory)
        known = self._publish_frames.get(key)
        if known is None:
            if len(self._publish_frames) >= _ROUTES:
                self._publish_frames.clear()
            method = spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
            known = self._publish_frames[key] = frame.Method(channel, method).marshal()
        return known

    def forget(self, channel: int) -> None:
        """The channel has no receivers any more."""
        for key in [key for key in self.receivers if key[0] == channel]:
            del self.receivers[key]

    def abort(self, reason: str) -> None:
        """Drop the socket without a handshake; `lost` follows."""
        if not (self.is_closed or self.lost.done()):
            self._terminate_stream(exceptions.StreamLostError(reason))

    async def shut(self) -> None:
        """Close with a handshake if the broker takes part, else without. Bounded."""
        if self.is_open:
            self.close()
        elif not self.is_closed and not self.is_closing:
            self.abort("closed while opening")
        await asyncio.wait([self.lost], timeout=CLOSE_TIMEOUT)
        if not self.lost.done():
            self.abort("the broker did not answer the close")
            await asyncio.wait([self.lost], timeout=1.0)

    @property
    def server(self) -> ServerInfo:
        """The broker's own words about itself."""
        said: dict[str, Any] = self.server_properties or {}
        version = str(said.get("version", ""))
        release = version.partition("-")[0].partition("+")[0]
        numbers = tuple(int(part) for part in release.split(".") if part.isdecimal())
        return ServerInfo(str(said.get("product", "")), numbers, str(said.get("cluster_name", "")))

    def _on_data_available(self, data_in: bytes) -> None:
        """Pika's, but deliveries go to their receivers, and what was read is not copied for every frame in it."""
        buffer: bytes = self._frame_buffer + data_in
        at = 0
        try:
            while at < len(buffer):
                end = self._receive(buffer, at) or self._decode(buffer, at)
                if end < 0:
                    break
                self.bytes_received += end - at
                at = end
        finally:
            self._frame_buffer: bytes = buffer[at:]

    def _decode(self, buffer: bytes, at: int) -> int:
        """Has pika process the frame at `at`; returns where it ends, -1 if it is not all there."""
        rest = len(buffer) - at
        if rest < _AROUND:
            return -1
        refusal = buffer.startswith(b"AMQP", at)  # of our version: the version that the server speaks, no frame
        size: int = _AROUND + (0 if refusal else _FRAME.unpack_from(buffer, at)[2])
        if rest < size:
            return -1
        _, value = frame.decode_frame(buffer[at : at + size])
        self._process_frame(value)
        return at + size

    def _receive(self, buffer: bytes, at: int) -> int:
        """Hands the delivery that begins at `at` to its receiver. Returns where it ends, -1 if it is not all there.

        0: it is for pika, which also takes what comes in several body frames and complains of what is malformed.
        """
        size = len(buffer)
        if not self.receivers or size < at + _AROUND + 5 or not buffer.startswith(_DELIVER, at + _FRAME.size):
            return 0
        _, channel, length = _FRAME.unpack_from(buffer, at)
        header = at + _AROUND + length
        name = at + _FRAME.size + 5
        after = name + buffer[name - 1]
        receiver = self.receivers.get((channel, buffer[name:after]))
        if receiver is None or header + _AROUND + _CONTENT.size > size:
            return 0 if receiver is None or header > size else -1
        body = header + _AROUND + _FRAME.unpack_from(buffer, header)[2]
        _, content = _CONTENT.unpack_from(buffer, header + _FRAME.size)
        end: int = body + _AROUND + content if content else body
        if content > self._body_max_length or end > size:
            return 0 if content > self._body_max_length else -1
        whole = not content or _FRAME.unpack_from(buffer, body) == (spec.FRAME_BODY, channel, content)
        if not (whole and buffer[header - 1] == buffer[body - 1] == buffer[end - 1] == spec.FRAME_END):
            return 0
        self.frames_received += 3
        properties = _Properties(buffer[header + _FRAME.size + _CONTENT.size : body - 1])
        (tag,) = _SIZE.unpack_from(buffer, after)
        receiver(tag, bool(buffer[after + 8] & 1), properties, buffer[body + _FRAME.size : end - 1] if content else b"")
        return end

    def _output_marshaled_frames(self, marshaled_frames: Sequence[bytes]) -> None:
        if not self._turn:
            self._loop.call_soon(self._write_turn)
        self._turn.extend(marshaled_frames)
        self.frames_sent += len(marshaled_frames)

    def _write_turn(self) -> None:
        data, self._turn = b"".join(self._turn), []
        self.bytes_sent += len(data)
        if data and self._transport is not None:
            self._adapter_emit_data(data)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


class _Properties:
    """The properties of a delivery, decoded when somebody asks: a worker asks only of what it cannot use."""

    __slots__ = ("_encoded", "_known")

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._known: spec.BasicProperties | None = None

    def __getattr__(self, name: str) -> Any:
        if self._known is None:
            self._known = spec.BasicProperties().decode(self._encoded)
        return getattr(self._known, name)


async def connect(address: BrokerAddress, name: str) -> Wire:
    """Open a connection called `name` in the broker's lists.

    Raises LoginRefused when the broker refuses user, password or vhost, else Unreachable, in bounded time.
    """
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_open(_: Any) -> None:
        if not opened.done():
            opened.set_result(None)

    def on_open_error(_: Any, error: BaseException | None) -> None:
        if not opened.done():
            opened.set_exception(_unreachable(address, error))
        _end(wire, error)

    def on_close(_: Any, error: BaseException) -> None:
        _end(wire, error)

    wire: Wire = Wire(
        parameters(address, name),
        on_open_callback=guarded(on_open),
        on_open_error_callback=guarded(on_open_error),
        on_close_callback=guarded(on_close),
    )
    try:
        async with asyncio.timeout(address.connect_timeout + STACK_TIMEOUT + 1):
            await opened
    except TimeoutError:
        wire.abort("opening took too long")
        raise Unreachable(f"the broker {address.masked} did not answer in time") from None
    except asyncio.CancelledError:
        opened.cancel()
        await wire.shut()
        raise
    return wire


def _end(wire: Wire, error: BaseException | None) -> None:
    if not wire.lost.done():
        wire.lost.set_result(describe(error))


def describe(error: BaseException | None) -> str:
    """Why a connection or channel ended, for people."""
    if isinstance(error, (exceptions.ConnectionClosed, exceptions.ChannelClosed)):
        return f"{error.reply_code} {error.reply_text}"
    return str(error) or type(error).__name__


def _unreachable(address: BrokerAddress, error: BaseException | None) -> Unreachable:
    refused = (
        exceptions.ProbableAuthenticationError,
        exceptions.ProbableAccessDeniedError,
        exceptions.AuthenticationError,
    )
    if isinstance(error, refused):
        return LoginRefused(
            f"the broker {address.masked} refuses user {address.user!r} or vhost {address.vhost!r}: "
            f"{describe(error)}. Check ROTA_BROKER and the broker's users, vhosts and permissions"
        )
    return Unreachable(
        f"the broker {address.masked} cannot be reached: {_root_cause(error)}. Is it running, and is this its address?"
    )


def _root_cause(error: BaseException | None) -> str:
    """Pika wraps the socket's error several times, and shows only reprs of reprs."""
    seen: BaseException | None = error
    for _ in range(6):
        if seen is None or isinstance(seen, OSError):
            break
        inner = getattr(seen, "exceptions", None) or [getattr(seen, "exception", None), *seen.args]
        deeper = [each for each in inner if isinstance(each, BaseException)]
        if not deeper:
            break
        seen = deeper[-1]
    return describe(seen)


def parameters(address: BrokerAddress, name: str) -> pika.ConnectionParameters:
    """Pika's parameters for an address. Reads the certificate files of amqps; raises Unreachable if it cannot."""
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        heartbeat=address.heartbeat,
        socket_timeout=address.connect_timeout,
        stack_timeout=address.connect_timeout + STACK_TIMEOUT,
        connection_attempts=1,
        client_properties={"connection_name": name, "product": "Rota"},
        ssl_options=None if address.tls is None else _ssl_options(address, address.tls),
    )


def _ssl_options(address: BrokerAddress, tls: Tls) -> pika.SSLOptions:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file, tls.key_password)
    except OSError as error:
        raise Unreachable(f"the certificate files of {address.masked} cannot be read: {error}") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return pika.SSLOptions(context, tls.server_name or address.host)
