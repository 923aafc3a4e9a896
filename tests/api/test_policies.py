"""Blazar's policies: the same names, the same defaults, the operator's file on top."""

from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import cfg

from tenure.api.policies import Policies, list_rules
from tenure.domain.actor import Actor

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
    """But for what Blazar cannot do: volumes, limits, closing and emptying hosts and addresses, who has which one."""
    named = {rule.name for rule in list_rules()}
    assert named >= READ | WRITE | ADMINISTER
    assert named - READ - WRITE - ADMINISTER == {
        "admin_or_owner",
        "project_member_api",
        "project_reader_api",
        "project_member_or_admin",
        "project_reader_or_admin",
        "tenure:limits:get",
        *(
            f"tenure:volumepools:{verb}"
            for verb in ("get", "post", "put", "delete", "disable", "reallocate", "get_allocations")
        ),
    }


def configured(directory: Path, settings: str, policy: str = "") -> Policies:
    (directory / "tenure.conf").write_text(f"[oslo_policy]\npolicy_file = {directory}/policy.yaml\n{settings}")
    (directory / "policy.yaml").write_text(policy)
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[str(directory / "tenure.conf")], default_config_dirs=[])
    return Policies(conf)


@pytest.mark.filterwarnings("ignore:Policy:UserWarning")
def test_the_old_defaults_can_be_had(tmp_path: Path) -> None:
    policies = configured(tmp_path, "enforce_new_defaults = false\n")
    assert allowed(policies, "p", "guest") == READ | WRITE
    assert allowed(policies, "other", "guest") == set()


def test_the_operator_has_the_last_word(tmp_path: Path) -> None:
    policies = configured(tmp_path, "", '"blazar:oshosts:get": "rule:project_reader_or_admin"\n"admin": "role:boss"\n')
    assert "blazar:oshosts:get" in allowed(policies, "p", "reader")
    assert allowed(policies, "other", "boss") >= WRITE
    assert allowed(policies, "other", "admin") == set()
