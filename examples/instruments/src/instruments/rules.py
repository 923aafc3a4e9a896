"""Who may do what with instruments, as of oslo.policy."""

from __future__ import annotations

from oslo_policy import policy

_ADMIN = "rule:admin"
_READER = "rule:project_reader_or_admin"
_ONE, _ALL = "/v1/instruments/{instrument_id}", "/v1/instruments"
_RULES = (
    ("get", _READER, "List instruments, and see one.", [("GET", _ALL), ("GET", _ONE)]),
    ("post", _ADMIN, "Make an instrument reservable.", [("POST", _ALL)]),
    ("delete", _ADMIN, "Take an instrument back.", [("DELETE", _ONE)]),
    (
        "disable",
        _ADMIN,
        "Close an instrument to new reservations, or open it again.",
        [("POST", f"{_ONE}/disable"), ("POST", f"{_ONE}/enable")],
    ),
    ("reallocate", _ADMIN, "Move what is booked on an instrument to others.", [("POST", f"{_ONE}/reallocate")]),
    (
        "get_allocations",
        _ADMIN,
        "See which reservations have which instruments.",
        [("GET", f"{_ALL}/allocations"), ("GET", f"{_ONE}/allocation")],
    ),
)


def list_rules() -> list[policy.RuleDefault]:
    return [
        policy.DocumentedRuleDefault(
            f"lab:instruments:{verb}",
            default,
            description,
            [{"method": method, "path": path} for method, path in operations],
            scope_types=["project"],
        )
        for verb, default, description, operations in _RULES
    ]
