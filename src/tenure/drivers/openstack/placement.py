"""Placement: what hosts have, and the providers that Tenure keeps under them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound
from tenure.drivers.openstack.requests import Calls, Conflict, Request

VERSION: Final = "1.29"
#: What the names of Tenure's own providers begin with, and those of the classes that reservations make.
PREFIX: Final = "blazar_"
OWN_CLASSES: Final = "CUSTOM_RESERVATION_"
#: The most candidates that one look asks for; hosts that it leaves out are asked for one by one.
_CANDIDATES: Final = "20000"
#: How many providers are asked for one by one.
_FEW: Final = 8


@dataclass(slots=True)
class Stock:
    """What a host has, with everything that is nested under it: amounts by class, traits, and limits.

    Amounts are what can be handed out, by Placement's ratios and without what is kept for the host. Limits are of the
    classes of which less than all, or not every number, can be handed out at a time.
    """

    amounts: dict[str, int] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)
    _portions: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, resource_class: str, inventory: Mapping[str, Any]) -> None:
        """Add what one of the host's providers has."""
        amount = int((inventory["total"] - inventory["reserved"]) * inventory["allocation_ratio"])
        if resource_class.startswith(OWN_CLASSES) or amount <= 0:
            return
        least, step = int(inventory.get("min_unit") or 1), int(inventory.get("step_size") or 1)
        most = min(int(inventory.get("max_unit") or amount), amount)
        self.amounts[resource_class] = self.amounts.get(resource_class, 0) + amount
        had = self._portions.get(resource_class)
        if had is not None:  # a server has all of a class from one provider
            least, most = max(least, had["min"]), max(most, had["max"])
            step = math.lcm(step, had["step"])
        self._portions[resource_class] = {"min": least, "max": most, "step": step}

    @property
    def limits(self) -> dict[str, dict[str, int]]:
        return {
            resource_class: dict(limits)
            for resource_class, limits in sorted(self._portions.items())
            if limits["min"] > 1 or limits["step"] > 1 or limits["max"] < self.amounts[resource_class]
        }


@dataclass(slots=True)
class Usage:
    """How much a host offers, and how much of it is in use, by resource class, also those of reservations."""

    offered: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)


class Placement:
    """What is asked of Placement, with the calls of one verb."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def providers(self) -> dict[str, Mapping[str, Any]]:
        """All providers, by name."""
        found = self._get("/resource_providers")["resource_providers"]
        return {provider["name"]: provider for provider in found}

    def stocks(self) -> dict[str, Stock]:
        """What all hosts have, by name.

        That takes a call for each provider. One look at what could be allocated tells the traits of all that have room
        for one virtual CPU; those of the others take another call each.
        """
        providers = self.providers()
        named = {provider["uuid"]: name for name, provider in providers.items()}
        params = {"resources": "VCPU:1", "limit": _CANDIDATES}
        summaries = self._get("/allocation_candidates", params)["provider_summaries"]
        parts = [provider for provider in providers.values() if not provider["name"].startswith(PREFIX)]
        traits = {uuid: summary["traits"] for uuid, summary in summaries.items()}
        found = self._added_up(parts, traits)
        return {named[root]: stock for root, stock in found.items() if root in named}

    def stock(self, host: str) -> Stock:
        """What one host has; nothing where Placement does not know it."""
        root = self._named(host)
        if root is None:
            return Stock()
        tree = self._get("/resource_providers", {"in_tree": root["uuid"]})["resource_providers"]
        parts = [provider for provider in tree if not provider["name"].startswith(PREFIX)]
        return self._added_up(parts, {}).get(root["uuid"], Stock())

    def usage(self, host: str) -> Usage:
        """What is offered on a host, and what of it, and of reservations' units there, servers have."""
        root = self._named(host)
        if root is None:
            return Usage()
        tree = self._get("/resource_providers", {"in_tree": root["uuid"]})["resource_providers"]
        paths = [
            f"/resource_providers/{provider['uuid']}/{what}" for provider in tree for what in ("inventories", "usages")
        ]
        found = Usage()
        for answer in self._calls.send_all([Request("placement", "GET", path, microversion=VERSION) for path in paths]):
            if isinstance(answer, CloudNotFound):
                continue
            if isinstance(answer, CloudError):
                raise answer
            found.used.update(answer.get("usages") or {})
            for resource_class, inventory in (answer.get("inventories") or {}).items():
                usable = (inventory["total"] - inventory["reserved"]) * inventory["allocation_ratio"]
                found.offered[resource_class] += int(usable)
        return found

    def allocations(self, consumers: Sequence[str]) -> dict[str, Counter[str]]:
        """What each of these servers has, of whatever provider."""
        answers = self._calls.send_all(
            [Request("placement", "GET", f"/allocations/{consumer}", microversion=VERSION) for consumer in consumers]
        )
        found: dict[str, Counter[str]] = {}
        for consumer, answer in zip(consumers, answers, strict=True):
            if isinstance(answer, CloudError):
                raise answer
            found[consumer] = Counter()
            for part in answer["allocations"].values():
                found[consumer].update(part["resources"])
        return found

    def ensure_provider(self, host: str) -> None:
        """Have the provider of reservations under the host's."""
        if self._named(PREFIX + host) is not None:
            return
        root = self._named(host)
        if root is None:
            raise CloudBusy(f"Placement does not know {host} yet: its compute service has not reported.")
        body = {"name": PREFIX + host, "parent_provider_uuid": root["uuid"]}
        try:
            self._calls.send(Request("placement", "POST", "/resource_providers", body, microversion=VERSION))
        except Conflict:
            if self._named(PREFIX + host) is None:
                raise

    def own_providers(self, hosts: Sequence[str]) -> dict[str, str]:
        """The uuids of the providers of reservations, by the name of their host; those that are not there are not."""
        if len(hosts) > _FEW:
            found = self.providers()
        else:
            requests = [
                Request("placement", "GET", "/resource_providers", params={"name": PREFIX + host}, microversion=VERSION)
                for host in hosts
            ]
            found = {}
            for answer in self._calls.send_all(requests):
                if isinstance(answer, CloudError):
                    raise answer
                found.update({provider["name"]: provider for provider in answer["resource_providers"]})
        return {host: found[PREFIX + host]["uuid"] for host in hosts if PREFIX + host in found}

    def _named(self, name: str) -> Mapping[str, Any] | None:
        found = self._get("/resource_providers", {"name": name})["resource_providers"]
        return found[0] if found else None

    def _added_up(self, parts: Sequence[Mapping[str, Any]], traits: Mapping[str, Iterable[str]]) -> dict[str, Stock]:
        """What these providers have, added up by the uuid of the root of each; some ``traits`` are known already."""
        asked = [(provider, "inventories") for provider in parts]
        asked += [(provider, "traits") for provider in parts if provider["uuid"] not in traits]
        answers = self._calls.send_all(
            [
                Request("placement", "GET", f"/resource_providers/{provider['uuid']}/{what}", microversion=VERSION)
                for provider, what in asked
            ]
        )
        found: dict[str, Stock] = defaultdict(Stock)
        for (provider, what), answer in zip(asked, answers, strict=True):
            if isinstance(answer, CloudNotFound):
                continue  # the provider is gone since we saw it
            if isinstance(answer, CloudError):
                raise answer
            stock = found[provider["root_provider_uuid"]]
            if what == "traits":
                stock.traits.update(answer["traits"])
                continue
            stock.traits.update(traits.get(provider["uuid"], ()))
            for resource_class, inventory in answer["inventories"].items():
                stock.count(resource_class, inventory)
        return dict(found)

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return self._calls.send(Request("placement", "GET", path, params=params or {}, microversion=VERSION))
