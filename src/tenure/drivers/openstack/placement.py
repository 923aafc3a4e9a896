"""Placement: what hosts have, and the providers that Tenure keeps under them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound
from tenure.drivers.openstack.session import Calls, Conflict, Request

_VERSION: Final = "1.29"
#: What the names of Tenure's own providers begin with, and those of the classes that reservations make.
PREFIX: Final = "blazar_"
_OWN_CLASSES: Final = "CUSTOM_RESERVATION_"
#: The most candidates that one look asks for; hosts that it leaves out are asked for one by one.
_CANDIDATES: Final = "20000"


@dataclass(slots=True)
class Stock:
    """What a host has, with everything that is nested under it: amounts by class, and traits."""

    amounts: dict[str, int] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)


class Placement:
    """What is asked of Placement, with the calls of one verb."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def providers(self) -> dict[str, Mapping[str, Any]]:
        """All providers, by name."""
        found = self._get("/resource_providers")["resource_providers"]
        return {one["name"]: one for one in found}

    def stocks(self) -> dict[str, Stock]:
        """What all hosts have, by name.

        One look at what could be allocated tells it of all that have room for one virtual CPU; the others take two
        calls for each of their providers.
        """
        providers = self.providers()
        named = {one["uuid"]: name for name, one in providers.items()}
        found: dict[str, Stock] = {}
        params = {"resources": "VCPU:1", "limit": _CANDIDATES}
        summaries = self._get("/allocation_candidates", params)["provider_summaries"]
        for uuid, summary in summaries.items():
            host = named.get(summary["root_provider_uuid"])
            if host is None or named.get(uuid, "").startswith(PREFIX):
                continue
            stock = found.setdefault(host, Stock())
            stock.traits.update(summary["traits"])
            for resource_class, amounts in summary["resources"].items():
                _count(stock, resource_class, amounts["capacity"])
        missing = [
            one
            for one in providers.values()
            if named.get(one["root_provider_uuid"]) not in found and not one["name"].startswith(PREFIX)
        ]
        for root, stock in self._one_by_one(missing).items():
            if root in named:
                found[named[root]] = stock
        return found

    def stock(self, host: str) -> Stock:
        """What one host has; nothing where Placement does not know it."""
        root = self._named(host)
        if root is None:
            return Stock()
        tree = self._get("/resource_providers", {"in_tree": root["uuid"]})["resource_providers"]
        parts = [one for one in tree if not one["name"].startswith(PREFIX)]
        return self._one_by_one(parts).get(root["uuid"], Stock())

    def ensure_provider(self, host: str) -> None:
        """Have the provider of reservations under the host's."""
        if self._named(PREFIX + host) is not None:
            return
        root = self._named(host)
        if root is None:
            raise CloudBusy(f"Placement does not know {host} yet: its compute service has not reported.")
        body = {"name": PREFIX + host, "parent_provider_uuid": root["uuid"]}
        try:
            self._calls.send(Request("placement", "POST", "/resource_providers", body, microversion=_VERSION))
        except Conflict:
            if self._named(PREFIX + host) is None:
                raise

    def _named(self, name: str) -> Mapping[str, Any] | None:
        found = self._get("/resource_providers", {"name": name})["resource_providers"]
        return found[0] if found else None

    def _one_by_one(self, providers: Iterable[Mapping[str, Any]]) -> dict[str, Stock]:
        """What these providers have, added up by the uuid of the root of each."""
        parts = list(providers)
        answers = self._calls.send_all(
            [
                Request("placement", "GET", f"/resource_providers/{one['uuid']}/{what}", microversion=_VERSION)
                for one in parts
                for what in ("inventories", "traits")
            ]
        )
        found: dict[str, Stock] = defaultdict(Stock)
        for number, one in enumerate(parts):
            inventories, traits = answers[2 * number : 2 * number + 2]
            for answer in (inventories, traits):
                if isinstance(answer, CloudError) and not isinstance(answer, CloudNotFound):
                    raise answer
            if isinstance(inventories, CloudError) or isinstance(traits, CloudError):
                continue  # the provider is gone since we saw it
            stock = found[one["root_provider_uuid"]]
            stock.traits.update(traits["traits"])
            for resource_class, inventory in inventories["inventories"].items():
                usable = (inventory["total"] - inventory["reserved"]) * inventory["allocation_ratio"]
                _count(stock, resource_class, int(usable))
        return found

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return self._calls.send(Request("placement", "GET", path, params=params or {}, microversion=_VERSION))


def _count(stock: Stock, resource_class: str, amount: int) -> None:
    if not resource_class.startswith(_OWN_CLASSES):
        stock.amounts[resource_class] = stock.amounts.get(resource_class, 0) + amount
