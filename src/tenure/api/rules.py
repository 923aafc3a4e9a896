"""The rules of the API that say who may do what, each declared beside the operations that it is for."""

from __future__ import annotations

from dataclasses import dataclass

#: The role of administrators, and the rule that they fulfil.
ADMIN = "admin"
ADMINISTRATORS = f"rule:{ADMIN}"
READERS = "rule:project_reader_or_admin"
MEMBERS = "rule:project_member_or_admin"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its default, which an operator can change in the policy file."""

    name: str
    default: str
    #: What it permits.
    description: str
