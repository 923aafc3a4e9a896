"""The example of a type by others, installed as its users do: from its folder, into an environment of its own."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.commands import output_of
from tests.support.standalone import BIN, Caller, Standalone, start
from tests.support.waiting import COMMAND_SECONDS, patience

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "instruments"
MICROSCOPE = {"resource_type": "lab:instrument", "kind": "microscope"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with only Tenure, the example, and their dependencies."""
    folder = tmp_path_factory.mktemp("fresh")
    tenure, example = folder / "tenure", folder / "example"
    built = shutil.ignore_patterns("*.egg-info", "__pycache__", "build")
    shutil.copytree(REPOSITORY / "src", tenure / "src", ignore=built)  # building writes into the folder
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(REPOSITORY / name, tenure / name)
    shutil.copytree(EXAMPLE, example, ignore=built)
    made = folder / "environment"
    uv = BIN / "uv"
    output_of([uv, "venv", "--quiet", "--python", sys.executable, made])
    command: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", made / "bin" / "python"]
    command += ["--constraint", REPOSITORY / "constraints.txt", tenure, example]
    output_of(command, seconds=2 * COMMAND_SECONDS)
    return made


@pytest.fixture(scope="module")
def service(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    yield from run_service(environment, tmp_path_factory.mktemp("service"))


@pytest.fixture
def new_service(environment: Path, tmp_path: Path) -> Iterator[Standalone]:
    """A service without instruments and leases."""
    yield from run_service(environment, tmp_path)


def run_service(environment: Path, folder: Path) -> Iterator[Standalone]:
    running = start(folder / "data", hosts=2, command=(str(environment / "bin" / "tenure-standalone"),))
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


def badges(service: Standalone) -> set[tuple[str, str]]:
    """Return the projects' access to instruments, as the laboratory sees it."""
    with closing(sqlite3.connect(service.data_dir / "laboratory.db")) as file:
        return set(file.execute("SELECT name, project FROM badge JOIN instrument ON id = instrument_id"))


def register(caller: Caller, name: str) -> tuple[int, Any]:
    return caller.call("POST", "/instruments", {"name": name})


def test_an_instrument_is_registered_booked_used_and_given_back(service: Standalone):
    operator, owner = service.caller("admin"), service.caller("demo")
    for name in ("confocal-1", "electron-1", "raman-1"):
        assert register(operator, name)[0] == 201
    status, refusal = register(operator, "confocal-9")
    assert (status, refusal["field"]) == (404, "name")
    assert register(owner, "confocal-2")[0] == 403
    status, listed = owner.call("GET", "/instruments?kind=microscope")
    assert (status, [instrument["name"] for instrument in listed["instruments"]]) == (200, ["confocal-1", "electron-1"])

    # A microscope that is sharp enough, and a host beside it, in one lease.
    sharp = {**MICROSCOPE, "resource_properties": '["<=", "$resolution_nm", "10"]'}
    status, lease = owner.book(1, seconds=600, before_end="", others=[sharp])
    assert status == 201, lease
    owner.wait_for_status(lease["id"], "ACTIVE")
    assert badges(service) == {("electron-1", "demo-project")}
    status, had = owner.call("GET", f"/leases/{lease['id']}/instruments")
    assert [(instrument["name"], instrument["status"]) for instrument in had["instruments"]] == [("electron-1", "held")]

    # A request for two is refused while one of two is taken; a request for one is met.
    status, refusal = owner.book(0, seconds=3, others=[{**MICROSCOPE, "amount": 2}])
    assert (status, refusal["error_name"]) == (409, "NotEnoughResources")
    assert refusal["error_message"].startswith("Not enough instruments available: 2 asked for, 3 can be reserved")
    status, other = owner.book(0, seconds=60, others=[MICROSCOPE])
    assert status == 201, other
    owner.wait_for_status(other["id"], "ACTIVE")
    assert badges(service) == {("electron-1", "demo-project"), ("confocal-1", "demo-project")}
    assert owner.call("DELETE", f"/leases/{other['id']}")[0] == 204

    assert owner.call("PUT", f"/leases/{lease['id']}", {"end_date": "now"})[0] == 200
    owner.wait_for_status(lease["id"], "TERMINATED")
    assert badges(service) == set()


def test_its_readme_can_be_followed(new_service: Standalone):
    """With our command line, which knows nothing of instruments; what is installed and started is there already."""
    text = (EXAMPLE / "README.md").read_text()
    installed, registered, booked, _tested = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    assert "pip install ../.. ../../client ." in installed
    typed = "\n".join(re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in (registered, booked))
    typed = typed.replace("try/bin/", f"{BIN}/").replace("try/data/", f"{new_service.data_dir}/")
    script = "set -e\n" + typed.replace("http://127.0.0.1:1234/v1", new_service.url)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=COMMAND_SECONDS)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    _, leases = new_service.caller().call("GET", "/leases")
    (look,) = [lease for lease in leases["leases"] if lease["name"] == "look"]
    assert look["status"] == "TERMINATED"
    assert {reservation["resource_type"] for reservation in look["reservations"]} == {"physical:host", "lab:instrument"}


def test_type_is_in_the_api_description(service: Standalone):
    with urlopen(f"{service.url.removesuffix('/v1')}/openapi.json", timeout=patience()) as answer:
        description = json.load(answer)
    assert {"/v1/instruments", "/v1/instruments/{instrument_id}", "/v1/os-hosts"} <= description["paths"].keys()
    assert "InstrumentReservation" in description["components"]["schemas"]


FILTERED = """
import sys
from datetime import timedelta
from pathlib import Path

from oslo_config import cfg
from tenure.cmd.standalone import open_service
from tenure.domain.actor import Actor
from tenure.domain.errors import Denied
from tenure.domain.request import LeaseRequest, ReservationRequest
from tenure.factory import load_filters

conf = cfg.ConfigOpts()
conf([])
trained = load_filters()["TrainedFilter"](conf)
service = open_service(Path(sys.argv[1]), hosts=1, filters={"TrainedFilter": trained})
operator = Actor("operator", "site", frozenset({"admin", "member", "reader"}))
service.manager.resources.register(operator, "lab:instrument", "confocal-1", {})
wanted = ReservationRequest("lab:instrument", {"kind": "microscope", "amount": 1, "resource_properties": ""})
for project in ("others", "optics"):
    conf.set_override("instruments_trained", ["microscope:optics"], group="enforcement")
    user = Actor("user", project, frozenset({"member", "reader"}))
    now = service.components.clock.now()
    request = LeaseRequest("look", now + timedelta(hours=1), now + timedelta(hours=2), reservations=(wanted,))
    try:
        print(project, service.manager.leases.create(user, request).status)
    except Denied as error:
        print(project, error)
"""


def test_enabled_filter_is_called(environment: Path, tmp_path: Path):
    """It is found by its entry point; untrained users get no instrument."""
    (tmp_path / "data").mkdir()
    command = [environment / "bin" / "python", "-c", FILTERED, tmp_path / "data"]
    done = subprocess.run(
        [str(argument) for argument in command], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "others Nobody in this project was trained on a microscope yet.",
        "optics PENDING",
    ]


def test_only_the_package_is_needed(environment: Path):
    """Not the libraries of a deployment, nor the tests' own."""
    for module, is_there in (("instruments", True), ("openstack", False), ("pytest", False)):
        command = [str(environment / "bin" / "python"), "-c", f"import {module}"]
        assert (subprocess.run(command, capture_output=True).returncode == 0) == is_there, module
