"""Operations over a message bus: the results equal those of the manager itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import time, timedelta
from typing import Any, get_args

import pytest

from tenure.domain import errors
from tenure.domain.availability import AvailabilityQuery, OfferQuery
from tenure.domain.boot import Boot, PlannedServerQuery
from tenure.domain.errors import (
    Forbidden,
    InvalidParameter,
    LeaseBusy,
    MissingParameter,
    NotEnoughResources,
    NotFound,
    TenureError,
)
from tenure.domain.lanes import Lane
from tenure.domain.lease import Lease
from tenure.domain.request import (
    BookingQuery,
    FlexibleRequest,
    LeaseChange,
    LeaseQuery,
    LeaseRequest,
    Moment,
    ReservationChange,
    ReservationRequest,
    ResourceQuery,
    StartTimes,
    Window,
)
from tenure.domain.shortfall import Shortfall, Stage
from tenure.domain.usage import UsageQuery
from tenure.rpc.client import ManagerFailed
from tenure.rpc.operations import TABLE
from tenure.rpc.server import LATE, SKEW, Endpoint
from tenure.rpc.wire import ERRORS, decode_error, encode_error
from tenure.services.manager import LANES, OPERATIONS, Manager
from tests.rpc.conftest import Line
from tests.support.world import ADMIN, HOST, NOW, OWNER, STRANGER, World, reservation

#: The operations that change something; all others are reads.
WRITES = frozenset(name for name, lane in LANES.items() if lane is Lane.BOOKING)
READS = OPERATIONS - WRITES
#: Reads whose answers have ids that are made for each.
DRY_RUNS = frozenset({"dry_runs.create", "dry_runs.add_reservation", "dry_runs.drop_reservation"})
HOUR = timedelta(hours=1)
#: A flavor of the simulated cloud.
FLAVOR = "1"
#: The arguments of reads, by name or, for queries, by type.
QUERIES = {
    "LeaseQuery": LeaseQuery(limit=1),
    "ResourceQuery": ResourceQuery(HOST, 3),
    "BookingQuery": BookingQuery(HOST, 9),
    "AvailabilityQuery": AvailabilityQuery(HOST),
    "OfferQuery": OfferQuery(
        (reservation(1, 1),), Window(HOUR, times=StartTimes((0, 4), time(9), time(17, 30), "Europe/Paris"))
    ),
    "UsageQuery": UsageQuery(NOW - timedelta(days=1), NOW + timedelta(days=1)),
    "LeaseRequest": LeaseRequest(
        "far", NOW + timedelta(hours=9), NOW + timedelta(hours=12), None, (reservation(1, 2),)
    ),
    "ReservationRequest": reservation(2, 2),
    "LeaseChange": LeaseChange(ends_at=NOW + 6 * HOUR),
    "PlannedServerQuery": PlannedServerQuery(limit=5),
}


def read(manager: Manager, operation: str, lease_id: str, host_id: str) -> object:
    """Return the result of a read about this lease and this host."""
    arguments = {
        "actor": ADMIN if operation.startswith("resources.") else OWNER,
        "lease_id": lease_id,
        "resource_type": HOST,
        "external_id": host_id,
        "include_private": True,
        "reservation": reservation(1, 1),
        "reservations": (reservation(1, 1), reservation(1, 2)),
        "starts_at": Moment.NOW,
        "lacking": 0,
        "ends_at": NOW + 9 * HOUR,
    }
    declared = TABLE[operation]
    wanted = declared.signature.parameters
    given = {name: arguments[name] for name in wanted if name in arguments}
    for name in ("query", "request", "change"):
        if name in wanted:
            kinds = get_args(declared.hints[name]) or (declared.hints[name],)
            given[name] = QUERIES[kinds[0].__name__]
    reservation_id = manager.leases.get(OWNER, lease_id).reservations[0].id
    if "reservation_id" in wanted:
        given["reservation_id"] = reservation_id
    if operation.startswith("alternatives.to_c"):  # a change that asks for too much
        changes = (ReservationChange(reservation_id, {"min": 9, "max": 9}),)
        given |= {"changes": changes} if "changes" in wanted else {"change": LeaseChange(reservations=changes)}
    return declared.bound_to(manager)(**given)


def asked_about(world: World, operation: str, lease: Lease) -> Lease:
    """Return the lease that a read is about: this one, a held one to be confirmed, or one whose server is made."""
    if operation == "alternatives.to_confirmation":
        return world.reserve(reservation(1, 1), start=1, hold_for=HOUR)
    if operation in {"leases.planned_server", "leases.planned_servers"}:
        made = ReservationRequest("virtual:server", {"flavor_id": FLAVOR, "server_name": "web"})
        return world.reserve(made, start=1, boot=Boot({"server": {"name": "web", "flavorRef": FLAVOR}}, "2.90"))
    return lease


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted(READS - DRY_RUNS))
def test_remote_reads_equal_local_reads(line: Line, operation: str):
    lease, _ = line.world.book(1, hours=5), line.world.book(1, hours=5)
    line.world.pass_time(timedelta(minutes=1))
    (host,) = line.here.leases.resources(OWNER, lease.id, HOST)
    line.here.resources.update(ADMIN, HOST, host.resource.external_id, {"gpu": "a100"})
    lease = asked_about(line.world, operation, lease)
    given = read(line.there, operation, lease.id, host.resource.external_id)
    assert given == read(line.here, operation, lease.id, host.resource.external_id)
    assert given


@pytest.mark.slow
def test_remote_writes_take_effect(line: Line):
    now = line.world.clock.now()
    request = LeaseRequest("far", Moment.NOW, now + timedelta(hours=2), None, (reservation(1, 2, note=["ä", None, 3]),))
    lease = line.there.leases.create(OWNER, request)
    assert lease == line.here.leases.get(OWNER, lease.id)
    assert lease.reservations[0].parameters["note"] == ["ä", None, 3]
    changed = line.there.leases.update(
        OWNER,
        lease.id,
        LeaseChange(
            name="further",
            ends_at=now + timedelta(hours=3),
            reservations=(ReservationChange(lease.reservations[0].id, {"max": 1}),),
        ),
    )
    assert (changed.name, changed.ends_at) == ("further", now + timedelta(hours=3))
    line.there.leases.drop_reservation(OWNER, lease.id, lease.reservations[0].id)
    line.there.leases.delete(OWNER, lease.id)
    held = line.there.leases.create(OWNER, replace(request, hold_for=timedelta(seconds=90)))
    assert held.hold_until == now + timedelta(seconds=90)
    wider = (ReservationChange(held.reservations[0].id, {"max": 1}),)
    assert line.there.leases.confirm(OWNER, held.id, wider) == line.here.leases.get(OWNER, held.id)
    line.there.leases.delete(OWNER, held.id)
    with pytest.raises(NotFound):
        line.here.leases.get(OWNER, lease.id)
    choices = ((reservation(9, 9),), (reservation(1, 1),))
    open_start = FlexibleRequest("open", choices, Window(HOUR, Moment.NOW, now + 9 * HOUR), is_listed=True)
    assert line.there.leases.create(OWNER, open_start).choice == 1
    begin = now + HOUR
    wanted = ((reservation(4, 4),),)
    line.world.reserve(reservation(1, 1), start=1, hours=1)
    patient = FlexibleRequest("patient", wanted, None, begin, begin + HOUR, waits=True, confirm_within=HOUR)
    waiting = line.there.leases.create(OWNER, patient)
    assert waiting.waiting is not None
    assert (waiting.waiting.latest, waiting.waiting.confirm_within) == (begin, HOUR)
    shown = line.there.leases.get(OWNER, waiting.id, look_ahead=True)
    assert shown == line.here.leases.get(OWNER, waiting.id, look_ahead=True)
    line.world.cloud.world.ensure_hosts(5)
    name = max(line.world.cloud.discover(HOST), key=lambda host: int(host.external_id)).name
    host = line.there.resources.register(ADMIN, HOST, name, {"ssd": "yes"})
    assert host == line.here.resources.get(ADMIN, HOST, host.external_id)
    host = line.there.resources.update(ADMIN, HOST, host.external_id, {"ssd": None})
    assert host.properties == {}
    assert line.there.resources.set_property(ADMIN, HOST, "ssd", private=True).private
    line.there.resources.unregister(ADMIN, HOST, host.external_id)
    with pytest.raises(NotFound):
        line.here.resources.get(ADMIN, HOST, host.external_id)


def test_a_refusal_arrives_with_its_facts(line: Line):
    now = line.world.clock.now()
    request = LeaseRequest("big", Moment.NOW, now + timedelta(hours=2), None, (reservation(9, 9),))
    with pytest.raises(NotEnoughResources) as here:
        line.here.leases.create(OWNER, request)
    with pytest.raises(NotEnoughResources) as there:
        line.there.leases.create(OWNER, request)
    assert vars(there.value) == vars(here.value)
    with pytest.raises(InvalidParameter) as wrong:
        line.there.leases.create(OWNER, replace(request, ends_at=now - timedelta(hours=2)))
    assert wrong.value.field == "end_date"
    lease = line.world.book(1)
    with pytest.raises(NotFound):
        line.there.leases.get(STRANGER, lease.id)


def example_of(kind: type[TenureError]) -> TenureError:
    special: dict[type[TenureError], Callable[[], TenureError]] = {
        Forbidden: lambda: Forbidden("a rule"),
        LeaseBusy: lambda: LeaseBusy("STARTING"),
        MissingParameter: lambda: MissingParameter("min", "max"),
        NotEnoughResources: lambda: NotEnoughResources(
            Shortfall(HOST, "hosts", 3, (Stage("reservable", 4), Stage("free", 1)), 1, ("x",), 2, "", NOW, False, 1),
            field="min",
        ),
        errors.AlreadyOver: errors.AlreadyOver,
        errors.OutOfLease: errors.OutOfLease,
        errors.OverQuota: lambda: errors.OverQuota("instances", limit=4, used=3, requested=2),
        errors.TooManyConflicts: errors.TooManyConflicts,
    }
    return special.get(kind, lambda: kind("what went wrong", field="a field"))()


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_travels(name: str):
    error = example_of(ERRORS[name])
    arrived = decode_error(encode_error(error))
    assert type(arrived) is ERRORS[name]
    assert (str(arrived), vars(arrived), arrived.details) == (str(error), vars(error), error.details)


def test_third_party_error_arrives_as_its_base_class(line: Line):
    class Special(InvalidParameter):
        """A refusal of a resource type by others."""

    arrived = decode_error(encode_error(Special("no", field="colour")))
    assert type(arrived) is InvalidParameter
    assert (arrived.message, arrived.field) == ("no", "colour")


def test_all_declared_operations_travel_and_no_others(line: Line):
    assert set(TABLE) == OPERATIONS
    endpoint = Endpoint(line.here)
    for name in ("leases._visible", "leases.__init__", "take_over", ""):
        assert endpoint.perform({}, operation=name, arguments={}) == {"error": None}


def test_invalid_message_is_refused_without_logging_secrets(line: Line, caplog: pytest.LogCaptureFixture):
    endpoint = Endpoint(line.here)
    arguments = TABLE["leases.get"].encode_arguments(replace(OWNER, token="secret-0815"), "a lease")
    assert endpoint.perform({}, operation="leases.get", arguments={**arguments, "more": 1}) == {"error": None}
    assert endpoint.perform({}, operation="leases.get", arguments={"actor": "secret-0815"}) == {"error": None}
    assert "leases.get" in caplog.text
    assert "secret-0815" not in caplog.text


@pytest.mark.slow
def test_a_token_travels_and_is_not_logged(line: Line, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(NotFound):
        line.there.leases.get(replace(OWNER, token="secret-0815"), "a lease")
    operation = TABLE["leases.get"]
    given = operation.decode_arguments(operation.encode_arguments(replace(OWNER, token="secret-0815"), "a lease"))
    assert given["actor"].token == "secret-0815"
    assert "secret-0815" not in caplog.text


@pytest.mark.slow
def test_unexpected_error_of_the_manager_hides_its_text(line: Line, caplog: pytest.LogCaptureFixture):
    with pytest.raises(ManagerFailed, match=r"resources\.list"):
        line.there.resources.list(ADMIN, ResourceQuery(HOST, -1))
    assert "resources.list failed" in caplog.text


def test_an_operation_is_not_begun_once_its_caller_has_given_up(world: World):
    """Clocks may differ by ``SKEW``."""
    endpoint = Endpoint(world.service.manager, clock=world.clock)

    def ask(late: timedelta) -> Mapping[str, Any]:
        begin_by = (world.clock.now() - late).timestamp()
        return endpoint.perform({}, operation="health", arguments={}, begin_by=begin_by)

    assert ask(SKEW + timedelta(seconds=1)) == LATE
    assert "result" in ask(SKEW - timedelta(seconds=1))
