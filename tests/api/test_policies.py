"""Blazar's policies: the same names, the same defaults, the operator's file on top."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_policy.policy import DocumentedRuleDefault

from tenure.api.policies import REMEMBERED_SECONDS, Policies, list_rules
from tenure.api.schemas.resources import WireInventory, served_inventories
from tenure.api.table import operations_of
from tenure.domain.actor import Actor
from tenure.resources.contract import Inventory, load_types

OWNED = {"project_id": "p", "user_id": "u"}
READ = {"blazar:leases:get", "blazar:floatingips:get"}
WRITE = {"blazar:leases:post", "blazar:leases:put", "blazar:leases:delete"}
ADMINISTER = {
    "admin",
    "blazar:oshosts:get",
    "blazar:oshosts:post",
    "blazar:oshosts:put",
    "blazar:oshosts:delete",
    "blazar:oshosts:get_allocations",
    "blazar:oshosts:disable",
    "blazar:oshosts:reallocate",
    "blazar:oshosts:get_resource_properties",
    "blazar:oshosts:update_resource_properties",
    "blazar:floatingips:post",
    "blazar:floatingips:delete",
    "blazar:floatingips:disable",
    "blazar:floatingips:reallocate",
    "blazar:floatingips:get_allocations",
}


def allowed(policies: Policies, project: str, *roles: str) -> set[str]:
    actor = Actor("u", project, frozenset(roles))
    return {rule for rule in READ | WRITE | ADMINISTER if policies.authorize(rule, actor, OWNED)}


def test_the_defaults_are_those_of_blazar() -> None:
    policies = Policies()
    assert allowed(policies, "p", "reader") == READ
    assert allowed(policies, "p", "member", "reader") == READ | WRITE
    assert allowed(policies, "p", "member") == WRITE
    assert allowed(policies, "p", "admin") == READ | WRITE | ADMINISTER
    assert allowed(policies, "other", "admin") == READ | WRITE | ADMINISTER
    assert allowed(policies, "other", "member", "reader") == set()
    assert allowed(policies, "p") == allowed(policies, "p", "guest") == set()


def test_actor_without_a_project_has_no_permissions() -> None:
    actor = Actor("u", "", frozenset({"admin", "member", "reader"}))
    assert not Policies().authorize("blazar:leases:get", actor, {"project_id": "", "user_id": "u"})


def test_the_names_are_those_of_blazar() -> None:
    """But for what Blazar cannot do: limits, closing and emptying hosts and addresses, who has which address."""
    named = {rule.name for rule in list_rules()}
    assert {name for name in named if name.startswith("blazar:") or ":" not in name} == {
        *READ,
        *WRITE,
        *ADMINISTER,
        "admin_or_owner",
        "project_member_api",
        "project_reader_api",
        "project_member_or_admin",
        "project_reader_or_admin",
    }
    assert named >= {"tenure:limits:get", "tenure:volumepools:put"}


def test_every_operation_has_one_rule() -> None:
    documented = [
        (operation["method"], operation["path"])
        for rule in list_rules()
        if isinstance(rule, DocumentedRuleDefault)
        for operation in rule.operations
    ]
    served = [
        (operation.method, operation.path) for operation in operations_of(tuple(load_types())) if not operation.public
    ]
    # But for properties, which an older rule shows to administrators.
    twice = [(method, path) for method, path in served if method == "GET" and path.endswith("/properties")]
    assert sorted(documented) == sorted([*served, *twice])


@pytest.mark.parametrize(("wire", "inventory"), served_inventories(load_types()))
def test_only_administrators_change_an_inventory(wire: WireInventory, inventory: Inventory) -> None:
    policies = Policies()
    rules = {rule.name for rule in list_rules() if rule.name.startswith(f"{inventory.rules}:")}
    reader = Actor("u", "p", frozenset({"member", "reader"}))
    permitted = {rule for rule in rules if policies.authorize(rule, reader, OWNED)}
    assert permitted == ({f"{inventory.rules}:get"} if wire.is_for_readers else set())
    assert all(policies.authorize(rule, Actor("u", "p", frozenset({"admin"})), OWNED) for rule in rules)


def configured(
    directory: Path, settings: str, policy: str = "", timer: Callable[[], float] = time.monotonic
) -> Policies:
    (directory / "tenure.conf").write_text(f"[oslo_policy]\npolicy_file = {directory}/policy.yaml\n{settings}")
    (directory / "policy.yaml").write_text(policy)
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[str(directory / "tenure.conf")], default_config_dirs=[])
    return Policies(conf, timer)


def test_rules_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    twice = "blazar:leases:get: '@'\nblazar:leases:post: '@'\nblazar:leases:get: '!'\n"
    with pytest.raises(ValueError, match=r"policy\.yaml, line 3: 'blazar:leases:get' is there already, in line 1"):
        configured(tmp_path, "", twice)


@pytest.mark.filterwarnings("ignore:Policy:UserWarning")
def test_the_old_defaults_can_be_configured(tmp_path: Path) -> None:
    policies = configured(tmp_path, "enforce_new_defaults = false\n")
    assert allowed(policies, "p", "guest") == READ | WRITE
    assert allowed(policies, "other", "guest") == set()


def test_the_operator_has_the_last_word(tmp_path: Path) -> None:
    policies = configured(tmp_path, "", '"blazar:oshosts:get": "rule:project_reader_or_admin"\n"admin": "role:boss"\n')
    assert "blazar:oshosts:get" in allowed(policies, "p", "reader")
    assert allowed(policies, "other", "boss") >= WRITE
    assert allowed(policies, "other", "admin") == set()


def test_a_changed_policy_file_is_in_effect_a_second_later(tmp_path: Path) -> None:
    seconds = [0.0]
    policies = configured(tmp_path, "", '"blazar:oshosts:get": "!"\n', lambda: seconds[0])
    admin = Actor("u", "p", frozenset({"admin"}))
    assert not policies.authorize("blazar:oshosts:get", admin, OWNED)
    assert policies.authorize("blazar:leases:get", admin, OWNED)
    (tmp_path / "policy.yaml").write_text('"blazar:oshosts:get": "@"\n')
    later = time.time() + 60
    os.utime(tmp_path / "policy.yaml", (later, later))
    assert not policies.authorize("blazar:oshosts:get", admin, OWNED)
    seconds[0] = REMEMBERED_SECONDS
    assert policies.authorize("blazar:oshosts:get", admin, OWNED)
