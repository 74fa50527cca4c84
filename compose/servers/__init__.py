"""Postgres and RabbitMQ for development: found, installed, started and stopped.

Standard library only, and runnable by the system's Python: the set-up needs it before `.venv` exists.

`Postgres` and `RabbitMQ` are one server each, in one folder, on private ports of 127.0.0.1. What a server
needs to be found again by another process (ports, pid, start time) is in `instance.json` in its folder, so
`start()` is idempotent and a stale pid of a rebooted machine is noticed. `Services` is the pair that a
checkout shares.
"""

from servers.errors import Missing, NotReady
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres
from servers.rabbitmq import RabbitMQ
from servers.services import Services

__all__ = ["Missing", "NotReady", "PgBouncer", "Postgres", "RabbitMQ", "Services"]
