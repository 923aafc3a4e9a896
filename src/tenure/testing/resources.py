"""The contract of drivers for things that are handed out as a whole, whatever they are, as tests.

A driver's own test module has a class that inherits ``ResourceContract``, and a fixture ``rig`` that fits
``ResourceRig``: a fresh cloud of which nobody has anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import pytest

from tenure.drivers.contract import (
    CloudBusy,
    CloudRefused,
    Drift,
    Order,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.testing.rig import BareRig, finished, order_of

#: How many things a start, and an end, of two things changes at most: it is broken off after each.
LONGEST = 8
#: How long the engine's claims last: a call must take less.
CLAIM = timedelta(seconds=60)


class ResourceRig(BareRig, Protocol):
    """A driver, and the cloud behind it: to look at, and to meddle with."""

    resource_type: str

    def resources(self) -> Sequence[ResourceRef]:
        """At least four things that can be registered, ordered by external id."""

    def references(self, resource: ResourceRef) -> Sequence[str]:
        """What an operator may write to name it: its id, its name."""

    def parameters(self, resources: Sequence[ResourceRef]) -> Mapping[str, object]:
        """The parameters of a reservation that has these."""

    def holders(self) -> Mapping[str, str]:
        """The project that has each thing which anybody has, by external id."""

    # To meddle: somebody does so behind our back

    def take(self, resource: ResourceRef, project_id: str) -> None:
        """Somebody else gets it for that project, without Tenure."""

    def release(self, resource: ResourceRef) -> None:
        """It is taken from whoever has it."""

    def spoil(self, resource: ResourceRef) -> None:
        """It cannot serve any more."""

    def absent(self) -> ResourceRef:
        """Something like the others that the cloud does not have."""


class ResourceContract:
    """What every driver does."""

    #: Whether ``discover`` lists what there is. If not, ``check`` goes by what is registered.
    is_listed = True
    #: Whether ``ensure_registered`` refuses what somebody has.
    refuses_what_is_taken = True

    @pytest.fixture
    def things(self, rig: ResourceRig) -> list[ResourceRef]:
        """Four of them, registered."""
        chosen = list(rig.resources())[:4]
        for resource in chosen:
            rig.driver.ensure_registered(rig.resource_type, resource)
        return chosen

    # Reading

    def test_no_call_outlives_a_claim(self, rig: ResourceRig):
        assert timedelta(0) < rig.driver.longest_call < CLAIM

    def test_discovers_everything_in_order(self, rig: ResourceRig, things: list[ResourceRef]):
        found = rig.driver.discover(rig.resource_type)
        if not self.is_listed:
            assert found == []
            return
        assert [one.external_id for one in found] == [one.external_id for one in rig.resources()]
        rig.driver.ensure_started(ordered(rig, things[0]))
        assert rig.driver.discover(rig.resource_type) == found

    def test_looks_up_by_all_its_names(self, rig: ResourceRig):
        listed = {one.external_id: one for one in rig.driver.discover(rig.resource_type)}
        for resource in rig.resources():
            for reference in rig.references(resource):
                found = rig.driver.look_up(rig.resource_type, reference)
                assert found.resource_type == rig.resource_type
                assert (found.external_id, found.name) == (resource.external_id, resource.name)
                assert found.capacity
                assert json.loads(json.dumps(dict(found.facts))) == dict(found.facts)
                assert found == listed.get(found.external_id, found)

    @pytest.mark.parametrize("reference", ["", " ", "no-such-thing", "999999", "²", "x" * 300, "a/b", "'"])
    def test_does_not_find_what_is_not_there(self, rig: ResourceRig, reference: str):
        with pytest.raises(CloudRefused):
            rig.driver.look_up(rig.resource_type, reference)

    def test_tells_the_health_of_everything(self, rig: ResourceRig, things: list[ResourceRef]):
        rig.spoil(things[0])
        health = rig.driver.check(rig.resource_type, iter(things))
        assert {one.external_id: health[one.external_id].well for one in things} == {
            one.external_id: one != things[0] for one in things
        }
        assert health[things[0].external_id].reason

    def test_what_is_not_there_is_not_well(self, rig: ResourceRig, things: list[ResourceRef]):
        absent = rig.absent()
        health = rig.driver.check(rig.resource_type, iter([*things, absent]))
        assert not self.is_listed or absent.external_id not in health or not health[absent.external_id].well
        assert all(health[one.external_id].well for one in things)

    def test_reading_changes_nothing(self, rig: ResourceRig, things: list[ResourceRef]):
        order = ordered(rig, *things[:2])
        rig.driver.ensure_started(order)
        rig.release(things[0])
        before, holders = rig.effects(), rig.holders()
        rig.driver.discover(rig.resource_type)
        for reference in rig.references(things[0]):
            rig.driver.look_up(rig.resource_type, reference)
        rig.driver.check(rig.resource_type, iter(things))
        list(rig.driver.held(rig.resource_type))
        drift_of(rig, [order], things[2:])
        rig.driver.make_way(order, deadline=order.ends_at)
        assert (rig.effects(), rig.holders()) == (before, holders)

    # Registering

    def test_registering_and_giving_back_can_be_repeated(self, rig: ResourceRig):
        resource = rig.resources()[0]
        for verb in (rig.driver.ensure_registered, rig.driver.ensure_unregistered):
            verb(rig.resource_type, resource)
            before = rig.effects()
            verb(rig.resource_type, resource)
            assert rig.effects() == before
        assert rig.holders() == {}

    def test_what_somebody_has_is_not_registered(self, rig: ResourceRig):
        if not self.refuses_what_is_taken:
            return
        resource = rig.resources()[0]
        rig.take(resource, rig.neighbour)
        before = rig.effects()
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_registered(rig.resource_type, resource)
        assert set(caught.value.resources) == {resource.external_id}
        assert rig.effects() == before
        assert rig.holders() == {resource.external_id: rig.neighbour}

    def test_what_a_reservation_has_is_not_given_back(self, rig: ResourceRig, things: list[ResourceRef]):
        rig.driver.ensure_started(ordered(rig, things[0]))
        before = rig.effects()
        rig.driver.ensure_registered(rig.resource_type, things[0])
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_unregistered(rig.resource_type, things[0])
        assert not isinstance(caught.value, ResourceOccupied)
        assert rig.effects() == before
        assert rig.holders() == {things[0].external_id: rig.owner}

    def test_what_is_gone_counts_as_given_back(self, rig: ResourceRig):
        rig.driver.ensure_unregistered(rig.resource_type, rig.absent())

    # Starting

    def test_preparing_can_be_repeated_and_undone(self, rig: ResourceRig, things: list[ResourceRef]):
        order = ordered(rig, things[0])
        assert finished(rig, lambda: rig.driver.ensure_prepared(order)).done
        before = rig.effects()
        assert rig.driver.ensure_prepared(order).done
        assert rig.effects() == before
        assert finished(rig, lambda: rig.driver.ensure_ended(order)).done
        assert rig.holders() == {}

    def test_a_start_gives_the_owner_exactly_its_own(self, rig: ResourceRig, things: list[ResourceRef]):
        assert started(rig, ordered(rig, *things[:2])).done
        assert rig.holders() == had(rig.owner, *things[:2])

    def test_starting_again_changes_nothing(self, rig: ResourceRig, things: list[ResourceRef]):
        order = ordered(rig, *things)
        started(rig, order)
        before = rig.effects()
        assert rig.driver.ensure_started(order).done
        rig.reopen()
        assert rig.driver.ensure_started(order).done
        assert rig.effects() == before

    def test_a_start_of_nothing_gives_nothing(self, rig: ResourceRig, things: list[ResourceRef]):
        assert started(rig, ordered(rig)).done
        assert rig.holders() == {}

    def test_a_reservation_grows(self, rig: ResourceRig, things: list[ResourceRef]):
        started(rig, ordered(rig, things[0]))
        assert started(rig, ordered(rig, *things[:3])).done
        assert rig.holders() == had(rig.owner, *things[:3])

    def test_what_is_no_longer_in_the_order_is_given_up(self, rig: ResourceRig, things: list[ResourceRef]):
        started(rig, ordered(rig, *things[:2]))
        assert started(rig, ordered(rig, *things[1:3], returning=things[:1])).done
        assert rig.holders() == had(rig.owner, *things[1:3])

    def test_two_reservations_can_trade(self, rig: ResourceRig, things: list[ResourceRef]):
        """What another of ours still has is waited for, and is nobody's fault."""
        first, second = things[:2]
        started(rig, ordered(rig, first))
        started(rig, ordered(rig, second, reservation_id="r-2", project_id=rig.neighbour))
        with pytest.raises(CloudBusy) as caught:
            rig.driver.ensure_started(ordered(rig, second, returning=[first]))
        assert not isinstance(caught.value, ResourceOccupied)
        ended(rig, ordered(rig, second, reservation_id="r-2", project_id=rig.neighbour))
        started(rig, ordered(rig, second, returning=[first]))
        started(rig, ordered(rig, first, reservation_id="r-2", project_id=rig.neighbour))
        assert rig.holders() == {**had(rig.owner, second), **had(rig.neighbour, first)}

    def test_what_another_has_stops_a_start(self, rig: ResourceRig, things: list[ResourceRef]):
        rig.take(things[1], rig.neighbour)
        order = ordered(rig, *things[:3])
        with pytest.raises(ResourceOccupied) as caught:
            rig.driver.ensure_started(order)
        assert set(caught.value.resources) == {things[1].external_id}
        assert rig.holders() == had(rig.neighbour, things[1])
        rig.release(things[1])
        assert started(rig, order).done

    def test_a_start_gives_all_but_what_is_not_there(self, rig: ResourceRig, things: list[ResourceRef]):
        absent = rig.absent()
        with pytest.raises(ResourceMissing) as caught:
            rig.driver.ensure_started(ordered(rig, absent, things[0]))
        assert set(caught.value.resources) == {absent.external_id}
        assert rig.holders() == had(rig.owner, things[0])

    def test_threads_start_side_by_side(self, rig: ResourceRig, things: list[ResourceRef]):
        orders = [ordered(rig, one, reservation_id=f"r-{number}") for number, one in enumerate(things)]
        with ThreadPoolExecutor(8) as threads:
            progress = list(threads.map(rig.driver.ensure_started, [*orders, *orders]))
        assert len(progress) == 8
        assert rig.holders() == had(rig.owner, *things)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(rig.driver.ensure_ended, [*orders, *orders]))
        assert rig.holders() == {}

    # Ending

    def test_an_end_frees_its_own_and_no_others(self, rig: ResourceRig, things: list[ResourceRef]):
        order = ordered(rig, *things[:2])
        started(rig, order)
        started(rig, ordered(rig, things[2], reservation_id="r-2"))
        rig.take(things[3], rig.owner)
        assert ended(rig, order).done
        assert rig.holders() == had(rig.owner, *things[2:])
        before = rig.effects()
        assert rig.driver.ensure_ended(order).done
        assert rig.effects() == before

    def test_an_end_leaves_alone_what_others_have_by_now(self, rig: ResourceRig, things: list[ResourceRef]):
        order = ordered(rig, things[0])
        started(rig, order)
        rig.release(things[0])
        rig.take(things[0], rig.neighbour)
        assert ended(rig, order).done
        assert rig.holders() == had(rig.neighbour, things[0])

    def test_what_never_started_ends_without_effect(self, rig: ResourceRig, things: list[ResourceRef]):
        before = rig.effects()
        assert ended(rig, ordered(rig, *things)).done
        assert rig.effects() == before

    def test_an_end_needs_no_more_than_the_id(self, rig: ResourceRig, things: list[ResourceRef]):
        """As it is when the ledger has no allocation of it any more."""
        order = ordered(rig, *things[:2])
        started(rig, order)
        rig.reopen()
        assert ended(rig, replace(order, resources=(), returning=(), units={})).done
        assert rig.holders() == {}

    # What the cloud has, and what it should have

    def test_tells_which_reservations_have_anything(self, rig: ResourceRig, things: list[ResourceRef]):
        assert list(rig.driver.held(rig.resource_type)) == []
        orders = [ordered(rig, one, reservation_id=f"r-{number}") for number, one in enumerate(things[:2])]
        for order in orders:
            started(rig, order)
        rig.take(things[2], rig.neighbour)
        rig.reopen()
        assert sorted(rig.driver.held(rig.resource_type)) == ["r-0", "r-1"]
        for order in orders:
            ended(rig, order)
        assert list(rig.driver.held(rig.resource_type)) == []

    def test_sees_no_drift_where_all_is_well(self, rig: ResourceRig, things: list[ResourceRef]):
        orders = [ordered(rig, *things[:2]), ordered(rig, things[2], reservation_id="r-2")]
        for order in orders:
            started(rig, order)
        assert drift_of(rig, orders, things[3:]) == []

    def test_sees_what_is_gone_and_a_start_mends_it(self, rig: ResourceRig, things: list[ResourceRef]):
        order = ordered(rig, *things[:2])
        started(rig, order)
        rig.release(things[1])
        (drift,) = drift_of(rig, [order], things[2:])
        assert drift.reservation_id == "r-1"
        assert things[1].name in drift.what
        assert started(rig, order).done
        assert drift_of(rig, [order], things[2:]) == []
        assert rig.holders() == had(rig.owner, *things[:2])

    def test_sees_one_too_many_and_a_start_mends_it(self, rig: ResourceRig, things: list[ResourceRef]):
        started(rig, ordered(rig, *things[:2]))
        order = ordered(rig, things[0])
        assert [one.reservation_id for one in drift_of(rig, [order], things[2:])] == ["r-1"]
        assert started(rig, order).done
        assert drift_of(rig, [order], things[2:]) == []
        assert rig.holders() == had(rig.owner, things[0])

    # Failures in the middle

    def test_breaks_off_everywhere(self, rig: ResourceRig, things: list[ResourceRef]):
        """The tests that follow leave no effect of a call out."""
        order = ordered(rig, *things[:2])
        for verb in (rig.driver.ensure_started, rig.driver.ensure_ended):
            before = rig.effects()
            verb(order)
            assert 1 < rig.effects() - before <= LONGEST

    @pytest.mark.parametrize("effects", range(LONGEST + 1))
    def test_a_start_that_broke_off_is_completed(self, rig: ResourceRig, things: list[ResourceRef], effects: int):
        order = ordered(rig, *things[:2])
        broken(rig, "ensure_started", order, effects)
        assert started(rig, order).done
        assert rig.holders() == had(rig.owner, *things[:2])

    @pytest.mark.parametrize("effects", range(LONGEST + 1))
    def test_a_start_that_broke_off_is_undone(self, rig: ResourceRig, things: list[ResourceRef], effects: int):
        order = ordered(rig, *things[:2])
        broken(rig, "ensure_started", order, effects)
        if rig.holders():
            assert list(rig.driver.held(rig.resource_type)) == ["r-1"]
        assert ended(rig, order).done
        assert rig.holders() == {}

    @pytest.mark.parametrize("effects", range(LONGEST + 1))
    def test_an_end_that_broke_off_is_completed(self, rig: ResourceRig, things: list[ResourceRef], effects: int):
        order = ordered(rig, *things[:2])
        started(rig, order)
        broken(rig, "ensure_ended", order, effects)
        if rig.holders():
            assert list(rig.driver.held(rig.resource_type)) == ["r-1"]
        assert ended(rig, order).done
        assert rig.holders() == {}

    @pytest.mark.parametrize("verb", ["ensure_started", "ensure_ended"])
    def test_a_lost_reply_is_no_second_effect(self, rig: ResourceRig, things: list[ResourceRef], verb: str):
        order = ordered(rig, *things[:2])
        if verb == "ensure_ended":
            started(rig, order)
        rig.lose_reply(verb)
        with pytest.raises(CloudBusy):
            call_of(rig, verb, order)()
        before = rig.effects()
        assert call_of(rig, verb, order)().done
        assert rig.effects() == before


def ordered(
    rig: ResourceRig,
    *resources: ResourceRef,
    reservation_id: str = "r-1",
    project_id: str | None = None,
    returning: Sequence[ResourceRef] = (),
) -> Order:
    """An order for these, of the owner unless it is said otherwise."""
    order = order_of(
        *resources,
        reservation_id=reservation_id,
        project_id=rig.owner if project_id is None else project_id,
        resource_type=rig.resource_type,
    )
    return replace(
        order,
        parameters=rig.parameters(resources),
        units={one.external_id: 1 for one in resources},
        returning=tuple(returning),
    )


def had(project_id: str, *resources: ResourceRef) -> dict[str, str]:
    return {one.external_id: project_id for one in resources}


def started(rig: ResourceRig, order: Order) -> Progress:
    return finished(rig, lambda: rig.driver.ensure_started(order))


def ended(rig: ResourceRig, order: Order) -> Progress:
    return finished(rig, lambda: rig.driver.ensure_ended(order))


def drift_of(rig: ResourceRig, orders: Sequence[Order], pooled: Sequence[ResourceRef]) -> Sequence[Drift]:
    return list(rig.driver.drift(rig.resource_type, orders, pooled))


def call_of(rig: ResourceRig, verb: str, order: Order) -> Callable[[], Progress]:
    """The call, of the driver that there is when it is made."""
    return lambda: getattr(rig.driver, verb)(order)


def broken(rig: ResourceRig, verb: str, order: Order, effects: int) -> None:
    """Have the call break off after so many effects, and everything forgotten that the driver remembered."""
    rig.fail(verb, after_effects=effects)
    try:
        call_of(rig, verb, order)()
    except CloudBusy:
        rig.reopen()
