"""URLs of brokers, and URLs without their secrets. Pure.

Nothing that is logged, raised or shown holds a URL that did not pass through `mask`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

HEARTBEAT = 5
"""Seconds. A frozen broker is noticed after 2 x (heartbeat + 5), a frozen worker by the broker after two to three of them:
until then it is sent messages, which wait with it."""
CONNECT_TIMEOUT = 5.0
"""Seconds for one TCP connection."""

_HIDDEN = "***"
_SECRET_FIELD = re.compile(
    r"(?P<name>\b(?:password|passwd|sslpassword|secret|token|ssl_options)\s*=\s*)(?P<value>'[^']*'|[^&\s]+)",
    re.IGNORECASE,
)


def mask(url: str) -> str:
    """`url` with its password replaced by `***`: the one in front of the host, and fields such as `password=`.

    Works for every scheme, for key=value connection strings and for URLs that are wrong. In doubt it hides more.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    credentials, at, place = rest.rpartition("@")
    if at:
        user, colon, _ = credentials.partition(":")
        rest = f"{user}{colon}{_HIDDEN if colon else ''}@{place}"
    return _SECRET_FIELD.sub(lambda found: found["name"] + _HIDDEN, scheme + separator + rest)


_PASSWORD = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/]+@", re.IGNORECASE)
_SECRET = re.compile(
    r"""(?P<name>["']?\b(?:password|passwd|secret|token|api_?key|access_?key|authorization)["']?\s*[=:]\s*)"""
    r"""(?P<value>(?:(?:bearer|basic)\s+)?(?:'[^']*'|"[^"]*"|[^\s,;&)}'"]+))""",
    re.IGNORECASE,
)


def mask_text(text: str) -> str:
    """Free text, such as an error's, with the secrets hidden that can be told: passwords in URLs, and `password=`, `token:`."""
    text = _PASSWORD.sub(lambda found: f"{found['before']}:{_HIDDEN}@", text)
    return _SECRET.sub(lambda found: found["name"] + _HIDDEN, text)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak TLS. Certificate and host name are verified unless `verify` is off."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    server_name: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker URL taken apart. `masked` is the URL for people; the password is in no repr. Times in seconds."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str
    masked: str
    tls: Tls | None = None
    heartbeat: int = HEARTBEAT
    connect_timeout: float = CONNECT_TIMEOUT


def parse_broker(url: str) -> BrokerAddress:
    """Take apart `amqp://user:password@host:port/vhost?option=value` or `amqps://...`.

    The vhost is `/` when the path is missing, `/` or `/%2F`. Options: `heartbeat` (seconds), `connection_timeout`
    (milliseconds) and, for amqps, `cacertfile`, `certfile`, `keyfile`, `password`, `server_name_indication`,
    `verify` (verify_peer, verify_none), as RabbitMQ's URI specification names them, and pika's `ssl_options`.

    Raises UsageError with the masked URL.
    """
    try:
        return _parse(url)
    except ValueError as error:
        raise UsageError(
            f"broker URL {mask(url)!r} cannot be used: {error}. Write amqp://user:password@host:5672/vhost, "
            "with special characters in user, password and vhost percent-encoded"
        ) from None


def _parse(url: str) -> BrokerAddress:
    parts = urlsplit(url)
    if parts.scheme not in {"amqp", "amqps"}:
        raise ValueError(f"the scheme is {parts.scheme!r}, not amqp or amqps")
    if parts.fragment:
        raise ValueError("it has a fragment ('#'), which has no meaning here")
    secure = parts.scheme == "amqps"
    options = _options(parts.query, secure=secure)
    return BrokerAddress(
        host=parts.hostname or "localhost",
        port=_port(parts, secure=secure),
        user=unquote(parts.username) if parts.username else "guest",
        password=_password(parts),
        vhost=_vhost(parts.path),
        masked=mask(url),
        tls=Tls(**options.tls) if secure else None,
        heartbeat=options.heartbeat,
        connect_timeout=options.connect_timeout,
    )


def _port(parts: SplitResult, *, secure: bool) -> int:
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port is no number from 1 to 65535") from None
    return port or (5671 if secure else 5672)


def _password(parts: SplitResult) -> str:
    if parts.password is not None:
        return unquote(parts.password)
    return "" if parts.username else "guest"


def _vhost(path: str) -> str:
    if path in {"", "/"}:
        return "/"
    vhost = path[1:]
    if not vhost.strip("/") or "/" in vhost:
        raise ValueError(f"the path {path!r} is no vhost: a '/' in its name is written %2F")
    return unquote(vhost)


@dataclass(slots=True)
class _Options:
    heartbeat: int = HEARTBEAT
    connect_timeout: float = CONNECT_TIMEOUT
    tls: dict[str, Any] = field(default_factory=dict)


_TLS_TEXT = {
    "cacertfile": "ca_file",
    "certfile": "cert_file",
    "keyfile": "key_file",
    "password": "key_password",
    "server_name_indication": "server_name",
}
_SSL_OPTIONS = {
    "ca_certs": "ca_file",
    "cafile": "ca_file",
    "certfile": "cert_file",
    "keyfile": "key_file",
    "password": "key_password",
    "server_hostname": "server_name",
}


def _options(query: str, *, secure: bool) -> _Options:
    options = _Options()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "heartbeat":
            options.heartbeat = _whole(name, value, low=1, high=3600)
        elif name == "connection_timeout":
            options.connect_timeout = _whole(name, value, low=1, high=600_000) / 1000
        else:
            _tls_option(options, name, value, secure=secure)
    return options


def _tls_option(options: _Options, name: str, value: str, *, secure: bool) -> None:
    if name in _TLS_TEXT:
        read: dict[str, str | bool | None] = {_TLS_TEXT[name]: value}
    elif name == "verify":
        read = {"verify": _verify(value)}
    elif name == "ssl_options":
        read = _ssl_options(value)
    else:
        raise ValueError(f"the option {name!r} is not known")
    if not secure:
        raise ValueError(f"the option {name!r} is for amqps only")
    options.tls.update(read)


def _whole(name: str, value: str, *, low: int, high: int) -> int:
    if not value.isdecimal() or not low <= int(value) <= high:
        raise ValueError(f"{name}={value!r} is no whole number from {low} to {high}")
    return int(value)


def _verify(value: str) -> bool:
    if value not in {"verify_peer", "verify_none"}:
        raise ValueError(f"verify={value!r} is neither verify_peer nor verify_none")
    return value == "verify_peer"


def _ssl_options(value: str) -> dict[str, str | bool | None]:
    try:
        given = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        given = None
    if not isinstance(given, dict):
        raise ValueError("ssl_options is no dictionary")  # noqa: TRY004 - parse_broker makes it a UsageError
    unknown = [key for key in given if key not in _SSL_OPTIONS]
    if unknown or not all(isinstance(each, str) for each in given.values()):
        raise ValueError(f"ssl_options takes text for {', '.join(_SSL_OPTIONS)} and nothing else")
    return {_SSL_OPTIONS[key]: each for key, each in given.items()}
