"""This client and python-blazarclient 4.6.0 installed in one environment.

It makes a real virtual environment: the packages of the current environment, and on top
python-blazarclient from the package index. The order in which the two are found is reversed as well, since
the order of directories must not matter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenureclient.testing import FakeServer

pytestmark = pytest.mark.install

CLIENT = Path(__file__).parents[1]
TIMEOUT = 300
# The other client's own defect: it names a class that it does not have.
THEIR_COMPLAINT = "Could not load 'reservation_host_unset'"


@dataclass(frozen=True, slots=True)
class Environment:
    python: Path
    server: FakeServer

    def run(self, program: str, *arguments: str, client: str = "") -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        completed = subprocess.run(
            [str(self.python.with_name(program)), *arguments],
            env={**kept, **self.server.environment(), "OS_RESERVATION_CLIENT": client},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        errors = [line for line in completed.stderr.splitlines() if THEIR_COMPLAINT not in line]
        completed.stderr = "\n".join(errors)
        return completed


@pytest.fixture(scope="module", params=["ours first", "theirs first"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with both clients, whose packages are found in the order of the parameter."""
    place = tmp_path_factory.mktemp("both")
    venv.create(place, with_pip=True)
    interpreter = place / "bin" / "python"
    ours, theirs = place / "ours", place / "theirs"
    for target, what in ((ours, str(CLIENT)), (theirs, "python-blazarclient==4.6.0")):
        subprocess.run(
            [interpreter, "-m", "pip", "install", "-q", "--no-deps", "--target", target, what],
            check=True,
            timeout=TIMEOUT,
            capture_output=True,
        )
    order = (ours, theirs) if request.param == "ours first" else (theirs, ours)
    packages = subprocess.run(
        [interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    borrowed = sysconfig.get_path("purelib")
    Path(packages, "both.pth").write_text("\n".join([*map(str, order), borrowed]) + "\n")
    for program, module in (
        ("openstack", "openstackclient.shell"),
        ("tenure", "tenureclient.cli.shell"),
        ("blazar", "blazarclient.shell"),
    ):
        script = interpreter.with_name(program)
        script.write_text(f"#!{interpreter}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        script.chmod(0o755)
    return interpreter


@pytest.fixture
def both(python: Path) -> Iterator[Environment]:
    with FakeServer() as server:
        server.add_host("c1", properties={"gpu": "v100"})
        server.add_host("c2")
        yield Environment(python, server)


def test_both_clients_are_installed(both: Environment) -> None:
    code = (
        "import importlib.metadata as m;"
        "print(*sorted(p.module for p in m.entry_points(group='openstack.cli.extension')"
        " if p.module.startswith(('blazarclient', 'tenureclient'))))"
    )
    assert both.run("python", "-c", code).stdout == "blazarclient.osc.plugin tenureclient.osc\n"


@pytest.mark.parametrize("client", ["", "tenure"])
def test_openstack_still_works(both: Environment, client: str) -> None:
    overview = both.run("openstack", "--help", client=client)
    assert (overview.returncode, overview.stderr) == (0, "")
    assert overview.stdout.count("--os-reservation-api-version <") == 2  # in the usage, and explained
    assert "reservation lease history" in overview.stdout
    assert "reservation floatingip list" in overview.stdout


def test_blazarclient_keeps_its_commands_and_ours_adds_the_others(both: Environment) -> None:
    made = both.run(
        *("openstack", "reservation", "lease", "create", "bio", "-f", "json", "--reservation"),
        "resource_type=physical:host,min=1,max=1,hypervisor_properties=,resource_properties=",
    )
    assert made.returncode == 0, made.stderr
    listed = both.run("openstack", "reservation", "lease", "list", "-f", "json")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert list(json.loads(listed.stdout)[0]) == ["id", "name", "start_date", "end_date"]
    assert (
        "provided by the python-blazarclient plugin"
        in both.run("openstack", "reservation", "lease", "create", "--help").stdout
    )
    history = both.run("openstack", "reservation", "lease", "history", "bio", "-f", "value", "-c", "action")
    assert (history.returncode, history.stdout) == (0, "create\nstart\nstarted\n"), history.stderr
    unset = both.run("openstack", "reservation", "host", "unset", "c1", "--extra", "gpu")
    assert unset.stdout == "Updated host: c1\n", unset.stderr


def test_environment_variable_gives_our_client_all_commands(both: Environment) -> None:
    made = both.run(
        *("openstack", "reservation", "lease", "create", "bio", "--hosts", "1", "--for", "2h"),
        client="tenure",
    )
    assert made.returncode == 0, made.stderr
    listed = both.run("openstack", "reservation", "lease", "list", "-f", "json", client="tenure")
    assert listed.stderr == ""
    ours = both.run("openstack", "reservation", "lease", "list", "--help", client="tenure")
    assert "provided by the tenure-client plugin" in ours.stdout
    assert list(json.loads(listed.stdout)[0]) == ["id", "name", "start_date", "end_date", "status"]
    addresses = both.run("openstack", "reservation", "floatingip", "list", "--help", client="tenure")
    assert "provided by the tenure-client plugin" in addresses.stdout
    theirs = both.run("openstack", "reservation", "floatingip", "list", "--help")
    assert "provided by the python-blazarclient plugin" in theirs.stdout


def test_programs_of_both_clients_are_unchanged(both: Environment) -> None:
    assert both.run("tenure", "lease", "create", "bio", "--hosts", "1").returncode == 0
    assert both.run("tenure", "lease", "list", "-f", "value", "-c", "name").stdout == "bio\n"
    listed = both.run("blazar", "--os-auth-type", "admin_token", "lease-list", "-f", "value", "-c", "name")
    assert (listed.returncode, listed.stdout) == (0, "bio\n"), listed.stderr
