"""Placement: the units of reservations on hosts.

Each instance reservation has its own resource class, of which its flavor requires one unit. The provider for
reservations under a host's provider has as many units as the reservation has booked on that host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound
from tenure.drivers.openstack.placement import OWN_CLASSES, PREFIX, VERSION, Placement
from tenure.drivers.openstack.requests import BadRequest, Calls, Conflict, Request

#: How often a write is tried if others change the provider at the same time.
_ATTEMPTS: Final = 5


def class_of(reservation_id: str) -> str:
    """Return the resource class of a reservation."""
    return OWN_CLASSES + re.sub(r"[^A-Z0-9_]", "_", reservation_id.upper())


def inventory_of(units: int, *, closed: bool = False) -> dict[str, Any]:
    """Return the inventory of so many units; ``closed`` to new servers, or open."""
    return {
        "total": units,
        "reserved": units if closed else 0,
        "min_unit": 1,
        "max_unit": 1,
        "step_size": 1,
        "allocation_ratio": 1.0,
    }


class Units:
    """The units of one reservation, for one driver call. Providers are named by UUID."""

    def __init__(self, calls: Calls, reservation_id: str) -> None:
        self._calls = calls
        self._class = class_of(reservation_id)

    def ensure(self, expected: Mapping[str, int]) -> None:
        """Set the units on each of these providers; other providers are not changed."""
        in_conflict = self._write_inventories({provider: inventory_of(units) for provider, units in expected.items()})
        if in_conflict:
            raise CloudBusy("Placement's inventories keep changing while the reservation's are written.")

    def close(self, providers: Iterable[str]) -> None:
        """Close these providers to new servers."""
        self._write_inventories(dict.fromkeys(providers, inventory_of(1, closed=True)), only_existing=True)

    def drop(self, providers: Iterable[str]) -> list[str]:
        """Remove the units there; return the providers where servers still use some."""
        return self._write_inventories(dict.fromkeys(providers))

    def drop_class(self, placement: Placement) -> bool:
        """Delete the class, with remaining units on any host; return whether it was deleted."""
        if self._delete_class():
            return True
        # A user may have removed a host from the reservation's aggregate, so all providers are checked.
        self.drop(provider["uuid"] for name, provider in placement.providers().items() if name.startswith(PREFIX))
        return self._delete_class()

    def open_on(self) -> list[str]:
        """Return the names of the providers with free units."""
        params = {"resources": f"{self._class}:1"}
        try:
            found = self._calls.send(
                Request("placement", "GET", "/resource_providers", params=params, microversion=VERSION)
            )
        except BadRequest:  # the class does not exist
            return []
        return [provider["name"] for provider in found["resource_providers"]]

    def _ensure_class(self) -> None:
        path = f"/resource_classes/{self._class}"
        try:
            self._calls.send(Request("placement", "GET", path, microversion=VERSION))
        except CloudNotFound:
            self._calls.send(Request("placement", "PUT", path, microversion=VERSION))

    def _delete_class(self) -> bool:
        try:
            self._calls.send(Request("placement", "DELETE", f"/resource_classes/{self._class}", microversion=VERSION))
        except CloudNotFound:
            return True
        except Conflict:
            return False
        return True

    def _write_inventories(
        self, expected: Mapping[str, Mapping[str, Any] | None], *, only_existing: bool = False
    ) -> list[str]:
        """Write these inventories of the class, None for none; return the providers that stay in conflict.

        Each write names the provider's generation, so that concurrent writes of others are not lost. It also names the
        classes of other reservations on the provider. Placement compares the generations first and looks up the classes
        then; if a class is deleted in between, it refuses the write, which is tried again like one in conflict.
        """
        pending = dict(expected)
        refusals: list[BadRequest] = []
        for attempt in range(_ATTEMPTS):
            changes = self._changes(pending, only_existing)
            if attempt == 0 and any(request.method == "PUT" for request in changes.values()):
                self._ensure_class()  # only once: the reservation's own class may be gone because it has ended
            answers = self._calls.send_all(list(changes.values()))
            again: list[str] = []
            for provider, answer in zip(changes, answers, strict=True):
                if isinstance(answer, Conflict | BadRequest):
                    again.append(provider)
                elif isinstance(answer, CloudError) and not isinstance(answer, CloudNotFound):
                    raise answer
            refusals = [answer for answer in answers if isinstance(answer, BadRequest)]
            pending = {provider: pending[provider] for provider in again}
            if not pending:
                return []
        if refusals:
            raise refusals[0]
        return sorted(pending)

    def _changes(self, expected: Mapping[str, Mapping[str, Any] | None], only_existing: bool) -> dict[str, Request]:
        """Return the requests that are needed, by provider."""
        changes: dict[str, Request] = {}
        for provider, seen in inventories(self._calls, list(expected)).items():
            path = f"/resource_providers/{provider}/inventories"
            found, record = seen["inventories"].get(self._class), expected[provider]
            if record is None:
                if found is not None:
                    changes[provider] = Request("placement", "DELETE", f"{path}/{self._class}", microversion=VERSION)
                continue
            if only_existing:
                if found is None or found["reserved"] == found["total"]:
                    continue
                record = inventory_of(found["total"], closed=True)
            if found is None or any(found.get(name) != value for name, value in record.items()):
                body = {
                    "resource_provider_generation": seen["resource_provider_generation"],
                    "inventories": {**seen["inventories"], self._class: record},
                }
                changes[provider] = Request("placement", "PUT", path, body, microversion=VERSION)
        return changes


def inventories(calls: Calls, providers: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the inventories and generation of these providers; missing ones are left out."""
    answers = calls.send_all(
        [
            Request("placement", "GET", f"/resource_providers/{provider}/inventories", microversion=VERSION)
            for provider in providers
        ]
    )
    found: dict[str, Mapping[str, Any]] = {}
    for provider, answer in zip(providers, answers, strict=True):
        if isinstance(answer, CloudNotFound):
            continue
        if isinstance(answer, CloudError):
            raise answer
        found[provider] = answer
    return found
