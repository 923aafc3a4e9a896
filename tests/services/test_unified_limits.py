"""Quotas with limits in Keystone: their projects, refusals, and an unavailable Keystone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from oslo_limit import limit

from tenure.config import new_config, read_config
from tenure.deployment import ConfigurationError, open_quotas
from tenure.domain.errors import OverQuota, Unavailable
from tenure.domain.request import LeaseChange, LeaseQuery
from tenure.services.limits.quotas import Quotas, RememberedLimits, names_of
from tests.support.engines import rebuild
from tests.support.openstack.answers import Seen
from tests.support.openstack.cloud import PASSWORD, FakeOpenStack
from tests.support.openstack.limits import ENDPOINT
from tests.support.waiting import patience
from tests.support.world import OWNER, STRANGER, World

Open = Callable[..., Quotas]
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class Counting:
    """Limits for every project, nowhere where there are none; and who asked for them."""

    def __init__(self, limits: Mapping[str, int] | None) -> None:
        self.limits = limits
        self.asked: list[str] = []

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        self.asked.append(project_id)
        if self.limits is None:
            raise Unavailable("limits unknown")
        return self.limits


@pytest.fixture
def keystone() -> Iterator[FakeOpenStack]:
    with FakeOpenStack(hosts=0) as keystone:
        yield keystone


@pytest.fixture
def quotas(keystone: FakeOpenStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Quotas of a manager that has just been started with these lines in its file."""

    def open_them(lines: str = "", *, how: str = "cache_seconds = 0", url: str = f"{keystone.url}/identity") -> Quotas:
        monkeypatch.setattr(limit, "_SDK_CONNECTION", None)
        file = tmp_path / "tenure.conf"
        account = f"[service_auth]\nauth_url = {url}\npassword = {PASSWORD}\n"
        file.write_text(f"[quota]\ndriver = unified\n{how}\n[cloud]\nrequest_timeout = {patience(1)}\n{account}{lines}")
        conf = new_config()
        read_config(conf, [], files=[file], prog="test")
        return open_quotas(conf)

    return open_them


def register_all(keystone: FakeOpenStack, world: World, **limits: int) -> None:
    """Register these limits, and none for everything else."""
    keystone.unified_limits.registered = {**dict.fromkeys(names_of(world.service.components.types), -1), **limits}


def test_project_limits_override_registered_limits(world: World, keystone: FakeOpenStack, quotas: Open):
    register_all(keystone, world, hosts=1)
    keystone.unified_limits.limits = {(STRANGER.project_id, "hosts"): 3, (OWNER.project_id, "leases"): 2}
    rebuild(world, quotas=quotas())
    world.book(3, actor=STRANGER)
    lease = world.book(1, start=1)
    with pytest.raises(OverQuota) as refused:
        world.book(1, start=1)
    assert refused.value.details == {"resource": "hosts", "limit": 1, "used": 1, "requested": 1}
    world.book(1, start=2)
    with pytest.raises(OverQuota, match="leases: 2 of 2 used"):
        world.book(1, start=3)
    keystone.unified_limits.limits[OWNER.project_id, "leases"] = 3  # is asked each time here
    world.book(1, start=3)
    with pytest.raises(OverQuota, match="hosts"):
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
    assert keystone.surprises == []


def test_unregistered_limit_refuses_and_is_logged(
    world: World, keystone: FakeOpenStack, quotas: Open, caplog: pytest.LogCaptureFixture
):
    register_all(keystone, world)
    del keystone.unified_limits.registered["hours_of_hosts"], keystone.unified_limits.registered["volumes"]
    rebuild(world, quotas=quotas())
    for _ in range(2):
        with pytest.raises(OverQuota, match="hours of hosts: 0 of 0 used, 1 more requested"):
            world.book(1)
    said = [record.message for record in caplog.records if "registered" in record.message]
    assert said == ["Keystone has no registered limits for hours_of_hosts, volumes: nothing of it is allowed"]


def test_no_transaction_is_open_during_a_keystone_call(world: World, keystone: FakeOpenStack, quotas: Open):
    """SQLite has one writer: a second one would wait until Keystone gives up."""
    register_all(keystone, world)
    rebuild(world, quotas=quotas())
    lease = world.book(1, start=1)
    asked: list[str] = []

    def write_meanwhile(seen: Seen) -> None:
        world.db.write(lambda tx: tx.projects.lock("somebody-else"))
        asked.append(seen.path)

    keystone.observe = write_meanwhile
    world.book(1, start=1)
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
    assert asked == ["/v3/registered_limits", "/v3/limits"] * 2


@pytest.mark.parametrize(
    "trouble",
    [
        lambda keystone: setattr(keystone, "instead", lambda _seen: (503, {"error": {"message": "busy"}})),
        lambda keystone: setattr(keystone, "instead", lambda _seen: (200, b"<html>maintenance</html>")),
        lambda keystone: setattr(keystone, "instead", lambda _seen: (200, {"error": "none of it"})),
        pytest.param(lambda keystone: keystone.hang(), marks=pytest.mark.slow),
        lambda keystone: setattr(keystone.unified_limits, "limit_model", "strict-two-level"),
        lambda keystone: keystone.__exit__(),
    ],
    ids=["refuses", "speaks HTML", "says nothing", "hangs", "has another model", "is away"],
)
def test_unavailable_keystone_blocks_only_bookings(
    trouble: Callable[[FakeOpenStack], None], world: World, keystone: FakeOpenStack, quotas: Open
):
    register_all(keystone, world)
    lease = world.book(1, start=1)
    trouble(keystone)
    rebuild(world, quotas=quotas())  # a manager starts without it
    with pytest.raises(Unavailable, match="The limits of the project cannot be read from Keystone right now"):
        world.book(1)
    with pytest.raises(Unavailable):
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at - HOUR / 2))  # needs no more
    world.leases.delete(OWNER, lease.id)
    assert world.leases.list(OWNER, LeaseQuery(limit=10)).items == ()


def test_limits_are_cached_for_some_seconds():
    now = [0.0]
    limits = Counting({"leases": 1})
    remembered = RememberedLimits(limits, 5 * SECOND, seconds=lambda: now[0])
    for _ in range(3):
        assert remembered.of_project("p", ["leases"]) == {"leases": 1}
    assert remembered.of_project("q", ["leases"]) == {"leases": 1}
    assert limits.asked == ["p", "q"]
    now[0], limits.limits = 5.0, {"leases": 2}
    assert remembered.of_project("p", ["leases"]) == {"leases": 2}
    limits.limits = None
    assert remembered.of_project("p", ["leases"]) == {"leases": 2}
    now[0] = 10.0
    with pytest.raises(Unavailable):
        remembered.of_project("p", ["leases"])


def test_limits_of_at_most_a_thousand_projects_are_cached():
    limits = Counting({"leases": 1})
    remembered = RememberedLimits(limits, 5 * SECOND, seconds=lambda: 0.0)
    for number in range(1001):
        remembered.of_project(f"p{number}", ["leases"])
    remembered.of_project("p1", ["leases"])
    assert len(limits.asked) == 1001
    remembered.of_project("p0", ["leases"])
    assert limits.asked[-1] == "p0"


def test_lenient_mode_uses_cached_limits_while_keystone_is_unavailable(
    world: World, keystone: FakeOpenStack, quotas: Open
):
    register_all(keystone, world, leases=1)
    rebuild(world, quotas=quotas(how="cache_seconds = 0\non_failure = allow"))
    world.book(1)
    keystone.instead = lambda _seen: (503, None)
    with pytest.raises(OverQuota, match="leases: 1 of 1 used"):
        world.book(1)
    world.book(1, actor=STRANGER)
    world.book(1, actor=STRANGER)


def test_limits_apply_again_when_keystone_is_back(world: World, keystone: FakeOpenStack, quotas: Open):
    register_all(keystone, world)
    rebuild(world, quotas=quotas())
    world.book(1)
    keystone.instead = lambda _seen: (503, None)
    with pytest.raises(Unavailable):
        world.book(1)
    keystone.instead = lambda _seen: None
    keystone.tokens.clear()  # those of before are no good any more
    world.book(1)


def test_endpoint_and_account_are_configurable(
    world: World, keystone: FakeOpenStack, quotas: Open, caplog: pytest.LogCaptureFixture
):
    register_all(keystone, world)
    own = quotas(
        f"[oslo_limit]\nendpoint_id = {ENDPOINT}\nauth_type = v3password\nauth_url = {keystone.url}/identity/v3\n"
        f"username = tenure\nuser_domain_name = Default\nproject_name = service\nproject_domain_name = Default\n"
        f"password = {PASSWORD}\n",
        url="http://127.0.0.1:1",
    )
    assert own.of_project("p", world.service.components.types) == {}
    assert f"/v3/endpoints/{ENDPOINT}" in [seen.path for seen in keystone.seen]
    for lines, reason in {
        "endpoint_id = none": "Can't find endpoint",
        "endpoint_service_type = x": "not found",
    }.items():
        with pytest.raises(Unavailable):
            quotas(f"[oslo_limit]\n{lines}\n").of_project("p", world.service.components.types)
        assert reason in caplog.records[-1].message
    with pytest.raises(ConfigurationError, match="secrets could not be found"):
        quotas("[oslo_limit]\nauth_type = secrets\n")


@pytest.mark.slow
@pytest.mark.parametrize("lenient", [False, True])
def test_hanging_source_of_limits_blocks_few_threads(lenient: bool):
    """The other requests are unavailable: limits hold also when many requests come at once."""

    class Hanging:
        def __init__(self) -> None:
            self.asked, self.let_go = threading.Semaphore(0), threading.Event()

        def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
            self.asked.release()
            assert self.let_go.wait(patience())
            return {"leases": 1}

    hanging = Hanging()
    remembered = RememberedLimits(hanging, 5 * SECOND, permits=2, lenient=lenient)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(remembered.of_project, f"project {number}", ["leases"]) for number in range(2)]
        try:
            for _ in waiting:
                assert hanging.asked.acquire(timeout=patience())
            with pytest.raises(Unavailable, match="Too many requests wait"):
                remembered.of_project("project 3", ["leases"])
        finally:
            hanging.let_go.set()
        assert [answer.result(patience()) for answer in waiting] == [{"leases": 1}] * 2
    assert remembered.of_project("project 3", ["leases"]) == {"leases": 1}
