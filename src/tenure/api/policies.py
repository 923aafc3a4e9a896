"""Who may do what: Blazar's rules and their defaults, on oslo.policy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from oslo_config import cfg
from oslo_policy import policy

from tenure.domain.actor import Actor

ADMIN = "admin"
#: The roles that the default rules tell apart.
ROLES = frozenset({ADMIN, "member", "reader"})

_SINCE = "15.0.0"
_REASON = "Any role in the project was enough; from now on the roles reader and member tell reading from writing."

_OWNER = policy.DeprecatedRule(
    "admin_or_owner",
    "rule:admin or project_id:%(project_id)s",
    deprecated_reason=_REASON,
    deprecated_since=_SINCE,
)
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
        operations=[{"method": method, "path": f"/v1{path}"} for method, path in operations],
        scope_types=_SCOPES,
    )


_LEASES = (
    _rule(
        "blazar:leases:get",
        _READER_OR_ADMIN,
        "List leases, and see one with its history and its resources.",
        ("GET", "/leases"),
        ("GET", "/leases/{lease_id}"),
        ("GET", "/leases/{lease_id}/history"),
        ("GET", "/leases/{lease_id}/hosts"),
        ("GET", "/leases/{lease_id}/floatingips"),
    ),
    _rule("blazar:leases:post", _MEMBER_OR_ADMIN, "Make a lease.", ("POST", "/leases")),
    _rule(
        "blazar:leases:put",
        _MEMBER_OR_ADMIN,
        "Change a lease, add a reservation to it, or drop one.",
        ("PUT", "/leases/{lease_id}"),
        ("POST", "/leases/{lease_id}/confirm"),
        ("POST", "/leases/{lease_id}/reservations"),
        ("DELETE", "/leases/{lease_id}/reservations/{reservation_id}"),
    ),
    _rule("blazar:leases:delete", _MEMBER_OR_ADMIN, "Delete a lease.", ("DELETE", "/leases/{lease_id}")),
)
_LIMITS = (
    _rule(
        "tenure:limits:get",
        _READER_OR_ADMIN,
        "See what a project may have booked, and what it has.",
        ("GET", "/limits"),
    ),
)
_HOSTS = (
    _rule(
        "blazar:oshosts:get",
        "rule:admin",
        "List hosts, and see one.",
        ("GET", "/os-hosts"),
        ("GET", "/os-hosts/{host_id}"),
    ),
    _rule("blazar:oshosts:post", "rule:admin", "Make a host reservable.", ("POST", "/os-hosts")),
    _rule("blazar:oshosts:put", "rule:admin", "Change a host's properties.", ("PUT", "/os-hosts/{host_id}")),
    _rule("blazar:oshosts:delete", "rule:admin", "Take a host back.", ("DELETE", "/os-hosts/{host_id}")),
    _rule(
        "blazar:oshosts:disable",
        "rule:admin",
        "Close a host to new reservations, or open it again.",
        ("POST", "/os-hosts/{host_id}/disable"),
        ("POST", "/os-hosts/{host_id}/enable"),
    ),
    _rule(
        "blazar:oshosts:reallocate",
        "rule:admin",
        "Move what is booked on a host to others.",
        ("POST", "/os-hosts/{host_id}/reallocate"),
    ),
    _rule(
        "blazar:oshosts:get_allocations",
        "rule:admin",
        "See which reservations have a part in which hosts.",
        ("GET", "/os-hosts/allocations"),
        ("GET", "/os-hosts/{host_id}/allocation"),
    ),
    _rule(
        "blazar:oshosts:get_resource_properties",
        "rule:admin",
        "List the properties that hosts have.",
        ("GET", "/os-hosts/properties"),
    ),
    _rule(
        "blazar:oshosts:update_resource_properties",
        "rule:admin",
        "Make a property private or public.",
        ("PATCH", "/os-hosts/properties/{property_name}"),
    ),
)
_FLOATING_IPS = (
    _rule(
        "blazar:floatingips:get",
        _READER_OR_ADMIN,
        "List reservable floating IPs, and see one.",
        ("GET", "/floatingips"),
        ("GET", "/floatingips/{floatingip_id}"),
    ),
    _rule("blazar:floatingips:post", "rule:admin", "Make a floating IP reservable.", ("POST", "/floatingips")),
    _rule(
        "blazar:floatingips:delete",
        "rule:admin",
        "Take a floating IP back.",
        ("DELETE", "/floatingips/{floatingip_id}"),
    ),
    _rule(
        "blazar:floatingips:disable",
        "rule:admin",
        "Close a floating IP to new reservations, or open it again.",
        ("POST", "/floatingips/{floatingip_id}/disable"),
        ("POST", "/floatingips/{floatingip_id}/enable"),
    ),
    _rule(
        "blazar:floatingips:reallocate",
        "rule:admin",
        "Move what is booked on a floating IP to others.",
        ("POST", "/floatingips/{floatingip_id}/reallocate"),
    ),
    _rule(
        "blazar:floatingips:get_allocations",
        "rule:admin",
        "See which reservations have a part in which floating IPs.",
        ("GET", "/floatingips/allocations"),
        ("GET", "/floatingips/{floatingip_id}/allocation"),
    ),
)

_VOLUME_POOLS = (
    _rule(
        "tenure:volumepools:get",
        "rule:admin",
        "List the volume pools that can be reserved from, and see one.",
        ("GET", "/volume-pools"),
        ("GET", "/volume-pools/{volume_pool_id}"),
    ),
    _rule("tenure:volumepools:post", "rule:admin", "Make a volume pool reservable.", ("POST", "/volume-pools")),
    _rule(
        "tenure:volumepools:put",
        "rule:admin",
        "Change how much of a volume pool is lent.",
        ("PUT", "/volume-pools/{volume_pool_id}"),
    ),
    _rule(
        "tenure:volumepools:delete",
        "rule:admin",
        "Take a volume pool back.",
        ("DELETE", "/volume-pools/{volume_pool_id}"),
    ),
    _rule(
        "tenure:volumepools:disable",
        "rule:admin",
        "Close a volume pool to new reservations, or open it again.",
        ("POST", "/volume-pools/{volume_pool_id}/disable"),
        ("POST", "/volume-pools/{volume_pool_id}/enable"),
    ),
    _rule(
        "tenure:volumepools:reallocate",
        "rule:admin",
        "Move what is booked in a volume pool to others.",
        ("POST", "/volume-pools/{volume_pool_id}/reallocate"),
    ),
    _rule(
        "tenure:volumepools:get_allocations",
        "rule:admin",
        "See which reservations have a part in which volume pools.",
        ("GET", "/volume-pools/allocations"),
        ("GET", "/volume-pools/{volume_pool_id}/allocation"),
    ),
)


def list_rules() -> tuple[policy.RuleDefault, ...]:
    """Every rule with its default and what it is for; oslo.policy's tools print them."""
    return (*_ROLES, *_LEASES, *_LIMITS, *_HOSTS, *_FLOATING_IPS, *_VOLUME_POOLS)


def foreign_rules() -> tuple[policy.RuleDefault, ...]:
    """The rules of types by others, by their entry points."""
    found = sorted(entry_points(group="tenure.policies"), key=lambda one: one.name)
    return tuple(rule for one in found for rule in one.load()())


class Policies:
    """Answers whether an actor may do something to a target."""

    def __init__(self, conf: cfg.ConfigOpts | None = None) -> None:
        """Use the operator's configuration; without one, the defaults."""
        if conf is None:
            conf = cfg.ConfigOpts()
            conf([], project="tenure", default_config_files=[], default_config_dirs=[])
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.register_defaults([*list_rules(), *foreign_rules()])
        self._enforcer.load_rules()

    def authorize(self, rule: str, actor: Actor, target: Mapping[str, str]) -> bool:
        """Whether ``actor`` may do what ``rule`` is about to ``target``. Raises for a rule that does not exist.

        Nobody without a project may do anything: an empty project would be that of everything that has none.
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
