"""Types whose services the cloud does not have are named when a manager starts, not when they are booked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure.cmd.manager import check_services
from tenure.cmd.process import StartFailed
from tenure.cmd.type_services import find_unserved
from tenure.config import new_config, read_config
from tenure.deployment import open_manager
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.router import Router
from tenure.resources.contract import load_types
from tests.drivers.rigs import HTTP, IN_PROCESS, FakeRig
from tests.support.openstack import PASSWORD, FakeOpenStack

NO_CINDER = "virtual:volume needs Cinder (block-storage), which the cloud does not have"
ALL = load_types().enabled


@contextmanager
def driving(*absent: str, transport: str = IN_PROCESS) -> Iterator[OpenStackCloud]:
    """Yield the driver of a cloud without these services."""
    with FakeOpenStack() as cloud:
        cloud.absent |= set(absent)
        rig = FakeRig(cloud, transport)
        yield rig._own
        rig.close()


@pytest.mark.parametrize("transport", [HTTP, IN_PROCESS])
def test_services_are_looked_for_in_the_catalogue(transport: str):
    with driving("block-storage", "network", transport=transport) as driver:
        assert driver.missing_services("virtual:volume") == ["Cinder (block-storage)"]
        assert driver.missing_services("virtual:floatingip") == ["Neutron (network)"]
        assert driver.missing_services("virtual:instance") == driver.missing_services("lab:bench") == []
    with driving("placement", transport=transport) as driver:
        assert driver.missing_services("physical:host") == ["Placement (placement)"]
    with driving(transport=transport) as driver:
        assert find_unserved(ALL, driver).unserved == ()


def test_a_region_without_a_service_is_named():
    with driving() as north, driving("block-storage") as south:
        [unserved] = find_unserved(ALL, Router({"north": north, "south": south})).unserved
        assert str(unserved) == "virtual:volume needs Cinder (block-storage), which region south does not have"
    with driving("block-storage") as north, driving("block-storage") as south:
        [unserved] = find_unserved(ALL, Router({"north": north, "south": south})).unserved
        assert str(unserved) == NO_CINDER


def check(folder: Path, cloud: FakeOpenStack, enabled: str = "") -> None:
    """Check the services of a manager that is about to start with this configuration."""
    file = folder / "tenure.conf"
    file.write_text(
        f"[DEFAULT]\ntransport_url = fake://\n[database]\nconnection = sqlite:///{folder / 'tenure.db'}\n"
        f"[service_auth]\nauth_url = {cloud.url}/identity\npassword = {PASSWORD}\n[manager]\n{enabled}"
    )
    conf = new_config()
    read_config(conf, [], files=[file], prog="test")
    service = open_manager(conf)
    try:
        check_services(service, named=bool(conf.manager.enabled_types))
    finally:
        service.components.driver.close()  # type: ignore[union-attr]  # that of a single cloud
        service.components.db.close()


def test_a_manager_warns_of_a_missing_service(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with FakeOpenStack() as cloud:
        cloud.absent.add("block-storage")
        check(tmp_path, cloud)
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert warnings == [f"{NO_CINDER}; [manager] enabled_types can name the other types"]
        caplog.clear()
        check(tmp_path, cloud, "enabled_types = physical:host, virtual:floatingip\n")
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("option", ["enabled_types = virtual:volume", "plugins = physical:host, virtual:volume"])
def test_a_manager_does_not_start_without_the_service_of_a_named_type(tmp_path: Path, option: str):
    with FakeOpenStack() as cloud:
        cloud.absent.add("block-storage")
        with pytest.raises(StartFailed) as failure:
            check(tmp_path, cloud, f"{option}\n")
        assert str(failure.value) == f"[manager] enabled_types: {NO_CINDER}"


def test_a_manager_starts_while_the_cloud_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with FakeOpenStack() as cloud:
        pass
    check(tmp_path, cloud, "enabled_types = physical:host, virtual:volume\n")
    [warning] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "could not be checked: Keystone cannot be reached." in warning
