"""A type that another distribution brings, with an inventory of its own: nothing of ours knows of it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tenure.resources.contract import load_types
from tests.support.waiting import COMMAND_SECONDS

REPOSITORY = Path(__file__).parents[2]

#: What its author writes: the type, its inventory on the wire.
MODULE = '''
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tenure.api.schemas.floatingips import FLOATING_IPS
from tenure.domain.allocation import Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.requirement import Expression
from tenure.resources.contract import Inventory


class LicenceReservation(BaseModel):
    """Licences of a program."""

    model_config = ConfigDict(extra="forbid")

    resource_type: Literal["acme:licence"]
    amount: int = 1


class LicenceChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    amount: int | None = None


class LicenceAnswer(BaseModel):
    amount: int


class LicenceType:
    name = "acme:licence"
    noun = "licences"
    inventory = "acme:licence"
    own_inventory = Inventory("acme:licence", noun="licence", reference="floating_ip_address", rules="acme:licences")
    growing = frozenset({"amount"})
    additions = None

    def request_model(self, *, strict):
        return LicenceReservation

    def change_model(self, *, strict):
        return LicenceChange

    def answer_model(self, *, strict):
        return LicenceAnswer

    def merge(self, current, change, *, running):
        return {**current, **{name: value for name, value in change.items() if value is not None}}

    def required_fact(self, parameters):
        return None

    def complete(self, parameters, fact):
        return parameters

    def demand(self, parameters):
        amount = parameters["amount"]
        return Demand(self.inventory, self.noun, amount, amount, Expression(), Capacity({WHOLE: 1}), exclusive=True)

    def effects(self, reservation_id):
        return {}

    def is_prepared(self, parameters):
        return False

    def trusted_for(self, parameters):
        return None

    def before_end(self, parameters):
        return None


LICENCES = replace(
    FLOATING_IPS,
    resource_type="acme:licence",
    path="/v1/licences",
    one="licence",
    many="licences",
    noun="licence",
    nouns="licences",
    is_for_readers=False,
)


class LicenceServer:
    """What the simulated OpenStack has of licences."""

    def __init__(self, state):
        self.licences = state.objects.table("licence", str, str)

    def list(self, asked, caller):
        return 200, {"licences": list(self.licences)}

    @property
    def routes(self):
        return (("licences", "GET", "/licences", self.list),)
'''
ENTRY_POINTS = """
[tenure.resource_types]
licence = acme:LicenceType
[tenure.inventories]
licence = acme:LICENCES
[tenure.simulated_services]
licence = acme:LicenceServer
"""
#: A process of its own, since what is installed is looked for once in each.
CALLS = """
import json, sys
from pathlib import Path
from tenure.api.policies import list_rules
from tenure.drivers.simulated.openstack.service import ApiRequest
from tenure.drivers.simulated.openstack.transport import SERVICE
from tests.api.rig import NETWORK, ADDRESS, open_api

with open_api(Path(sys.argv[1])) as api:
    api = api.using("admin", "1.2")
    answers = {
        "list": api.get("/v1/licences"),
        "list of a member": api.using("demo").get("/v1/licences"),
        "register": api.post("/v1/licences", {"floating_network_id": NETWORK, "floating_ip_address": ADDRESS}),
        "book": api.post("/v1/leases", api.lease_body(reservations=[{"resource_type": "acme:licence", "amount": 2}])),
        "description": api.get("/openapi.json"),
    }
    found = {name: [answer.status_code, answer.json] for name, answer in answers.items()}
    found["rules"] = {rule.name: rule.check_str for rule in list_rules()}
    found["simulated"] = api.world.cloud.openstack.answer(ApiRequest("licences", "GET", "/licences"), SERVICE)
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("others")
    (folder / "acme.py").write_text(MODULE)
    installed = folder / "acme-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    ledger = folder / "ledger"
    ledger.mkdir()
    called = subprocess.run(
        [sys.executable, "-c", CALLS, str(ledger)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    assert called.returncode == 0, called.stderr
    found: dict[str, Any] = json.loads(called.stdout)
    return found


@pytest.mark.slow
def test_resources_of_the_type_have_urls_with_its_rules(answers: dict[str, Any]):
    assert answers["list"] == [200, {"licences": []}]
    assert answers["list of a member"][0] == 403


@pytest.mark.slow
def test_rules_of_the_type_are_beside_those_of_other_inventories(answers: dict[str, Any]):
    verbs = ("get", "post", "delete", "disable", "reallocate", "get_allocations")
    rules = {name: default for name, default in answers["rules"].items() if name.startswith("acme:")}
    assert rules == {f"acme:licences:{verb}": "rule:admin" for verb in verbs}
    assert answers["rules"]["blazar:floatingips:get"] == "rule:project_reader_or_admin"


def test_the_service_of_the_type_is_part_of_the_simulated_cloud(answers: dict[str, Any]):
    assert answers["simulated"] == [200, {"licences": []}]


@pytest.mark.slow
def test_registering_is_refused_by_a_cloud_without_the_type(answers: dict[str, Any]):
    status, document = answers["register"]
    assert (status, document["field"]) == (404, "floating_ip_address")
    assert "acme:licence" in document["error_message"]


def test_leases_can_reserve_the_type(answers: dict[str, Any]):
    status, document = answers["book"]
    assert (status, document["error_message"].startswith("Not enough licences available")) == (409, True), document


def test_the_type_is_described(answers: dict[str, Any]):
    paths = answers["description"][1]["paths"]
    assert {"/v1/licences", "/v1/licences/{licence_id}", "/v1/leases/{lease_id}/licences"} <= paths.keys()
    assert "/v1/os-hosts" in paths


@pytest.mark.parametrize("folder", ["domain", "store", "services", "engine", "rpc", "api"])
def test_shared_modules_name_no_resource_type(folder: str):
    """Only the modules that bring an inventory of ours onto the wire say whose it is."""
    names = {resource_type.name for resource_type in load_types()}
    root = REPOSITORY / "src" / "tenure" / folder
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    modules = {point.module for point in entry_points(group="tenure.inventories")}
    wires = {f"schemas/{module.rpartition('.')[2]}.py" for module in modules}
    assert found == (wires if folder == "api" else set())
