"""The contract of ``tenure.drivers.contract`` for reserved servers, as tests that every driver passes.

A driver's own test module has a class that inherits ``ServerContract``, and a fixture ``rig`` that fits ``ServerRig``:
a fresh cloud with at least three hosts, and no servers in its two projects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import pytest

from tenure.domain.boot import Boot
from tenure.domain.period import Period
from tenure.drivers.contract import (
    BootedServer,
    CloudBusy,
    CloudDriver,
    CloudNotFound,
    CloudRefused,
    Command,
    Progress,
    ResourceOccupied,
    ResourceRef,
)
from tenure.testing.rig import BareRig, command_of, finished

HOST = "physical:host"
SERVER = "virtual:server"
#: Reservations have ids of this form.
RESERVATION = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"
NO_SERVER = "00000000-0000-4000-8000-000000000003"
HOUR = timedelta(hours=1)
#: How many things a start, and an end, of these tests changes at most: it is broken off after each.
LONGEST_START = 6
LONGEST_END = 7
LONGEST_BOOT = 8
#: How many changes the first call for a server on one host makes until Nova has accepted the boot.
UNTIL_BOOTED = 5


@dataclass(frozen=True, slots=True)
class Found:
    """A server as it is in the cloud; asleep it is on no host."""

    host: str | None
    is_stopped: bool
    metadata: Mapping[str, str]

    @property
    def is_asleep(self) -> bool:
        return self.host is None


class ServerRig(BareRig, Protocol):
    """A driver, and the cloud behind it: to look at, and to meddle with."""

    def now(self) -> datetime:
        """The time of the driver's clock."""

    def resources(self) -> list[ResourceRef]:
        """The hosts. The last host stays in general use; the tests register others as needed."""

    def found(self, server: str) -> Found | None:
        """The server as it is; None where it is gone."""

    # As its users

    def boot_small(self, project_id: str, metadata: Mapping[str, str] | None = None) -> str:
        """Boot a server of 1 processor, 512 MiB and 1 GiB, which runs on the last host now; its id."""

    def small(self) -> str:
        """The id of a flavor of 1 processor, 512 MiB and 1 GiB."""

    def servers(self) -> set[str]:
        """All servers that there are, also those without a host."""

    def write(self, server: str, metadata: Mapping[str, str]) -> None:
        """Write on a server."""

    def enlarge(self, server: str) -> None:
        """Resize a server to more processors, where it is."""

    def shelve(self, server: str) -> None:
        """Shelve a server; it is on no host then."""

    def delete(self, server: str) -> None:
        """Delete a server."""

    # To meddle

    def close_to(self, resource: ResourceRef) -> None:
        """Let no server be woken or made on this host any more."""


def reserved(rig: ServerRig, count: int = 1) -> list[ResourceRef]:
    """So many hosts, set aside for reservations."""
    hosts = rig.resources()[:count]
    for host in hosts:
        rig.driver.ensure_registered(HOST, host)
    return hosts


def command_for(
    rig: ServerRig, *hosts: ResourceRef, server: str | None = None, reservation_id: str = RESERVATION, **more: object
) -> Command:
    """A reservation that starts in an hour, of that server where one is named."""
    named = {} if server is None else {"server_id": server}
    parameters = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1, "at_end": "delete", **named, **more}
    plain = command_of(*hosts, reservation_id=reservation_id, project_id=rig.owner, resource_type=SERVER)
    return replace(
        plain,
        parameters=parameters,
        starts_at=rig.now() + HOUR,
        ends_at=rig.now() + 2 * HOUR,
        units={host.external_id: 1 for host in hosts},
    )


def to_be_made(rig: ServerRig, *hosts: ResourceRef) -> Command:
    """A reservation that starts now, whose server is to be made then, by an owner who trusts us."""
    trust_id = rig.driver.delegate(rig.caller(rig.owner))
    server = {"name": "web", "flavorRef": rig.small(), "metadata": {"by": "me"}, "networks": "auto"}
    boot = Boot({"server": server, "os:scheduler_hints": {"colour": "red"}}, "2.60")
    command = command_for(rig, *hosts, flavor_id=rig.small())
    return replace(command, starts_at=rig.now(), trust_id=trust_id, boot=boot)


def broken_off(rig: ServerRig, waiting: Command) -> str:
    """Break the start off when Nova has accepted the boot, as if its answer was lost; return the server."""
    rig.fail("ensure_started", after_effects=UNTIL_BOOTED)
    with pytest.raises(CloudBusy):
        rig.driver.ensure_started(waiting)
    rig.reopen()
    [server] = rig.servers()
    return server


def prepared(rig: ServerRig, command: Command) -> Command:
    progress = finished(rig, lambda: rig.driver.ensure_prepared(replace(command, resources=(), units={})))
    assert progress.done, progress
    return replace(command, effects={**command.effects, **progress.effects})


def started(rig: ServerRig, command: Command) -> Command:
    progress = finished(rig, lambda: rig.driver.ensure_started(command))
    assert progress.done, progress
    return replace(command, effects={**command.effects, **progress.effects})


def ended(rig: ServerRig, command: Command) -> None:
    assert finished(rig, lambda: rig.driver.ensure_ended(command)).done


def as_it_is(rig: ServerRig, server: str) -> Found:
    found = rig.found(server)
    assert found is not None
    return found


def marks(found: Found) -> dict[str, str]:
    """Its metadata about a reservation."""
    return {name: value for name, value in found.metadata.items() if name.startswith("tenure:")}


def pages_of(driver: CloudDriver, since: datetime | None) -> list[BootedServer]:
    """Return the servers of all pages."""
    page = driver.servers(since)
    servers = [*page.servers]
    while page.after is not None:
        page = driver.servers(since, page.after)
        servers += page.servers
    return servers


class ServerContract:
    """Inherit it, with a fixture ``rig``."""

    # Before the start

    def test_a_server_is_shown_to_its_own_project_only(self, rig: ServerRig):
        server = rig.boot_small(rig.owner)
        facts = rig.driver.fetch("server", server, rig.caller(rig.owner))
        assert (facts["id"], facts["project_id"]) == (server, rig.owner)
        for reference, project in ((server, rig.neighbour), ("nothing", rig.owner)):
            with pytest.raises(CloudNotFound):
                rig.driver.fetch("server", reference, rig.caller(project))

    def test_a_prepared_server_is_marked_and_shelved_until_the_start(self, rig: ServerRig):
        server = rig.boot_small(rig.owner)
        command = prepared(rig, command_for(rig, server=server))
        assert command.effects["adopted_server_id"] == server
        found = as_it_is(rig, server)
        assert found.is_asleep
        said = marks(found)
        assert (said["tenure:lease"], said["tenure:reservation"]) == (command.lease_id, RESERVATION)
        assert said["tenure:ends_at"] == f"{command.ends_at:%Y-%m-%dT%H:%M:%SZ}"
        assert set(rig.driver.held(HOST)) == {RESERVATION}
        before = rig.effects()
        prepared(rig, command)
        assert rig.effects() == before

    def test_a_server_in_its_place_runs_on_and_is_not_held(self, rig: ServerRig):
        server = rig.boot_small(rig.owner)
        place = as_it_is(rig, server).host
        command = started(rig, prepared(rig, command_for(rig, server=server, in_place=True, at_end="shelve")))
        found = as_it_is(rig, server)
        assert (found.host, marks(found)["tenure:reservation"]) == (place, RESERVATION)
        assert list(rig.driver.held(HOST)) == []
        ended(rig, command)
        assert as_it_is(rig, server).is_asleep

    @pytest.mark.parametrize("whose", ["a neighbour's", "gone"])
    def test_a_missing_or_foreign_server_is_refused(self, rig: ServerRig, whose: str):
        server = rig.boot_small(rig.neighbour)
        if whose == "gone":
            rig.delete(server)
        with pytest.raises(CloudRefused):
            rig.driver.ensure_prepared(command_for(rig, server=server))
        ended(rig, command_for(rig, server=server))
        assert whose == "gone" or not as_it_is(rig, server).is_asleep

    # The start

    def test_a_server_is_woken_on_its_host_only(self, rig: ServerRig):
        first, second = reserved(rig, 2)
        server = rig.boot_small(rig.owner)
        command = started(rig, prepared(rig, command_for(rig, second, server=server)))
        assert as_it_is(rig, server).host == second.external_id
        assert not rig.driver.drift(HOST, [command], [first])
        before = rig.effects()
        started(rig, command)
        assert rig.effects() == before
        moved = started(rig, replace(command, resources=(first,), units={first.external_id: 1}))
        assert as_it_is(rig, server).host == first.external_id
        assert not rig.driver.drift(HOST, [moved], [second])

    @pytest.mark.parametrize("effects", range(LONGEST_START))
    def test_a_start_that_is_broken_off_is_completed(self, rig: ServerRig, effects: int):
        [host] = reserved(rig)
        server = rig.boot_small(rig.owner)
        command = prepared(rig, command_for(rig, host, server=server))
        rig.fail("ensure_started", after_effects=effects)

        def start() -> bool:
            try:
                return rig.driver.ensure_started(command).done
            except CloudBusy:
                rig.reopen()
                return False

        assert any(start() for _ in range(50))
        assert as_it_is(rig, server).host == host.external_id
        assert not rig.driver.drift(HOST, [command], [])

    def test_a_host_that_cannot_take_the_server_is_named(self, rig: ServerRig):
        first, second = reserved(rig, 2)
        server = rig.boot_small(rig.owner)
        command = prepared(rig, command_for(rig, first, server=server))
        rig.close_to(first)
        with pytest.raises(ResourceOccupied) as refused:
            finished(rig, lambda: rig.driver.ensure_started(command))
        assert list(refused.value.resources) == [first.external_id]
        assert as_it_is(rig, server).is_asleep
        started(rig, replace(command, resources=(second,), units={second.external_id: 1}))
        assert as_it_is(rig, server).host == second.external_id

    def test_a_server_can_be_named_later_and_withdrawn(self, rig: ServerRig):
        [host] = reserved(rig)
        server = rig.boot_small(rig.owner)
        empty = started(rig, command_for(rig, host))
        assert not rig.driver.drift(HOST, [empty], [])
        named = replace(empty, parameters={**empty.parameters, "server_id": server})
        started(rig, named)
        assert as_it_is(rig, server).host == host.external_id
        started(rig, replace(empty, withdrawn=named.parameters))
        after = as_it_is(rig, server)
        assert after.host not in {None, host.external_id}  # anywhere in general use
        assert marks(after) == {}
        assert not rig.driver.drift(HOST, [empty], [])

    # Made at the start

    def test_a_server_is_made_on_its_host_for_its_owner(self, rig: ServerRig):
        first, second = reserved(rig, 2)
        waiting = to_be_made(rig, second)
        command = started(rig, waiting)
        server = str(command.effects["server_id"])
        assert rig.servers() == {server}
        found = as_it_is(rig, server)
        assert (found.host, found.metadata["by"]) == (second.external_id, "me")
        assert marks(found)["tenure:reservation"] == RESERVATION
        assert set(rig.driver.held(HOST)) == {RESERVATION}
        made = replace(command, boot=None)
        before = rig.effects()
        for repeated in (command, made):
            assert started(rig, repeated).effects == command.effects
        assert rig.effects() == before
        assert not rig.driver.drift(HOST, [made], [first])
        moved = started(rig, replace(made, resources=(first,), units={first.external_id: 1}))
        assert as_it_is(rig, server).host == first.external_id
        ended(rig, moved)
        assert rig.servers() == set()

    @pytest.mark.parametrize("effects", range(LONGEST_BOOT))
    def test_a_boot_that_is_broken_off_makes_one_server(self, rig: ServerRig, effects: int):
        [host] = reserved(rig)
        command = to_be_made(rig, host)
        rig.fail("ensure_started", after_effects=effects)

        def start() -> Progress | None:
            try:
                progress = rig.driver.ensure_started(command)
            except CloudBusy:
                rig.reopen()
                return None
            return progress if progress.done else None

        progress = next(progress for progress in (start() for _ in range(50)) if progress is not None)
        server = str(progress.effects["server_id"])
        assert rig.servers() == {server}
        assert as_it_is(rig, server).host == host.external_id
        assert not rig.driver.drift(HOST, [replace(command, boot=None, effects=progress.effects)], [])

    def test_a_boot_whose_answer_is_lost_makes_one_server(self, rig: ServerRig):
        [host] = reserved(rig)
        command = to_be_made(rig, host)
        rig.lose_reply("ensure_started")
        with pytest.raises(CloudBusy):
            finished(rig, lambda: rig.driver.ensure_started(command))
        started(rig, command)
        assert len(rig.servers()) == 1

    def test_a_server_whose_boot_was_broken_off_ends_with_its_reservation(self, rig: ServerRig):
        [host] = reserved(rig)
        command = to_be_made(rig, host)
        started(rig, command)
        [server] = rig.servers()
        ended(rig, command)  # what the start has told is lost
        assert rig.found(server) is None
        assert list(rig.driver.held(HOST)) == []

    def test_a_server_that_its_owner_has_deleted_is_not_made_again(self, rig: ServerRig):
        [host] = reserved(rig)
        command = started(rig, to_be_made(rig, host))
        rig.delete(str(command.effects["server_id"]))
        started(rig, command)
        assert all(rig.found(server) is None for server in rig.servers())

    def test_a_server_that_is_deleted_before_the_ledger_knows_it_is_not_made_again(self, rig: ServerRig):
        """As while other servers of the lease are being made."""
        [host] = reserved(rig)
        waiting = to_be_made(rig, host)
        command = started(rig, waiting)
        rig.delete(str(command.effects["server_id"]))
        assert started(rig, waiting).effects["server_id"] == command.effects["server_id"]
        assert all(rig.found(server) is None for server in rig.servers())

    @pytest.mark.parametrize("is_moved", [False, True])
    def test_a_server_that_the_ledger_does_not_know_yet_may_be_changed(self, rig: ServerRig, is_moved: bool):
        """Other servers of its lease are being made. Its owner shelves it, or it gets another host."""
        first, second = reserved(rig, 2)
        waiting = to_be_made(rig, first)
        server = str(started(rig, waiting).effects["server_id"])
        if is_moved:
            waiting = replace(waiting, resources=(second,), units={second.external_id: 1})
        else:
            rig.shelve(server)
        assert started(rig, waiting).effects["server_id"] == server
        assert as_it_is(rig, server).host == (second.external_id if is_moved else None)
        assert rig.servers() == {server}

    def test_what_opens_the_host_to_a_boot_cannot_be_read_by_the_owner(self, rig: ServerRig):
        [host] = reserved(rig)
        waiting = to_be_made(rig, host)
        assert not rig.driver.ensure_started(waiting).done
        [server] = rig.servers()
        shown = as_it_is(rig, server).metadata["tenure:boot"]
        assert (len(shown), "@" in shown) == (64, False)  # a digest, without the time until which the key counts

    def test_no_larger_server_is_taken_for_the_one_to_be_made(self, rig: ServerRig):
        """Its owner has written on it what shows that a server was booted with the key."""
        [host] = reserved(rig)
        waiting = to_be_made(rig, host)
        first = broken_off(rig, waiting)
        said = marks(as_it_is(rig, first))
        rig.delete(first)
        larger = rig.boot_small(rig.owner, said)
        rig.enlarge(larger)
        made = str(started(rig, waiting).effects["server_id"])
        assert made not in {first, larger}
        assert as_it_is(rig, made).host == host.external_id
        assert as_it_is(rig, larger).host not in {None, host.external_id}

    def test_a_server_that_is_resized_before_it_is_known_is_refused(self, rig: ServerRig):
        """It takes room that is promised to others, and a second one would take more."""
        [host] = reserved(rig)
        waiting = to_be_made(rig, host)
        assert not rig.driver.ensure_started(waiting).done
        [server] = rig.servers()
        rig.enlarge(server)
        with pytest.raises(CloudRefused, match="VCPU"):
            finished(rig, lambda: rig.driver.ensure_started(waiting))
        assert rig.servers() == {server}
        ended(rig, replace(waiting, spared=True))
        assert rig.found(server) is None

    def test_a_host_that_cannot_take_a_new_server_is_named(self, rig: ServerRig):
        first, second = reserved(rig, 2)
        command = to_be_made(rig, first)
        rig.close_to(first)
        with pytest.raises(ResourceOccupied) as refused:
            finished(rig, lambda: rig.driver.ensure_started(command))
        assert list(refused.value.resources) == [first.external_id]
        later = started(rig, replace(command, resources=(second,), units={second.external_id: 1}))
        assert as_it_is(rig, str(later.effects["server_id"])).host == second.external_id
        assert len(rig.servers()) == 1

    @pytest.mark.parametrize("change", [{"memory_mb": 256}, {"flavor_id": "gone"}])
    def test_a_server_larger_than_booked_is_not_made(self, rig: ServerRig, change: dict[str, object]):
        """Its flavor was changed after the booking, or was not what the booking said."""
        [host] = reserved(rig)
        command = to_be_made(rig, host)
        changed = replace(command, parameters={**command.parameters, **change})
        with pytest.raises(CloudRefused):
            finished(rig, lambda: rig.driver.ensure_started(changed))
        assert rig.servers() == set()

    def test_a_server_is_not_made_without_its_owners_trust(self, rig: ServerRig):
        [host] = reserved(rig)
        command = to_be_made(rig, host)
        with pytest.raises(CloudRefused, match="trust"):
            finished(rig, lambda: rig.driver.ensure_started(replace(command, trust_id=None)))
        assert command.trust_id is not None
        rig.driver.revoke(command.trust_id)
        with pytest.raises(CloudRefused):
            finished(rig, lambda: rig.driver.ensure_started(command))
        assert rig.servers() == set()

    # While it runs

    def test_a_server_shows_the_changed_end_of_its_lease(self, rig: ServerRig):
        [host] = reserved(rig)
        server = rig.boot_small(rig.owner)
        command = started(rig, prepared(rig, command_for(rig, host, server=server)))
        later = command.ends_at + HOUR
        started(rig, replace(command, ends_at=later))
        assert marks(as_it_is(rig, server))["tenure:ends_at"] == f"{later:%Y-%m-%dT%H:%M:%SZ}"

    def test_a_server_larger_than_booked_is_drift_and_ends_as_requested(self, rig: ServerRig):
        [host] = reserved(rig)
        server = rig.boot_small(rig.owner)
        command = started(rig, prepared(rig, command_for(rig, host, server=server, at_end="shelve")))
        rig.enlarge(server)
        [drift] = rig.driver.drift(HOST, [command], [])
        assert (drift.reservation_id, drift.lasts) == (RESERVATION, True)
        assert "VCPU" in drift.text
        ended(rig, command)
        assert as_it_is(rig, server).is_asleep

    # The end

    @pytest.mark.parametrize("at_end", ["delete", "snapshot", "shelve", "stop"])
    def test_the_end_follows_at_end_and_frees_the_room(self, rig: ServerRig, at_end: str):
        [host] = reserved(rig)
        server = rig.boot_small(rig.owner)
        command = started(rig, prepared(rig, command_for(rig, host, server=server, at_end=at_end)))
        ended(rig, command)
        found = rig.found(server)
        assert (found is None) is (at_end in {"delete", "snapshot"})
        if found is not None:
            assert marks(found) == {}
            assert found.host != host.external_id
            assert found.is_asleep or (at_end == "stop" and found.is_stopped)
        assert list(rig.driver.held(HOST)) == []
        ended(rig, replace(command, is_over=True, resources=(), units={}))

    @pytest.mark.parametrize("effects", range(LONGEST_END))
    @pytest.mark.parametrize("at_end", ["delete", "stop"])
    def test_an_end_that_is_broken_off_is_completed(self, rig: ServerRig, at_end: str, effects: int):
        [host] = reserved(rig)
        server = rig.boot_small(rig.owner)
        command = started(rig, prepared(rig, command_for(rig, host, server=server, at_end=at_end)))
        rig.fail("ensure_ended", after_effects=effects)

        def end() -> bool:
            try:
                return rig.driver.ensure_ended(command).done
            except CloudBusy:
                rig.reopen()
                return False

        assert any(end() for _ in range(50))
        ended(rig, command)
        found = rig.found(server)
        assert (found is None) is (at_end == "delete")
        assert found is None or found.host != host.external_id
        assert list(rig.driver.held(HOST)) == []

    def test_a_spared_server_only_leaves_its_room(self, rig: ServerRig):
        [host] = reserved(rig)
        server, other = rig.boot_small(rig.owner), rig.boot_small(rig.owner)
        command = started(rig, prepared(rig, command_for(rig, host, server=server)))
        ended(rig, replace(command, spared=True))
        assert as_it_is(rig, server).is_asleep
        never = replace(command_for(rig, server=other, reservation_id=OTHER), spared=True)
        ended(rig, replace(never, effects={"adopted_server_id": other}))
        assert not as_it_is(rig, other).is_asleep

    # Servers with false marks

    def test_only_servers_of_an_unconfirmed_hold_are_deleted(self, rig: ServerRig):
        command = command_for(rig)
        said = {"tenure:lease": command.lease_id, "tenure:reservation": RESERVATION, "tenure:reserved": "true"}
        orphan = rig.boot_small(rig.owner, said)
        foreign = rig.boot_small(rig.neighbour, said)
        now = rig.now()
        over = replace(command, is_over=True)
        early = replace(over, provisional=Period(now - 3 * HOUR, now - 2 * HOUR))
        ended(rig, early)
        assert rig.found(orphan) is not None
        rig.write(orphan, said)
        ended(rig, replace(over, provisional=Period(now - timedelta(minutes=1), now + timedelta(minutes=1))))
        assert rig.found(orphan) is None
        assert rig.found(foreign) is not None

    def test_the_end_of_a_lease_deletes_only_its_own_server(self, rig: ServerRig):
        [host] = reserved(rig)
        server = rig.boot_small(rig.owner)
        command = started(rig, prepared(rig, command_for(rig, host, server=server)))
        liar = rig.boot_small(rig.owner, marks(as_it_is(rig, server)))
        ended(rig, command)
        assert rig.found(server) is None
        assert rig.found(liar) is not None

    def test_new_and_deleted_servers_are_listed(self, rig: ServerRig):
        since = rig.now() - HOUR
        mine, gone = rig.boot_small(rig.owner), rig.boot_small(rig.owner)
        says_so = rig.boot_small(rig.owner, {"tenure:reservation": RESERVATION})
        rig.delete(gone)
        listed = pages_of(rig.driver, since)
        there = {server.server_id: server for server in listed if not server.is_gone}
        assert there.keys() == {mine, says_so}
        assert (there[mine].project_id, there[mine].reservation_id) == (rig.owner, None)
        assert there[says_so].reservation_id == RESERVATION
        assert there[mine].fact == rig.driver.fetch("server", mine, rig.caller(rig.owner))
        assert gone in {server.server_id for server in listed if server.is_gone}
        existing = pages_of(rig.driver, None)
        assert {server.server_id for server in existing if server.project_id == rig.owner} == {mine, says_so}
        assert not any(server.is_gone for server in existing)
        with pytest.raises(CloudRefused):
            rig.driver.servers(None, NO_SERVER)
