"""Demand as people have it: requests for hosts, instances and processors of graphics, made up from a seed.

Where the figures are from:

* **How long.** Hosts: a day in the middle and a week at most, as on Chameleon, where a lease is a day unless it says
  otherwise and seven days at most. Instances: the virtual machines of Azure's trace of 2017 lived 52 hours on average
  (104 million hours of 2.0 million machines), few of them very long: a median of 16 hours, a month at most.
* **How large.** In the same trace a machine had 2.3 cores on average. Who reserves has more in mind than who boots one:
  two to sixteen, the smaller ones more often, and of several at a time.
* **How long before.** Nobody publishes it. A third begins at once, as portals do that book only from now on; the others
  are made a week before on average, at most four weeks.
* **When.** Starts are spread evenly over a month and fall on whole hours, like those of forms that people fill in.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import exp, log

from tenure.domain.allocation import Demand
from tenure.domain.capacity import Capacity
from tenure.domain.period import Period
from tenure.resources.flavor import FlavorType
from tenure.resources.host import HostType
from tenure.resources.instance import InstanceType

HOUR = timedelta(hours=1)
ORIGIN = datetime(2030, 1, 1, tzinfo=UTC)
#: How long before its start a request may be made, in hours, and the mean of those that are not made at once.
LONGEST_LEAD, MEAN_LEAD = 4 * 168, 168

HOSTS, INSTANCES, FLAVORS = HostType(), InstanceType(), FlavorType()
TYPES: Mapping[str, HostType | InstanceType | FlavorType] = {
    resource_type.name: resource_type for resource_type in (HOSTS, INSTANCES, FLAVORS)
}


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the cloud that is booked, by its place in the order of hosts, from 1."""

    number: int
    capacity: Capacity
    properties: Mapping[str, str] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Request:
    """A reservation that somebody asks for, at a time, with the demand that its type makes of it."""

    number: int
    asked_at: datetime
    period: Period
    resource_type: str
    parameters: Mapping[str, object]
    demand: Demand

    def has_begun(self, other: Request) -> bool:
        """Whether it has begun when the other one is made."""
        return self.period.start <= other.asked_at

    @property
    def hours(self) -> float:
        return (self.period.end - self.period.start) / HOUR


#: The resource type and the parameters of a request, and its hours.
Sample = tuple[str, Mapping[str, object], int]
Sampler = Callable[[random.Random], Sample]


@dataclass(frozen=True, slots=True)
class Mix:
    """A cloud, and samplers of requests by weight, until so much of its time is requested (``load``)."""

    name: str
    hosts: Sequence[Host]
    samplers: Mapping[Sampler, int]
    load: float
    days: int = 30
    #: The hours after each lease in which its resources are cleaned.
    cleaning: int = 0

    @property
    def window(self) -> Period:
        """When the requests start: the time over which the cloud is looked at."""
        begin = ORIGIN + LONGEST_LEAD * HOUR
        return Period(begin, begin + timedelta(days=self.days))


def share(demand: Demand, hosts: Sequence[Host]) -> float:
    """How many hosts' worth a request takes: an instance by the largest part of a host that it has of any class."""
    if demand.exclusive:
        return demand.minimum
    largest = {name: max(host.capacity[name] for host in hosts) for name in demand.amounts}
    return demand.minimum * max(amount / max(1, largest[name]) for name, amount in demand.amounts.items())


def requests_of(mix: Mix, seed: int) -> list[Request]:
    """The requests in the order in which they are made; the same ones for the same seed."""
    rng = random.Random(f"{seed} {mix.name}")
    offered = 0.0
    found: list[Request] = []
    samplers, weights = list(mix.samplers), list(mix.samplers.values())
    while offered < mix.load * len(mix.hosts) * mix.days * 24:
        [sampler] = rng.choices(samplers, weights)
        resource_type, parameters, hours = sampler(rng)
        start = mix.window.start + rng.randrange(mix.days * 24) * HOUR
        lead = 0 if rng.random() < 1 / 3 else min(LONGEST_LEAD, round(rng.expovariate(1 / MEAN_LEAD)))
        period = Period(start, start + (hours + mix.cleaning) * HOUR)
        demand = TYPES[resource_type].demand(parameters)
        offered += share(demand, mix.hosts) * hours
        found.append(Request(len(found), start - lead * HOUR, period, resource_type, parameters, demand))
    return sorted(found, key=lambda request: (request.asked_at, request.number))


def whole_hosts(rng: random.Random) -> Sample:
    """One host or a few, for a day or so."""
    count = rng.choices((1, 2, 4), (5, 3, 2))[0]
    return _hosts(count, _hours(rng, median=24, sigma=1.0, longest=168))


def days_of_hosts(rng: random.Random) -> Sample:
    """Two whole hosts for a day or three: what finds no room where small things lie everywhere."""
    return _hosts(2, rng.choice((24, 48, 72)))


def hosts_of_kinds(rng: random.Random) -> Sample:
    """One host or two, of any rack, of a certain one, or of one of two."""
    kind = rng.choice(("", '["==", "$rack", "a"]', '["in", "$rack", "a", "b"]', '["in", "$rack", "b", "c"]'))
    count = rng.choice((1, 1, 2))
    asked = {"min": count, "max": count, "hypervisor_properties": "", "resource_properties": kind}
    return HOSTS.name, {"resource_type": HOSTS.name, **asked}, _hours(rng, median=24, sigma=1.0, longest=168)


def small_instances(rng: random.Random) -> Sample:
    """Instances, wherever they are."""
    return _instances(rng, None)


def instances_by_affinity(rng: random.Random) -> Sample:
    """Instances: some all on one host, some each on another, most wherever they are."""
    return _instances(rng, rng.choices((None, False, True), (2, 1, 1))[0])


def instances_with_gpus(rng: random.Random) -> Sample:
    """Instances of a flavor with one or two processors of graphics."""
    count = rng.choice((1, 2))
    flavor = {
        "id": f"gpu-{count}",
        "vcpus": 4 * count,
        "ram": 16_384 * count,
        "disk": 50,
        "extra_specs": {"resources:CUSTOM_GPU": str(count)},
    }
    asked = {"resource_type": FLAVORS.name, "flavor_id": flavor["id"], "amount": rng.choice((1, 2)), "affinity": None}
    return FLAVORS.name, FLAVORS.complete(asked, flavor), _hours_of_instances(rng)


def _hosts(count: int, hours: int) -> Sample:
    nothing = {"hypervisor_properties": "", "resource_properties": ""}
    return HOSTS.name, {"resource_type": HOSTS.name, "min": count, "max": count, **nothing}, hours


def _instances(rng: random.Random, affinity: bool | None) -> Sample:
    vcpus = rng.choices((2, 4, 8, 16), (4, 3, 2, 1))[0]
    memory = rng.choice((4096, 4096, 8192)) * vcpus
    # Together they must fit on one host.
    amount = rng.randint(1, max(1, min(4, 32 // vcpus))) if affinity else rng.randint(1, 4)
    size = {"vcpus": vcpus, "memory_mb": memory, "disk_gb": 10 * vcpus, "amount": amount, "affinity": affinity}
    parameters = {"resource_type": INSTANCES.name, "resource_properties": "", **size}
    return INSTANCES.name, parameters, _hours_of_instances(rng)


def _hours_of_instances(rng: random.Random) -> int:
    return _hours(rng, median=16, sigma=1.54, longest=720)


def _hours(rng: random.Random, *, median: float, sigma: float, longest: int) -> int:
    return min(longest, max(1, round(exp(rng.gauss(log(median), sigma)))))


def plain(count: int, *, first: int = 1) -> list[Host]:
    """So many hosts of one size, which nothing is special about."""
    size = {"VCPU": 32, "MEMORY_MB": 32 * 6144, "DISK_GB": 960}
    return [Host(number, Capacity(size)) for number in range(first, first + count)]


def with_gpus(count: int) -> list[Host]:
    """So many hosts, every fourth with four processors of graphics: those that are installed first."""
    return [
        Host(host.number, host.capacity + Capacity({"CUSTOM_GPU": 4})) if host.number <= count // 4 else host
        for host in plain(count)
    ]


def in_racks(count: int) -> list[Host]:
    """So many hosts in three racks."""
    return [replace(host, properties={"rack": "abc"[host.number % 3]}) for host in plain(count)]


def parameters_text(request: Request) -> str:
    """What a request asks for, for people."""
    return f"{request.resource_type} {json.dumps(dict(request.parameters), sort_keys=True)}"
