"""Which leases to list, and in which order, for servers that ignore both."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from tenureclient.errors import BadRequest
from tenureclient.models import Lease
from tenureclient.wire import rfc3339

#: What ids of Keystone look like.
_ID = re.compile(r"[0-9a-f]{32}([0-9a-f]{32})?")

SORT_KEYS = ("created_at", "name", "start_date", "end_date")


@dataclass(frozen=True, slots=True)
class LeaseFilter:
    """Which leases to list; a field that is None does not restrict the list."""

    name: str | None = None
    status: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    starts_before: datetime | None = None
    ends_after: datetime | None = None

    def to_query(self) -> dict[str, str]:
        texts = {
            "name": self.name,
            "status": self.status,
            "user_id": self.user_id,
            "project_id": self.project_id,
            "starts_before": None if self.starts_before is None else rfc3339(self.starts_before),
            "ends_after": None if self.ends_after is None else rfc3339(self.ends_after),
        }
        return {key: text for key, text in texts.items() if text is not None}

    def check_ids(self, leases: Collection[Lease]) -> None:
        """Raise ``BadRequest`` for a user or a project that is no id and that no lease has.

        API 1.0 shows ids only: a name would find nothing.
        """
        for what, asked, known in (
            ("user", self.user_id, {lease.user_id for lease in leases}),
            ("project", self.project_id, {lease.project_id for lease in leases}),
        ):
            if asked is not None and asked not in known and not _ID.fullmatch(asked):
                message = f"No lease is of the {what} '{asked}'. This server knows ids only, not names."
                raise BadRequest(message, code=400, name="InvalidParameter")

    def holds_for(self, lease: Lease) -> bool:
        """Whether the lease matches. API 1.0 ignores filters, so the client applies them itself."""
        return (
            self.name in (None, lease.name)
            and self.status in (None, lease.status)
            and self.user_id in (None, lease.user_id)
            and self.project_id in (None, lease.project_id)
            and (self.starts_before is None or lease.start_date < self.starts_before)
            and (self.ends_after is None or lease.end_date > self.ends_after)
        )


def sort_value(lease: Lease, key: str) -> str:
    """Return a text that orders leases like this field."""
    value = getattr(lease, key)
    return rfc3339(value) if isinstance(value, datetime) else str(value or "")
