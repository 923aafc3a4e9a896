"""The policy rules of the API, with Blazar's names and defaults, on oslo.policy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cachetools import TTLCache
from oslo_config import cfg
from oslo_policy import policy

from tenure.api.operations import Rule
from tenure.api.table import operations_of
from tenure.domain.actor import Actor
from tenure.operator_yaml import RepeatedKey, read_yaml
from tenure.resources.contract import load_types

#: For how many seconds a decision counts: a changed policy file is in effect after that.
REMEMBERED_SECONDS = 1.0
MOST_REMEMBERED = 10_000

ADMIN = "admin"
#: The roles in the default rules.
ROLES = frozenset({ADMIN, "member", "reader"})

_SINCE = "15.0.0"
_REASON = "Any role in the project was enough; from now on the roles reader and member tell reading from writing."

_OWNER = policy.DeprecatedRule(
    "admin_or_owner", "rule:admin or project_id:%(project_id)s", deprecated_reason=_REASON, deprecated_since=_SINCE
)

_ROLES = (
    policy.RuleDefault(ADMIN, "is_admin:True or role:admin", "Administrators."),
    policy.RuleDefault(
        "admin_or_owner",
        "rule:admin or project_id:%(project_id)s",
        "Administrators, and everybody of the project that owns the thing.",
        deprecated_for_removal=True,
        deprecated_reason=_REASON,
        deprecated_since=_SINCE,
    ),
    policy.RuleDefault(
        "project_member_api",
        "role:member and project_id:%(project_id)s",
        "Members of the project that owns the thing.",
        deprecated_rule=_OWNER,
    ),
    policy.RuleDefault(
        "project_reader_api",
        "role:reader and project_id:%(project_id)s",
        "Readers of the project that owns the thing.",
        deprecated_rule=_OWNER,
    ),
    policy.RuleDefault(
        "project_member_or_admin",
        "rule:project_member_api or rule:admin",
        "Members of the project that owns the thing, and administrators.",
        deprecated_rule=_OWNER,
    ),
    policy.RuleDefault(
        "project_reader_or_admin",
        "rule:project_reader_api or rule:admin",
        "Readers of the project that owns the thing, and administrators.",
        deprecated_rule=_OWNER,
    ),
)


def list_rules() -> tuple[policy.RuleDefault, ...]:
    """Return every rule with its default and description, those of installed inventories included.

    The tools of oslo.policy print them.
    """
    paths: dict[Rule, list[policy.Operation]] = {}
    for operation in operations_of(tuple(load_types())):
        for rule in operation.rules:
            paths.setdefault(rule, []).append({"method": operation.method, "path": operation.path})
    return (*_ROLES, *(_documented(rule, operations) for rule, operations in paths.items()))


def _documented(rule: Rule, operations: list[policy.Operation]) -> policy.DocumentedRuleDefault:
    return policy.DocumentedRuleDefault(
        name=rule.name,
        check_str=rule.default,
        description=rule.description,
        operations=operations,
        scope_types=["project"],
    )


class PolicyFileError(ValueError):
    """The policy file cannot be meant as it is; the text says where."""


def _check_file(path: Path) -> None:
    """Refuse repeated rules, of which oslo.policy takes the last one."""
    try:
        read_yaml(path.read_bytes())
    except RepeatedKey as error:
        raise PolicyFileError(f"The policy file {path}, {error}") from None


class Policies:
    """Decides whether a policy rule permits an actor to act on a target.

    Decisions are remembered for a second: oslo.policy looks at its files and takes its rules apart for each of them,
    which would be a tenth of a create.
    """

    def __init__(self, conf: cfg.ConfigOpts | None = None, timer: Callable[[], float] = time.monotonic) -> None:
        """Use the configuration of the operator, or the defaults. Raises ``PolicyFileError`` for a file that is wrong.

        Changes of the file are in effect after ``REMEMBERED_SECONDS``, without these checks.
        """
        if conf is None:
            conf = cfg.ConfigOpts()
            conf([], project="tenure", default_config_files=[], default_config_dirs=[])
        self._decisions: TTLCache[object, bool] = TTLCache(MOST_REMEMBERED, REMEMBERED_SECONDS, timer)
        self._guard = threading.Lock()
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.register_defaults(list_rules())
        self._enforcer.load_rules()
        if self._enforcer.policy_path:
            _check_file(Path(self._enforcer.policy_path))

    def authorize(self, rule: str, actor: Actor, target: Mapping[str, str]) -> bool:
        """Whether ``rule`` permits ``actor`` to act on ``target``. Raises for a rule that does not exist.

        An actor without a project has no permissions: his empty project would equal that of targets without a project.
        """
        if not actor.project_id:
            return False
        key = rule, actor.user_id, actor.project_id, actor.roles, *sorted(target.items())
        with self._guard:
            decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(rule, actor, target)
            with self._guard:
                self._decisions[key] = decision
        return decision

    def _decide(self, rule: str, actor: Actor, target: Mapping[str, str]) -> bool:
        credentials = {
            "user_id": actor.user_id,
            "project_id": actor.project_id,
            "roles": sorted(actor.roles),
            "is_admin": False,
        }
        return bool(self._enforcer.authorize(rule, dict(target), credentials))
