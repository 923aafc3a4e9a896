"""Reserved servers, as Nova sees them: shelved until the start, woken on a reserved host, and ended as was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keystoneauth1.session import Session

from tests.support.consumer import Consumer
from tests.support.deployment import BIN, Program, write_config
from tests.support.site import Lease, Server, Site, answered, delete_queues, moment
from tests.support.waiting import wait_for

RESERVED = "compute-1"
FATES = ("delete", "stop", "shelve", "snapshot")


def reservation(server: Server, **more: object) -> dict[str, object]:
    return {"resource_type": "virtual:server", "server_id": server.id, **more}


def is_shelved(server: Server) -> bool:
    """By its state: its status may be shown as reserved."""
    return shown(server)["OS-EXT-STS:vm_state"] == "shelved_offloaded"


def shown(server: Server) -> dict[str, Any]:
    found = server.show()
    assert found is not None
    return found


def marks(server: Server) -> list[str]:
    """What its metadata and tags say of a reservation."""
    found = shown(server)
    return [name for name in (*found["metadata"], *found["tags"]) if name.startswith("tenure:")]


def refusal(site: Site, by: Session, server: Server) -> str:
    """Why the server can have no other lease."""
    times = {"start_date": moment(hours=2), "end_date": moment(hours=3)}
    body = {"name": "again", **times, "reservations": [reservation(server)]}
    return str(answered(site.api(by).post("/leases", json=body), 409)["error_message"])


def images_of(site: Site, by: Session, server: Server) -> list[dict[str, Any]]:
    """The images of the project that were made of the server."""
    listed = site.cloud.service(by, "image").get(f"/v2/images?owner={by.get_project_id()}&visibility=private")
    return [image for image in listed.json()["images"] if image.get("instance_uuid") == server.id]


def test_servers_are_woken_on_a_reserved_host_and_end_as_requested(site: Site, demo: Session):
    """Of four leases at once, three begin now and one in a while; a fifth server is left alone."""
    site.register(RESERVED)
    servers = {fate: site.nova.boot(demo) for fate in FATES}
    others = site.nova.boot(demo)
    before = others.place()
    assert RESERVED not in {before, *(server.place() for server in servers.values())}
    later = {"shelve": moment(seconds=20)}
    leases = {
        fate: site.reserve(demo, reservation(server, at_end=fate), start=later.get(fate, "now"))
        for fate, server in servers.items()
    }
    waiting = servers["shelve"]
    assert shown(waiting)["metadata"]["tenure:lease"] == leases["shelve"].id
    wait_for("the server to be shelved", lambda: is_shelved(waiting))
    assert leases["shelve"].id in refusal(site, demo, waiting)

    for fate, lease in leases.items():
        lease.wait("ACTIVE", seconds=90)
        assert servers[fate].place() == RESERVED
        assert site.nova.members(lease.reservation) == {RESERVED}

    for lease in leases.values():
        lease.change(end_date="now")
    for lease in leases.values():
        lease.wait("TERMINATED", seconds=90)
        assert lease.reservation not in site.nova.aggregates()
    assert (servers["delete"].show(), servers["snapshot"].show()) == (None, None)
    wait_for("the server to be shelved", lambda: is_shelved(servers["shelve"]))
    stopped = shown(servers["stop"])
    assert stopped["status"] == "SHUTOFF"
    assert stopped["OS-EXT-SRV-ATTR:host"] != RESERVED  # whose room is promised to others
    assert (marks(servers["shelve"]), marks(servers["stop"])) == ([], [])
    assert (others.place(), marks(others)) == (before, [])  # never noticed anything
    [image] = images_of(site, demo, servers["snapshot"])
    assert image["status"] == "active"
    site.cloud.service(demo, "image").delete(f"/v2/images/{image['id']}")


@contextmanager
def default_leases(site: Site) -> Iterator[None]:
    """One more manager, with the configuration of an operator who wants every server to have a lease."""
    deployment = site.deployment
    name = f"{site.topic}_default"
    own = write_config(
        deployment.folder / "default.conf", {"manager": {"name": name}, "virtual:server": {"default_lease": True}}
    )
    configs: list[str | Path] = ["--config-file", deployment.config, "--config-file", own]
    log = deployment.folder / "manager-default.log"
    manager = Program("manager-default", [BIN / "tenure-manager", *configs], log)
    manager.start()
    try:
        yield
    finally:
        manager.stop()
        delete_queues([f"{site.topic}_rpc.{name}"])


def test_servers_get_default_leases_where_configured(site: Site, demo: Session, other: Session):
    mine, theirs = site.nova.boot(demo), site.nova.boot(other)
    places = mine.place(), theirs.place()
    consumer = Consumer(f"{site.topic}.info")

    def leases(by: Session) -> list[dict[str, Any]]:
        return list(answered(site.api(by).get("/leases"), 200)["leases"])

    assert (leases(demo), leases(other)) == ([], [])
    with default_leases(site):
        [found] = wait_for("a lease", lambda: leases(demo))
        wait_for("a lease for them", lambda: leases(other))
    assert (found["name"], found["user_id"]) == ("server of-a-test", demo.get_user_id())
    lease = Lease(site.api(demo), found["id"], found["reservations"][0]["id"])
    lease.wait("ACTIVE")
    assert shown(mine)["metadata"]["tenure:lease"] == lease.id

    lease.change(before_end_date=moment(seconds=2))
    consumer.wait(lease.id, "lease.create", "lease.event.start_lease", "lease.update", "lease.event.before_end_lease")
    assert moment(days=29) < found["end_date"] < moment(days=31)
    lease.change(end_date=moment(days=60))
    assert (mine.place(), theirs.place()) == places

    lease.change(end_date="now")
    lease.wait("TERMINATED")
    wait_for("the server to be shelved", lambda: is_shelved(mine))
    assert marks(mine) == []
    assert theirs.place() == places[1]
