"""Keystone: users, projects, and trusts of users."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tenure.drivers.simulated.openstack.effects import EffectKind
from tenure.drivers.simulated.openstack.service import Answer, ApiRequest, Caller, Refused, Route, expect, only_admins
from tenure.drivers.simulated.openstack.state import State


class Keystone:
    def __init__(self, state: State) -> None:
        self._state = state

    def acting_as(self, trust_id: str) -> Caller:
        """Return the account that acts as the trustor of this trust."""
        trust = self._state.trusts.get(trust_id)
        if trust is None:
            raise Refused(401, "The request you have made requires authentication.")
        if trust.get("broken"):
            raise Refused(403, "Trust is broken")
        roles = frozenset(role["name"] for role in trust["roles"])
        return Caller(trust["trustor_user_id"], trust["project_id"], roles, trust_id)

    def make_trust(self, request: ApiRequest, caller: Caller) -> Answer:
        trust = dict(request.body["trust"])
        expect(set(trust), {"trustor_user_id", "trustee_user_id", "project_id", "impersonation", "roles"})
        if caller.trust_id is not None or trust["trustor_user_id"] != caller.user_id:
            raise Refused(403, "The authenticated user should match the trustor")
        if not {role["name"] for role in trust["roles"]} <= caller.roles:
            raise Refused(404, "Could not find role")
        trust["id"] = uuid.uuid4().hex
        self._state.trusts[trust["id"]] = trust
        self._state.record(EffectKind.TRUST_MADE, subject=trust["id"])
        return 201, {"trust": dict(trust)}

    def delete_trust(self, request: ApiRequest, caller: Caller, trust_id: str) -> Answer:
        trust = self._state.trusts.get(trust_id)
        if trust is None:
            raise Refused(404, f"Could not find trust: {trust_id}.")
        may_delete_all = caller.is_admin and not self._state.only_trustors_delete
        if caller.user_id != trust["trustor_user_id"] and not may_delete_all:
            raise Refused(403, "You are not authorized to perform the requested action: identity:delete_trust.")
        del self._state.trusts[trust_id]
        self._state.record(EffectKind.TRUST_REVOKED, subject=trust_id)
        return 204, None

    def _known(self, group: str) -> list[tuple[str, str]]:
        """The ids and names of all projects or users."""
        known = {
            (account.project_id, account.project_name) if group == "projects" else (account.user_id, account.user_name)
            for account in self._state.accounts
        }
        return sorted(known)

    def show(self, request: ApiRequest, caller: Caller, group: str, reference: str) -> Answer:
        only_admins(caller)
        for known_id, name in self._known(group):
            if known_id == reference:
                return 200, {group.removesuffix("s"): {"id": known_id, "name": name}}
        raise Refused(404, f"Could not find {group.removesuffix('s')}: {reference}.")

    def list_named(self, request: ApiRequest, caller: Caller, group: str) -> Answer:
        only_admins(caller)
        name_filter = request.params.get("name")
        found = [{"id": known_id, "name": name} for known_id, name in self._known(group) if name == name_filter]
        return 200, {group: found}

    @property
    def routes(self) -> Sequence[Route]:
        return (
            ("identity", "POST", "/OS-TRUST/trusts", self.make_trust),
            ("identity", "GET", "/(projects|users)", self.list_named),
            ("identity", "GET", "/(projects|users)/([^/]+)", self.show),
            ("identity", "DELETE", "/OS-TRUST/trusts/([^/]+)", self.delete_trust),
        )
