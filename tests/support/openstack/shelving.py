"""Nova's servers as their users and administrators put them away, wake them and write on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tests.support.openstack.answers import Refused, Seen, expect, version_is

if TYPE_CHECKING:
    from tests.support.openstack.cloud import FakeOpenStack, Server

#: In which a server can be written on.
LISTENING: Final = frozenset({"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"})


#: The state that each of these orders leads out of.
_IN: Final = {"confirmResize": "VERIFY_RESIZE", "unrescue": "RESCUE", "unpause": "PAUSED", "resume": "SUSPENDED"}
#: How many tags a server can have, and how long they are.
MOST_TAGS: Final = 50
LONGEST_TAG: Final = 60


def refuse_deaf(server: Server, what: str) -> None:
    """Nova writes nothing on a server that is shelved, or is being changed."""
    if server.status not in LISTENING or server.task is not None:
        state = f"task_state {server.task}" if server.task else f"vm_state {server.status}"
        raise Refused(409, f"Cannot '{what}' instance {server.id} while it is in {state}")


def act(cloud: FakeOpenStack, seen: Seen, server: Server, action: str, values: Any) -> tuple[int, Any] | None:
    """What one of these actions answers; None for any other."""
    match action:
        case "shelve":
            expect(values, None)
            refuse_deaf(server, "shelve")
            server.actions.insert(0, "shelve")
            server.status, server.host = ("SHELVED", server.host) if cloud.keeps_shelved else ("SHELVED_OFFLOADED", "")
        case "shelveOffload":
            expect(values, None)
            if server.status != "SHELVED" or server.task is not None:
                raise Refused(409, f"Cannot 'shelveOffload' instance {server.id} while it is in {server.status}")
            server.status, server.host = "SHELVED_OFFLOADED", ""
        case "unshelve":
            if values is not None:
                version_is(seen, "compute 2.91")
                expect(set(values), {"host", "availability_zone"})
            if server.status != "SHELVED_OFFLOADED" or server.task is not None:
                raise Refused(409, f"Cannot 'unshelve' instance {server.id} while it is in {server.status}")
            server.actions.insert(0, "unshelve")
            hosts = [one.service_host for one in cloud.hosts.values()] if values is None else [values["host"]]
            place = next((one for one in hosts if cloud.has_room and _admits(cloud, server, one)), None)
            if place is not None:
                server.status, server.host = "ACTIVE", place
        case "migrate":
            expect(values, None)
            if server.status not in {"ACTIVE", "SHUTOFF"} or server.task is not None:
                raise Refused(409, f"Cannot 'migrate' instance {server.id} while it is in {server.status}")
            server.actions.insert(0, "migrate")
            others = [one.service_host for one in cloud.hosts.values() if one.service_host != server.host]
            place = next((one for one in others if cloud.has_room and _admits(cloud, server, one)), None)
            if place is not None:  # otherwise Nova tries it, and gives up
                server.host, server.status, server.before = place, "VERIFY_RESIZE", server.status
        case "confirmResize" | "unrescue" | "unpause" | "resume":
            expect(values, None)
            if server.status != _IN[action] or server.task is not None:
                raise Refused(409, f"Cannot '{action}' instance {server.id} while it is in {server.status}")
            server.status = server.before if action == "confirmResize" else "ACTIVE"
        case "os-resetState":
            expect(values, {"state": "active"})
            server.status = "ACTIVE"
        case "evacuate":
            version_is(seen, "compute 2.68")
            expect(set(values), {"host"})
            states = {one.service_host: one.state for one in cloud.hosts.values()}
            if states[server.host] == "up":
                raise Refused(400, f"Compute service of {server.host} is still in use.")
            if server.status not in {"ACTIVE", "SHUTOFF", "ERROR"}:
                raise Refused(409, f"Cannot 'evacuate' instance {server.id} while it is in {server.status}")
            server.actions.insert(0, "evacuate")
            if _admits(cloud, server, values["host"]):
                server.host = values["host"]
        case _:
            return None
    return 202, None


def drop_metadata(cloud: FakeOpenStack, seen: Seen, token: Mapping[str, Any], server_id: str, key: str) -> Any:
    """Delete one of a server's metadata."""
    server = found(cloud, server_id)
    refuse_deaf(server, "delete metadata")
    if server.metadata.pop(key, None) is None:
        raise Refused(404, "Metadata item was not found")
    return 204, None


def change_tags(cloud: FakeOpenStack, seen: Seen, server_id: str, tag: str) -> tuple[int, Any]:
    """Put a tag on a server, or take it away."""
    version_is(seen, "compute 2.26")
    server = found(cloud, server_id)
    refuse_deaf(server, "change tags")
    expect(len(tag) <= LONGEST_TAG and not set(tag) & {"/", ","}, True)
    if seen.method == "DELETE":
        if tag not in server.tags:
            raise Refused(404, f"Server {server_id} has no tag '{tag}'")
        server.tags.remove(tag)
    elif tag not in server.tags:
        if len(server.tags) >= MOST_TAGS:
            raise Refused(400, f"The number of tags exceeded the per-server limit {MOST_TAGS}")
        server.tags.append(tag)
    return 204, None


def found(cloud: FakeOpenStack, server_id: str) -> Server:
    if server_id not in cloud.servers or cloud.servers[server_id].status == "DELETED":
        raise Refused(404, f"Instance {server_id} could not be found.")
    return cloud.servers[server_id]


def _admits(cloud: FakeOpenStack, server: Server, host: str) -> bool:
    """Whether the filter lets the server there: not to the pool, unless an aggregate is open to it."""
    if host in cloud.closed_hosts:
        return False
    groups = [one for one in cloud.aggregates.values() if host in one.hosts]
    if any(one.metadata.get("tenure:server") == server.id for one in groups):
        return True
    return all(one.name != "freepool" and one.zone is None for one in groups)
