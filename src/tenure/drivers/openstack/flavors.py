"""Nova's flavors: those of reservations, and those from which reservations are made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from tenure.domain.actor import Actor
from tenure.domain.footprint import footprint_of, specs_of_size
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudError, CloudNotFound, CloudRefused, Command
from tenure.drivers.openstack.compute import FLAVOR_PREFIX, SCOPED_KEY, is_preemptible
from tenure.drivers.openstack.devices import Devices
from tenure.drivers.openstack.placement import OWN_CLASSES
from tenure.drivers.openstack.requests import Calls, Conflict, Request
from tenure.drivers.openstack.units import class_of
from tenure.drivers.reserved_servers import SERVER

#: The first microversion that shows a flavor's extra specs.
_VERSION: Final = "2.61"
_PAGE: Final = "1000"
_EPHEMERAL: Final = "OS-FLV-EXT-DATA:ephemeral"
#: The format of flavor ids; other texts could change the path of the request.
_ID: Final = re.compile(r"[a-zA-Z0-9. _-]{1,255}")
#: The key in a flavor's extra specs and an aggregate's metadata for the id of the server group.
AFFINITY_KEY: Final = "affinity_id"


@dataclass(frozen=True, slots=True)
class Flavor:
    """A size of servers: ``ram`` and ``swap`` in MiB, ``disk`` and ``ephemeral`` in GiB."""

    id: str
    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int = 0
    swap: int = 0
    is_public: bool = False
    extra_specs: Mapping[str, str] = field(default_factory=dict)

    def is_sized_as(self, other: Flavor) -> bool:
        """Whether the flavors differ at most in what Nova can change."""
        return replace(self, extra_specs={}) == replace(other, extra_specs={})


def flavor_for(command: Command, group_id: str | None) -> Flavor:
    """Return the flavor of the reservation's servers. Raises ``CloudRefused`` if the parameters lack a size."""
    source = command.parameters.get("resource_properties") if command.resource_type == "flavor:instance" else None
    try:
        if command.resource_type == SERVER:
            source = json.dumps(command.parameters["source"]) if command.parameters.get("source") else None
        if source is not None:
            given = json.loads(str(source))
            sizes = {name: int(given.get(name) or 0) for name in ("vcpus", "ram", "disk", "swap")}
            sizes["ephemeral"] = int(given.get("ephemeral") or given.get(_EPHEMERAL) or 0)
            specs = {str(name): str(value) for name, value in dict(given.get("extra_specs") or {}).items()}
        else:
            names = {"vcpus": "vcpus", "ram": "memory_mb", "disk": "disk_gb"}
            sizes = {name: int(str(command.parameters[called])) for name, called in names.items()}
            specs = _specs_of_size(command.parameters)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise CloudRefused(f"Reservation {command.reservation_id} does not say how large its instances are.") from None
    specs[SCOPED_KEY] = command.reservation_id
    specs[f"resources:{class_of(command.reservation_id)}"] = "1"
    if group_id is not None:
        specs[AFFINITY_KEY] = group_id
    named = f"{FLAVOR_PREFIX}{command.reservation_id}"
    ephemeral, swap = sizes.get("ephemeral", 0), sizes.get("swap", 0)
    return Flavor(
        command.reservation_id, named, sizes["vcpus"], sizes["ram"], sizes["disk"], ephemeral, swap, extra_specs=specs
    )


def _specs_of_size(parameters: Mapping[str, object]) -> dict[str, str]:
    """Return the extra specs for the further classes of a reservation of a size."""
    resources, specs = parameters.get("resources"), parameters.get("extra_specs")
    if not isinstance(resources, Mapping) or not resources:
        return {}
    return specs_of_size(resources, specs if isinstance(specs, Mapping) else {})


def taken_by(flavor: Flavor, devices: Devices) -> dict[str, int]:
    """Return what a server of the flavor takes of its host, by resource class, without reservations' own classes."""
    try:
        amounts = footprint_of({**asdict(flavor), **devices.described(flavor.extra_specs)}).amounts
    except ValueError:  # a user has written an invalid request into it
        return {}
    return {name: amount for name, amount in amounts.items() if not name.startswith(OWN_CLASSES)}


class Flavors:
    """Nova's API for flavors, for one driver call."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._listed: Sequence[Flavor] | None = None

    def seen_by(self, actor: Actor, reference: str) -> Flavor:
        """Return the flavor with that id, if the caller's project may use it; raise ``CloudNotFound``."""
        if actor.token is None:
            raise CloudRefused(Reason("A flavor reference needs a user token."))
        if not _ID.fullmatch(reference) or reference.strip(" .") == "":
            raise CloudNotFound(Reason(f"Flavor {reference[:255]} could not be found."))
        path = f"/flavors/{quote(reference)}"
        try:
            found = self._calls.send(Request("compute", "GET", path, microversion=_VERSION, token=actor.token))
            if "extra_specs" not in found["flavor"]:  # some clouds do not show them in the flavor
                specs = self._calls.send(Request("compute", "GET", f"{path}/os-extra_specs", token=actor.token))
                found["flavor"]["extra_specs"] = specs["extra_specs"]
        except CloudNotFound:
            raise CloudNotFound(Reason(f"Flavor {reference} could not be found.")) from None
        return _flavor(found["flavor"])

    def get(self, flavor_id: str) -> Flavor | None:
        try:
            return _flavor(self._send("GET", f"/flavors/{flavor_id}")["flavor"])
        except CloudNotFound:
            return None

    def of_reservations(self) -> dict[str, Flavor]:
        """Return all flavors with the name of a reservation's flavor, by reservation id."""
        return {flavor.id: flavor for flavor in self._all() if flavor.name == f"{FLAVOR_PREFIX}{flavor.id}"}

    def preemptible(self) -> list[str]:
        """Return the ids of all flavors for preemptible servers."""
        return [flavor.id for flavor in self._all() if is_preemptible(flavor.extra_specs)]

    def _all(self) -> Sequence[Flavor]:
        """Return all flavors; they are read once."""
        if self._listed is not None:
            return self._listed
        found: list[Flavor] = []
        params = {"is_public": "None", "limit": _PAGE}
        while True:
            page = self._send("GET", "/flavors/detail", params=params)
            found += map(_flavor, page["flavors"])
            if not any(link.get("rel") == "next" for link in page.get("flavors_links") or ()):
                self._listed = found
                return found
            params = {**params, "marker": page["flavors"][-1]["id"]}

    def ensure(self, expected: Flavor, project_id: str) -> None:
        """Create or correct the flavor for that project only. The project's access is added last."""
        found = self.get(expected.id)
        if found is not None and not found.is_sized_as(expected):
            self.delete(found.id)  # Nova cannot change sizes; servers keep the flavor they were booted with
            found = None
        if found is None:
            found = self._create(expected)
        self._ensure_specs(found, expected.extra_specs)
        had = self.access(expected.id)
        for other in sorted(had - {project_id}):
            self.forbid(expected.id, other)
        if project_id not in had:
            self._allow(expected.id, project_id)

    def access(self, flavor_id: str) -> frozenset[str]:
        """Return the projects that may use a private flavor; raise ``CloudNotFound`` for a public one."""
        found = self._send("GET", f"/flavors/{flavor_id}/os-flavor-access")["flavor_access"]
        return frozenset(access["tenant_id"] for access in found)

    def accesses(self, flavor_ids: list[str]) -> dict[str, frozenset[str]]:
        """Return the same for several flavors; missing and public ones are left out."""
        paths = [f"/flavors/{flavor_id}/os-flavor-access" for flavor_id in flavor_ids]
        answers = self._calls.send_all([Request("compute", "GET", path, microversion=_VERSION) for path in paths])
        found: dict[str, frozenset[str]] = {}
        for flavor_id, answer in zip(flavor_ids, answers, strict=True):
            if isinstance(answer, CloudNotFound):
                continue
            if isinstance(answer, CloudError):
                raise answer
            found[flavor_id] = frozenset(access["tenant_id"] for access in answer["flavor_access"])
        return found

    def close(self, flavor: Flavor) -> None:
        """Remove all projects' access, so that no more servers are booted with it."""
        if flavor.is_public:
            return  # Nova cannot change that; new servers are deleted with the others
        try:
            for project_id in sorted(self.access(flavor.id)):
                self.forbid(flavor.id, project_id)
        except CloudNotFound:
            return

    def forbid(self, flavor_id: str, project_id: str) -> None:
        try:
            self._send("POST", f"/flavors/{flavor_id}/action", {"removeTenantAccess": {"tenant": project_id}})
        except CloudNotFound:
            return

    def delete(self, flavor_id: str) -> None:
        try:
            self._send("DELETE", f"/flavors/{flavor_id}")
        except CloudNotFound:
            return

    def _allow(self, flavor_id: str, project_id: str) -> None:
        try:
            self._send("POST", f"/flavors/{flavor_id}/action", {"addTenantAccess": {"tenant": project_id}})
        except Conflict:
            if project_id not in self.access(flavor_id):
                raise

    def _create(self, expected: Flavor) -> Flavor:
        body = {
            "id": expected.id,
            "name": expected.name,
            "vcpus": expected.vcpus,
            "ram": expected.ram,
            "disk": expected.disk,
            _EPHEMERAL: expected.ephemeral,
            "swap": expected.swap,
            "os-flavor-access:is_public": False,
        }
        try:
            return _flavor(self._send("POST", "/flavors", {"flavor": body})["flavor"])
        except Conflict:  # another worker has just created it
            found = self.get(expected.id)
            if found is None or not found.is_sized_as(expected):
                raise
            return found

    def _ensure_specs(self, found: Flavor, expected: Mapping[str, str]) -> None:
        """Set exactly these extra specs."""
        changes = {name: value for name, value in expected.items() if found.extra_specs.get(name) != value}
        if changes:
            self._send("POST", f"/flavors/{found.id}/os-extra_specs", {"extra_specs": changes})
        for name in sorted(found.extra_specs.keys() - expected.keys()):
            try:
                self._send("DELETE", f"/flavors/{found.id}/os-extra_specs/{quote(name)}")
            except CloudNotFound:
                continue

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Any:
        return self._calls.send(Request("compute", method, path, body, params=params or {}, microversion=_VERSION))


def _flavor(found: Mapping[str, Any]) -> Flavor:
    return Flavor(
        id=found["id"],
        name=found["name"],
        vcpus=int(found["vcpus"]),
        ram=int(found["ram"]),
        disk=int(found["disk"]),
        ephemeral=int(found.get(_EPHEMERAL) or 0),
        swap=int(found.get("swap") or 0),
        is_public=bool(found.get("os-flavor-access:is_public")),
        extra_specs=dict(found.get("extra_specs") or {}),
    )
