"""``kill -9`` of the real program: at every named point of every event, and at random moments under load.

After a restart every lease reaches its due status, each effect is in the cloud exactly once, and no request that was
answered with success is lost.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path

import pytest

from tenure.drivers.simulated import EffectKind
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.drivers.simulated.openstack.cinder import VolumeEffect
from tenure.drivers.simulated.openstack.neutron import AddressEffect
from tests.support import ledger
from tests.support.agreement import ADDRESS, VOLUME, wait_for_agreement
from tests.support.crashes import Traces, delete, wait_for_event, wait_until_gone
from tests.support.engines import POINTS
from tests.support.lengths import times
from tests.support.simulated import SimulatedCloud, VolumeWorld
from tests.support.standalone import Caller, Standalone, launch, rfc3339, standalone, start
from tests.support.waiting import patience, wait_for

HOSTS = 6
INSTANCE = "virtual:instance"
#: The reservations of leases beside whole hosts: instances on separate hosts, instances of a flavor, and an address.
APART = {"resource_type": INSTANCE, "amount": 2, "vcpus": 4, "memory_mb": 1024, "disk_gb": 1, "affinity": False}
TOGETHER = {"resource_type": "flavor:instance", "amount": 2, "flavor_id": "2", "affinity": True}
ADDRESSES = {"resource_type": ADDRESS, "amount": 1, "network_id": PUBLIC_NETWORK}
VOLUMES = {"resource_type": VOLUME, "amount": 2, "size_gb": 10, "volume_type": "fast"}
OTHERS = ({**APART, "before_end": "snapshot"}, TOGETHER, ADDRESSES, VOLUMES)
#: The capacity of the volume pool that is lent to reservations, in GiB.
LENT = 1000

pytestmark = pytest.mark.crash


@contextmanager
def dying_at(data_dir: Path, point: str) -> Iterator[Standalone]:
    """Run a service that kills itself at the point."""
    service = start(data_dir, hosts=HOSTS, program=("tests.scenarios.dying_standalone:main", point))
    try:
        yield service
    finally:
        service.kill()


def assert_killed(service: Standalone) -> None:
    assert service.ended() == -signal.SIGKILL


def register(service: Standalone, addresses: int = 2) -> None:
    """Make addresses and a volume pool reservable."""
    admin = replace(service.caller("admin"), version="1.2")
    for index in range(addresses):
        body = {"floating_network_id": PUBLIC_NETWORK, "floating_ip_address": f"203.0.113.{10 + index}"}
        status, answer = admin.call("POST", "/floatingips", body)
        assert status == 201, answer
    status, answer = admin.call("POST", "/volume-pools", {"name": VolumeWorld.fast, "capacity_gb": LENT})
    assert status == 201, answer


def traces(data_dir: Path) -> Traces:
    """Return the traces of a service in its data directory."""
    return Traces(f"sqlite:///{data_dir / 'tenure.db'}", data_dir / "cloud.db", HOSTS)


def assert_sound(data_dir: Path, *, idle: bool) -> None:
    """Check that both files are intact and the ledger and the cloud agree; with ``idle`` no resource is in use."""
    for name in ("tenure.db", "cloud.db"):
        with closing(sqlite3.connect(data_dir / name)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    traces(data_dir).assert_sound(idle=idle)


# --- at every named point


@pytest.mark.parametrize("point", POINTS)
def test_manager_killed_during_a_start_loses_no_lease(tmp_path: Path, point: str):
    data_dir = tmp_path / "data"
    with dying_at(data_dir, f"start_lease:{point}") as service:
        register(service)
        # A start that is due at once could reach the point before the booking is answered.
        status, lease = service.caller().book(2, seconds=600, delay=2, others=OTHERS)
        assert status == 201, lease
        assert_killed(service)
        assert len(traces(data_dir).has(lease)) == (0 if point == "after_claim" else 2)
    with standalone(data_dir, hosts=HOSTS) as service:
        caller = service.caller()
        assert caller.wait_for_status(lease["id"], "ACTIVE", "ERROR")["status"] == "ACTIVE"
        assert len(traces(data_dir).has(lease)) == 2
        assert traces(data_dir).counts(lease) == {EffectKind.GROUP_MADE: 1, EffectKind.HOST_TAKEN: 2}
        assert traces(data_dir).counts(lease, ADDRESS) == {AddressEffect.MADE: 1, AddressEffect.TAGGED: 1}
        assert traces(data_dir).counts(lease, VOLUME) == {VolumeEffect.MADE: 2}
        assert_sound(data_dir, idle=False)
        delete(caller, lease)
        assert service.stop() == 0
    assert_sound(data_dir, idle=True)


@pytest.mark.parametrize("point", POINTS)
def test_manager_killed_during_snapshots_makes_each_image_once(tmp_path: Path, point: str):
    data_dir = tmp_path / "data"
    with dying_at(data_dir, f"before_end_lease:{point}") as service:
        register(service)
        status, lease = service.caller().book(1, seconds=600, notice=4, others=OTHERS)
        assert status == 201, lease
        service.caller().wait_for_status(lease["id"], "ACTIVE")
        traces(data_dir).boot(lease)
        assert_killed(service)
        for resource_type in ("physical:host", INSTANCE):
            images = traces(data_dir).counts(lease, resource_type)[EffectKind.IMAGE_MADE]
            assert images == (0 if point == "after_claim" else 1), resource_type
    with standalone(data_dir, hosts=HOSTS) as service:
        caller = service.caller()
        wait_for_event(caller, lease, "before_end_lease")
        assert caller.lease(lease["id"])["status"] == "ACTIVE"
        for resource_type in ("physical:host", INSTANCE):
            assert traces(data_dir).counts(lease, resource_type)[EffectKind.IMAGE_MADE] == 1, resource_type
        delete(caller, lease)
        assert service.stop() == 0
    assert_sound(data_dir, idle=True)


@pytest.mark.parametrize("point", POINTS)
def test_manager_killed_during_an_end_loses_no_lease(tmp_path: Path, point: str):
    data_dir = tmp_path / "data"
    with dying_at(data_dir, f"end_lease:{point}") as service:
        register(service)
        kept = ({**VOLUMES, "at_end": "keep"}, {**VOLUMES, "at_end": "snapshot"})
        status, lease = service.caller().book(2, seconds=5, before_end="default", others=(APART, *OTHERS[1:], *kept))
        assert status == 201, lease
        service.caller().wait_for_status(lease["id"], "ACTIVE")
        traces(data_dir).boot(lease)
        assert_killed(service)
        assert len(traces(data_dir).has(lease)) == (2 if point == "after_claim" else 0)
    with standalone(data_dir, hosts=HOSTS) as service:
        service.caller().wait_for_status(lease["id"], "TERMINATED")
        assert traces(data_dir).counts(lease) == {
            EffectKind.GROUP_MADE: 1,
            EffectKind.HOST_TAKEN: 2,
            EffectKind.SERVER_BOOTED: 1,
            EffectKind.SERVER_DELETED: 1,
            EffectKind.HOST_RETURNED: 2,
            EffectKind.GROUP_REMOVED: 1,
        }
        assert traces(data_dir).counts(lease, INSTANCE)[EffectKind.SERVER_DELETED] == 1
        assert traces(data_dir).counts(lease, VOLUME) == {
            VolumeEffect.MADE: 6,
            VolumeEffect.REMOVED: 2,
            VolumeEffect.SNAPSHOT_MADE: 2,
            VolumeEffect.KEPT: 4,
        }
        assert service.stop() == 0
    assert_sound(data_dir, idle=True)


@pytest.mark.parametrize("point", POINTS)
def test_manager_killed_during_a_change_completes_it(tmp_path: Path, point: str):
    data_dir = tmp_path / "data"
    with dying_at(data_dir, f"update_lease:{point}") as service:
        caller = service.caller()
        register(service)
        status, lease = caller.book(1, seconds=600, notice=300, others=OTHERS)
        assert status == 201, lease
        caller.wait_for_status(lease["id"], "ACTIVE")
        more: list[dict[str, object]] = [{"min": 3, "max": 3}]
        more += [{"amount": amount} for amount in (3, 4, 2, 3)]
        grown = {
            "reservations": [
                {"id": reservation["id"], **change}
                for reservation, change in zip(lease["reservations"], more, strict=True)
            ]
        }
        with pytest.raises((OSError, HTTPException)):
            caller.call("PUT", f"/leases/{lease['id']}", grown)
        assert_killed(service)
    with standalone(data_dir, hosts=HOSTS) as service:
        after = service.caller().wait_for_status(lease["id"], "ACTIVE")
        amounts = [reservation.get("max", reservation.get("amount")) for reservation in after["reservations"]]
        assert amounts == [3, 3, 4, 2, 3]
        assert len(traces(data_dir).has(lease)) == 3
        assert traces(data_dir).counts(lease) == {EffectKind.GROUP_MADE: 1, EffectKind.HOST_TAKEN: 3}
        assert traces(data_dir).counts(lease, VOLUME) == {VolumeEffect.MADE: 3}
        assert service.stop() == 0
    assert_sound(data_dir, idle=False)


@pytest.mark.parametrize("point", POINTS)
def test_manager_killed_during_a_deletion_completes_it(tmp_path: Path, point: str):
    """A deletion that was begun is completed after the restart, whether it was answered or not."""
    data_dir = tmp_path / "data"
    with dying_at(data_dir, f"end_lease:{point}") as service:
        caller = service.caller()
        register(service)
        status, lease = caller.book(2, seconds=600, notice=300, others=OTHERS)
        assert status == 201, lease
        caller.wait_for_status(lease["id"], "ACTIVE")
        traces(data_dir).boot(lease)
        if point == "before_record":  # volumes vanish after the answer
            assert caller.call("DELETE", f"/leases/{lease['id']}")[0] == 204
        else:
            with pytest.raises((OSError, HTTPException)):
                caller.call("DELETE", f"/leases/{lease['id']}")
        assert_killed(service)
    with standalone(data_dir, hosts=HOSTS) as service:
        wait_until_gone(service.caller(), lease)
        assert traces(data_dir).counts(lease)[EffectKind.HOST_RETURNED] == 2
        assert traces(data_dir).counts(lease, VOLUME)[VolumeEffect.REMOVED] == 2
        assert service.stop() == 0
    assert_sound(data_dir, idle=True)


# --- while it is being set up for the first time


def test_standalone_killed_during_its_first_start_completes_the_next(tmp_path: Path):
    """The next start completes an interrupted setup: each host is registered once, and users can log in."""
    rng = random.Random(7)
    data_dir = tmp_path / "data"
    killed = 0
    for _ in range(6):
        process = launch(data_dir, hosts=HOSTS)
        try:
            process.wait(timeout=rng.uniform(0.4, 1.6))
        except subprocess.TimeoutExpired:
            killed += 1
        process.kill()
        process.wait(timeout=patience())
        assert process.stdout is not None
        process.stdout.close()
    assert killed == 6
    with standalone(data_dir, hosts=HOSTS) as service_again:
        status, answer = service_again.caller("admin").call("GET", "/os-hosts")
        assert status == 200
        assert len({host["hypervisor_hostname"] for host in answer["hosts"]}) == len(answer["hosts"]) == HOSTS
        status, lease = service_again.caller().book(HOSTS, seconds=600)
        assert status == 201, lease
        service_again.caller().wait_for_status(lease["id"], "ACTIVE")
        assert service_again.stop() == 0
    assert_sound(data_dir, idle=False)


# --- at random moments


@dataclass
class Promised:
    """The last answers of the service about a lease."""

    ends_at: str
    deleted: bool = False
    #: Whether a change or a deletion was not answered: both outcomes are right then.
    open_change: bool = False
    open_delete: bool = False


@dataclass
class Load:
    """Clients that book, extend and delete leases of a few seconds, and record the answers."""

    seed: int
    promised: dict[str, Promised] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self, caller: Caller, stopping: threading.Event, client: int) -> None:
        rng = random.Random(f"{self.seed}-{client}")
        mine: list[str] = []
        while not stopping.is_set():
            action = rng.choices(["book", "extend", "delete"], [6, 2, 1])[0]
            try:
                if action == "book" or not mine:
                    self._book(caller, rng, mine)
                elif action == "extend":
                    self._extend(caller, rng.choice(mine))
                else:
                    self._delete(caller, mine.pop(rng.randrange(len(mine))))
            except (OSError, HTTPException):
                return  # the service was killed; after the restart there are new clients
            time.sleep(rng.uniform(0, 0.05))

    def _book(self, caller: Caller, rng: random.Random, mine: list[str]) -> None:
        hosts, others = rng.choice(
            [
                (1, ()),
                (1, ()),
                (2, ()),
                (1, (APART,)),
                (0, (TOGETHER, ADDRESSES)),
                (0, (APART, TOGETHER)),
                (0, (VOLUMES,)),
                (0, ({**VOLUMES, "size_gb": 1, "at_end": rng.choice(["keep", "snapshot"])},)),
            ]
        )
        status, lease = caller.book(
            hosts, seconds=rng.uniform(2, 3), delay=rng.choice([0, rng.uniform(0.2, 1)]), others=others
        )
        self._note("book", status, {201, 409}, lease)
        if status == 201:
            self.promised[lease["id"]] = Promised(lease["end_date"])
            mine.append(lease["id"])

    def _extend(self, caller: Caller, lease_id: str) -> None:
        promise = self.promised[lease_id]
        promise.open_change = True
        later = datetime.fromisoformat(promise.ends_at).timestamp() + 1
        status, answer = caller.call(
            "PUT", f"/leases/{lease_id}", {"end_date": rfc3339(datetime.fromtimestamp(later, UTC))}
        )
        promise.open_change = False
        self._note("extend", status, {200, 400, 409}, answer)
        if status == 200:
            promise.ends_at = answer["lease"]["end_date"]

    def _delete(self, caller: Caller, lease_id: str) -> None:
        promise = self.promised[lease_id]
        promise.open_delete = True
        status, answer = caller.call("DELETE", f"/leases/{lease_id}")
        promise.open_delete = False
        promise.deleted = status == 204
        self._note("delete", status, {204}, answer)

    def _note(self, action: str, status: int, expected: set[int], answer: object) -> None:
        self.answers[f"{action} {status}"] += 1
        if status not in expected:
            self.wrong.append(f"{action}: {status} {answer}")


KILLS = times(8, 50)
CLIENTS = 4
SEED = 20300101


def test_standalone_killed_repeatedly_under_load_loses_nothing(tmp_path: Path):
    data_dir = tmp_path / "data"
    rng = random.Random(SEED)
    load = Load(SEED)
    with standalone(data_dir, hosts=HOSTS) as service:  # the first start has a test of its own
        register(service)
        assert service.stop() == 0
    for life in range(KILLS + 1):
        service = start(data_dir, hosts=HOSTS)
        stopping = threading.Event()
        clients = [
            threading.Thread(target=load.run, args=(service.caller(), stopping, CLIENTS * life + client), daemon=True)
            for client in range(CLIENTS)
        ]
        try:
            for client in clients:
                client.start()
            time.sleep(rng.uniform(0.05, 1.0))  # until the kill
            if life < KILLS:
                service.kill()
            stopping.set()
            for client in clients:
                client.join(patience())
            assert not any(client.is_alive() for client in clients)
            if life == KILLS:
                wait_until_all_are_over(service.caller("admin"))
                with SimulatedCloud(data_dir / "cloud.db") as cloud:
                    wait_for_agreement(f"sqlite:///{data_dir / 'tenure.db'}", cloud, seconds=90)
                assert service.stop() == 0
        finally:
            if service.process.poll() is None:
                service.kill()
    assert load.wrong == []
    assert load.answers["book 201"] > KILLS / 3  # requests at the time of a kill are not answered
    assert_kept(load, data_dir)
    assert_sound(data_dir, idle=True)
    assert "Traceback" not in service.log
    print(f"{dict(load.answers)}, {service.log.count('are taken up again')} lives had something to take up")


def wait_until_all_are_over(caller: Caller) -> None:
    def left() -> Counter[str]:
        status, answer = caller.call("GET", "/leases?limit=1000")
        assert status == 200, answer
        return Counter(lease["status"] for lease in answer["leases"] if lease["status"] not in {"TERMINATED", "ERROR"})

    wait_for(lambda: f"the end of all leases: {left()}", lambda: not left())


def assert_kept(load: Load, data_dir: Path) -> None:
    """Check that every promised lease is in the ledger, and has ended as promised."""
    stored = ledger.leases(f"sqlite:///{data_dir / 'tenure.db'}")
    with closing(sqlite3.connect(data_dir / "tenure.db")) as connection:
        ends = {lease_id: end[:19] for lease_id, end in connection.execute("SELECT id, ends_at FROM leases")}
    for lease_id, promise in load.promised.items():
        assert lease_id in stored, f"{lease_id} was promised and is lost"
        statuses = {"DELETED"} if promise.deleted else {"TERMINATED"}
        if promise.open_delete:
            statuses = {"TERMINATED", "DELETED"}
        assert stored[lease_id].status in statuses, (lease_id, promise)
        if not promise.open_change:
            assert ends[lease_id].replace("T", " ") == promise.ends_at[:19].replace("T", " ")
    statuses = {lease.status for lease in stored.values()}
    assert statuses <= {"TERMINATED", "DELETED"}
