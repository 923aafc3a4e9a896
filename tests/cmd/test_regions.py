"""Several regions as an operator has them: in ``tenure.conf``, and in ``tenure-standalone --regions``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tenure.cmd.manager import serve
from tenure.cmd.process import StartFailed, configure
from tenure.config import new_config, read_config
from tenure.deployment import open_driver
from tenure.drivers.contract import CloudBusy
from tenure.drivers.router import Router
from tests.cmd.conftest import Site
from tests.support.openstack import PASSWORD, FakeOpenStack
from tests.support.simulated import SimulatedCloud
from tests.support.standalone import BIN, standalone
from tests.support.waiting import patience

SOUTH = "[region:south]\npath = {folder}/south.db\n"


def configure_regions(site: Site, regions: str, groups: str = SOUTH) -> None:
    site.configure(more=groups.format(folder=site.folder))
    file = site.folder / "tenure.conf"
    file.write_text(file.read_text().replace("[DEFAULT]\n", f"[DEFAULT]\nregions = {regions}\n"))


def check(site: Site, name: str) -> tuple[int, str | None]:
    """Return the result and the details of one of the checks before an upgrade."""
    done = site.run("tenure-status", "upgrade", "check", "--json")
    [found] = [check for check in json.loads(done.stdout)["checks"] if check["check"] == name]
    return found["result"], found["details"]


def test_name_home_moves_existing_data_once(site: Site) -> None:
    with site.service(hosts=2):
        pass
    alone = site.run("tenure-manage", "region", "name-home")
    assert (alone.returncode, alone.stderr) == (
        1,
        "tenure-manage: [DEFAULT] regions is not set; the first of them is the home region\n",
    )
    configure_regions(site, "north, south")
    before = "there are resources from before there were regions: run tenure-manage region name-home"
    assert check(site, "Regions") == (2, before)
    for number in (2, 0):
        named = site.run("tenure-manage", "region", "name-home")
        said = f"{number} resources and 0 reservations are in region north now\n"
        assert (named.returncode, named.stdout) == (0, said), named.stderr
    assert check(site, "Regions") == (0, "north, south")
    configure_regions(site, "south", "")
    assert check(site, "Regions") == (2, "there are resources in region north, which is not in the list of regions")


def test_manager_does_not_start_if_hosts_have_an_unknown_region(site: Site) -> None:
    with site.service(hosts=1):
        pass
    configure_regions(site, "north, south")
    file = site.folder / "tenure.conf"
    file.write_text(file.read_text().replace("[DEFAULT]\n", "[DEFAULT]\ntransport_url = fake://\n"))
    with pytest.raises(StartFailed, match="run tenure-manage region name-home"):
        serve(configure(["--config-file", str(file)], prog="tenure-manager"))


@pytest.mark.parametrize(
    ("regions", "groups", "said"),
    [
        ("north, north", "", "regions: one is named twice"),
        (
            "north, so:uth",
            "",
            "regions: 'so:uth' is no name of a region: letters, digits, '_', '.' and '-', at most 24 of them",
        ),
        (
            "north, " + "s" * 25,
            "",
            f"regions: '{'s' * 25}' is no name of a region: letters, digits, '_', '.' and '-', at most 24 of them",
        ),
        (", ".join(f"region{number}" for number in range(20)), "", "regions: there are too many for the trusts"),
        ("north, south", "", "two simulated regions have the same [region:...] path"),
        ("north, south", "[region:south]\ndriver = vapour\n", "driver: there is no driver 'vapour'"),
        ("north, south", "[region:south]\ndriver = openstack\n", "[service_auth] auth_url is not set"),
    ],
)
def test_invalid_regions_are_reported_in_one_line(site: Site, regions: str, groups: str, said: str) -> None:
    site.run("tenure-manage", "db", "upgrade")
    configure_regions(site, regions, groups)
    done = site.run("tenure-manage", "host", "sync")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"tenure-manage: {said}"), done.stderr
    assert done.stderr.count("\n") == 1
    result, details = check(site, "Cloud")
    assert result == 2
    assert (details or "").startswith(said)


def test_region_options_default_to_the_general_ones(tmp_path: Path) -> None:
    SimulatedCloud.create(tmp_path / "south.db", hosts=2).close()
    file = tmp_path / "tenure.conf"
    with FakeOpenStack() as cloud:
        file.write_text(
            "[DEFAULT]\nregions = north, south, east\n"
            f"[service_auth]\nauth_url = http://127.0.0.1:9/identity\npassword = {PASSWORD}\n"
            f"[region:north]\nauth_url = {cloud.url}/identity\nos_region_name = r1\n"
            f"[region:south]\ndriver = simulated\npath = {tmp_path / 'south.db'}\n"
        )
        conf = new_config()
        read_config(conf, [], files=[file], prog="test")
        driver = open_driver(conf)
        assert isinstance(driver, Router)
        assert driver.look_up("physical:host", "north:node-1.lab").region == "north"
        assert driver.look_up("physical:host", "south:2").external_id == "south:2"
        with pytest.raises(CloudBusy, match=r"^Region east: Keystone cannot be reached"):
            driver.look_up("physical:host", "east:node-1.lab")


@pytest.mark.slow
def test_a_standalone_service_has_regions(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", hosts=2, regions=("north", "south")) as service:
        admin, demo = service.caller("admin", "1.2"), service.caller("demo", "1.2")
        hosts = admin.call("GET", "/os-hosts")[1]["hosts"]
        assert [(host["id"], host["region"]) for host in hosts] == [
            ("1", "north"),
            ("2", "north"),
            ("south:1", "south"),
            ("south:2", "south"),
        ]
        listing = [BIN / "tenure", "host", "list", "--region", "south", "-f", "value", "-c", "id", "-c", "region"]
        listed = subprocess.run(
            list(map(str, listing)),
            env=service.environment("tenure-admin"),
            capture_output=True,
            text=True,
            timeout=patience(),
            check=True,
        )
        assert listed.stdout.splitlines() == ["south:1 south", "south:2 south"]
        requested = [
            {"resource_type": "physical:host", "min": 1, "max": 1, "region": name} for name in ("north", "south")
        ]
        status, lease = demo.book(0, seconds=3600, others=requested)
        assert status == 201, lease
        demo.wait_for_status(lease["id"], "ACTIVE")
        held = demo.call("GET", f"/leases/{lease['id']}/hosts")[1]["hosts"]
        assert sorted(host["id"].startswith("south:") for host in held) == [False, True]
        assert service.stop() == 0
    command = [BIN / "tenure-standalone", "--port", "0", "--data-dir", tmp_path / "data"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=patience(), check=False)
    assert done.returncode == 1
    assert "there are resources in region north, which is not in the list of regions" in done.stderr
