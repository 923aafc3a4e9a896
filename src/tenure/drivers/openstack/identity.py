"""Keystone: trusts of lease owners, and the ids of projects and users."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudNotFound, CloudRefused, Command, Group
from tenure.drivers.openstack.requests import Calls, Forbidden, Owner, Request, Unauthorized

LOG = logging.getLogger(__name__)

#: What an id may look like; any other text is not put into a path.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class Identity:
    """Keystone's API, for one driver call."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def make_trust(self, actor: Actor) -> str:
        """Create a trust of the caller in the service, with all his roles in his project; return its id."""
        if actor.token is None or not actor.project_id:
            raise CloudRefused(Reason("A trust needs a token of a project."))
        if not actor.roles:
            raise CloudRefused(Reason("A trust needs a role in the project."))
        body = {
            "trust": {
                "trustor_user_id": actor.user_id,
                "trustee_user_id": self._calls.user_id(),
                "project_id": actor.project_id,
                "impersonation": True,
                "roles": [{"name": name} for name in sorted(actor.roles)],
            }
        }
        try:
            made = self._calls.send(Request("identity", "POST", "/OS-TRUST/trusts", body, token=actor.token))
        except (Unauthorized, Forbidden, CloudNotFound) as error:
            raise CloudRefused(
                error.reason.after("Keystone does not let the caller trust the reservation service: ")
            ) from None
        return str(made["trust"]["id"])

    def delete_trust(self, trust_id: str) -> None:
        """Delete a trust, as the service if Keystone allows it, otherwise as its owner."""
        request = Request("identity", "DELETE", f"/OS-TRUST/trusts/{trust_id}")
        try:
            self._calls.send(request)
        except CloudNotFound:
            return
        except Forbidden:
            self._delete_as_owner(request, trust_id)

    def find(self, group: Group, reference: str) -> Sequence[str]:
        """Return the ids of the projects or users with this id or, if there is none, with this name."""
        if _ID.fullmatch(reference):
            try:
                found = self._calls.send(Request("identity", "GET", f"/{group}/{reference}"))
                return [str(found[group.removesuffix("s")]["id"])]
            except CloudNotFound:
                pass
        listed = self._calls.send(Request("identity", "GET", f"/{group}", params={"name": reference}))[group]
        return sorted(str(item["id"]) for item in listed if item["name"] == reference)  # Keystone may ignore case

    def _delete_as_owner(self, request: Request, trust_id: str) -> None:
        try:
            self._calls.send(replace(request, owner=self._calls.owner(trust_id)))
        except CloudNotFound:
            return
        except (Unauthorized, Forbidden) as error:
            # The owner has lost his roles or is deleted: the trust is useless, and only an administrator can delete it.
            LOG.warning("trust %s is broken, and Keystone does not let us delete it: %s", trust_id, error)


def owner_of(calls: Calls, command: Command, *, purpose: str) -> Owner:
    """Log in as the owner of the command's lease by the command's trust, and return him.

    Raises ``CloudRefused`` if there is no valid trust; ``purpose`` names what needs it.
    """
    if command.trust_id is None:
        raise CloudRefused(
            Reason(f"{purpose} cannot be made: the lease's owner did not trust the reservation service.")
        )
    owner = calls.owner(command.trust_id)
    try:
        calls.log_in(owner)
    except (Unauthorized, Forbidden, CloudNotFound) as error:
        raise CloudRefused(error.reason.after("The trust of the lease's owner does not work any more: ")) from None
    return owner
