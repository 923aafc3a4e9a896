"""The library against a server that knows API 1.0 only, as Blazar does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from keystoneauth1 import adapter, session

from conftest import BEGINNING
from tenureclient import (
    NOW,
    ApiError,
    BadRequest,
    Client,
    Host,
    Lease,
    LeaseBusy,
    NeedsNewerServer,
    NotEnoughResources,
    NotFound,
    ReservationChange,
    ReservationRequest,
    Version,
)
from tenureclient.errors import error_from_answer
from tenureclient.testing import FakeServer

DAY = timedelta(days=1)


def test_first_call_determines_the_version(blazar: FakeServer) -> None:
    blazar.add_host("c1")
    client = blazar.client()
    start = datetime(2027, 3, 2, 10, 0, 30, tzinfo=UTC)
    lease = client.leases.create(
        "bio",
        start=start,
        end=start + DAY,
        reservations=[ReservationRequest.hosts(1, conditions=["vcpus>=4"])],
    )
    client.leases.get(lease.id)
    assert client.version is Version.V1_0
    assert [request.version for request in blazar.requests] == ["1.4", "1.3", "1.2", "1.1", None, None]
    assert blazar.requests[4].body == {
        "name": "bio",
        "start_date": "2027-03-02 10:00",
        "end_date": "2027-03-03 10:00",
        "reservations": [
            {
                "resource_type": "physical:host",
                "min": 1,
                "max": 1,
                "hypervisor_properties": "",
                "resource_properties": '[">=", "$vcpus", "4"]',
            }
        ],
    }
    assert lease.start_date == datetime(2027, 3, 2, 10, tzinfo=UTC)
    assert lease.before_end_date == datetime(2027, 3, 3, 9, tzinfo=UTC)


def test_leases_can_be_listed_found_changed_and_deleted(blazar: FakeServer) -> None:
    blazar.add_host("c1")
    client = blazar.client()
    for number in (1, 2, 0):
        start = BEGINNING + number * 2 * DAY
        client.leases.create(
            f"lease-{number}", start=start, end=start + DAY, reservations=[ReservationRequest.hosts(1)]
        )
    assert [lease.name for lease in client.leases.list(sort_key="start_date")] == [
        "lease-0",
        "lease-1",
        "lease-2",
    ]
    assert next(client.leases.list(sort_key="name", descending=True)).name == "lease-2"
    assert [lease.name for lease in client.leases.list(starts_before=BEGINNING + DAY)] == ["lease-0"]
    assert [lease.name for lease in client.leases.list(ends_after=BEGINNING + 4 * DAY)] == ["lease-2"]
    lease = client.leases.find("lease-1")
    assert client.leases.update(lease.id, end=lease.end_date + DAY).end_date == lease.end_date + DAY
    change = ReservationChange(lease.reservations[0].id, {"min": 1, "max": 1})
    client.leases.update(lease.id, name="renamed", reservations=[change])
    assert client.leases.find("renamed").id == lease.id
    client.leases.delete(lease.id)
    client.leases.wait_deleted(lease.id)
    with pytest.raises(NotFound):
        client.leases.find("renamed")


def test_hosts_keep_their_properties_beside_their_fields(blazar: FakeServer) -> None:
    blazar.add_hypervisor("c1")
    client = blazar.client()
    host = client.hosts.create("c1", properties={"gpu": "v100"})
    assert blazar.requests[-1].body == {"name": "c1", "gpu": "v100"}
    assert host.properties == {"gpu": "v100"}
    assert client.hosts.update(host.id, properties={"rack": "r2"}).properties == {"gpu": "v100", "rack": "r2"}
    assert blazar.requests[-1].body == {"rack": "r2"}
    assert client.hosts.unset(host.id, ["rack"]).properties == {"gpu": "v100"}
    assert client.hosts.find("c1").id == host.id
    assert list(client.hosts.list(hypervisor_hostname="c2")) == []
    client.hosts.delete(host.id)


def test_allocations_with_a_filter_leave_other_hosts_out(blazar: FakeServer) -> None:
    blazar.add_host("c1")
    blazar.add_host("c2")
    client = blazar.client()
    lease = client.leases.create("bio", start=NOW, end=BEGINNING + DAY, reservations=[ReservationRequest.hosts(1)])
    assert len(list(client.allocations.list(lease_id=lease.id))) == 1
    assert len(list(client.allocations.list())) == 2


@pytest.mark.parametrize("settled", [False, True])
def test_features_of_1_1_raise_needs_newer_server(blazar: FakeServer, settled: bool) -> None:
    client = blazar.client()
    if settled:
        list(client.leases.list())
    with pytest.raises(NeedsNewerServer, match=r"API 1\.0 only .* history"):
        client.leases.history("x")
    with pytest.raises(NeedsNewerServer, match="hosts"):
        client.leases.hosts("x")
    with pytest.raises(NeedsNewerServer, match="dropping"):
        client.leases.drop_reservation("x", "y")


def test_a_full_blazar_is_recognised_by_its_words(blazar: FakeServer) -> None:
    with pytest.raises(NotEnoughResources) as refusal:
        blazar.client().leases.create("x", start=NOW, end=BEGINNING + DAY, reservations=[ReservationRequest.hosts(1)])
    assert refusal.value.shortfall is None
    assert refusal.value.code == 400


@pytest.mark.parametrize(
    ("message", "kind"),
    [("Not enough hosts available", NotEnoughResources), ("Invalid lease status.", LeaseBusy)],
)
def test_known_texts_of_internal_errors_are_recognised(message: str, kind: type[ApiError]) -> None:
    error = error_from_answer(500, {"error_code": 500, "error_message": message, "error_name": 500}, "req-1")
    assert isinstance(error, kind)
    assert (error.code, error.request_id) == (500, "req-1")


class OldBlazar(adapter.Adapter):
    """A Blazar from before microversions: it ignores the header, and its answers have none."""

    def __init__(self) -> None:
        super().__init__(session.Session(), service_type="reservation", endpoint_override="http://old/v1")
        self.bodies: list[Any] = []
        self.methods: list[str] = []

    def request(self, url: str, method: str, **options: Any) -> requests.Response:
        body: Mapping[str, Any] = options["json"] or {}
        self.bodies.append(options["json"])
        self.methods.append(method)
        response = requests.Response()
        if "T" in body.get("start_date", ""):
            response.status_code = 400
            document: Mapping[str, Any] = {"error_code": 400, "error_message": "2027 is an invalid date."}
        else:
            response.status_code = 201
            address = {
                **body,
                "id": "y",
                "subnet_id": "z",
                "reservable": True,
                "created_at": "2027-03-01 09:30:00",
            }
            dates = {"start_date": "2027-03-02T10:00:00.000000", "end_date": "2027-03-03T10:00:00.000000"}
            lease = {"id": "x", "name": "bio", "created_at": "2027-03-01 09:30:00", **dates}
            document = {"lease": lease, "floatingip": address}
        response._content = json.dumps(document).encode()
        return response


def test_names_of_projects_and_users_are_refused_not_answered_with_nothing(blazar: FakeServer) -> None:
    blazar.add_host("c1")
    client = blazar.client()
    start = datetime(2027, 3, 2, 10, tzinfo=UTC)
    client.leases.create("bio", start=start, end=start + DAY, reservations=[ReservationRequest.hosts(1)])
    assert len(list(client.leases.list(project_id="fake-project", user_id="fake-user"))) == 1
    assert list(client.leases.list(project_id="0" * 32)) == []
    with pytest.raises(BadRequest, match="project 'physics'"):
        list(client.leases.list(project_id="physics"))
    with pytest.raises(BadRequest, match="user 'ada'"):
        list(client.leases.list(user_id="ada"))


def test_a_blazar_from_before_microversions_is_spoken_to_in_its_form() -> None:
    old = OldBlazar()
    client = Client(old, endpoint_override="http://old/v1")
    start = datetime(2027, 3, 2, 10, tzinfo=UTC)
    lease = client.leases.create("bio", start=start, end=start + DAY)
    assert client.version is Version.V1_0
    assert lease.created_at == BEGINNING
    dates = [body["start_date"] for body in old.bodies]
    assert dates == ["2027-03-02T10:00:00Z", "2027-03-02T10:00:00Z", "2027-03-02 10:00"]


def test_an_old_blazar_is_not_asked_for_a_dry_run() -> None:
    old = OldBlazar()
    leases = Client(old, endpoint_override="http://old/v1").leases
    with pytest.raises(NeedsNewerServer, match=r"API 1\.3"):
        leases.update("x", name="other", dry_run=True)
    with pytest.raises(NeedsNewerServer, match=r"API 1\.3"):
        leases.drop_reservation("x", "y", dry_run=True)
    assert old.methods == ["GET"]


def test_write_done_by_an_old_blazar_is_not_repeated() -> None:
    old = OldBlazar()
    client = Client(old, endpoint_override="http://old/v1")
    made = client.floatingips.create("network", "203.0.113.20")
    assert (made.floating_ip_address, made.health) == ("203.0.113.20", None)
    assert len(old.bodies) == 1
    assert client.version is Version.V1_0


def test_a_lease_as_blazar_writes_it_is_read() -> None:
    lease = Lease.from_wire(
        {
            "id": "e9d72175-b5cc-4e1f-9ca2-e0317e7bc44f",
            "name": "h1",
            "user_id": "user",
            "project_id": "proj",
            "start_date": "2050-01-01T10:00:00.000000",
            "end_date": "2050-01-01T12:00:00.000000",
            "trust_id": "ec0383bc5b0845378f64963291b621a2",
            "status": "PENDING",
            "degraded": False,
            "created_at": "2026-11-21 02:12:23.810892",
            "updated_at": None,
            "reservations": [
                {
                    "id": "r",
                    "lease_id": "l",
                    "resource_id": "x",
                    "resource_type": "virtual:instance",
                    "status": "pending",
                    "missing_resources": False,
                    "resources_changed": False,
                    "created_at": "2026-11-21 02:12:23",
                    "updated_at": None,
                    "vcpus": 2,
                    "affinity": None,
                }
            ],
            "events": [
                {
                    "id": "e",
                    "lease_id": "l",
                    "event_type": "before_end_lease",
                    "time": "2050-01-01T11:00:00.000000",
                    "status": "UNDONE",
                    "created_at": "2026-11-21 02:12:23",
                    "updated_at": None,
                },
                {"id": "f", "event_type": "notification", "time": None, "status": None},
            ],
        }
    )
    assert lease.before_end_date == datetime(2050, 1, 1, 11, tzinfo=UTC)
    assert lease.status_reason is None
    assert lease.reservations[0].parameters == {"vcpus": 2, "affinity": None}


def test_a_host_whose_property_hides_a_field_is_read() -> None:
    host = Host.from_wire({"id": "1", "hypervisor_hostname": "c1", "vcpus": "4", "status": None, "gpu": "True"})
    assert (host.vcpus, host.properties, host.reservable) == (4, {"gpu": "True"}, True)
