"""The contract of enforcement filters. A site can add filters by entry points in ``tenure.enforcement_filters``.

A filter gets the values that Blazar passes: a context (``user_id``, ``project_id``, ``auth_url``, ``region_name``) and
leases with the names of API 1.0. Dates are ``datetime`` without a zone, in UTC. Each reservation has its parameters and
``allocations``, a list of the resources that serve it. A lease has ``resource_requests``, the amount of each resource
class that it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from oslo_config import cfg

Values = Mapping[str, Any]


class EnforcementFilter:
    """A filter that allows everything; subclasses override the methods that they need.

    A check refuses by raising one of our errors: ``Denied`` with a text for the user, or another of
    ``tenure.domain.errors``. Checks run outside any transaction, after the search for room and before anything is
    written. They run again if what would be booked has changed meanwhile. A lease that a check has allowed may still
    not be created.

    The other methods, those in ``listens_to``, are called after the fact, from the outbox: in the order of the changes
    to a lease, with the same ``key`` in every repetition, and repeated until they return. Their dates are ``datetime``
    as well.
    """

    #: The filter's own options, registered in ``[enforcement]``; each is an attribute of the filter.
    enforcement_opts: ClassVar[Sequence[cfg.Opt]] = ()

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Raise ``ValueError`` for invalid options; the text names them."""
        self.conf = conf
        conf.register_opts(list(self.enforcement_opts), group="enforcement")

    def __getattr__(self, name: str) -> Any:
        if name == "conf":  # not set yet; otherwise this would recurse without end
            raise AttributeError(name)
        try:
            return self.conf.enforcement[name]
        except cfg.NoSuchOptError:
            raise AttributeError(f"there is no option {name} in [enforcement]") from None

    @property
    def listens_to(self) -> Collection[str]:
        """Return the methods to call after the fact: those that the class overrides."""
        after = ("commit_create", "commit_update", "on_end")
        return frozenset(name for name in after if getattr(type(self), name) is not getattr(EnforcementFilter, name))

    def check_create(self, context: Values, lease_values: Values) -> None:
        """Refuse a lease that would be created, by raising. It has no reservation ids yet."""

    def check_update(self, context: Values, current_lease_values: Values, new_lease_values: Values) -> None:
        """Refuse a change of a lease, by raising: of its dates, its reservations, or their allocations."""

    def commit_create(self, context: Values, lease_values: Values, *, key: str) -> None:
        """Handle the creation of a lease."""

    def commit_update(
        self, context: Values, current_lease_values: Values, new_lease_values: Values, *, key: str
    ) -> None:
        """Handle a change of a lease; ``current_lease_values`` is what the last call reported."""

    def on_end(self, context: Values, lease_values: Values, *, key: str) -> None:
        """Handle the end of a lease: it has ended or was deleted, failed for good, or was never created."""
