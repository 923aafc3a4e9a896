"""What the library takes and what the command line says follow from declarations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import pytest

from tenureclient import NOW, BadRequest, Client, ReservationRequest
from tenureclient.documents import Document, LooseText, document
from tenureclient.options import Option, options_of
from tenureclient.resources.hosts import Hosts
from tenureclient.resources.volumes import VolumePools
from tenureclient.sent import Arguments, Sent
from tenureclient.testing import FakeServer
from tenureclient.wire import Feature, JsonObject, MalformedDocument, Version

MORNING = datetime(2027, 3, 1, 9, 30, tzinfo=UTC)


class Excuse(TypedDict, total=False):
    """Arguments in all forms."""

    since: Annotated[datetime | None, Sent("since_date")]
    lasts: Annotated[timedelta | None, Sent("lasts", feature=Feature("excuses that last", Version.V1_2))]
    reasons: Annotated[list[str], Option("--reason", "TEXT", gather=list, help="Why (may be repeated)")]
    in_writing: Annotated[bool, Sent("form", lambda _flag, _version: "letter", Feature("letters", Version.V1_3))]


def test_arguments_are_sent_as_they_are_declared() -> None:
    given = Arguments(Excuse, {"since": MORNING, "reasons": iter(["rain", "snow"]), "lasts": None, "in_writing": False})
    assert given.to_wire(Version.V1_0) == {"since_date": "2027-03-01 09:30", "reasons": ["rain", "snow"]}
    assert given.to_wire(Version.V1_1) == {"since_date": "2027-03-01T09:30:00Z", "reasons": ["rain", "snow"]}
    assert given.needs is None


def test_the_newest_argument_says_which_server_is_needed() -> None:
    given = Arguments(Excuse, {"in_writing": True, "lasts": timedelta(hours=1), "reasons": []})
    assert given.to_wire(Version.V1_3) == {"lasts": 3600, "form": "letter"}
    assert given.needs == Feature("letters", Version.V1_3)


def test_only_annotated_arguments_have_an_option() -> None:
    assert [option.names for option in options_of(Excuse).values()] == ["--reason"]


@document("an excuse")
class ExcuseDocument(Document):
    """A document in all forms."""

    id: str
    text: LooseText
    at: datetime | None
    parts: tuple[int, ...]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({}, "an excuse: id is not text: None"),
        ({"id": "1", "at": "soon"}, "an excuse: at is not a date: 'soon'"),
        ({"id": "1", "parts": ["x"]}, "an excuse: parts is not a whole number: 'x'"),
    ],
)
def test_a_document_of_another_form_names_its_field(wrong: JsonObject, complaint: str) -> None:
    with pytest.raises(MalformedDocument, match=complaint):
        ExcuseDocument.from_wire(wrong)


def test_a_document_is_read_by_the_types_of_its_fields() -> None:
    shown = ExcuseDocument.from_wire({"id": "1", "text": 5, "parts": [1, "2"], "further": True})
    assert shown == ExcuseDocument("1", "5", None, (1, 2))


@dataclass(frozen=True)
class Mistake:
    """A call with an argument that does not exist."""

    name: str
    complaint: str

    def call(self, client: Client) -> object:
        arguments: Any = {"nmae": "x"}
        match self.name:
            case "create":
                end, wanted = MORNING + timedelta(hours=1), [ReservationRequest.hosts(1)]
                return client.leases.create("bio", start=NOW, end=end, reservations=wanted, **arguments)
            case "update":
                return client.leases.update("an id", **arguments)
            case "hosts":
                return list(client.hosts.list(**arguments))
        return list(client.leases.list(**arguments))


@pytest.mark.parametrize(
    "mistake",
    [
        Mistake("create", "There is no argument nmae"),
        Mistake("update", "There is no argument nmae"),
        Mistake("list", "There is no argument nmae"),
        Mistake("hosts", "Hosts cannot be listed by nmae"),
    ],
)
def test_an_argument_that_does_not_exist_is_refused(server: FakeServer, mistake: Mistake) -> None:
    with pytest.raises(TypeError, match=mistake.complaint):
        mistake.call(server.client())
    assert server.requests == []


def test_resources_of_any_type_are_reached_by_their_class(server: FakeServer) -> None:
    server.add_volume_pool("storage-1@lvm#lvm", capacity_gb=100)
    server.add_host("compute-1")
    client = server.client()
    [pool] = client.inventory(VolumePools).list()
    assert client.volume_pools.find(pool.name) == client.inventory(VolumePools).get(pool.id) == pool
    wanted = [ReservationRequest.volumes(1, size_gb=10, volume_type="fast"), ReservationRequest.hosts(1)]
    lease = client.leases.create("bio", start=NOW, end=server.now + timedelta(hours=1), reservations=wanted)
    [part] = client.leases.resources(lease.id, VolumePools)
    assert (part.id, part.name) == (pool.id, pool.name)
    assert client.leases.resources(lease.id, Hosts) == client.leases.hosts(lease.id)


def test_a_user_by_name_is_unknown_to_blazar(blazar: FakeServer) -> None:
    blazar.add_host("compute-1")
    client = blazar.client()
    client.leases.create(
        "bio", start=NOW, end=blazar.now + timedelta(hours=1), reservations=[ReservationRequest.hosts(1)]
    )
    with pytest.raises(BadRequest, match="No lease is of the user 'ada'"):
        list(client.leases.list(user_id="ada"))
