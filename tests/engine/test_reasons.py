"""The reasons that the owner of a lease reads: only the owner's own business. Administrators read everything."""

from __future__ import annotations

import pytest

from tenure.domain.actor import Actor
from tenure.domain.capacity import Capacity
from tenure.domain.errors import InvalidParameter, TenureError
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseChange, ReservationChange, ReservationRequest
from tenure.drivers.contract import CloudBusy, CloudRefused, Progress
from tests.support.engines import HOUR, MINUTE, SECOND, watch
from tests.support.simulated import HostHealth
from tests.support.world import ADMIN, OWNER, World, address_reservation, instance_reservation

ADDRESS = "virtual:floatingip"
VOLUME = "virtual:volume"
FOREIGN = "0f0e0d0c-0000-4000-8000-00000000beef"
SECRET = f"sim-host-001 is not released yet by reservation {FOREIGN}."


def failing(world: World, verb: str, error: Exception) -> None:
    """Have every call of the verb raise the error."""

    def fail(called: str, *_: object) -> None:
        if called == verb:
            raise error

    watch(world, fail)


def shown_text(world: World, lease: Lease, actor: Actor = OWNER) -> str:
    """Return all that the actor reads of the lease and its history."""
    found = world.leases.get(actor, lease.id)
    return f"{found}\n{world.leases.history(actor, lease.id)}"


def volumes(volume_type: str) -> ReservationRequest:
    parameters = {"amount": 1, "size_gb": 10, "volume_type": volume_type, "at_end": "delete", "before_end": "default"}
    return ReservationRequest(VOLUME, parameters)


def reason_of(world: World, lease: Lease) -> str:
    return world.leases.get(OWNER, lease.id).status_reason or ""


@pytest.mark.parametrize("error", [CloudBusy(SECRET), CloudRefused(SECRET), ValueError(SECRET)], ids=repr)
@pytest.mark.parametrize("verb", ["ensure_started", "ensure_ended"])
def test_unmarked_driver_text_is_hidden_from_the_owner(world: World, verb: str, error: Exception):
    failing(world, verb, error)
    lease = world.book(1, hours=1)
    world.engine.settle()
    if verb == "ensure_ended":
        world.clock.advance(HOUR)
        world.engine.settle()
    assert reason_of(world, lease)
    assert FOREIGN not in shown_text(world, lease)
    assert "sim-host-001 is not released" not in shown_text(world, lease)
    assert SECRET in shown_text(world, lease, ADMIN)


def test_an_unexpected_error_is_named_by_its_event(world: World, caplog: pytest.LogCaptureFixture):
    failing(world, "ensure_started", ValueError(SECRET))
    lease = world.book(1)
    world.engine.settle()
    [event_id] = [event.id for event in lease.events if event.event_type.value == "start_lease"]
    assert reason_of(world, lease) == f"An internal error; the operator finds it in the log under {event_id}."
    assert any(event_id in record.getMessage() and record.exc_info for record in caplog.records)


def test_waiting_reason_shows_only_the_owners_part(world: World, monkeypatch: pytest.MonkeyPatch):
    lease = world.book(1, hours=1)
    world.engine.settle()
    foreign = f"Servers of others are in the way, and are not deleted: {FOREIGN}."
    monkeypatch.setattr(world.cloud, "ensure_ended", lambda _command: Progress(False, SECOND, foreign))
    world.clock.advance(HOUR)
    world.engine.settle()
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.TERMINATING
    assert reason_of(world, lease)
    assert FOREIGN not in shown_text(world, lease)
    assert FOREIGN in shown_text(world, lease, ADMIN)


def test_missed_start_does_not_repeat_hidden_details(world: World):
    failing(world, "ensure_started", CloudBusy(SECRET))
    lease = world.book(1, hours=0.5)
    world.engine.settle()
    world.clock.advance(HOUR)
    world.engine.settle()
    assert reason_of(world, lease).startswith("The start was missed")
    assert FOREIGN not in shown_text(world, lease)
    assert SECRET in shown_text(world, lease, ADMIN)


def test_a_change_that_is_undone_names_nothing_of_others(world: World):
    lease = world.book(1)
    world.engine.settle()
    failing(world, "ensure_started", CloudRefused(SECRET))
    change = LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, {"max": 2, "min": 2}),))
    with pytest.raises(TenureError) as refused:
        world.leases.update(OWNER, lease.id, change)
    assert "The change was undone" in str(refused.value)
    assert FOREIGN not in f"{refused.value} {shown_text(world, lease)}"
    assert SECRET in shown_text(world, lease, ADMIN)


def test_owner_sees_only_the_name_of_a_failed_host(world: World):
    lease = world.book(4)
    world.engine.settle()
    world.cloud.world.mark_host("sim-host-001", HostHealth.DOWN)
    world.service.health_check.run()
    world.pass_time(MINUTE)
    assert reason_of(world, lease) == "sim-host-001 is down."
    assert "sim-host-001 is down: The hypervisor is down." in shown_text(world, lease, ADMIN)


def test_owner_of_instances_sees_no_host(world: World):
    lease = world.reserve(instance_reservation(1))
    world.engine.settle()
    for number in range(1, 5):
        world.cloud.world.mark_host(f"sim-host-00{number}", HostHealth.DOWN)
    world.service.health_check.run()
    world.pass_time(MINUTE)
    assert reason_of(world, lease) == "A host of the reservation is down."
    assert "sim-host-" not in shown_text(world, lease)
    assert "is down: The hypervisor is down." in shown_text(world, lease, ADMIN)


def test_owner_of_volumes_sees_no_pool(world: World):
    pool = world.cloud.world.volumes.fast
    world.resources.register(ADMIN, VOLUME, pool, {}, Capacity({"DISK_GB": 100}))
    lease = world.reserve(volumes("fast"))
    world.engine.settle()
    world.cloud.world.volumes.mark_pool(pool, up=False)
    world.service.health_check.run()
    world.pass_time(MINUTE)
    assert reason_of(world, lease) == "A volume pool of the reservation is down."
    assert pool in shown_text(world, lease, ADMIN)


@pytest.mark.slow
def test_owner_of_an_address_in_use_sees_no_project(world: World):
    taken = "203.0.113.10"
    world.resources.register(ADMIN, ADDRESS, f"{world.cloud.world.addresses.public}/{taken}", {})
    lease = world.reserve(address_reservation(), start=1, hours=5)
    world.cloud.world.addresses.take(taken, "thief-project")
    world.pass_time(2 * HOUR + MINUTE)
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ERROR
    assert "thief-project" not in shown_text(world, lease)
    assert f"{taken} is a floating IP of project thief-project" in shown_text(world, lease, ADMIN)


def test_a_volume_type_that_leads_to_several_pools_is_refused_without_their_names(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    found = {"id": "t-1", "name": "any", "pools": ["storage@fast#nvme", "storage@slow#disk"]}
    monkeypatch.setattr(world.cloud, "fetch", lambda _kind, _reference, _actor: found)
    with pytest.raises(InvalidParameter) as refused:
        world.reserve(volumes("any"))
    assert "several pools" in str(refused.value)
    assert "@" not in str(refused.value)
