"""The answer to a dry run: the effects that a request would have."""

from __future__ import annotations

from tenureclient.documents import Document, document
from tenureclient.models import Lease


@document("a cost")
class Cost(Document):
    """What a lease takes of one kind of resource, under the name of its limit.

    ``amount`` is the number of units at any one time. ``hours`` are those of all units together over the
    whole lease, where a begun hour counts; ``hours_before`` are those without the change.
    """

    name: str
    amount: int
    hours: int
    hours_before: int


@document("a limit")
class ExpectedLimit(Document):
    """A limit of the project (-1: no limit), its usage, and the usage that it would have."""

    name: str
    limit: int
    used: int
    would_use: int


@document("a dry run")
class DryRun(Document):
    """A lease as it would be, its cost, and the limits of its project. Ids of new things are made up.

    ``unasked_filters`` are the rules of the site that were not asked, since they keep accounts.
    """

    lease: Lease
    cost: tuple[Cost, ...]
    limits: tuple[ExpectedLimit, ...]
    unasked_filters: tuple[str, ...]
