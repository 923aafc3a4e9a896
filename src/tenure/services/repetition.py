"""Requests that a client repeats, since it does not know whether they were carried out."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from tenure import deadlines
from tenure.domain.actor import Actor
from tenure.domain.errors import Conflict
from tenure.domain.request import Repeatable
from tenure.domain.resource import Resource
from tenure.services.context import Context, ContextualService, new_id
from tenure.store.database import Transaction
from tenure.store.keys import StoredKey

#: For how long a key is honoured.
RETENTION = timedelta(days=1)
#: The largest number of keys that a project has at a time.
MOST_KEYS = 10_000

#: How the mark of a registered resource begins, in place of the id of what a request makes.
_REGISTERED = "made:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMESPACE = uuid.UUID("6f1c8a52-3d0e-4d0b-9b60-0c7c2f5a9e41")


class Repetition(ContextualService):
    """Gives a request with a key the id of what it makes: the same one, however often it is repeated."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)

    def id_for(self, actor: Actor, repeatable: Repeatable | None) -> str | None:
        """Return the id of what the request makes; None without a key.

        The key is that of a user in a project, for a day. Raises ``Conflict`` if it was sent with another request, or
        if the project has too many keys.
        """
        if repeatable is None:
            return None
        with deadlines.within(deadlines.current()):  # a key is not yet what the request is to change
            key = self._db.write(_key_of, actor, repeatable, now=self._clock.now())
        if key.digest != repeatable.digest:
            raise Conflict(
                "This Idempotency-Key was sent with another request less than a day ago; give each request its own key."
            )
        return key.made_id

    def registered(self, actor: Actor, repeatable: Repeatable | None) -> Resource | None:
        """Return the resource that this request has registered before, as it is now; None if it has not.

        Raises ``Conflict`` if the resource was taken back since, and the errors of ``id_for``.
        """
        made_id = self.id_for(actor, repeatable)
        if made_id is None or not made_id.startswith(_REGISTERED):
            return None
        with self._db.read() as tx:
            for resource in tx.resources.by_ids([int(made_id.split(":")[1])]).values():
                if _mark(resource) == made_id and resource.before_retirement is resource:
                    return resource
        raise Conflict("What was registered with this Idempotency-Key was taken back since; use another key.")

    def record_registered(
        self, tx: Transaction, actor: Actor, repeatable: Repeatable | None, resource: Resource
    ) -> None:
        """Record, in the transaction that makes a resource reservable, that this request has done so."""
        if repeatable is not None:
            key = StoredKey(repeatable.digest, _mark(resource))
            tx.keys.put(_key_id(actor, repeatable), actor.project_id, key, self._clock.now())


def _key_id(actor: Actor, repeatable: Repeatable) -> str:
    return str(uuid.uuid5(_NAMESPACE, "\0".join((actor.project_id, actor.user_id, repeatable.key))))


def _mark(resource: Resource) -> str:
    """Return what a key keeps of a registered resource: its id, which a database may use twice, and since when."""
    return f"{_REGISTERED}{resource.id}:{(resource.created_at - _EPOCH) // timedelta(microseconds=1)}"


def _key_of(tx: Transaction, actor: Actor, repeatable: Repeatable, *, now: datetime) -> StoredKey:
    """Return the key of a request as it is stored; it is stored if it is new."""
    tx.projects.lock(actor.project_id)
    key_id, since = _key_id(actor, repeatable), now - RETENTION
    known = tx.keys.get(key_id, since=since)
    if known is not None:
        return known
    tx.keys.prune(since)
    if tx.keys.count(actor.project_id, since=since) >= MOST_KEYS:
        raise Conflict(
            f"The project has sent {MOST_KEYS} requests with an Idempotency-Key within a day, the most that are kept; "
            "send this one without."
        )
    key = StoredKey(repeatable.digest, new_id())
    tx.keys.put(key_id, actor.project_id, key, now)
    return key
