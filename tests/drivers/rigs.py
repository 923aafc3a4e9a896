"""A small OpenStack with a driver on it, as the tests of that driver want it."""

from __future__ import annotations

from datetime import timedelta

from tenure.drivers.contract import Order, ResourceRef
from tenure.drivers.openstack import OpenStackCloud, OpenStackOptions
from tests.drivers.contract import order_of
from tests.support.openstack import PASSWORD, FakeOpenStack

HOST = "physical:host"


def options_of(cloud: FakeOpenStack, **more: object) -> OpenStackOptions:
    given = {"auth_url": f"{cloud.url}/identity", "password": PASSWORD, "request_timeout": timedelta(seconds=5), **more}
    return OpenStackOptions(**given)  # type: ignore[arg-type]  # a test says what it means


def ref(cloud: FakeOpenStack, number: int) -> ResourceRef:
    host = list(cloud.hosts.values())[number - 1]
    return ResourceRef(host.id, host.name)


def registered(driver: OpenStackCloud, cloud: FakeOpenStack, count: int) -> list[ResourceRef]:
    """So many hosts, in the pool."""
    hosts = [ref(cloud, number) for number in range(1, count + 1)]
    for host in hosts:
        driver.ensure_registered(HOST, host)
    return hosts


def order(*hosts: ResourceRef, **more: str) -> Order:
    return order_of(*hosts, resource_type=HOST, **more)
