"""The few requests of RabbitMQ's HTTP API that setting up needs."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit


class Management:
    """The HTTP API of the broker at an AMQP URL.

    `management` is the API's own URL; when it is empty, port 15672 of the broker's host.
    """

    def __init__(self, broker: str, management: str = "") -> None:
        self._broker = urlsplit(broker)
        self._user = unquote(self._broker.username or "guest")
        password = unquote(self._broker.password or "guest")
        url = urlsplit(management or f"http://{self._broker.hostname}:15672")
        self._base = f"{url.scheme}://{url.hostname}:{url.port or 15672}"
        secret = f"{unquote(url.username or self._user)}:{unquote(url.password or password)}"
        self._authorization = "Basic " + base64.b64encode(secret.encode()).decode()
        # A proxy of the environment has no business between us and a test broker.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def request(self, method: str, path: str, body: object = None, seconds: float = 30.0) -> Any:
        """The JSON answer, `None` when it is empty. Raises `OSError` (its `HTTPError` for a refusal)."""
        request = urllib.request.Request(self._base + path, method=method)
        request.add_header("Authorization", self._authorization)
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        with self._opener.open(request, data=data, timeout=seconds) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def answers(self) -> bool:
        """Whether the API works, bounded by five seconds."""
        try:
            self.request("GET", "/api/overview", seconds=5.0)
        except (OSError, ValueError):
            return False
        return True

    def create_vhost(self, name: str) -> str:
        """Make a vhost, unless it is there, that our user may do everything in; returns its AMQP URL."""
        self.request("PUT", f"/api/vhosts/{quote(name, safe='')}")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.request("PUT", f"/api/permissions/{quote(name, safe='')}/{quote(self._user, safe='')}", everything)
        return urlunsplit(self._broker._replace(path="/" + quote(name, safe="")))

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost and all that is in it; none of that name is fine."""
        try:
            self.request("DELETE", f"/api/vhosts/{quote(name, safe='')}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
