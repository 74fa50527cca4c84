"""The RabbitMQ adapter: everything a process needs to speak to RabbitMQ 3.10 to 4.3.

A process has two connections: a `Publisher` and a `Consumer`. A plain `Link` is for looking and declaring.
"""

from __future__ import annotations

from rota.sched.broker.connection import LoginRefused
from rota.sched.broker.consumer import Consumer
from rota.sched.broker.link import Link
from rota.sched.broker.messages import Delivery, Depth, Drift, Outgoing, Publish, ServerInfo
from rota.sched.broker.probe import Capabilities, probe
from rota.sched.broker.publisher import Publisher

__all__ = [
    "Capabilities",
    "Consumer",
    "Delivery",
    "Depth",
    "Drift",
    "Link",
    "LoginRefused",
    "Outgoing",
    "Publish",
    "Publisher",
    "ServerInfo",
    "probe",
]
