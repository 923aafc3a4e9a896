"""The policy rules of the API, with Blazar's names and defaults, on oslo.policy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from oslo_config import cfg
from oslo_policy import policy

from tenure.domain.actor import Actor

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
READER_OR_ADMIN = "rule:project_reader_or_admin"
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
        READER_OR_ADMIN,
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
        READER_OR_ADMIN,
        "See what a project may have booked, and what it has.",
        ("GET", "/limits"),
    ),
)


def inventory_rules(
    rules: str,
    path: str,
    noun: str,
    nouns: str,
    *,
    part: str,
    listing: str,
    readers: str = "rule:admin",
    place: str = "on",
    put: str | None = None,
) -> tuple[policy.RuleDefault, ...]:
    """Return the rules of an inventory, for the operations below ``/v1`` and ``path``.

    ``rules`` is the prefix of their names, and ``part`` the name of the id in URLs. ``put`` is the description of the
    rule about changes, which is left out without it.
    """
    resource = f"{path}/{{{part}}}"

    def rule(
        end: str, description: str, *operations: tuple[str, str], default: str = "rule:admin"
    ) -> policy.RuleDefault:
        return _rule(f"{rules}:{end}", default, description, *operations)

    return (
        rule("get", listing, ("GET", path), ("GET", resource), default=readers),
        rule("post", f"Make a {noun} reservable.", ("POST", path)),
        *([rule("put", put, ("PUT", resource))] if put else []),
        rule("delete", f"Take a {noun} back.", ("DELETE", resource)),
        rule(
            "disable",
            f"Close a {noun} to new reservations, or open it again.",
            ("POST", f"{resource}/disable"),
            ("POST", f"{resource}/enable"),
        ),
        rule("reallocate", f"Move what is booked {place} a {noun} to others.", ("POST", f"{resource}/reallocate")),
        rule(
            "get_allocations",
            f"See which reservations have a part in which {nouns}.",
            ("GET", f"{path}/allocations"),
            ("GET", f"{resource}/allocation"),
        ),
    )


_HOSTS = (
    *inventory_rules(
        "blazar:oshosts",
        "/os-hosts",
        "host",
        "hosts",
        part="host_id",
        listing="List hosts, and see one.",
        put="Change a host's properties.",
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
_FLOATING_IPS = inventory_rules(
    "blazar:floatingips",
    "/floatingips",
    "floating IP",
    "floating IPs",
    part="floatingip_id",
    listing="List reservable floating IPs, and see one.",
    readers=READER_OR_ADMIN,
)
_VOLUME_POOLS = inventory_rules(
    "tenure:volumepools",
    "/volume-pools",
    "volume pool",
    "volume pools",
    part="volume_pool_id",
    listing="List the volume pools that can be reserved from, and see one.",
    place="in",
    put="Change how much of a volume pool is lent.",
)


def list_rules() -> tuple[policy.RuleDefault, ...]:
    """Return every rule with its default and description; the tools of oslo.policy print them."""
    return (*_ROLES, *_LEASES, *_LIMITS, *_HOSTS, *_FLOATING_IPS, *_VOLUME_POOLS)


def foreign_rules() -> tuple[policy.RuleDefault, ...]:
    """Return the rules of third-party resource types, by their entry points."""
    points = sorted(entry_points(group="tenure.policies"), key=lambda point: point.name)
    return tuple(rule for point in points for rule in point.load()())


class Policies:
    """Decides whether a policy rule permits an actor to act on a target."""

    def __init__(self, conf: cfg.ConfigOpts | None = None) -> None:
        """Use the configuration of the operator, or the defaults."""
        if conf is None:
            conf = cfg.ConfigOpts()
            conf([], project="tenure", default_config_files=[], default_config_dirs=[])
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.register_defaults([*list_rules(), *foreign_rules()])
        self._enforcer.load_rules()

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
