"""Every installed type has samples for the suites that run over all types."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest

from tenure.api.schemas.resources import served_inventories
from tenure.resources.contract import load_types
from tenure.testing.types import TypeContract
from tests.support.samples import installed_samples, sample_modules, sampled_inventories


@pytest.mark.parametrize(("name", "module"), sorted(sample_modules().items()))
def test_type_keeps_the_contract_and_has_samples(name: str, module: str):
    path = f"{module.replace('.', '/')}.py"
    assert find_spec(module) is not None, f"the resource type {name} is installed: write {path} with its samples"
    held = vars(import_module(module))
    assert name in installed_samples(), f"{path} has no SAMPLES"
    tested = [value for value in held.values() if isinstance(value, type) and issubclass(value, TypeContract)]
    contracts = [contract.resource_type.name for contract in tested if contract is not TypeContract]
    assert contracts == [held["SAMPLES"].reservation["resource_type"]], f"{path} has no TypeContract of its type"


def test_every_inventory_has_samples():
    served = {wire.resource_type for wire, _ in served_inventories(load_types())}
    assert {wire.resource_type for wire, _ in sampled_inventories()} == served, "SAMPLES of a type lack its inventory"
