"""The library against a server of API 1.1, over real HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from keystoneauth1 import access, adapter, session, token_endpoint
from keystoneauth1.identity.access import AccessInfoPlugin

from conftest import BEGINNING
from tenureclient import (
    NOW,
    BadRequest,
    Client,
    Conflict,
    ConnectionFailed,
    Denied,
    Forbidden,
    Lease,
    LeaseFailed,
    NeedsNewerServer,
    NotEnoughResources,
    NotFound,
    NotUnique,
    OverQuota,
    ReservationChange,
    ReservationRequest,
    ServerError,
    Stage,
    StartWindow,
    Unauthorized,
    UnexpectedAnswer,
    Version,
    WaitProgress,
    WaitTimedOut,
)
from tenureclient.errors import error_from_answer
from tenureclient.testing import FakeServer
from tenureclient.wire import JsonObject

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def book(
    client: Client,
    name: str = "bio",
    *,
    hosts: int = 1,
    start: datetime = BEGINNING + DAY,
    length: timedelta = DAY,
) -> Lease:
    return client.leases.create(name, start=start, end=start + length, reservations=[ReservationRequest.hosts(hosts)])


def test_a_lease_is_made_as_it_was_asked_for(server: FakeServer) -> None:
    server.add_host("c1", vcpus=16)
    client = server.client()
    start = datetime(2027, 3, 2, 10, 0, 30, tzinfo=UTC)
    lease = client.leases.create(
        "bio",
        start=start,
        end=start + DAY,
        before_end=start + HOUR,
        reservations=[ReservationRequest.hosts(1, 2, conditions=["vcpus>=8"])],
    )
    assert client.version is Version.V1_1
    assert (lease.name, lease.status, lease.start_date, lease.duration) == ("bio", "PENDING", start, DAY)
    assert lease.before_end_date == start + HOUR
    assert lease.reservations[0].parameters["resource_properties"] == '[">=", "$vcpus", "8"]'
    assert {event.event_type for event in lease.events} == {"start_lease", "before_end_lease", "end_lease"}
    again = client.leases.get(lease.id)
    assert replace(again, reservations=()) == replace(lease, reservations=())
    assert again.reservations[0].parameters.items() >= lease.reservations[0].parameters.items()
    assert server.requests[0].version == "1.4"
    assert server.requests[0].body == {
        "name": "bio",
        "start_date": "2027-03-02T10:00:30Z",
        "end_date": "2027-03-03T10:00:30Z",
        "before_end_date": "2027-03-02T11:00:30Z",
        "reservations": [
            {
                "resource_type": "physical:host",
                "min": 1,
                "max": 2,
                "resource_properties": '[">=", "$vcpus", "8"]',
            }
        ],
    }


def test_a_full_cloud_says_where_the_resources_went(server: FakeServer) -> None:
    for number in range(3):
        server.add_host(f"c{number}", properties={"gpu": "v100"} if number else {})
    client = server.client()
    client.leases.create(
        "first",
        start=BEGINNING,
        end=BEGINNING + DAY,
        reservations=[ReservationRequest.hosts(1, conditions=["gpu=v100"])],
    )
    with pytest.raises(NotEnoughResources) as refusal:
        client.leases.create(
            "second",
            start=BEGINNING,
            end=BEGINNING + DAY,
            reservations=[ReservationRequest.hosts(2, conditions=["gpu=v100"])],
        )
    error = refusal.value
    assert (error.code, error.name, error.field) == (409, "NotEnoughResources", "reservations[0].min")
    assert error.request_id is not None
    assert error.shortfall is not None
    assert (error.shortfall.requested, error.shortfall.reservation) == (2, 0)
    assert error.shortfall.stages == (Stage("reservable", 3), Stage("matching", 2), Stage("free", 1))


def test_an_unknown_property_is_named(server: FakeServer) -> None:
    server.add_host("c1")
    with pytest.raises(NotEnoughResources) as refusal:
        server.client().leases.create(
            "x",
            start=NOW,
            end=BEGINNING + DAY,
            reservations=[ReservationRequest.hosts(1, conditions=["gpo=1"])],
        )
    assert refusal.value.shortfall is not None
    assert refusal.value.shortfall.unknown_properties == ("gpo",)


def test_a_bad_request_names_its_field(server: FakeServer) -> None:
    with pytest.raises(BadRequest) as refusal:
        server.client().leases.create("x", start=BEGINNING + DAY, end=BEGINNING)
    assert (refusal.value.name, refusal.value.field) == ("InvalidParameter", "end_date")


def test_date_without_a_zone_is_never_sent(server: FakeServer) -> None:
    with pytest.raises(ValueError, match="time zone"):
        server.client().leases.create("x", start=NOW, end=datetime(2027, 3, 2))
    assert server.requests == []


def test_lists_follow_their_pages() -> None:
    with FakeServer(now=BEGINNING, page_size=2) as server:
        client = server.client()
        for number in range(5):
            server.add_host(f"c{number}")
            book(client, f"lease-{number}")
        assert [lease.name for lease in client.leases.list(sort_key="name", descending=True)] == [
            f"lease-{number}" for number in (4, 3, 2, 1, 0)
        ]
        assert len(list(client.hosts.list())) == 5
        assert len(list(client.allocations.list())) == 5
        pages = [request for request in server.requests if request.path == "/v1/leases" and request.method == "GET"]
        assert len(pages) == 3
        assert [page.query["sort_dir"] for page in pages] == ["desc"] * 3


def test_a_history_follows_its_pages() -> None:
    with FakeServer(now=BEGINNING, page_size=1) as server:
        server.add_host("c1")
        client = server.client()
        lease = book(client)
        server.advance(DAY)
        actions = [entry.action for entry in client.leases.history(lease.id)]
        assert actions == ["create", "start", "started"]
        asked = [request for request in server.requests if request.path.endswith("/history")]
        assert len(asked) == 3


def test_pages_are_fetched_only_as_they_are_needed() -> None:
    with FakeServer(now=BEGINNING, page_size=2) as server:
        client = server.client()
        for number in range(5):
            server.add_host(f"c{number}")
        found = client.hosts.list()
        next(found)
        assert len(server.requests) == 1


def test_leases_are_filtered(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    book(client, "early")
    book(client, "late", start=BEGINNING + 5 * DAY)

    def names(**filters: object) -> list[str]:
        return [lease.name for lease in client.leases.list(**filters)]  # type: ignore[arg-type] # any filter

    assert names(name="late") == ["late"]
    assert names(status="ACTIVE") == []
    assert sorted(names(project_id="fake-project", user_id="fake-user")) == ["early", "late"]
    assert names(starts_before=BEGINNING + 3 * DAY) == ["early"]
    assert names(ends_after=BEGINNING + 3 * DAY) == ["late"]
    with pytest.raises(ValueError, match="sorted by"):
        list(client.leases.list(sort_key="colour"))


@pytest.mark.parametrize(("lease_id", "part"), [("../os-hosts/1", "..%2Fos-hosts%2F1"), ("1?name=2", "1%3Fname%3D2")])
def test_an_id_is_one_part_of_the_url(server: FakeServer, lease_id: str, part: str) -> None:
    with pytest.raises(NotFound):
        server.client().leases.get(lease_id)
    assert {request.path for request in server.requests} == {f"/v1/leases/{part}"}


def test_a_lease_is_found_by_id_or_by_its_only_name(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    lease = client.leases.get(book(client).id)
    assert client.leases.find(lease.id) == lease
    assert client.leases.find("bio") == lease
    with pytest.raises(NotFound):
        client.leases.find("other")
    with pytest.raises(NotFound):
        client.leases.find("00000000-0000-0000-0000-000000000000")
    book(client, start=BEGINNING + 5 * DAY)
    with pytest.raises(NotUnique, match=lease.id):
        client.leases.find("bio")


def test_a_name_that_looks_like_an_id_is_found(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    name = "00000000-0000-0000-0000-000000000000"
    lease = client.leases.get(book(client, name).id)
    assert client.leases.find(name) == lease


def test_what_is_absent_from_an_update_stays(server: FakeServer) -> None:
    server.add_host("c1")
    server.add_host("c2")
    client = server.client()
    lease = book(client)
    renamed = client.leases.update(lease.id, name="new")
    assert (renamed.name, renamed.start_date, renamed.end_date) == ("new", lease.start_date, lease.end_date)
    longer = client.leases.update(lease.id, end=lease.end_date + HOUR)
    assert longer.end_date == lease.end_date + HOUR
    change = ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2})
    assert client.leases.update(lease.id, reservations=[change]).reservations[0].parameters["min"] == 2
    assert server.requests[-1].body == {"reservations": [{"id": change.id, "min": 2, "max": 2}]}


def test_a_lease_can_be_ended_at_once(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    lease = client.leases.wait(book(client, start=BEGINNING).id)
    client.leases.update(lease.id, end=NOW)
    assert client.leases.wait(lease.id, {"TERMINATED"}).status == "TERMINATED"


def test_deleting_twice_does_no_harm(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    lease = book(client)
    client.leases.delete(lease.id)
    client.leases.delete(lease.id)
    assert list(client.leases.list()) == []
    with pytest.raises(NotFound):
        client.leases.delete("never there")


def test_hosts_history_and_dropping_a_reservation(server: FakeServer) -> None:
    server.add_host("c1", properties={"gpu": "v100"})
    client = server.client()
    lease = book(client)
    (host,) = client.leases.hosts(lease.id)
    assert (host.hypervisor_hostname, host.status, host.properties) == ("c1", "planned", {"gpu": "v100"})
    server.advance(DAY)
    assert [(entry.action, entry.to_status) for entry in client.leases.history(lease.id)] == [
        ("create", "PENDING"),
        ("start", "STARTING"),
        ("started", "ACTIVE"),
    ]
    server.advance(HOUR)
    for _ in range(2):
        client.leases.drop_reservation(lease.id, lease.reservations[0].id)
    assert client.leases.hosts(lease.id)[0].status == "released"
    assert client.leases.get(lease.id).reservations[0].status == "deleted"


def test_wait_reports_its_progress(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    lease = book(client, start=BEGINNING + timedelta(minutes=5))
    seen: list[WaitProgress] = []
    assert client.leases.wait(lease.id, on_progress=seen.append).status == "ACTIVE"
    assert (seen[0].elapsed, seen[0].until_start) == (timedelta(), timedelta(minutes=5))
    assert seen[-1].until_start is None
    assert seen[-1].elapsed == timedelta(minutes=5)
    assert len(seen) < 10


def test_a_wait_ends_when_its_time_is_over(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    lease = book(client)
    with pytest.raises(WaitTimedOut, match="30m"):
        client.leases.wait(lease.id, timeout=timedelta(minutes=30))
    assert server.now == BEGINNING + timedelta(minutes=30)


def test_a_wait_ends_when_the_lease_fails(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    lease = book(client)
    server.set_status(lease.id, "ERROR", "the switch is on fire")
    with pytest.raises(LeaseFailed, match="the switch is on fire"):
        client.leases.wait(lease.id)
    with pytest.raises(LeaseFailed, match="the switch is on fire"):
        client.leases.wait_deleted(lease.id)
    client.leases.delete(lease.id)
    with pytest.raises(LeaseFailed, match="deleted"):
        client.leases.wait(lease.id)
    client.leases.wait_deleted(lease.id)


def test_a_wait_survives_a_short_failure_of_the_server(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    lease = book(client, start=BEGINNING)
    server.fail_next(503, 500, 502)
    assert client.leases.wait(lease.id).status == "ACTIVE"
    server.fail_next(*[503] * 5)
    with pytest.raises(ServerError):
        client.leases.wait(lease.id)


def test_hosts_and_their_properties(server: FakeServer) -> None:
    server.add_hypervisor("c1")
    client = server.client()
    host = client.hosts.create("c1", properties={"gpu": "v100"})
    assert (host.hypervisor_hostname, host.properties) == ("c1", {"gpu": "v100"})
    found = client.hosts.get(host.id)
    assert client.hosts.find("c1") == client.hosts.find(host.id) == found
    assert (found.id, found.properties, found.enabled, found.health) == (
        host.id,
        host.properties,
        True,
        "well",
    )
    assert client.hosts.update(host.id, properties={"rack": "r2"}).properties == {"gpu": "v100", "rack": "r2"}
    assert client.properties.set("rack", private=True).private is True
    assert [found.name for found in client.properties.list()] == ["gpu"]
    assert [found.name for found in client.properties.list(include_private=True)] == ["gpu", "rack"]
    assert client.properties.show("rack").values == ("r2",)
    assert client.hosts.unset(host.id, ["rack"]).properties == {"gpu": "v100"}
    with pytest.raises(NotFound):
        client.properties.show("rack")
    with pytest.raises(Conflict):
        client.hosts.create("c1")
    assert list(client.hosts.list(reservable=False)) == []
    book(client)
    with pytest.raises(Conflict):
        client.hosts.delete(host.id)
    for lease in client.leases.list():
        client.leases.delete(lease.id)
    client.hosts.delete(host.id)
    with pytest.raises(NotFound, match="no host 'c1'"):
        client.hosts.find("c1")


def test_allocations(server: FakeServer) -> None:
    host = server.add_host("c1")
    client = server.client()
    lease = book(client)
    server.add_host("c2")
    (allocation,) = client.allocations.list(lease_id=lease.id)
    assert allocation.resource_id == host.id
    assert allocation.reservations[0].lease_id == lease.id
    assert client.allocations.get(host.id).reservations == allocation.reservations
    assert client.allocations.get(host.id, reservation_id="another").reservations == ()
    assert len(list(client.allocations.list())) == 2


def test_an_address_without_a_version_gets_one(server: FakeServer) -> None:
    signed_in = session.Session(auth=token_endpoint.Token(server.url.removesuffix("/v1"), server.token))
    assert list(Client(signed_in).leases.list()) == []
    given = adapter.Adapter(signed_in, service_type="reservation")
    assert list(Client(given, endpoint_override=server.url + "/").leases.list()) == []


def signed_in_by_keystone(token: str, service_type: str, url: str) -> session.Session:
    """Return a session with a catalogue that has one service in two regions."""
    endpoints = [
        {"id": region, "interface": "public", "region": region, "region_id": region, "url": address}
        for region, address in (("here", url), ("there", "http://127.0.0.1:9/v1"))
    ]
    catalog = [{"id": "s", "name": "s", "type": service_type, "endpoints": endpoints}]
    scoped = {"methods": ["password"], "expires_at": "2100-01-01T00:00:00.000000Z", "catalog": catalog}
    return session.Session(auth=AccessInfoPlugin(access.AccessInfoV3({"token": scoped}, token)))


def test_the_service_is_found_in_the_catalogue(server: FakeServer) -> None:
    signed_in = signed_in_by_keystone(server.token, "reservation", server.url)
    assert list(Client(signed_in, region_name="here").leases.list()) == []
    assert list(Client(signed_in, region_name="").leases.list()) == []
    with pytest.raises(ConnectionFailed):
        list(Client(signed_in, region_name="there").leases.list())


def test_a_catalogue_without_the_service_is_explained(server: FakeServer) -> None:
    signed_in = signed_in_by_keystone(server.token, "compute", server.url)
    with pytest.raises(ConnectionFailed, match="no endpoint of type 'reservation'"):
        list(Client(signed_in).leases.list())
    assert list(Client(signed_in, endpoint_override=server.url).leases.list()) == []


def test_a_session_without_a_sign_in_is_explained() -> None:
    with pytest.raises(ConnectionFailed):
        list(Client(session.Session()).leases.list())


def test_a_wrong_token_is_named(server: FakeServer) -> None:
    signed_in = session.Session(auth=token_endpoint.Token(server.url, "wrong"))
    with pytest.raises(Unauthorized) as refusal:
        list(Client(signed_in).leases.list())
    assert refusal.value.code == 401


def test_a_server_that_is_not_there_is_named() -> None:
    signed_in = session.Session(auth=token_endpoint.Token("http://127.0.0.1:9/v1", "t"))
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        list(Client(signed_in).leases.list())


def test_a_proxy_in_trouble_does_not_make_the_server_a_blazar(server: FakeServer) -> None:
    client = server.client()
    server.fail_next(502)
    with pytest.raises(ServerError):
        list(client.leases.list())
    list(client.leases.list())
    assert client.version is Version.V1_1


def test_unreadable_answer_raises_unexpected_answer(server: FakeServer) -> None:
    client = server.client()
    server.fail_next(200, 200)
    with pytest.raises(UnexpectedAnswer):
        client.leases.get("x")


def test_a_server_of_1_1_lacks_what_came_with_1_2() -> None:
    with FakeServer(versions=("1.0", "1.1")) as server:
        client = server.client()
        host = server.add_host("c1")
        assert client.hosts.get(host.id).health is None
        assert [host.id for host in client.hosts.list()] == [host.id]
        asked = [request.version for request in server.requests]
        assert asked == ["1.4", "1.3", "1.2", "1.1", "1.1"]  # once is enough
        with pytest.raises(NeedsNewerServer, match=r"closing and emptying hosts came with API 1\.2"):
            client.hosts.disable(host.id)
        assert len(server.requests) == 5


def test_a_server_of_1_2_keeps_what_came_with_1_2() -> None:
    with FakeServer(now=BEGINNING, versions=("1.0", "1.1", "1.2")) as server:
        host = server.add_host("c1", properties={"gpu": "a100"})
        client = server.client()
        assert client.properties.show("gpu").values == ("a100",)
        assert client.hosts.disable(host.id).resource.enabled is False
        assert client.limits.show().limits
        assert client.properties.list()
        assert [request.version for request in server.requests] == ["1.4", "1.3", "1.2", "1.2", "1.2", "1.2"]


@pytest.mark.parametrize("versions", [("1.0",), ("1.0", "1.1"), ("1.0", "1.1", "1.2")])
def test_older_servers_list_properties(versions: tuple[str, ...]) -> None:
    with FakeServer(versions=versions) as server:
        server.add_host("c1", properties={"gpu": "a100"})
        assert [found.name for found in server.client().properties.list()] == ["gpu"]


def test_the_history_is_there_before_1_2() -> None:
    with FakeServer(now=BEGINNING, versions=("1.0", "1.1")) as server:
        server.add_host("c1")
        lease = book(server.client())
        assert server.client().leases.history(lease.id)


def test_place_is_sent_in_the_newest_version(server: FakeServer) -> None:
    server.add_host("c1", availability_zone="az1", vcpus=4)
    server.add_host("c2", availability_zone="az1", vcpus=4)
    client = server.client()
    lease = book(client)
    zone = {"availability_zone": "az1"}
    client.leases.update(lease.id, reservations=[ReservationChange(lease.reservations[0].id, zone)])
    client.leases.create("sized", start=NOW, end=BEGINNING + DAY, reservations=[sized_hosts()])
    versions = [request.version for request in server.requests if request.method in {"POST", "PUT"}]
    assert versions == ["1.4", "1.4", "1.4"]


def sized_hosts() -> ReservationRequest:
    return ReservationRequest("physical:host", {"min": 1, "max": 1, "vcpus": 4})


@pytest.mark.parametrize("versions", [("1.0",), ("1.0", "1.1")])
def test_place_needs_a_newer_server(versions: tuple[str, ...]) -> None:
    with FakeServer(versions=versions) as server:
        server.add_host("c1")
        client = server.client()
        lease = book(client)
        elsewhere = ReservationRequest.hosts(1).in_region("north")
        too_new = pytest.raises(NeedsNewerServer, match=r"a region, a zone.* came with API 1\.2")
        for wanted in (elsewhere, ReservationRequest.hosts(1).with_place("az-1")):
            with too_new:
                client.leases.create("there", start=NOW, end=BEGINNING + DAY, reservations=[wanted])
        with too_new:
            client.leases.add_reservation(lease.id, elsewhere)
        with too_new:
            client.leases.update(
                lease.id, reservations=[ReservationChange(lease.reservations[0].id, {"region": "north"})]
            )
        assert [lease.name for lease in client.leases.list()] == ["bio"]


def test_resource_classes_need_a_newer_server() -> None:
    with FakeServer(versions=("1.0", "1.1", "1.2", "1.3")) as server:
        client = server.client()
        wanted = ReservationRequest.hosts(1).in_region("north").with_resources({"VGPU": 1})
        too_new = pytest.raises(NeedsNewerServer, match=r"naming resource classes.* came with API 1\.4")
        with too_new:
            client.leases.create("there", start=NOW, end=BEGINNING + DAY, reservations=[wanted])
        window = StartWindow(duration=timedelta(hours=1))
        with too_new:
            client.leases.create("there", window=window, any_of=[[ReservationRequest.hosts(1)], [wanted]])
        assert list(client.leases.list()) == []


def test_the_limits_of_a_site_are_errors_of_their_own() -> None:
    details: JsonObject = {"resource": "leases", "limit": 2, "used": 2, "requested": 1}
    body: JsonObject = {
        "error_code": 403,
        "error_name": "OverQuota",
        "error_message": "Quota exceeded",
        "details": details,
    }
    error = error_from_answer(403, body, None)
    assert isinstance(error, OverQuota)
    assert isinstance(error, Forbidden)
    assert error.details == details
    denied = error_from_answer(400, {"error_name": "Denied", "error_message": "No credits are left."}, None)
    assert isinstance(denied, Denied)
    assert isinstance(denied, BadRequest)
    assert str(denied) == "No credits are left."


def test_reallocate_needs_a_newer_server_than_blazar() -> None:
    with FakeServer(versions=("1.0",)) as server:
        client = server.client()
        server.add_host("c1")
        with pytest.raises(NeedsNewerServer, match=r"API 1\.2"):
            client.hosts.reallocate("1")
        assert client.hosts.find("c1").enabled is None
        assert client.version is Version.V1_0


def test_a_lease_is_held_until_it_is_confirmed(server: FakeServer) -> None:
    server.add_host("c1")
    server.add_host("c2")
    client = server.client()
    wanted = [ReservationRequest.hosts(1)]
    start = BEGINNING + DAY
    held = client.leases.create(
        "held", start=start, end=start + DAY, reservations=wanted, hold_for=timedelta(minutes=2)
    )
    assert (held.status, held.hold_until) == ("CREATING", BEGINNING + timedelta(minutes=2))
    change = ReservationChange(held.reservations[0].id, {"min": 2, "max": 2})
    kept = client.leases.confirm(held.id, reservations=[change])
    assert (kept.status, kept.hold_until) == ("PENDING", None)
    assert kept.reservations[0].parameters["max"] == 2
    assert client.leases.confirm(held.id) == client.leases.get(held.id)
    client.leases.delete(kept.id)
    other = client.leases.create(
        "other", start=start, end=start + DAY, reservations=wanted, hold_for=timedelta(minutes=2)
    )
    server.advance(timedelta(minutes=2))
    with pytest.raises(NotFound):
        client.leases.confirm(other.id)
    with pytest.raises(BadRequest, match="hold_for"):
        client.leases.create("long", start=start, end=start + DAY, hold_for=timedelta(hours=2))
