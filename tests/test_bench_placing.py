"""The parts of ``python -m bench placing``, on cases that can be checked by hand."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import pytest

from bench.demand import HOUR, ORIGIN, TYPES, Host, Mix, Request, requests_of, share, small_instances
from bench.exact import best
from bench.placing import FEW, FIRST, LARGE, OURS, OURS_STAYING, Placing, Placings, Tally, promises
from bench.replay import (
    Outcome,
    Placed,
    by_choice,
    by_order,
    crowded,
    first_hosts_first,
    free_share,
    play,
    play_unmoved,
)
from tenure.domain.capacity import Capacity
from tenure.domain.period import Period

#: The first one has a processor of graphics, which nothing but its resource class says.
GPU = Host(1, Capacity({"VCPU": 4, "MEMORY_MB": 64, "VGPU": 1}))
PLAIN = Host(2, Capacity({"VCPU": 4, "MEMORY_MB": 64}))


def mix(*hosts: Host) -> Mix:
    return Mix("by hand", hosts, {small_instances: 1}, load=1.0)


def period(start: int, end: int) -> Period:
    return Period(ORIGIN + start * HOUR, ORIGIN + end * HOUR)


def request(number: int, asked: int, start: int, end: int, resource_type: str, **parameters: object) -> Request:
    parameters = {"resource_type": resource_type, **parameters}
    demand = TYPES[resource_type].demand(parameters)
    return Request(number, ORIGIN + asked * HOUR, period(start, end), resource_type, parameters, demand)


def hosts(number: int, asked: int, start: int, end: int, count: int) -> Request:
    nothing = {"hypervisor_properties": "", "resource_properties": ""}
    return request(number, asked, start, end, "physical:host", min=count, max=count, **nothing)


def instances(
    number: int, asked: int, start: int, end: int, vcpus: int, amount: int = 1, *, affinity: bool | None = None
) -> Request:
    size = {"vcpus": vcpus, "memory_mb": 1, "disk_gb": 0, "amount": amount}
    return request(number, asked, start, end, "virtual:instance", affinity=affinity, resource_properties="", **size)


def gpu(number: int, asked: int, start: int, end: int) -> Request:
    text = '{"id": "g", "vcpus": 1, "ram": 0, "disk": 0, "extra_specs": {"resources:VGPU": "1"}}'
    return request(
        number, asked, start, end, "flavor:instance", flavor_id="g", amount=1, affinity=None, resource_properties=text
    )


@pytest.mark.parametrize(
    ("asked", "moving"),
    [
        (1, 2),  # before the first has started, it can still be moved out of the way
        (6, 1),
    ],
)
def test_placing_on_the_first_host_blocks_later_requests(asked: int, moving: int):
    cloud, requests = mix(GPU, PLAIN), [instances(0, 0, 5, 10, 4), gpu(1, asked, 7, 9)]
    assert len(play_unmoved(cloud, requests, by_order).accepted) == 1
    assert len(play_unmoved(cloud, requests, by_choice).accepted) == 2
    orders: list[tuple[AbstractContextManager[None], int]] = [(first_hosts_first(), moving), (nullcontext(), 2)]
    for order, accepted in orders:
        with order:
            outcome = play(cloud, requests)
        assert len(outcome.accepted) == accepted
        assert list(crowded(cloud.hosts, outcome.placed)) == []
    assert best(cloud.hosts, requests).found == 2
    assert best([PLAIN], requests).found == 1


def test_the_best_plan_has_the_most_valuable_requests():
    requests = [hosts(0, 0, 0, 10, 2), instances(1, 1, 0, 1, 2), instances(2, 2, 3, 4, 4)]

    def hours(request: Request) -> int:
        return round(share(request.demand, [GPU, PLAIN]) * request.hours)

    found = [best([GPU, PLAIN], requests), best([GPU, PLAIN], requests, hours)]
    assert [(plan.found, plan.is_proven) for plan in found] == [(2, True), (20, True)]
    assert [request.number for request in play_unmoved(mix(GPU, PLAIN), requests, by_order).accepted] == [0]


@pytest.mark.parametrize(
    ("affinity", "amount", "accepted"), [(None, 4, 1), (None, 5, 0), (True, 2, 1), (True, 3, 0), (False, 3, 0)]
)
def test_the_rules_are_the_same_for_all(affinity: bool | None, amount: int, accepted: int):
    cloud, requests = mix(GPU, PLAIN), [instances(0, 0, 0, 10, 2, amount, affinity=affinity)]
    assert len(play(cloud, requests).accepted) == accepted
    assert len(play_unmoved(cloud, requests, by_order).accepted) == accepted
    assert best(cloud.hosts, requests).found == accepted


def test_overbooked_hosts_are_found():
    half, whole = Capacity({"VCPU": 2}), Capacity({"WHOLE": 1})
    fits = [
        Placed(1, period(0, 5), half, False),
        Placed(1, period(3, 8), half, False),
        Placed(1, period(8, 9), whole, True),
    ]
    assert list(crowded([GPU], fits)) == []
    assert len(list(crowded([GPU], [*fits, Placed(1, period(4, 6), half, False)]))) == 1
    assert len(list(crowded([GPU], [*fits, Placed(1, period(7, 9), whole, True)]))) == 2


def test_only_long_stretches_count_as_free():
    placed = [Placed(1, period(0, 4), Capacity(), False), Placed(1, period(6, 10), Capacity(), False)]
    window = period(0, 20)
    assert free_share([GPU, PLAIN], placed, window, at_least=timedelta(0)) == (2 + 10 + 20) / 40
    assert free_share([GPU, PLAIN], placed, window, at_least=5 * HOUR) == (10 + 20) / 40


def test_demand_is_made_up_the_same_way_each_time():
    for mixture in LARGE:
        requests = requests_of(mixture, 1)
        assert requests == requests_of(mixture, 1) != requests_of(mixture, 2)
        assert all(asked.asked_at <= asked.period.start for asked in requests)
        assert requests == sorted(requests, key=lambda asked: asked.asked_at)
        offered = sum(share(asked.demand, mixture.hosts) * asked.hours for asked in requests)
        assert offered >= mixture.load * len(mixture.hosts) * mixture.days * 24


def test_a_broken_promise_is_found():
    found = Placing(FEW)
    found.tallies = {OURS: Tally(4, 9.0, 0.5), OURS_STAYING: Tally(3, 10.0, 0.5), FIRST: Tally(4, 10.0, 0.6)}
    broken = [line.split(":")[1].strip() for line in promises(Placings([found], [found], []))]
    assert broken == ["requests where nothing moves", "host-hours", "time free for long"]
    found.tallies[FIRST] = Tally()
    assert list(promises(Placings([found], [found], []))) == []
    crowd = [Placed(1, period(0, 2), Capacity({"WHOLE": 1}), True)] * 2
    found.add([hosts(0, 0, 0, 2, 1)], {OURS: Outcome([], crowd)})
    assert list(found.complaints()) == [f"{FEW.name}: {OURS} promised too much of host 1 at 2030-01-01 00:00"]
