"""A limit on the duration of leases."""

from __future__ import annotations

from tenure.domain.errors import InvalidParameter, NotPermitted
from tenure.enforcement.contract import EnforcementFilter, Values

#: The value of the option without a limit.
_UNBOUNDED = -1


class MaxLeaseDurationFilter(EnforcementFilter):
    """Limits leases to ``max_lease_duration`` seconds, except those of exempt projects.

    A lease that is longer because it is older than the limit may keep its length, or become shorter.
    """

    def check_create(self, context: Values, lease_values: Values) -> None:
        if words := self._excess(context, lease_values):
            raise NotPermitted(words, field="end_date")

    def check_update(self, context: Values, current_lease_values: Values, new_lease_values: Values) -> None:
        words = self._excess(context, new_lease_values)
        if words and _seconds(new_lease_values) > _seconds(current_lease_values):
            raise InvalidParameter(words, field="end_date")

    def _excess(self, context: Values, lease: Values) -> str | None:
        """Return the refusal for a lease that is too long; None if it is not."""
        longest = self.max_lease_duration
        if longest == _UNBOUNDED or context["project_id"] in self.max_lease_duration_exempt_project_ids:
            return None
        if _seconds(lease) <= longest:
            return None
        return (
            f"Lease duration of {_seconds(lease)} seconds must be less than or equal to the maximum lease duration of "
            f"{longest} seconds."
        )


def _seconds(lease: Values) -> int:
    return int((lease["end_date"] - lease["start_date"]).total_seconds())
