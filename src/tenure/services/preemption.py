"""Preemption: what starts soon, and telling of the servers that are in its way."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from tenure.drivers.contract import Order, Preempted
from tenure.services.context import Rules
from tenure.services.events import EventService
from tenure.store.database import Database, Transaction

TOPIC = "lease.preemption"


class PreemptionService:
    """What is to be made way for, and who must be told."""

    def __init__(self, db: Database, events: EventService, rules: Rules) -> None:
        self._db = db
        self._events = events
        self._rules = rules

    def approaching(self) -> Iterator[tuple[str, Sequence[Order], datetime]]:
        """The leases that start within the notice, the earliest first: what they are to have, and when they start."""
        with self._db.read() as tx:
            now = tx.now()
            leases = tx.leases.starting(now, now + self._rules.preemption_notice)
        for lease_id, starts_at in leases:
            yield lease_id, self._events.planned(lease_id), starts_at

    def tell(self, lease_id: str, preempted: Iterable[Preempted], *, deadline: datetime) -> None:
        """Have others told of each server once that it has to go for this lease, however often this is asked for."""
        messages = {
            str(uuid.uuid5(uuid.UUID(lease_id), f"{TOPIC}/{one.server_id}/{deadline.isoformat()}")): {
                "lease_id": lease_id,
                "server_id": one.server_id,
                "project_id": one.project_id,
                "host": one.resource.name,
                "deadline": f"{deadline:%Y-%m-%dT%H:%M:%S.%f}",
            }
            for one in preempted
        }

        def write(tx: Transaction) -> None:
            now = tx.now()
            for key in sorted(messages.keys() - tx.outbox.known(messages.keys())):
                tx.outbox.add(key=key, lease_id=lease_id, topic=TOPIC, payload=messages[key], now=now)

        if messages:
            self._db.write(write)
