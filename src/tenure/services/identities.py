"""Projects and users that requests name, by id or by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tenure.domain.actor import Actor
from tenure.domain.errors import InvalidParameter, Unavailable
from tenure.drivers.contract import CloudBusy, CloudError, Group
from tenure.services.cloud import CloudCalls
from tenure.store.database import Database

LOG = logging.getLogger(__name__)

#: How many ids of the same name an error shows.
_SHOWN = 5


class Identities:
    """Finds the ids of projects and users that a request names.

    A project or user that has leases is known by its id, whether the identity service still has it or not.
    """

    def __init__(self, db: Database, cloud: CloudCalls) -> None:
        self._db = db
        self._cloud = cloud

    def project(self, actor: Actor, reference: str, *, may_see: bool) -> str | None:
        """Return the id of a project; None unless it is the actor's own or the actor ``may_see`` it.

        Raises ``InvalidParameter`` for an unknown one and for a name of several, and ``Unavailable``.
        """
        if reference == actor.project_id:
            return reference
        if not may_see:
            return actor.project_id if reference == actor.project_name else None
        with self._db.read() as tx:
            if tx.projects.has_had_leases(project_id=reference):
                return reference
        found = self._found(Group.PROJECTS, reference)
        if not found and reference == actor.project_name:
            return actor.project_id
        return _single(found, "project", reference)

    def user(self, actor: Actor, reference: str) -> str:
        """Return the id of a user, for an actor who may see all users. Raises the errors of ``project``."""
        if reference == actor.user_id:
            return reference
        with self._db.read() as tx:
            if tx.projects.has_had_leases(user_id=reference):
                return reference
        found = self._found(Group.USERS, reference)
        if not found and reference == actor.user_name:
            return actor.user_id
        return _single(found, "user", reference)

    def user_of_project(self, actor: Actor, reference: str) -> str:
        """Return the id of a user who has had leases in the actor's project, or of the actor.

        Of users without leases there, nothing is shown, not even whether they exist. Raises ``InvalidParameter`` for
        them, and ``Unavailable``.
        """
        if reference in {actor.user_id, actor.user_name}:
            return actor.user_id
        if self._is_of_project(actor, reference):
            return reference
        for user_id in self._found(Group.USERS, reference):
            if self._is_of_project(actor, user_id):
                return user_id
        raise InvalidParameter(
            f"No user with leases in your project has the id or the name {reference!r}.", field="user_id"
        )

    def _is_of_project(self, actor: Actor, user_id: str) -> bool:
        with self._db.read() as tx:
            return tx.projects.has_had_leases(project_id=actor.project_id, user_id=user_id)

    def _found(self, group: Group, reference: str) -> Sequence[str]:
        try:
            return self._cloud.identify(group, reference)
        except CloudBusy as error:
            LOG.warning("%s %r cannot be looked up: %s", group, reference, error)
            raise Unavailable(f"The cloud does not answer as it should: {error.reason.text}") from None
        except CloudError as error:
            LOG.warning("%s %r cannot be looked up: %s", group, reference, error)
            return ()


def _single(found: Sequence[str], noun: str, reference: str) -> str:
    """Return the only id. Raises ``InvalidParameter`` if there is none, and if there are several."""
    if not found:
        raise InvalidParameter(f"No {noun} has the id or the name {reference!r}.", field=f"{noun}_id")
    if len(found) > 1:
        shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise InvalidParameter(f"Several {noun}s are named {reference!r}: {shown}. Give the id.", field=f"{noun}_id")
    return found[0]
