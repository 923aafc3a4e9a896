"""Many hosts: Nova is asked for them in small pages, and a page that does not arrive takes nothing with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tenure.drivers.contract import CloudBusy, Health, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import connect
from tests.drivers.rigs import HOST, options_of
from tests.support.lengths import times
from tests.support.openstack import FakeOpenStack
from tests.support.waiting import patience

#: As many as tests of a moment can have, and as one test has.
HOSTS = 1_000
MANY_HOSTS = times(2_500, 10_000)
#: How many hosts this Nova can describe before its client gives up.
BEARABLE = 100
TIMED_OUT = (504, {"message": "the gateway timed out"})


@pytest.fixture(scope="module")
def whole_cloud() -> Iterator[FakeOpenStack]:
    with FakeOpenStack(hosts=HOSTS) as cloud:
        yield cloud


@pytest.fixture
def cloud(whole_cloud: FakeOpenStack) -> Iterator[FakeOpenStack]:
    whole_cloud.instead = lambda seen: TIMED_OUT if size_of(seen) > BEARABLE else None
    whole_cloud.seen.clear()
    yield whole_cloud
    whole_cloud.instead = lambda _seen: None
    whole_cloud.observe = lambda _seen: None
    whole_cloud.latency = 0.0


@pytest.fixture
def driver(cloud: FakeOpenStack) -> Iterator[OpenStackCloud]:
    with connect(options_of(cloud)) as opened:
        yield opened


def size_of(seen: Any) -> int:
    """How many hosts a request asks for; 0 for a request of another kind."""
    if not seen.path.endswith("/os-hypervisors/detail"):
        return 0
    return int(seen.params.get("limit", 10**6))


def markers_asked(cloud: FakeOpenStack) -> list[str | None]:
    return [seen.params.get("marker") for seen in cloud.seen if size_of(seen)]


def lose_page_after(cloud: FakeOpenStack, marker: str) -> None:
    """Have the page that begins behind this host not arrive."""

    def answer(seen: Any) -> tuple[int, Any] | None:
        lost = size_of(seen) and seen.params.get("marker") == marker
        return TIMED_OUT if lost or size_of(seen) > BEARABLE else None

    cloud.instead = answer


def registered(cloud: FakeOpenStack) -> list[ResourceRef]:
    return [ResourceRef(host.id, host.name) for host in cloud.hosts.values()]


def test_the_health_of_many_hosts_is_checked(cloud: FakeOpenStack, driver: OpenStackCloud):
    healths = driver.check(HOST, iter(registered(cloud)))
    assert len(healths) == HOSTS
    assert set(healths.values()) == {Health(True)}


@pytest.mark.slow
def test_thousands_of_hosts_are_discovered_and_checked():
    with FakeOpenStack(hosts=MANY_HOSTS) as cloud, connect(options_of(cloud)) as driver:
        cloud.instead = lambda seen: TIMED_OUT if size_of(seen) > BEARABLE else None
        assert len(driver.discover(HOST)) == MANY_HOSTS
        assert len(driver.check(HOST, registered(cloud))) == MANY_HOSTS
        lose_page_after(cloud, "1000")
        healths = driver.check(HOST, registered(cloud))
        assert sum(health == Health(True) for health in healths.values()) == MANY_HOSTS - BEARABLE


@pytest.mark.slow
def test_each_page_has_its_own_time(cloud: FakeOpenStack):
    cloud.latency = 0.4
    with connect(options_of(cloud, verb_timeout=timedelta(seconds=3))) as driver:
        assert len(driver.check(HOST, ())) == HOSTS  # one after the other, so that they take longer than a verb may


@pytest.mark.slow
def test_a_hanging_page_delays_no_other_page(cloud: FakeOpenStack):
    ends = threading.Event()

    def hang(seen: Any) -> None:
        if size_of(seen) and seen.params.get("marker") == "500":
            ends.wait(patience())

    cloud.observe = hang
    with connect(options_of(cloud, request_timeout=timedelta(seconds=2))) as driver:
        healths = driver.check(HOST, registered(cloud))
    ends.set()
    assert {external_id for external_id, health in healths.items() if not health.is_known} == {
        str(number) for number in range(501, 601)
    }


def test_pages_come_side_by_side(cloud: FakeOpenStack, driver: OpenStackCloud):
    together = threading.Barrier(2)
    paired = iter([True, True])

    def wait_for_another(seen: Any) -> None:
        if size_of(seen) and next(paired, False):
            together.wait(patience())  # raises where pages come one after the other

    cloud.observe = wait_for_another
    assert len(driver.check(HOST, registered(cloud))) == HOSTS
    assert not together.broken


def test_only_the_hosts_of_a_missing_page_are_unknown(cloud: FakeOpenStack, driver: OpenStackCloud):
    lose_page_after(cloud, "500")
    healths = driver.check(HOST, registered(cloud))
    assert set(healths) == {host.id for host in cloud.hosts.values()}
    unknown = {external_id for external_id, health in healths.items() if not health.is_known}
    assert unknown == {str(number) for number in range(501, 601)}


def test_hosts_of_a_missing_page_are_not_discovered_as_gone(cloud: FakeOpenStack, driver: OpenStackCloud):
    driver.check(HOST, registered(cloud))
    lose_page_after(cloud, "500")
    with pytest.raises(CloudBusy, match="the hosts after 500"):
        driver.discover(HOST)


def test_without_any_answer_the_check_fails_at_once(cloud: FakeOpenStack, driver: OpenStackCloud):
    cloud.instead = lambda seen: TIMED_OUT if size_of(seen) else None
    with pytest.raises(CloudBusy, match="504"):
        driver.check(HOST, registered(cloud))
    assert len(markers_asked(cloud)) <= 8


def test_a_host_that_began_a_page_may_disappear(cloud: FakeOpenStack, driver: OpenStackCloud):
    refs = registered(cloud)
    driver.check(HOST, refs)
    asked = [marker for marker in markers_asked(cloud) if marker is not None]
    cloud.remove_host(asked[3])
    added = cloud.add_host("new-node.lab")
    healths = driver.check(HOST, refs)
    assert asked[3] not in healths
    assert added.id in healths
    assert set(healths) == {host.id for host in cloud.hosts.values()}
