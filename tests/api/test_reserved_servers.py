"""Servers that are there already, or are named later: shelved until the start, woken on a host that keeps room."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.drivers.simulated import Fault, FaultKind
from tenure.services.notifications.outbox import Message
from tests.api.rig import Api, api_over, open_api, rfc3339
from tests.support.engines import rebuild
from tests.support.simulated import HostHealth, Server

PROJECT = "demo-project"
#: Of the simulated cloud: m1.large takes 4 processors and 8 GiB, m1.tiny one and half a GiB.
LARGE, TINY = "4", "1"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The API at 1.2, with four hosts for reservations and one in general use."""
    with open_api(tmp_path) as opened:
        opened.world.cloud.world.add_host("general")
        yield opened.using(version="1.2")


def boot(api: Api, *, flavor: str = TINY, project: str = PROJECT, **more: Any) -> str:
    return api.world.cloud.world.instances.boot(project, flavor, **more)


def server(api: Api, server_id: str) -> Server | None:
    return next((known for known in api.world.cloud.world.servers() if known.id == server_id), None)


def found(api: Api, server_id: str) -> Server:
    existing = server(api, server_id)
    assert existing is not None
    return existing


def reservation(**fields: Any) -> dict[str, Any]:
    return {"resource_type": "virtual:server", **fields}


def book(api: Api, *, start: float = 1, hours: float = 1, **fields: Any) -> dict[str, Any]:
    return api.book(start=start, hours=hours, reservations=[reservation(**fields)])


def refusal(api: Api, *, start: float = 1, **fields: Any) -> Any:
    return api.post("/v1/leases", api.lease_body(start=start, reservations=[reservation(**fields)]))


def pass_hours(api: Api, hours: float) -> None:
    api.world.pass_time(timedelta(hours=hours))


def status(api: Api, lease: dict[str, Any]) -> str:
    return str(api.get(f"/v1/leases/{lease['id']}").json["lease"]["status"])


def test_server_is_shelved_until_the_start_and_deleted_at_the_end(api: Api) -> None:
    server_id = boot(api)
    lease = book(api, server_id=server_id)
    [shown] = lease["reservations"]

    assert lease["status"] == "PENDING"
    assert (shown["server_id"], shown["at_end"], shown["in_place"]) == (server_id, "delete", False)
    assert (shown["vcpus"], shown["memory_mb"], shown["disk_gb"]) == (1, 512, 1)
    assert found(api, server_id).shelved
    assert found(api, server_id).metadata["tenure:lease"] == lease["id"]

    pass_hours(api, 1.5)
    host = api.world.cloud.world.host(found(api, server_id).host)
    assert status(api, lease) == "ACTIVE"
    assert host.belongs_to == "freepool"
    assert api.world.cloud.world.instances.aggregates()[shown["id"]].metadata["tenure:server"] == server_id

    pass_hours(api, 1)
    assert status(api, lease) == "TERMINATED"
    assert server(api, server_id) is None
    assert shown["id"] not in api.world.cloud.world.instances.aggregates()


def test_lease_from_now_moves_the_server_to_a_reserved_host_at_once(api: Api) -> None:
    server_id = boot(api)
    book(api, start=0, server_id=server_id)
    pass_hours(api, 0.1)

    assert api.world.cloud.world.host(found(api, server_id).host).belongs_to == "freepool"


def test_host_can_be_requested_by_any_expression(api: Api) -> None:
    properties = '["or", ["in", "$rack", "r1", "r2"], ["not", ["==", "$gpu", "a100"]]]'
    lease = book(api, vcpus=1, memory_mb=512, disk_gb=1, resource_properties=properties)
    assert lease["reservations"][0]["resource_properties"] == properties


@pytest.mark.parametrize("at_end", ["stop", "shelve"])
def test_server_is_kept_on_request(api: Api, at_end: str) -> None:
    server_id = boot(api)
    book(api, server_id=server_id, at_end=at_end)
    pass_hours(api, 2.5)

    kept = found(api, server_id)
    assert (kept.stopped, kept.shelved) == (at_end == "stop", at_end == "shelve")
    assert not [name for name in kept.metadata if name.startswith("tenure:")]


def test_image_of_a_server_is_made_only_at_the_end(api: Api) -> None:
    server_id = boot(api)
    lease = book(api, server_id=server_id, at_end="snapshot", hours=3)
    pass_hours(api, 3.5)  # the moment before the end is past
    assert not api.world.cloud.world.images()

    pass_hours(api, 1)
    [image] = api.world.cloud.world.images()
    assert (image.server_id, image.status) == (server_id, "active")
    assert server(api, server_id) is None
    assert status(api, lease) == "TERMINATED"


def test_a_server_has_one_lease_at_a_time(api: Api) -> None:
    server_id = boot(api)
    lease = book(api, server_id=server_id, at_end="stop")

    refused = refusal(api, start=5, server_id=server_id)
    assert refused.status_code == 409, refused.text
    assert lease["id"] in refused.json["error_message"]

    pass_hours(api, 2.5)
    assert refusal(api, start=5, server_id=server_id).status_code == 201


def test_foreign_and_missing_servers_cannot_be_reserved(api: Api) -> None:
    foreign = boot(api, project="other-project")
    for server_id in (foreign, "server-999999", "nothing"):
        refused = refusal(api, server_id=server_id)
        assert refused.status_code == 400, refused.text
        assert refused.json["field"] == "reservations[0].server_id"
    assert not found(api, foreign).shelved


def test_refused_server_without_room_is_unchanged(api: Api) -> None:
    server_id = boot(api)
    api.book(start=0, hours=9, reservations=[{**api.lease_body()["reservations"][0], "min": 4, "max": 4}])

    refused = refusal(api, server_id=server_id)
    assert refused.status_code == 409, refused.text
    assert "servers" in refused.json["error_message"]
    assert not found(api, server_id).shelved
    assert not found(api, server_id).metadata


def test_room_is_kept_for_a_server_that_is_named_later(api: Api) -> None:
    lease = book(api, flavor_id=LARGE)
    [shown] = lease["reservations"]
    assert (shown["server_id"], shown["flavor_id"], shown["vcpus"]) == (None, LARGE, 4)

    pass_hours(api, 1.5)
    assert status(api, lease) == "ACTIVE"
    server_id = boot(api)
    changed = api.put(
        f"/v1/leases/{lease['id']}", {"reservations": [{"id": shown["id"], "server_id": server_id, "at_end": "stop"}]}
    )
    assert changed.status_code == 200, changed.text
    pass_hours(api, 0.1)  # until the server is woken there
    assert status(api, lease) == "ACTIVE"
    assert api.world.cloud.world.host(found(api, server_id).host).belongs_to == "freepool"

    pass_hours(api, 1)
    assert found(api, server_id).stopped


def test_a_server_that_is_named_before_the_start_is_shelved_then(api: Api) -> None:
    lease = book(api, vcpus=1, memory_mb=512, disk_gb=1)
    server_id = boot(api)
    changes = {"reservations": [{"id": lease["reservations"][0]["id"], "server_id": server_id}]}
    assert api.put(f"/v1/leases/{lease['id']}", changes).status_code == 200
    assert found(api, server_id).shelved


def test_a_server_larger_than_booked_is_refused(api: Api) -> None:
    lease = book(api, flavor_id=TINY)
    server_id = boot(api, flavor=LARGE)
    changes = {"reservations": [{"id": lease["reservations"][0]["id"], "server_id": server_id}]}
    refused = api.put(f"/v1/leases/{lease['id']}", changes)

    assert refused.status_code == 400
    assert refused.json["field"] == "reservations[0].server_id"
    assert "MEMORY_MB" in refused.json["error_message"]


def test_a_reservation_that_has_its_server_gets_no_other(api: Api) -> None:
    first, second = boot(api), boot(api)
    lease = book(api, server_id=first)
    changes = {"reservations": [{"id": lease["reservations"][0]["id"], "server_id": second}]}
    refused = api.put(f"/v1/leases/{lease['id']}", changes)
    assert refused.status_code == 400
    assert refused.json["field"] == "reservations[0].server_id"


def test_server_in_its_place_is_unchanged_until_the_end(api: Api) -> None:
    server_id = boot(api)
    before = found(api, server_id).host
    lease = book(api, start=0, server_id=server_id, in_place=True, at_end="shelve")
    pass_hours(api, 0.5)
    assert status(api, lease) == "ACTIVE"
    assert found(api, server_id).host == before

    pass_hours(api, 1)
    assert status(api, lease) == "TERMINATED"
    assert found(api, server_id).shelved


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("start", [0, 1])
def test_deleting_a_lease_ends_it(api: Api, start: int, in_place: bool) -> None:
    server_id = boot(api)
    lease = book(api, start=start, server_id=server_id, in_place=in_place)
    pass_hours(api, 0.1)

    assert api.delete(f"/v1/leases/{lease['id']}").status_code in {200, 204}
    pass_hours(api, 0.1)
    assert server(api, server_id) is None


@pytest.mark.parametrize("ends", ["the hold expires", "it is given up"])
def test_server_booted_in_an_unconfirmed_hold_is_deleted(api: Api, ends: str) -> None:
    old = boot(api)
    pass_hours(api, 1)
    lease = api.book(start=1, hours=1, hold_for=300, reservations=[reservation(flavor_id=TINY)])
    marks = {"tenure:lease": lease["id"], "tenure:reservation": lease["reservations"][0]["id"]}
    orphan, foreign = boot(api, metadata=marks), boot(api, project="other-project", metadata=marks)
    api.world.cloud.world.instances.write(old, marks)
    if ends == "it is given up":
        api.delete(f"/v1/leases/{lease['id']}")
    pass_hours(api, 0.1)
    api.world.service.reconciler.run()

    assert server(api, orphan) is None
    assert server(api, old) is not None
    assert server(api, foreign) is not None


@pytest.mark.parametrize("confirmed", [False, True])
def test_metadata_of_users_never_moves_a_server(api: Api, confirmed: bool) -> None:
    """Not with the mark of a lease that is over, or running, and has no server: not even with that of one once held."""
    more = {"hold_for": 300} if confirmed else {}
    lease = api.book(start=1, hours=1, reservations=[reservation(flavor_id=TINY)], **more)
    if confirmed:
        assert api.post(f"/v1/leases/{lease['id']}/confirm", {}).status_code == 200
    marks = {"tenure:lease": lease["id"], "tenure:reservation": lease["reservations"][0]["id"]}
    liar = boot(api, metadata=marks)
    pass_hours(api, 2.5)
    assert status(api, lease) == "TERMINATED"
    api.world.service.reconciler.run()
    assert server(api, liar) is not None
    late = boot(api, metadata=marks)
    api.world.service.reconciler.run()
    assert server(api, late) is not None


def test_a_server_that_cannot_be_shelved_gets_no_lease_and_is_unchanged(api: Api) -> None:
    server_id = boot(api)
    api.world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_prepared", after_effects=1))
    refused = refusal(api, server_id=server_id)
    assert refused.status_code == 409, refused.text
    api.world.service.reconciler.run()

    assert not found(api, server_id).shelved
    assert not found(api, server_id).metadata
    assert refusal(api, server_id=server_id).status_code == 201


@pytest.mark.parametrize("at_end", ["delete", "snapshot"])
def test_a_start_that_fails_leaves_the_server_to_its_owner(api: Api, at_end: str) -> None:
    server_id = boot(api)
    lease = book(api, server_id=server_id, hours=10, at_end=at_end)
    api.world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", count=1))
    pass_hours(api, 2)
    assert status(api, lease) == "ERROR"
    assert found(api, server_id).shelved
    api.delete(f"/v1/leases/{lease['id']}")
    pass_hours(api, 0.1)
    api.world.service.reconciler.run()
    assert found(api, server_id).shelved


def test_a_server_that_is_stopped_gives_its_room_to_others(api: Api) -> None:
    server_id = boot(api)
    book(api, server_id=server_id, at_end="stop")
    pass_hours(api, 1.5)
    reserved = found(api, server_id).host
    pass_hours(api, 1)
    assert found(api, server_id).stopped
    assert found(api, server_id).host != reserved


@pytest.mark.parametrize("busy", [0, 1])
def test_a_server_of_which_no_image_can_be_made_is_not_deleted(api: Api, busy: int) -> None:
    """Nor is it where its end takes several attempts."""
    server_id = boot(api)
    lease = book(api, server_id=server_id, at_end="snapshot")
    pass_hours(api, 1.5)
    api.world.cloud.world.instances.shelve(server_id)
    if busy:
        api.world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_ended", count=busy))
    pass_hours(api, 1)
    shown = api.get(f"/v1/leases/{lease['id']}").json["lease"]
    assert shown["status"] == "TERMINATED"
    assert busy or "SHELVED" in shown["status_reason"]
    api.world.service.reconciler.run()
    assert found(api, server_id).shelved


@pytest.mark.parametrize("ends", ["refused", "deleted"])
def test_a_server_of_a_failed_confirmation_is_deleted_with_its_lease(api: Api, ends: str) -> None:
    lease = api.book(start=1, hours=1, hold_for=300, reservations=[reservation(flavor_id=TINY)])
    reservation_id = lease["reservations"][0]["id"]
    fresh = boot(api, metadata={"tenure:lease": lease["id"], "tenure:reservation": reservation_id})
    kind = FaultKind.REFUSED if ends == "refused" else FaultKind.BUSY
    api.world.cloud.inject(Fault(kind, verb="ensure_prepared", count=1))
    body = {"reservations": [{"id": reservation_id, "server_id": fresh}]}
    answer = api.post(f"/v1/leases/{lease['id']}/confirm", body)
    assert (answer.status_code == 409) is (ends == "refused"), answer.text
    if ends == "deleted":
        assert api.delete(f"/v1/leases/{lease['id']}").status_code == 204
    pass_hours(api, 0.1)
    api.world.service.reconciler.run()
    assert server(api, fresh) is None


@pytest.mark.parametrize("booked", ["by a confirmation", "at once"])
def test_failure_after_the_answer_is_recorded(api: Api, tmp_path: Path, booked: str) -> None:
    """The room is free again, the lease has the reason, and a notification is sent."""
    sent: list[Message] = []
    rebuild(api.world, sink=sent.append)
    (tmp_path / "again").mkdir()
    api = api_over(api.world, tmp_path / "again").using(version="1.2")
    world = api.world.cloud
    for kind in (FaultKind.BUSY, FaultKind.REFUSED):
        world.inject(Fault(kind, verb="ensure_prepared", count=1))
    if booked == "at once":
        server_id = boot(api)
        lease = book(api, server_id=server_id, at_end="stop")
    else:
        lease = api.book(start=1, hours=1, hold_for=300, reservations=[reservation(flavor_id=TINY)])
        reservation_id = lease["reservations"][0]["id"]
        server_id = boot(api, metadata={"tenure:lease": lease["id"], "tenure:reservation": reservation_id})
        body = {"reservations": [{"id": reservation_id, "server_id": server_id}]}
        for _ in range(2):
            answer = api.post(f"/v1/leases/{lease['id']}/confirm", body)
            assert (answer.status_code, answer.json["lease"]["status"]) == (200, "CREATING"), answer.text
    pass_hours(api, 0.1)
    shown = api.get(f"/v1/leases/{lease['id']}").json["lease"]
    assert shown["status"] == "ERROR"
    assert "ensure_prepared" in shown["status_reason"]
    topics = ["lease.create", "lease.start_failed"]
    assert [(message.topic, message.payload["status"]) for message in sent] == [(topic, "ERROR") for topic in topics]
    assert all("ensure_prepared" in str(message.payload["status_reason"]) for message in sent)
    everything = [{**api.lease_body()["reservations"][0], "min": 4, "max": 4}]
    assert api.post("/v1/leases", api.lease_body(reservations=everything)).status_code == 201
    api.world.service.reconciler.run()
    kept = server(api, server_id)
    if booked == "at once":
        assert kept is not None
        assert (kept.shelved, kept.metadata) == (False, {})
    else:
        assert kept is None  # it was booted for this
    pass_hours(api, 3)
    assert api.get(f"/v1/leases/{lease['id']}").json["lease"]["status"] == "ERROR"


def test_preemptible_servers_cannot_be_reserved(api: Api) -> None:
    world = api.world.cloud.world.instances
    world.add_flavor("spot", vcpus=1, extra_specs={"blazar:preemptible": "true"})
    server_id = boot(api, flavor="spot")
    choices: list[dict[str, Any]] = [{"flavor_id": "spot"}, {"server_id": server_id}]
    for asked in choices:
        refused = refusal(api, **asked)
        assert (refused.status_code, refused.json["field"]) == (400, f"reservations[0].{next(iter(asked))}")
    assert book(api, server_id=server_id, in_place=True)


@pytest.mark.parametrize("effects", [1, 2, 3])
def test_a_server_refused_for_a_reservation_runs_on(api: Api, effects: int) -> None:
    lease = book(api, flavor_id=TINY)
    pass_hours(api, 1.5)
    server_id = boot(api)
    before = found(api, server_id)
    api.world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", after_effects=effects))
    [shown] = lease["reservations"]
    changes = {"reservations": [{"id": shown["id"], "server_id": server_id, "at_end": "delete"}]}
    assert api.put(f"/v1/leases/{lease['id']}", changes).status_code == 409
    pass_hours(api, 0.1)
    after = found(api, server_id)
    assert (after.shelved, after.metadata) == (False, {})
    assert api.world.cloud.world.host(after.host).belongs_to == api.world.cloud.world.host(before.host).belongs_to
    assert "tenure:server" not in api.world.cloud.world.instances.aggregates()[shown["id"]].metadata
    pass_hours(api, 2)
    assert status(api, lease) == "TERMINATED"
    assert found(api, server_id).host == after.host


def test_a_server_refused_for_a_reservation_is_free_for_another_lease(api: Api) -> None:
    lease = book(api, flavor_id=TINY, hours=5)
    pass_hours(api, 1.5)
    server_id = boot(api)
    api.world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", count=1))
    changes = {"reservations": [{"id": lease["reservations"][0]["id"], "server_id": server_id}]}
    assert api.put(f"/v1/leases/{lease['id']}", changes).status_code == 409
    assert status(api, lease) == "ACTIVE"
    book(api, server_id=server_id)


def test_a_server_is_named_once_in_a_lease(api: Api) -> None:
    requested = reservation(server_id=boot(api))
    refused = api.post("/v1/leases", api.lease_body(reservations=[requested, requested]))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[1]")
    assert "named twice" in refused.json["error_message"]


def test_a_server_shows_the_current_end_of_its_lease(api: Api) -> None:
    server_id = boot(api)
    lease = book(api, server_id=server_id)
    assert found(api, server_id).metadata["tenure:ends_at"] == lease["end_date"]
    pass_hours(api, 1.5)
    later = rfc3339(api.now + timedelta(hours=5))
    assert api.put(f"/v1/leases/{lease['id']}", {"end_date": later}).status_code == 200
    pass_hours(api, 0.1)
    assert found(api, server_id).metadata["tenure:ends_at"] == later


@pytest.mark.parametrize("at_end", ["stop", "shelve", "delete"])
def test_server_resized_beyond_the_booked_size_is_reported_and_ends(api: Api, at_end: str) -> None:
    server_id = boot(api)
    lease = book(api, server_id=server_id, at_end=at_end)
    pass_hours(api, 1.5)
    assert api.world.service.reconciler.run() == 0
    api.world.cloud.world.instances.resize(server_id, LARGE)
    for _ in range(2):
        assert api.world.service.reconciler.run() == 1
    shown = api.get(f"/v1/leases/{lease['id']}").json["lease"]
    assert shown["status"] == "ACTIVE"
    assert "4 VCPU instead of 1" in shown["status_reason"]
    entries = api.get(f"/v1/leases/{lease['id']}/history").json["history"]
    assert [entry["action"] for entry in entries].count("drift") == 1
    pass_hours(api, 1)
    assert status(api, lease) == "TERMINATED"
    left = server(api, server_id)
    assert (left is None) is (at_end == "delete")
    assert left is None or left.shelved or not api.world.cloud.world.host(left.host).belongs_to


@pytest.mark.slow
def test_a_start_waits_until_the_server_is_woken(api: Api) -> None:
    server_id = boot(api)
    lease = book(api, server_id=server_id, hours=4)
    api.world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_started", until=api.now + timedelta(hours=1.2)))
    pass_hours(api, 1.05)
    assert status(api, lease) == "STARTING"
    pass_hours(api, 0.2)
    assert status(api, lease) == "ACTIVE"
    assert not found(api, server_id).shelved


def test_server_is_woken_elsewhere_if_its_planned_host_has_no_room(api: Api) -> None:
    """Room was promised, not a host. What is in the way is not deleted."""
    world = api.world.cloud.world
    server_id = boot(api)
    lease = book(api, server_id=server_id, hours=4)
    with api.world.db.read() as tx:
        [plan] = tx.allocations.of_reservations([lease["reservations"][0]["id"]])
        planned = tx.resources.by_ids([plan.resource_id])[plan.resource_id].external_id
    world.change_host(planned, facts={"memory_mb": 256})  # unknown to the ledger
    pass_hours(api, 1.1)
    assert status(api, lease) == "ACTIVE"
    woken = found(api, server_id)
    assert woken.host not in {"", planned}
    assert world.host(woken.host).belongs_to == "freepool"


def test_server_is_woken_elsewhere_if_its_host_has_failed(api: Api) -> None:
    server_id = boot(api)
    lease = book(api, server_id=server_id, hours=4)
    pass_hours(api, 1.5)
    before = found(api, server_id).host
    api.world.cloud.world.mark_host(before, HostHealth.DOWN)
    api.world.service.health_check.run()
    pass_hours(api, 0.5)
    api.world.service.health_check.run()
    pass_hours(api, 0.1)

    after = found(api, server_id)
    assert after.host not in {"", before}
    assert status(api, lease) == "ACTIVE"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "Name one of these"),
        ({"server_id": "server-000001", "flavor_id": "1"}, "Name one of these"),
        ({"vcpus": 1}, "Name one of these"),
        ({"flavor_id": "1", "in_place": True}, "server that is there"),
        ({"flavor_id": "1", "at_end": "burn"}, "at_end"),
        ({"server_id": "../flavors"}, "server_id"),
    ],
)
def test_wrong_requests_are_refused_with_a_reason(api: Api, fields: dict[str, Any], said: str) -> None:
    refused = refusal(api, **fields)
    assert refused.status_code == 400
    assert said in refused.text
