"""A site's service: its HTTP requests, and that its accounts stay right after every fault."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tenure.config import new_config
from tenure.domain.errors import Denied, NotEnoughResources, Unavailable
from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange, LeaseQuery, LeaseRequest, ReservationChange
from tenure.drivers.simulated import Fault, FaultKind
from tenure.enforcement.external import AWAY, DENIED, ExternalServiceFilter
from tenure.services.enforcement.filters import PATIENCE
from tenure.services.notifications.commitments import notify_updated
from tenure.services.notifications.outbox import MAX_REFUSALS
from tenure.store.tables import OutboxRow
from tests.support.credits import Call, Credits, filter_for
from tests.support.engines import deliver_all
from tests.support.waiting import patience, wait_for
from tests.support.world import ADMIN, HOST, OWNER, World, open_world, reservation

HOUR = timedelta(hours=1)


@pytest.fixture
def world(tmp_path: Path, credits: Credits) -> Iterator[World]:
    with open_world(tmp_path, filters={"ExternalServiceFilter": credits.filter()}) as world:
        yield world


def leases(world: World) -> int:
    return len(world.leases.list(ADMIN, LeaseQuery(limit=100)).items)


# --- the wire


def test_requests_have_blazars_format(tmp_path: Path, credits: Credits):
    filters = {"ExternalServiceFilter": credits.filter(commits=False, token="a secret", bearer_token="another")}
    with open_world(tmp_path, filters=filters) as world:
        lease = world.book(1, start=1, hours=2)
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
        world.pass_time(5 * HOUR)
    create, change, end = credits.calls
    assert [call.path for call in credits.calls] == ["/v1/check-create", "/v1/check-update", "/v1/on-end"]
    for call in credits.calls:
        assert call.headers["content-type"] == "application/json"
        assert call.headers["x-auth-token"] == "a secret"
        assert call.headers["authorization"] == "Bearer another"
        assert set(call.body["context"]) == {"user_id", "project_id", "auth_url", "region_name"}
    assert set(create.body) == set(end.body) == {"context", "lease"}
    assert set(change.body) == {"context", "current_lease", "lease"}
    assert create.body["lease"]["start_date"] == "2030-01-01T11:00:00"
    assert create.body["lease"]["status"] == "CREATING"
    assert change.body["current_lease"]["end_date"] == "2030-01-01T13:00:00"
    assert change.body["lease"]["end_date"] == end.body["lease"]["end_date"] == "2030-01-01T14:00:00"
    [host] = end.body["lease"]["reservations"][0]["allocations"]
    assert host["hypervisor_hostname"]
    assert host["trust_id"] == ""
    assert end.body["lease"]["resource_requests"]["VCPU"] == host["vcpus"]


@pytest.mark.parametrize(
    ("base", "expected"),
    [("http://h/a/b/", "http://h/a/b/check-create"), ("http://h/a/b", "http://h/a/check-create")],
)
def test_relative_endpoints_are_joined_to_the_base_url(base: str, expected: str):
    conf = new_config()
    conf.set_override("external_service_base_endpoint", base, group="enforcement")
    conf.set_override("external_service_on_end_endpoint", "https://other/end", group="enforcement")
    found = ExternalServiceFilter(conf)
    assert found._urls["check_create"] == expected
    assert found._urls["on_end"] == "https://other/end"
    assert found.listens_to == {"on_end"}


def test_manager_does_not_start_without_a_url():
    with pytest.raises(ValueError, match="external_service_base_endpoint"):
        ExternalServiceFilter(new_config())
    conf = new_config()
    conf.set_override("external_service_check_create_endpoint", "check-create", group="enforcement")
    with pytest.raises(ValueError, match="external_service_check_create_endpoint: check-create"):
        ExternalServiceFilter(conf)


def test_credentials_in_the_url_are_refused_and_not_shown():
    """They would never be sent, and every log would show them."""
    with pytest.raises(ValueError, match="are not sent") as refused:
        filter_for("http://me:swordfish@credits")
    assert "swordfish" not in str(refused.value)


@pytest.mark.parametrize("name", ["token", "bearer_token"])
@pytest.mark.parametrize("secret", ["swordfish\n", "sword\r\nX: fish", " swordfish", "sw\u00f6rdfish"])
def test_token_that_fits_no_header_is_refused_and_not_shown(name: str, secret: str):
    with pytest.raises(ValueError, match=f"external_service_{name}: ") as refused:
        filter_for("http://credits", commits=True, **{name: secret})
    assert "fish" not in str(refused.value)


def test_token_in_an_answer_is_not_stored_or_logged(tmp_path: Path, credits: Credits, caplog: pytest.LogCaptureFixture):
    filters = {"ExternalServiceFilter": credits.filter(token="swordfish", bearer_token="rosebud")}
    with open_world(tmp_path, filters=filters) as world:
        world.book(1, start=1)
        credits.mood, credits.status = "answers", 500
        credits.body = b"no: X-Auth-Token: swordfish, Authorization: Bearer rosebud, " + b"x" * 180 + b"swordfish"
        world.engine.settle()
        with world.db.read() as tx:
            kept = tx.session.scalars(select(OutboxRow.last_error)).all()
        assert any("X-Auth-Token: ***" in str(error) for error in kept)
        credits.status, credits.body = 403, json.dumps({"message": "your token swordfish is bad"}).encode()
        with pytest.raises(Denied) as denied:
            world.book(1, start=5)
    for text in (*map(str, kept), caplog.text, str(denied.value)):
        assert "swordfish" not in text
        assert "rosebud" not in text
        assert "sword" not in text  # nor a part of it, where a text is cut


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (403, json.dumps({"message": "Your account is empty."}), "Your account is empty."),
        (403, json.dumps({"message": ""}), DENIED),
        (403, json.dumps(["no", "object"]), DENIED),
        (403, "<html>", DENIED),
        (200, json.dumps({"message": "fine"}), DENIED),
        (302, "", DENIED),
        (500, json.dumps({"message": "a trace"}), DENIED),
    ],
)
def test_only_status_204_allows_a_lease(world: World, credits: Credits, status: int, body: str, said: str):
    credits.mood, credits.status, credits.body = "answers", status, body.encode()
    with pytest.raises(Denied) as refused:
        world.book(1)
    assert refused.value.message == said
    assert leases(world) == 0
    credits.mood = "well"
    deliver_all(world)
    assert credits.bodies_of("on-end") == []  # a denied lease needs no withdrawal


@pytest.mark.parametrize(
    "mood",
    [
        "refuses connections",
        pytest.param("is slow", marks=pytest.mark.slow),
        pytest.param("drips", marks=pytest.mark.slow),
        "talks nonsense",
        "dies after the deed",
    ],
)
def test_unavailable_service_blocks_leases_unless_configured_otherwise(tmp_path: Path, credits: Credits, mood: str):
    strict, lenient = credits.filter(timeout=patience(0.3)), credits.filter(timeout=patience(0.3), on_failure="allow")
    with open_world(tmp_path, filters={"ExternalServiceFilter": strict}) as world:
        lease = world.book(1, start=1)
        deliver_all(world)
        credits.mood = mood
        with pytest.raises(Unavailable, match=AWAY):
            world.book(1, start=1)
        with pytest.raises(Unavailable):
            world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
        assert leases(world) == 1
        world.service.components.filters["ExternalServiceFilter"] = lenient  # type: ignore[index]  # the test's own dict
        other = world.book(1, start=1)
        world.leases.delete(OWNER, other.id)  # a delete never waits for the service
        credits.mood = "well"
        credits.patience.set()
        deliver_all(world)
    assert credits.order[other.id] == ["commit-create", "on-end"]
    assert credits.order[lease.id][0] == "commit-create"
    assert all(count == 1 for charges in credits.charged.values() for count in charges.values())


def test_timeout_includes_the_name_lookup(tmp_path: Path, credits: Credits, monkeypatch: pytest.MonkeyPatch):
    """A request that has timed out is not sent when the name is known at last."""
    look_up, known = socket.getaddrinfo, threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        assert known.wait(patience())
        return look_up(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    filters = {"ExternalServiceFilter": credits.filter(timeout=patience(0.2))}
    with open_world(tmp_path, filters=filters) as world:
        with pytest.raises(Unavailable, match=AWAY):
            world.book(1)
        known.set()
        wait_for("the filter to end", lambda: all(thread.name != "tenure-filter" for thread in threading.enumerate()))
        assert credits.calls == []
        assert leases(world) == 0


# --- the account


def test_service_is_notified_of_a_lease_from_start_to_end(world: World, credits: Credits):
    lease = world.book(1, start=1, hours=4)
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
    world.leases.update(OWNER, lease.id, LeaseChange(name="renamed"))
    world.pass_time(2 * HOUR)  # it runs
    reservation_id = lease.reservations[0].id
    world.leases.update(
        OWNER, lease.id, LeaseChange(reservations=(ReservationChange(reservation_id, {"min": 2, "max": 2}),))
    )
    grown = world.leases.add_reservation(OWNER, lease.id, reservation(1, 1))
    world.leases.drop_reservation(OWNER, lease.id, grown.reservations[1].id)
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=world.clock.now() + HOUR))
    world.pass_time(2 * HOUR)
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.TERMINATED
    world.leases.delete(OWNER, lease.id)  # an ended lease does not end again
    deliver_all(world)
    assert credits.order[lease.id] == ["commit-create", *["commit-update"] * 5, "on-end"]
    bodies = credits.bodies_of("commit-update")
    shapes = [[len(reservation["allocations"]) for reservation in body["lease"]["reservations"]] for body in bodies]
    assert shapes == [[1], [2], [2, 1], [2], [2]]
    for before, after in zip([credits.bodies_of("commit-create")[0], *bodies], bodies, strict=False):
        assert after["current_lease"] == before["lease"]  # each message starts from the lease of the previous one
    assert bodies[-1]["lease"]["end_date"] == credits.bodies_of("on-end")[0]["lease"]["end_date"]


def test_service_may_listen_to_changes_only(tmp_path: Path, credits: Credits):
    only = credits.filter(commits=False, commit_update_endpoint="commit-update")
    with open_world(tmp_path, filters={"ExternalServiceFilter": only}) as world:
        lease = world.book(1, start=1, hours=2)
        for _ in range(2):
            lease = world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
        deliver_all(world)
        world.leases.delete(OWNER, lease.id)
        deliver_all(world)
    assert credits.order[lease.id] == ["commit-update", "commit-update", "on-end"]
    ends = [
        (body["current_lease"]["end_date"], body["lease"]["end_date"]) for body in credits.bodies_of("commit-update")
    ]
    assert ends == [
        ("2030-01-01T13:00:00", "2030-01-01T14:00:00"),
        ("2030-01-01T14:00:00", "2030-01-01T15:00:00"),
    ]


def test_recorded_leases_do_not_count_as_delivered(tmp_path: Path, credits: Credits):
    """While the service is unavailable, new leases must not look like deliveries."""
    only = credits.filter(commits=False, commit_update_endpoint="commit-update", on_failure="allow")
    with open_world(tmp_path, filters={"ExternalServiceFilter": only}) as world:
        lease = world.book(1, start=1, hours=2)
        credits.mood = "refuses connections"
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
        for number in range(3):
            world.engine.settle()  # it fails
            world.pass_time(timedelta(milliseconds=1))
            world.book(1, start=10 + 2 * number)
            world.pass_time(timedelta(minutes=1))
        with world.db.read() as tx:
            assert tx.session.scalar(select(func.max(OutboxRow.refusals))) == 0
        credits.mood = "well"
        deliver_all(world)
    assert credits.order[lease.id][0] == "commit-update"


def test_deleted_and_failed_leases_are_notified_as_ended(world: World, credits: Credits):
    planned, running, failing = (world.book(1, start=start, hours=5) for start in (3, 0, 1))
    world.pass_time(timedelta(minutes=1))
    world.leases.delete(OWNER, planned.id)
    world.leases.delete(OWNER, running.id)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", count=None))
    world.pass_time(2 * HOUR)
    assert world.leases.get(OWNER, failing.id).status is not LeaseStatus.ACTIVE
    deliver_all(world)
    for lease in (planned, running, failing):
        assert credits.order[lease.id] == ["commit-create", "on-end"], lease.name
    [[host]] = [
        reservation["allocations"]
        for body in credits.bodies_of("on-end")
        if body["lease"]["id"] == planned.id
        for reservation in body["lease"]["reservations"]
    ]
    assert host["vcpus"]


def test_moved_plan_is_notified_at_the_start(world: World, credits: Credits):
    lease = world.book(1, start=1, hours=2)
    [host] = world.hosts_of(lease.id)
    [leased] = world.leases.resources(ADMIN, lease.id, HOST)
    world.resources.disable(ADMIN, HOST, leased.resource.external_id, reason="broken")
    world.resources.reallocate(ADMIN, HOST, leased.resource.external_id)
    world.pass_time(HOUR)
    deliver_all(world)
    [changed] = credits.bodies_of("commit-update")
    [[now]] = [reservation["allocations"] for reservation in changed["lease"]["reservations"]]
    assert [now["hypervisor_hostname"]] == world.hosts_of(lease.id) != [host]


def test_allowed_lease_that_was_not_booked_is_withdrawn(world: World, credits: Credits):
    """Another lease gets the last hosts while the service decides."""
    service: Any = world.service.components.filters["ExternalServiceFilter"]
    asked = service.check_create

    def and_then(context, lease):
        asked(context, lease)
        service.check_create = asked
        world.book(4, name="other")

    service.check_create = and_then
    with pytest.raises(NotEnoughResources):
        world.book(1)
    deliver_all(world)
    first, other = (body["lease"] for body in credits.bodies_of("check-create"))
    assert credits.order[first["id"]] == ["on-end"]
    assert credits.order[other["id"]][0] == "commit-create"


def test_first_agreement_is_withdrawn_after_a_later_denial(world: World, credits: Credits):
    """Another lease takes the host meanwhile, and the service denies the host that replaces it."""

    def take_the_host(call: Call) -> None:
        credits.then = lambda _call: None
        [host] = call.body["lease"]["reservations"][0]["allocations"]
        that = f'["==", "$hypervisor_hostname", "{host["hypervisor_hostname"]}"]'
        world.book(1, start=1, name="other", hypervisor_properties=that)
        credits.mood, credits.status = "answers", 403

    credits.then = take_the_host
    with pytest.raises(Denied):
        world.book(1, start=1, name="mine")
    credits.mood = "well"
    deliver_all(world)
    asked = [body["lease"] for body in credits.bodies_of("check-create")]
    assert [lease["name"] for lease in asked] == ["mine", "other", "mine"]
    assert credits.order[asked[0]["id"]] == ["on-end"]


def test_killed_process_leaves_nothing_reserved(world: World, credits: Credits):
    """The process dies when the service has agreed, before anything is written."""
    service: Any = world.service.components.filters["ExternalServiceFilter"]
    asked = service.check_create

    class Killed(BaseException):
        """The end of a process."""

    def and_die(context, lease):
        asked(context, lease)
        raise Killed

    service.check_create = and_die
    with pytest.raises(Killed):
        world.book(1)
    world.engine.settle()
    assert credits.bodies_of("on-end") == []  # the withdrawal may still be on its way
    world.pass_time(PATIENCE)
    [asked_for], [withdrawn] = credits.bodies_of("check-create"), credits.bodies_of("on-end")
    assert withdrawn["lease"]["id"] == asked_for["lease"]["id"]


def test_repeated_request_succeeds_when_the_service_is_back(world: World, credits: Credits):
    """As default leases do, whose ids are made from those of the servers."""
    begin = world.clock.now() + 5 * HOUR
    request = LeaseRequest("again", begin, begin + HOUR, None, (reservation(1, 1),))
    lease_id = str(uuid.uuid4())
    for _ in range(2):
        credits.mood = "refuses connections"
        with pytest.raises(Unavailable):
            world.leases.create(OWNER, request, lease_id=lease_id)
        credits.mood = "well"
        deliver_all(world)
    # the service may have agreed each time
    assert [body["lease"]["id"] for body in credits.bodies_of("on-end")] == [lease_id] * 2
    assert world.leases.create(OWNER, request, lease_id=lease_id).id == lease_id
    world.pass_time(2 * PATIENCE)
    assert credits.order[lease_id] == ["on-end", "on-end", "commit-create"]


def test_second_of_two_identical_requests_withdraws_nothing(world: World, credits: Credits):
    """One of two identical requests has booked the lease while the service judges the other."""
    begin = world.clock.now() + HOUR
    request = LeaseRequest("twice", begin, begin + HOUR, None, (reservation(1, 1),))
    lease_id = str(uuid.uuid4())
    service: Any = world.service.components.filters["ExternalServiceFilter"]
    asked = service.check_create

    def and_then(context, lease):
        asked(context, lease)
        if len(credits.bodies_of("check-create")) == 1:
            world.leases.create(OWNER, request, lease_id=lease_id)

    service.check_create = and_then
    assert world.leases.create(OWNER, request, lease_id=lease_id).id == lease_id
    world.engine.settle()
    world.pass_time(PATIENCE + timedelta(minutes=1))
    assert credits.order[lease_id] == ["commit-create"]


def test_notified_growth_that_is_undone_is_corrected(world: World, credits: Credits):
    """An event of the owner's tells of the lease while the cloud has not agreed yet."""
    now = world.clock.now()
    lease = world.leases.create(OWNER, LeaseRequest("l", now, now + 2 * HOUR, now + HOUR / 2, (reservation(1, 1),)))
    world.pass_time(timedelta(minutes=1))
    reservation_id = lease.reservations[0].id
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", reservation_id=reservation_id, count=None))
    more = LeaseChange(reservations=(ReservationChange(reservation_id, {"min": 2, "max": 2}),))
    world.leases.update(OWNER, lease.id, more)
    world.db.write(lambda tx: notify_updated(tx, lease.id, now=world.clock.now()))
    world.cloud.clear_faults()
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", reservation_id=reservation_id, count=1))
    world.pass_time(timedelta(minutes=5))
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ACTIVE
    hosts = [len(body["lease"]["reservations"][0]["allocations"]) for body in credits.bodies_of("commit-update")]
    assert hosts == [2, 1]


def test_service_without_the_lease_gets_no_correction(world: World, credits: Credits):
    service: Any = world.service.components.filters["ExternalServiceFilter"]
    asked = service.check_create

    def and_then(context, lease):
        asked(context, lease)
        if lease["name"] == "late":
            world.book(4)

    service.check_create = and_then
    with pytest.raises(NotEnoughResources):
        world.book(1, name="late")
    credits.mood, credits.status = "answers", 404
    world.engine.settle()
    with world.db.read() as tx:
        [left] = tx.session.scalars(select(OutboxRow.topic).where(OutboxRow.ready_at.is_not(None)))
    assert left == "commit_create"  # the other's, which it should know


@pytest.mark.slow
@pytest.mark.parametrize("mood", ["refuses connections", "is slow", "talks nonsense", "dies after the deed", "answers"])
def test_each_lease_is_charged_exactly_once(tmp_path: Path, credits: Credits, mood: str):
    credits.status = 500
    filters = {"ExternalServiceFilter": credits.filter(timeout=patience(0.2), on_failure="allow")}
    with open_world(tmp_path, filters=filters) as world:
        before = world.book(1, start=1, hours=3)
        deliver_all(world)
        credits.mood = mood
        during = world.book(1, start=0, hours=2)
        world.leases.update(OWNER, before.id, LeaseChange(ends_at=before.ends_at + HOUR))
        world.engine.settle()
        credits.mood = "well"
        credits.patience.set()
        deliver_all(world)
        world.pass_time(10 * HOUR)
        deliver_all(world)
    assert credits.order[before.id] == ["commit-create", "commit-update", "on-end"]
    assert credits.order[during.id] == ["commit-create", "on-end"]
    assert all(count == 1 for charges in credits.charged.values() for count in charges.values())


def test_notifications_do_not_wait_for_the_service(world: World, credits: Credits):
    credits.mood = "refuses connections"
    world.service.components.filters["ExternalServiceFilter"].conf.set_override(
        "external_service_on_failure", "allow", group="enforcement"
    )
    world.book(1, start=1)
    world.engine.settle()
    with world.db.read() as tx:
        waiting = Counter(tx.session.scalars(select(OutboxRow.channel).where(OutboxRow.delivered_at.is_(None))))
    assert waiting == {"ExternalServiceFilter": 1}


@pytest.mark.slow
def test_refused_message_is_given_up_and_kept_for_the_operator(world: World, credits: Credits):
    """One message that it never takes: others get through, so it is that message which is at fault."""
    poisoned = world.book(1, start=1)
    with world.db.read() as tx:
        key = tx.session.scalar(
            select(OutboxRow.key).where(OutboxRow.lease_id == poisoned.id, OutboxRow.topic == "commit_create")
        )
    assert key is not None
    service: Any = world.service.components.filters["ExternalServiceFilter"]
    note = service.commit_create

    def but_one(context, lease, *, key):
        if lease["id"] == poisoned.id:
            raise ValueError("500")
        note(context, lease, key=key)

    service.commit_create = but_one
    world.engine.settle()
    for _ in range(MAX_REFUSALS + 2):
        world.pass_time(timedelta(milliseconds=1))
        other = world.book(1, start=100)
        world.leases.delete(OWNER, other.id)
        world.engine.settle()  # arrives after that message has failed
        world.pass_time(timedelta(minutes=2))
    outbox = world.service.outbox
    [given_up] = outbox.undeliverable()
    assert (given_up.key, given_up.channel, given_up.topic) == (key, "ExternalServiceFilter", "commit_create")
    assert not outbox.drop("no such key")
    assert outbox.drop(key)
    assert outbox.undeliverable() == []
    world.leases.delete(OWNER, poisoned.id)
    deliver_all(world)
    assert credits.order[poisoned.id] == ["on-end"]  # what waited behind it goes


# --- leases that are held


def held(world: World):
    begin = world.clock.now() + HOUR
    request = LeaseRequest(
        name="held",
        starts_at=begin,
        ends_at=begin + HOUR,
        reservations=(reservation(1, 1),),
        hold_for=timedelta(minutes=2),
    )
    return world.leases.create(OWNER, request)


def test_provisional_lease_is_judged_once_and_charged_at_confirmation(world: World, credits: Credits):
    lease = held(world)
    world.engine.settle()
    assert [call.path for call in credits.calls] == ["/v1/check-create"]
    world.leases.confirm(OWNER, lease.id)
    world.engine.settle()
    assert [call.path for call in credits.calls] == ["/v1/check-create", "/v1/commit-create"]
    world.pass_time(3 * HOUR)
    assert credits.order[lease.id] == ["commit-create", "on-end"]


def test_unconfirmed_lease_is_withdrawn(world: World, credits: Credits):
    lease = held(world)
    world.pass_time(timedelta(minutes=3))
    deliver_all(world)
    assert credits.order[lease.id] == ["on-end"]
    assert credits.bodies_of("on-end")[0]["lease"]["resource_requests"]
