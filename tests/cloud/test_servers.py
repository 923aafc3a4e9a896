"""Reserved servers, as Nova sees them: shelved until the start, woken on a reserved host, shelved again."""

from __future__ import annotations

from typing import Any

from keystoneauth1.session import Session

from tests.support.site import Server, Site, answered, moment, wait_for

RESERVED = "compute-1"


def reservation(server: Server, **more: object) -> dict[str, object]:
    return {"resource_type": "virtual:server", "server_id": server.id, **more}


def status(server: Server) -> str:
    found = server.show()
    return "GONE" if found is None else str(found["status"])


def is_shelved(server: Server) -> bool:
    """By its state: its status may be shown as reserved."""
    return shown(server)["OS-EXT-STS:vm_state"] == "shelved_offloaded"


def shown(server: Server) -> dict[str, Any]:
    found = server.show()
    assert found is not None
    return found


def test_a_server_is_shelved_woken_on_a_reserved_host_and_shelved_again(site: Site, demo: Session):
    site.register(RESERVED)
    mine, others = site.nova.boot(demo), site.nova.boot(demo)
    before = others.place()
    assert RESERVED not in {mine.place(), before}
    lease = site.reserve(demo, reservation(mine, at_end="shelve"), start=moment(seconds=20))
    assert shown(mine)["metadata"]["tenure:lease"] == lease.id
    wait_for("the server to be shelved", lambda: is_shelved(mine))
    refused = site.api(demo).post(
        "/leases",
        json={
            "name": "again",
            "start_date": moment(hours=2),
            "end_date": moment(hours=3),
            "reservations": [reservation(mine)],
        },
    )
    assert lease.id in answered(refused, 409)["error_message"]

    lease.wait("ACTIVE", seconds=90)
    assert mine.place() == RESERVED
    assert site.nova.members(lease.reservation) == {RESERVED}

    lease.change(end_date="now")
    lease.wait("TERMINATED")
    wait_for("the server to be shelved", lambda: is_shelved(mine))
    assert not [name for name in shown(mine)["metadata"] if name.startswith("tenure:")]
    assert lease.reservation not in site.nova.aggregates()
    assert others.place() == before  # never noticed anything
    assert not shown(others)["metadata"]
