"""What tests of the driver of OpenStack clouds are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import connect
from tests.drivers.rigs import HTTP, IN_PROCESS, options_of
from tests.support.openstack import FakeOpenStack


@pytest.fixture(params=[HTTP, IN_PROCESS])
def transport(request: pytest.FixtureRequest) -> str:
    """The ways from the driver to the small OpenStack, each of which must keep the contract."""
    way: str = request.param
    return way


@pytest.fixture
def cloud() -> Iterator[FakeOpenStack]:
    with FakeOpenStack() as cloud:
        yield cloud
        assert cloud.surprises == []


@pytest.fixture
def driver(cloud: FakeOpenStack) -> Iterator[OpenStackCloud]:
    with connect(options_of(cloud)) as driver:
        yield driver
