"""Events out: what services can listen to at the topic exchange `rota.events`, as CloudEvents 1.0 in JSON.

An event is told after the ledger's commit and is never repeated: it is lost when the process dies in between, or while the
broker takes nothing. What must not be missed is read from the store. Nobody has to listen.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from rota.sched.broker.messages import Outgoing
from rota.sched.broker.topology import EVENTS
from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rota.sched.broker.messages import Publish
    from rota.sched.broker.protocol import BrokerPublisher
    from rota.sched.ids import RunKey
    from rota.sched.store.values import Death

log = logging.getLogger(__name__)

REASON_LIMIT = 2000
"""Longest reason in an event, in characters; the store has all of it."""
CONTENT_TYPE = "application/cloudevents+json"


def run_dead(death: Death) -> Outgoing:
    """`run.dead`: a run has failed for good. `attempts` counts those since its claim or last redrive."""
    reason = death.reason if len(death.reason) <= REASON_LIMIT else death.reason[: REASON_LIMIT - 1] + "…"
    data = {
        "job_id": death.key.job_id,
        "scheduled_for": death.key.scheduled_for,
        "queue": death.queue,
        "handler": death.handler,
        "tenant": death.tenant,
        "reason": reason,
        "attempts": death.attempt,
    }
    return _event("run.dead", death.key, death.fence, data)


def _event(kind: str, run: RunKey, fence: int, data: Mapping[str, Any]) -> Outgoing:
    """The message. Its id is the same however often the same end of the same attempt is told.

    It has no `time`: the process that tells it does not know the store's.
    """
    id_ = f"{run}/{fence}/{kind}"
    body = {
        "specversion": "1.0",
        "id": id_,
        "source": "rota",
        "type": kind,
        "subject": str(run),
        "datacontenttype": "application/json",
        "data": data,
    }
    return Outgoing(
        EVENTS,
        f"{kind}.{data['queue']}.{data['handler']}",
        json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        id_,
        type=kind,
        content_type=CONTENT_TYPE,
        mandatory=False,
    )


def tell(publisher: BrokerPublisher, event: Outgoing) -> None:
    """Publishes an event if the broker takes anything now, and waits for nothing."""
    if publisher.up and not publisher.blocked:
        try:
            publisher.publish(event, _whatever)
        except UsageError as error:
            log.warning("event %s cannot be told: %s", event.message_id, error)


def _whatever(_: Publish) -> None:
    """An event that nobody listens to is confirmed, too; one whose fate is unknown may have been heard."""
