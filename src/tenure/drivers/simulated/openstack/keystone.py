"""Keystone: trusts of users."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tenure.drivers.simulated.openstack.effects import EffectKind
from tenure.drivers.simulated.openstack.service import Answer, Asked, Caller, Refused, Route, expect
from tenure.drivers.simulated.openstack.state import State


class Keystone:
    def __init__(self, state: State) -> None:
        self._state = state

    def acting_as(self, trust_id: str) -> Caller:
        """The account that acts as the user who gave this trust."""
        trust = self._state.trusts.get(trust_id)
        if trust is None:
            raise Refused(401, "The request you have made requires authentication.")
        if trust.get("broken"):
            raise Refused(403, "Trust is broken")
        roles = frozenset(role["name"] for role in trust["roles"])
        return Caller(trust["trustor_user_id"], trust["project_id"], roles, trust_id)

    def make_trust(self, asked: Asked, caller: Caller) -> Answer:
        trust = dict(asked.body["trust"])
        expect(set(trust), {"trustor_user_id", "trustee_user_id", "project_id", "impersonation", "roles"})
        if caller.trust_id is not None or trust["trustor_user_id"] != caller.user_id:
            raise Refused(403, "The authenticated user should match the trustor")
        if not {role["name"] for role in trust["roles"]} <= caller.roles:
            raise Refused(404, "Could not find role")
        trust["id"] = uuid.uuid4().hex
        self._state.trusts[trust["id"]] = trust
        self._state.record(EffectKind.TRUST_MADE, subject=trust["id"])
        return 201, {"trust": dict(trust)}

    def delete_trust(self, asked: Asked, caller: Caller, trust_id: str) -> Answer:
        trust = self._state.trusts.get(trust_id)
        if trust is None:
            raise Refused(404, f"Could not find trust: {trust_id}.")
        may_delete_all = caller.is_admin and not self._state.only_trustors_delete
        if caller.user_id != trust["trustor_user_id"] and not may_delete_all:
            raise Refused(403, "You are not authorized to perform the requested action: identity:delete_trust.")
        del self._state.trusts[trust_id]
        self._state.record(EffectKind.TRUST_REVOKED, subject=trust_id)
        return 204, None

    @property
    def routes(self) -> Sequence[Route]:
        return (
            ("identity", "POST", "/OS-TRUST/trusts", self.make_trust),
            ("identity", "DELETE", "/OS-TRUST/trusts/([^/]+)", self.delete_trust),
        )
