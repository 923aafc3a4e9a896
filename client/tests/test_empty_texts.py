"""An empty text, such as an unset variable of a shell, names nothing: neither a lease nor anything else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from conftest import BEGINNING, Run
from tenureclient import Client, errors
from tenureclient.testing import FakeServer

_RESERVATION = ("--hosts", "1", "--for", "1h")


@pytest.fixture
def _one_of_each(server: FakeServer, tenure: Run) -> None:
    """A single lease, host, address and pool: what an empty text must not mean."""
    server.add_host("c1")
    server.add_floatingip("203.0.113.20")
    server.add_volume_pool("storage-1@lvm#lvm")
    assert tenure("lease", "create", "only", "--hosts", "1", "--for", "1h").code == 0


@pytest.mark.usefixtures("_one_of_each")
@pytest.mark.parametrize(
    "arguments",
    [
        ["lease", "show", ""],
        ["lease", "delete", ""],
        ["lease", "delete", "only", ""],
        ["lease", "set", "", "--prolong-for", "1h"],
        ["lease", "set", "only", "--name", ""],
        ["lease", "set", "only", "--drop-notify", ""],
        ["lease", "prolong", "", "--by", "1h"],
        ["lease", "confirm", ""],
        ["lease", "wait", ""],
        ["lease", "hosts", ""],
        ["lease", "floatingips", ""],
        ["lease", "history", ""],
        ["lease", "reservation", "list", ""],
        ["lease", "reservation", "add", "", "--hosts", "1"],
        ["lease", "reservation", "drop", "", "r"],
        ["lease", "reservation", "drop", "only", ""],
        ["lease", "list", "--name", ""],
        ["lease", "list", "--status", ""],
        ["lease", "list", "--user", ""],
        ["lease", "list", "--project", ""],
        ["lease", "list", "--starts-before", ""],
        ["lease", "list", "--ends-after", ""],
        ["lease", "create", "", *_RESERVATION],
        ["lease", "create", "x", *_RESERVATION, "--region", ""],
        ["lease", "create", "x", *_RESERVATION, "--zone", ""],
        ["lease", "create", "x", *_RESERVATION, "--start", ""],
        ["lease", "create", "x", *_RESERVATION, "--start", "", "--within", "1d"],
        ["lease", "create", "x", *_RESERVATION, "--earliest", ""],
        ["lease", "create", "x", *_RESERVATION, "--time-zone", ""],
        ["lease", "create", "x", *_RESERVATION, "--with", ""],
        ["lease", "create", "x", "--zone", "", *_RESERVATION, "--or", "--hosts", "2"],
        ["lease", "create", "x", "--instances", "1", "--flavor", ""],
        ["lease", "create", "x", "--server", ""],
        ["lease", "create", "x", "--floating-ips", "1", "--network", ""],
        ["lease", "create", "x", "--volumes", "1", "--size", "1", "--volume-type", ""],
        ["limits", "show", "--project", ""],
        ["usage", "--project", ""],
        ["usage", ""],
        ["availability", ""],
        ["availability", "--zone", ""],
        ["availability", "--trait", ""],
        ["find", "--hosts", "1", "--for", "1h", "--name", ""],
        ["host", "show", ""],
        ["host", "delete", ""],
        ["host", "delete", "c1", ""],
        ["host", "set", "", "--extra", "a=b"],
        ["host", "unset", "", "--extra", "a"],
        ["host", "disable", "", "--yes"],
        ["host", "enable", "", "--yes"],
        ["host", "reallocate", "", "--yes"],
        ["host", "reallocate", "c1", "--lease", "", "--yes"],
        ["host", "list", "--region", ""],
        ["host", "property", "show", ""],
        ["host", "property", "set", "", "--private"],
        ["floatingip", "show", ""],
        ["floatingip", "delete", ""],
        ["floatingip", "list", "--network", ""],
        ["floatingip", "disable", "", "--yes"],
        ["volume", "pool", "show", ""],
        ["lease", "create", "x", *_RESERVATION, "--boot", ""],
        ["planned", "server", "list", "--project", ""],
        ["planned", "server", "show", ""],
        ["volume", "pool", "delete", ""],
        ["volume", "pool", "set", "", "10"],
        ["volume", "pool", "disable", "", "--yes"],
        ["allocation", "list", "host", "--lease-id", ""],
        ["allocation", "list", "host", "--reservation-id", ""],
        ["allocation", "show", "host", ""],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_an_empty_argument_is_refused_and_changes_nothing(
    server: FakeServer, tenure: Run, arguments: list[str]
) -> None:
    before = len(server.requests)
    outcome = tenure(*arguments)
    assert (outcome.code, outcome.output) == (1, "")
    assert "an empty text names nothing" in outcome.errors
    assert [request for request in server.requests[before:] if request.method != "GET"] == []
    assert [lease.name for lease in server.client().leases.list()] == ["only"]


@pytest.mark.usefixtures("_one_of_each")
@pytest.mark.parametrize("named", ["", ".", ".."])
@pytest.mark.parametrize(
    "call",
    [
        lambda client, named: client.leases.find(named) if not named else client.leases.get(named),
        lambda client, named: client.leases.get(named),
        lambda client, named: client.leases.delete(named),
        lambda client, named: client.leases.update(named, name="other"),
        lambda client, named: client.leases.history(named),
        lambda client, named: client.leases.hosts(named),
        lambda client, named: client.leases.drop_reservation("x", named),
        lambda client, named: client.hosts.get(named),
        lambda client, named: client.hosts.delete(named),
        lambda client, named: client.floatingips.find(named),
        lambda client, named: client.volume_pools.lend(named, 10),
        lambda client, named: client.properties.set(named, private=True),
        lambda client, named: client.allocations.get(named),
        lambda client, named: client.planned_servers.get(named),
    ],
)
def test_no_part_of_a_path_is_empty(server: FakeServer, call: Callable[[Client, str], object], named: str) -> None:
    """Dots would be taken out of the path on its way."""
    client = server.client()
    before = len(server.requests)
    with pytest.raises(errors.EmptyText, match="names nothing"):
        call(client, named)
    assert [request for request in server.requests[before:] if request.method != "GET"] == []


@pytest.mark.parametrize("versions", [("1.0",), ("1.0", "1.1", "1.2", "1.3", "1.4")])
@pytest.mark.parametrize(
    "call",
    [
        lambda client: list(client.leases.list(name="")),
        lambda client: list(client.leases.list(status="")),
        lambda client: list(client.leases.list(user_id="")),
        lambda client: list(client.leases.list(project_id="")),
        lambda client: client.leases.find(""),
        lambda client: list(client.hosts.list(hypervisor_hostname="")),
        lambda client: list(client.hosts.list(region="")),
        lambda client: client.hosts.find(""),
        lambda client: list(client.floatingips.list(floating_ip_address="")),
        lambda client: list(client.floatingips.list(floating_network_id="")),
        lambda client: list(client.volume_pools.list(name="")),
        lambda client: list(client.allocations.list(lease_id="")),
        lambda client: client.availability.show("physical:host", region=""),
        lambda client: client.availability.show("physical:host", availability_zone=""),
        lambda client: client.availability.show("physical:host", required_traits=[""]),
        lambda client: client.limits.show(project_id=""),
        lambda client: list(client.planned_servers.list(project_id="")),
        lambda client: client.usage.show(start=BEGINNING, end=BEGINNING + timedelta(hours=1), project_id=""),
    ],
)
def test_a_filter_is_never_empty(versions: tuple[str, ...], call: Callable[[Client], object]) -> None:
    with FakeServer(now=BEGINNING, versions=versions) as server:
        server.add_host("c1")
        server.client().leases.list()
        with pytest.raises(errors.EmptyText, match="names nothing"):
            call(server.client())
