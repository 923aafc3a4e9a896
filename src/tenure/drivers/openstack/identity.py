"""Keystone: being trusted by owners."""

from __future__ import annotations

import logging

from keystoneauth1 import plugin
from keystoneauth1.session import Session

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudNotFound, CloudRefused
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.session import Calls, Forbidden, Request, Unauthorized, password_of

LOG = logging.getLogger(__name__)


class Identity:
    """What is asked of Keystone, with the calls of one verb."""

    def __init__(self, calls: Calls, session: Session, options: OpenStackOptions) -> None:
        self._calls = calls
        self._session = session
        self._options = options

    def make_trust(self, actor: Actor) -> str:
        """A trust of the caller in us, with all his roles in his project, for as long as it is not revoked."""
        if actor.token is None or not actor.project_id:
            raise CloudRefused(Reason("A trust needs a token of a project."))
        if not actor.roles:
            raise CloudRefused(Reason("A trust needs a role in the project."))
        trustee = self._calls.do(self._session.get_user_id, "identity")
        body = {
            "trust": {
                "trustor_user_id": actor.user_id,
                "trustee_user_id": trustee,
                "project_id": actor.project_id,
                "impersonation": True,
                "roles": [{"name": name} for name in sorted(actor.roles)],
            }
        }
        request = Request("identity", "POST", self._url("/OS-TRUST/trusts"), body, token=actor.token)
        try:
            made = self._calls.send(request)
        except (Unauthorized, Forbidden, CloudNotFound) as error:
            raise CloudRefused(
                error.reason.after("Keystone does not let the caller trust the reservation service: ")
            ) from None
        return str(made["trust"]["id"])

    def delete_trust(self, trust_id: str) -> None:
        """Delete a trust, as ourselves where Keystone lets us, and else in the name of who made it."""
        request = Request("identity", "DELETE", self._url(f"/OS-TRUST/trusts/{trust_id}"))
        try:
            self._calls.send(request)
        except CloudNotFound:
            return
        except Forbidden:
            self._delete_as_trustor(request, trust_id)

    def _delete_as_trustor(self, request: Request, trust_id: str) -> None:
        as_owner = Request("identity", "DELETE", request.path, auth=password_of(self._options, trust_id=trust_id))
        try:
            self._calls.send(as_owner)
        except CloudNotFound:
            return
        except (Unauthorized, Forbidden) as error:
            # Its owner lost his roles or is gone: nobody can use it any more, and it is not ours to delete.
            LOG.warning("trust %s is broken, and Keystone does not let us delete it: %s", trust_id, error)

    def _url(self, path: str) -> str:
        return f"{self._options.identity_url}{path}"


def owner_by(calls: Calls, session: Session, options: OpenStackOptions, trust_id: str) -> plugin.BaseAuthPlugin:
    """The account that acts as the owner who gave this trust; raises ``CloudRefused`` where it does not work."""
    owner = password_of(options, trust_id=trust_id)
    try:
        calls.do(lambda: owner.get_access(session), "identity")
    except (Unauthorized, Forbidden, CloudNotFound) as error:
        raise CloudRefused(error.reason.after("The trust of the lease's owner does not work any more: ")) from None
    return owner
