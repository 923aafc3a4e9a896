"""The policy rules of the API, with Blazar's names and defaults, on oslo.policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from oslo_config import cfg
from oslo_policy import policy

from tenure.api.schemas.resources import WireInventory, served_inventories
from tenure.domain.actor import Actor
from tenure.operator_yaml import RepeatedKey, read_yaml
from tenure.resources.contract import load_types

ADMIN = "admin"
#: The roles in the default rules.
ROLES = frozenset({ADMIN, "member", "reader"})

_SINCE = "15.0.0"
_REASON = "Any role in the project was enough; from now on the roles reader and member tell reading from writing."

_OWNER = policy.DeprecatedRule(
    "admin_or_owner",
    "rule:admin or project_id:%(project_id)s",
    deprecated_reason=_REASON,
    deprecated_since=_SINCE,
)
_ADMIN = "rule:admin"
_READER_OR_ADMIN = "rule:project_reader_or_admin"
_MEMBER_OR_ADMIN = "rule:project_member_or_admin"
_SCOPES = ["project"]

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


def _rule(name: str, default: str, description: str, *operations: tuple[str, str]) -> policy.DocumentedRuleDefault:
    return policy.DocumentedRuleDefault(
        name=name,
        check_str=default,
        description=description,
        operations=[{"method": method, "path": path} for method, path in operations],
        scope_types=_SCOPES,
    )


_LEASE = "/v1/leases/{lease_id}"


def _lease_rules(inventories: Iterable[WireInventory]) -> Iterator[policy.RuleDefault]:
    yield _rule(
        "blazar:leases:get",
        _READER_OR_ADMIN,
        "List leases, and see one with its history and its resources.",
        ("GET", "/v1/leases"),
        ("GET", _LEASE),
        ("GET", f"{_LEASE}/history"),
        *(("GET", wire.leased_path) for wire in inventories),
    )
    yield _rule("blazar:leases:post", _MEMBER_OR_ADMIN, "Make a lease.", ("POST", "/v1/leases"))
    yield _rule(
        "blazar:leases:put",
        _MEMBER_OR_ADMIN,
        "Change a lease, add a reservation to it, or drop one.",
        ("PUT", _LEASE),
        ("POST", f"{_LEASE}/confirm"),
        ("POST", f"{_LEASE}/reservations"),
        ("DELETE", f"{_LEASE}/reservations/{{reservation_id}}"),
    )
    yield _rule("blazar:leases:delete", _MEMBER_OR_ADMIN, "Delete a lease.", ("DELETE", _LEASE))


_LIMITS = _rule(
    "tenure:limits:get",
    _READER_OR_ADMIN,
    "See what a project may have booked, and what it has.",
    ("GET", "/v1/limits"),
)


_USAGE = _rule(
    "tenure:usage:get",
    _READER_OR_ADMIN,
    "See what a project has had in a period, in resource-hours; without a project, administrators see all.",
    ("GET", "/v1/usage"),
)


_AVAILABILITY = _rule(
    "tenure:availability:get",
    _READER_OR_ADMIN,
    "See how much is free, over time, and when a lease fits; resources and projects are for administrators only.",
    ("GET", "/v1/availability"),
    ("GET", "/v1/offers"),
    ("POST", "/v1/offers"),
    ("POST", "/v1/offers/longest"),
    ("POST", "/v1/offers/largest"),
)


def _property_rule(inventories: Iterable[WireInventory]) -> policy.RuleDefault:
    return _rule(
        "tenure:properties:get",
        _READER_OR_ADMIN,
        "From 1.3 on: see the public properties that resources have, and their values.",
        *(("GET", f"{wire.path}/properties") for wire in inventories if wire.properties is not None),
    )


def _inventory_rules(wire: WireInventory, prefix: str) -> Iterator[policy.RuleDefault]:
    """Return the rules of an inventory; their names begin with ``prefix``."""
    noun, nouns, collection, resource = wire.noun, wire.nouns, wire.path, wire.resource_path

    def rule(verb: str, description: str, *operations: tuple[str, str], default: str = _ADMIN) -> policy.RuleDefault:
        return _rule(f"{prefix}:{verb}", default, description, *operations)

    readers = _READER_OR_ADMIN if wire.is_for_readers else _ADMIN
    yield rule("get", f"List {nouns}, and see one.", ("GET", collection), ("GET", resource), default=readers)
    yield rule("post", f"Make a {noun} reservable.", ("POST", collection))
    if wire.properties is not None:
        yield rule("put", f"Change a {noun}'s properties.", ("PUT", resource))
    elif wire.lending is not None:
        yield rule("put", f"Change how much of a {noun} is lent.", ("PUT", resource))
    yield rule("delete", f"Take a {noun} back.", ("DELETE", resource))
    yield rule(
        "disable",
        f"Close a {noun} to new reservations, or open it again.",
        ("POST", f"{resource}/disable"),
        ("POST", f"{resource}/enable"),
    )
    yield rule("reallocate", f"Move the reservations of a {noun} to others.", ("POST", f"{resource}/reallocate"))
    yield rule(
        "get_allocations",
        f"See which reservations have a part in which {nouns}.",
        ("GET", f"{collection}/allocations"),
        ("GET", f"{resource}/allocation"),
    )
    if wire.properties is not None:
        properties = f"{collection}/properties"
        yield rule("get_resource_properties", f"List the properties that {nouns} have.", ("GET", properties))
        yield rule(
            "update_resource_properties",
            "Make a property private or public.",
            ("PATCH", f"{properties}/{{property_name}}"),
        )


def list_rules() -> tuple[policy.RuleDefault, ...]:
    """Return every rule with its default and description, those of installed inventories included.

    The tools of oslo.policy print them.
    """
    inventories = served_inventories(load_types())
    return (
        *_ROLES,
        *_lease_rules(wire for wire, _ in inventories),
        _LIMITS,
        _USAGE,
        _AVAILABILITY,
        _property_rule(wire for wire, _ in inventories),
        *(rule for wire, stock in inventories for rule in _inventory_rules(wire, stock.rules)),
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
    """Decides whether a policy rule permits an actor to act on a target."""

    def __init__(self, conf: cfg.ConfigOpts | None = None) -> None:
        """Use the configuration of the operator, or the defaults. Raises ``PolicyFileError`` for a file that is wrong.

        Changes of the file are read later, without these checks.
        """
        if conf is None:
            conf = cfg.ConfigOpts()
            conf([], project="tenure", default_config_files=[], default_config_dirs=[])
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
        credentials = {
            "user_id": actor.user_id,
            "project_id": actor.project_id,
            "roles": sorted(actor.roles),
            "is_admin": False,
        }
        return bool(self._enforcer.authorize(rule, dict(target), credentials))
