"""What a filter is. Sites may bring their own, by entry points in the group ``tenure.enforcement_filters``.

A filter is given values as Blazar gives them: a context (``user_id``, ``project_id``, ``auth_url``, ``region_name``)
and leases with the names of the API at 1.0. Dates are ``datetime`` without a zone, in UTC. Each reservation has its
parameters and ``allocations``, a list of the resources that serve it; a lease has ``resource_requests``, how much it
takes of each resource class.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from oslo_config import cfg

Values = Mapping[str, Any]


class EnforcementFilter:
    """A filter that has no objection to anything; others override what they have something to say about.

    A check refuses by raising one of our errors: ``Denied``, with words for the user, or another of
    ``tenure.domain.errors``. It is asked outside any transaction, after it is known that there is room, and before
    anything is written; asked again where what would be booked has changed meanwhile. What a check has allowed may
    still not come about.

    The other methods, those in ``listens_to``, are called after the fact, from the outbox: in the order in which it
    happened to a lease, with ``key`` the same at every repetition, and repeated until they return. Dates are
    ``datetime`` there, too.
    """

    #: Options of its own, to be registered in ``[enforcement]``; each is an attribute of the filter.
    enforcement_opts: ClassVar[Sequence[cfg.Opt]] = ()

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Raises ``ValueError`` where the options make no sense; the text names them."""
        self.conf = conf
        conf.register_opts(list(self.enforcement_opts), group="enforcement")

    def __getattr__(self, name: str) -> Any:
        if name == "conf":  # not set yet: else this would ask for itself for ever
            raise AttributeError(name)
        try:
            return self.conf.enforcement[name]
        except cfg.NoSuchOptError:
            raise AttributeError(f"there is no option {name} in [enforcement]") from None

    @property
    def listens_to(self) -> Collection[str]:
        """The methods that are to be called after the fact: those that the class overrides."""
        after = ("commit_create", "commit_update", "on_end")
        return frozenset(name for name in after if getattr(type(self), name) is not getattr(EnforcementFilter, name))

    def check_create(self, context: Values, lease_values: Values) -> None:
        """Object to a lease that would be made; it has no reservation ids yet."""

    def check_update(self, context: Values, current_lease_values: Values, new_lease_values: Values) -> None:
        """Object to a change of a lease: of its dates, its reservations, or what serves them."""

    def commit_create(self, context: Values, lease_values: Values, *, key: str) -> None:
        """Be told that a lease exists."""

    def commit_update(
        self, context: Values, current_lease_values: Values, new_lease_values: Values, *, key: str
    ) -> None:
        """Be told that a lease has changed; ``current_lease_values`` is what was told last."""

    def on_end(self, context: Values, lease_values: Values, *, key: str) -> None:
        """Be told that a lease is over: it has ended or was deleted, failed for good, or never came about."""
