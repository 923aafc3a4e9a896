"""Placement: the inventories of hosts, and Tenure's providers under them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound
from tenure.drivers.openstack.requests import Calls, Conflict, Request

VERSION: Final = "1.29"
#: The prefix of the names of Tenure's providers, and of the resource classes of reservations.
PREFIX: Final = "blazar_"
OWN_CLASSES: Final = "CUSTOM_RESERVATION_"
_OF_NETWORKS: Final = "NET_"
#: The maximum number of allocation candidates in one request; the other hosts are requested one by one.
_CANDIDATES: Final = "20000"
#: Up to how many providers are requested one by one.
_FEW: Final = 8


@dataclass(slots=True)
class HostInventory:
    """The inventory of a host with its nested providers: amounts by class, traits, and limits.

    Amounts are what can be allocated, by Placement's ratios and without reserved amounts. Limits are for classes of
    which an allocation cannot have every amount. If several providers have a class, an allocation has one unit of it:
    of two units, the sum would not tell whether they are of one provider.
    """

    amounts: dict[str, int] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)
    _limits: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The traits that all providers of a class have, by class.
    _common_traits: dict[str, set[str]] = field(default_factory=dict)

    def add(
        self, inventories: Mapping[str, Mapping[str, Any]], traits: Collection[str], *, of_node: bool = False
    ) -> None:
        """Add one of the host's providers.

        Of the provider of a node of Ironic, reserved amounts count too: Nova reserves them while the node is in use.
        """
        self.traits.update(traits)
        for resource_class, inventory in inventories.items():
            reserved = 0 if of_node else inventory["reserved"]
            amount = int((inventory["total"] - reserved) * inventory["allocation_ratio"])
            if amount > 0 and not resource_class.startswith(OWN_CLASSES):
                self._count(resource_class, inventory, amount)
                self._common_traits.setdefault(resource_class, set(traits)).intersection_update(traits)

    def _count(self, resource_class: str, inventory: Mapping[str, Any], amount: int) -> None:
        least, step = int(inventory.get("min_unit") or 1), int(inventory.get("step_size") or 1)
        most = min(int(inventory.get("max_unit") or amount), amount)
        self.amounts[resource_class] = self.amounts.get(resource_class, 0) + amount
        had = self._limits.get(resource_class)
        if had is not None:
            least, most, step = max(least, had["min"]), 1, math.lcm(step, had["step"])
        self._limits[resource_class] = {"min": least, "max": most, "step": step}

    @property
    def limits(self) -> dict[str, dict[str, int]]:
        return {
            resource_class: dict(limits)
            for resource_class, limits in sorted(self._limits.items())
            if limits["min"] > 1 or limits["step"] > 1 or limits["max"] < self.amounts[resource_class]
        }

    @property
    def foreign_traits(self) -> dict[str, list[str]]:
        """The traits of the host that not all providers of a class have, by class; without those of networks.

        Requests for the bandwidth of networks are not counted, and many hosts have providers of it.
        """
        found = {name: sorted(self.traits - common) for name, common in sorted(self._common_traits.items())}
        return {name: traits for name, traits in found.items() if traits and not name.startswith(_OF_NETWORKS)}


@dataclass(slots=True)
class Usage:
    """The capacity of a host and its usage by resource class, including reservations' classes."""

    offered: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)


class Placement:
    """Placement's API, for one driver call."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def providers(self) -> dict[str, Mapping[str, Any]]:
        """Return all providers by name."""
        found = self._get("/resource_providers")["resource_providers"]
        return {provider["name"]: provider for provider in found}

    def inventories(self) -> dict[str, HostInventory]:
        """Return the inventories of all hosts by name.

        This needs a call for each provider. One request for allocation candidates returns the traits of all providers
        with room for one VCPU; those of the others need another call each.
        """
        providers = self.providers()
        named = {provider["uuid"]: name for name, provider in providers.items()}
        params = {"resources": "VCPU:1", "limit": _CANDIDATES}
        summaries = self._get("/allocation_candidates", params)["provider_summaries"]
        host_providers = [provider for provider in providers.values() if not provider["name"].startswith(PREFIX)]
        traits = {uuid: summary["traits"] for uuid, summary in summaries.items()}
        found = self._add_up(host_providers, traits)
        return {named[root]: inventory for root, inventory in found.items() if root in named}

    def inventory(self, host: str) -> HostInventory:
        """Return the inventory of a host, empty if Placement does not know it."""
        root = self._named(host)
        if root is None:
            return HostInventory()
        tree = self._get("/resource_providers", {"in_tree": root["uuid"]})["resource_providers"]
        providers = [provider for provider in tree if not provider["name"].startswith(PREFIX)]
        return self._add_up(providers, {}).get(root["uuid"], HostInventory())

    def usage(self, host: str) -> Usage:
        """Return the capacity of a host and its usage, including reservations' units."""
        root = self._named(host)
        if root is None:
            return Usage()
        tree = self._get("/resource_providers", {"in_tree": root["uuid"]})["resource_providers"]
        paths = [
            f"/resource_providers/{provider['uuid']}/{kind}" for provider in tree for kind in ("inventories", "usages")
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
        """Return the allocations of each of these servers, from all providers."""
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
        """Create the provider for reservations under the host's provider."""
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
        """Return the UUIDs of the existing providers for reservations, by host name."""
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

    def _add_up(
        self, providers: Sequence[Mapping[str, Any]], traits: Mapping[str, Collection[str]]
    ) -> dict[str, HostInventory]:
        """Return the inventories of these providers added up by root UUID; ``traits`` are those known already."""
        queries = [(provider, "inventories") for provider in providers]
        queries += [(provider, "traits") for provider in providers if provider["uuid"] not in traits]
        answers = self._calls.send_all(
            [
                Request("placement", "GET", f"/resource_providers/{provider['uuid']}/{kind}", microversion=VERSION)
                for provider, kind in queries
            ]
        )
        inventories: dict[str, Mapping[str, Any]] = {}
        known = dict(traits)
        for (provider, kind), answer in zip(queries, answers, strict=True):
            if isinstance(answer, CloudNotFound):
                continue  # the provider was deleted meanwhile
            if isinstance(answer, CloudError):
                raise answer
            if kind == "traits":
                known[provider["uuid"]] = answer["traits"]
            else:
                inventories[provider["uuid"]] = answer["inventories"]
        found: dict[str, HostInventory] = defaultdict(HostInventory)
        for provider in providers:
            uuid = provider["uuid"]
            if uuid in inventories or uuid in known:
                host = found[provider["root_provider_uuid"]]
                # Of hosts, only nodes of Ironic are named by their UUIDs.
                host.add(inventories.get(uuid, {}), known.get(uuid, ()), of_node=provider["name"] == uuid)
        return dict(found)

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return self._calls.send(Request("placement", "GET", path, params=params or {}, microversion=VERSION))
