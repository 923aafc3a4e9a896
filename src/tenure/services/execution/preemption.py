"""Preemption: which leases start soon, and notifications about the servers in their way."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from tenure.drivers.contract import Command, Preempted
from tenure.services.context import Rules
from tenure.services.events.commands import planned_commands
from tenure.store.database import Database, Transaction

TOPIC = "lease.preemption"


class PreemptionService:
    """The use cases of preemption."""

    def __init__(self, db: Database, rules: Rules) -> None:
        self._db = db
        self._rules = rules

    def approaching(self) -> Iterator[tuple[str, Sequence[Command], datetime]]:
        """Yield the leases that start within the notice, earliest first: their id, planned commands, and start."""
        with self._db.read() as tx:
            now = tx.now()
            leases = tx.leases.starting(now, now + self._rules.preemption_notice)
        for lease_id, starts_at in leases:
            with self._db.read() as tx:
                lease = tx.leases.get(lease_id)
                commands = tuple(planned_commands(tx, lease)) if lease else ()
            yield lease_id, commands, starts_at

    def notify(self, lease_id: str, preempted: Iterable[Preempted], *, deadline: datetime) -> None:
        """Notify others that these servers must go for this lease; each server only once."""
        messages = {
            str(uuid.uuid5(uuid.UUID(lease_id), f"{TOPIC}/{server.server_id}/{deadline.isoformat()}")): {
                "lease_id": lease_id,
                "server_id": server.server_id,
                "project_id": server.project_id,
                "host": server.resource.name,
                "deadline": f"{deadline:%Y-%m-%dT%H:%M:%S.%f}",
            }
            for server in preempted
        }
        if messages:
            self._db.write(_notify, lease_id, messages)


def _notify(tx: Transaction, lease_id: str, messages: Mapping[str, Mapping[str, str]]) -> None:
    now = tx.now()
    for key in sorted(messages.keys() - tx.outbox.known(messages.keys())):
        tx.outbox.add(key=key, lease_id=lease_id, topic=TOPIC, payload=messages[key], now=now)
