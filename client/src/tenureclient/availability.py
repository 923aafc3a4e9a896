"""Capacity over time: how much of a type of resource is reserved, in use and free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeAlias, TypedDict, Unpack

from tenureclient.conditions import CONDITION_FORMS, conditions_to_json
from tenureclient.documents import Document, document
from tenureclient.moments import DURATION_FORMS, Moment, parse_length
from tenureclient.options import Option
from tenureclient.sent import Arguments, Sent, query_of
from tenureclient.transport import Calls
from tenureclient.wire import Feature, Version

HOSTS = "physical:host"
Grouping: TypeAlias = Literal["none", "kind", "zone", "resource", "project"]

_FEATURE = Feature("availability over time", Version.V1_3)
_PAGE = 1000


@document("a step")
class CapacityStep(Document):
    """Amounts that hold from ``start_date`` until the next step.

    ``allocated`` belongs to leases that have started, ``reserved`` to leases that have not. ``out_of_order``
    cannot be reserved, ``available`` can. In a group of a project the last two are None.
    """

    start_date: datetime
    reserved: int
    allocated: int
    out_of_order: int | None
    available: int | None


@document("a group of resources")
class CapacityGroup(Document):
    """The amounts of some resources over time, and the attributes that all of these resources share.

    An attribute that differs between them is None or empty. ``least_available`` is the smallest available
    amount. Only administrators get ``resource_id``, ``resource_name`` and ``project_id``. A group of a
    project has no amounts but those in its steps.
    """

    resources: int | None
    total: int | None
    least_available: int | None
    properties: Mapping[str, str]
    capacity: Mapping[str, int]
    region: str | None
    availability_zone: str | None
    resource_id: str | None
    resource_name: str | None
    project_id: str | None
    steps: tuple[CapacityStep, ...]


@document("the availability")
class CapacityTimeline(Document):
    """Capacity from ``start_date`` to ``end_date``, in units of ``resource_class`` (``WHOLE``: resources).

    ``step`` is None if each change has a step of its own. Otherwise a step shows the amounts at its tightest
    moment. ``more``: there are further groups.
    """

    resource_type: str
    resource_class: str
    start_date: datetime
    end_date: datetime
    step: timedelta | None
    groups: tuple[CapacityGroup, ...]
    more: bool


def _joined(names: Iterable[str], _version: Version) -> str:
    return ",".join(names)


class CapacitySteps(TypedDict, total=False):
    """In which groups and steps to count."""

    group_by: Annotated[
        Grouping,
        Option(
            "--by",
            choices=("kind", "zone", "resource", "project"),
            help="Group the resources: those of equal properties and size, of each zone, each alone, or what"
            " each project has; the last two are for administrators (default: all in one)",
        ),
    ]
    step: Annotated[
        timedelta | None,
        Option(
            "--step",
            "DURATION",
            parse_length,
            help=f"Length of the steps: {DURATION_FORMS}; a step has the amounts of its tightest moment"
            " (default: a step for each change)",
        ),
    ]


class CapacitySelection(TypedDict, total=False):
    """Which resources to count, and in what unit."""

    conditions: Annotated[
        Iterable[str],
        Sent("resource_properties", lambda conditions, _version: conditions_to_json(conditions)),
        Option(
            "--with",
            "CONDITION",
            gather=list,
            help=f"Only resources for which this holds: {CONDITION_FORMS}, or an expression of the API such as"
            ' \'["==", "$gpu", "a100"]\' (may be repeated; all must hold)',
        ),
    ]
    required_traits: Annotated[
        Iterable[str],
        Sent("required", _joined),
        Option(
            "--trait",
            "NAME",
            gather=list,
            help="Only resources with this trait (may be repeated; all are needed)",
        ),
    ]
    forbidden_traits: Annotated[
        Iterable[str],
        Sent("forbidden", _joined),
        Option("--no-trait", "NAME", gather=list, help="Only resources without this trait (may be repeated)"),
    ]
    availability_zone: Annotated[str | None, Option("--zone", "NAME", help="Only resources in this availability zone")]
    region: Annotated[str | None, Option("--region", "NAME", help="Only resources in this region of the service")]
    resource_class: Annotated[
        str | None,
        Option(
            "--class",
            "NAME",
            help="Count in this resource class, such as VCPU, MEMORY_MB or DISK_GB; WHOLE counts the resources"
            " themselves (default: the usual one of the type)",
        ),
    ]


class CapacityQuery(CapacitySteps, CapacitySelection, total=False):
    """What to count, and for which period."""

    start: Annotated[Moment | None, Sent("start_date")]
    end: Annotated[datetime | None, Sent("end_date")]


class Availability(Calls):
    """How much can be reserved when. It needs API 1.3."""

    def show(self, resource_type: str = HOSTS, **fields: Unpack[CapacityQuery]) -> CapacityTimeline:
        """Return the amounts of the resources that serve a type, by default for a week from now on.

        ``resource_class`` is the unit, such as ``VCPU`` (default: the usual one of the type). A region, a zone,
        conditions and traits select resources; each condition must hold. With ``step``, in whole seconds, the steps
        have this length. ``resource`` and ``project`` as ``group_by`` (default: ``none``) are for administrators.
        """
        given = Arguments(CapacityQuery, fields).to_wire(Version.V1_3)
        query = {name: str(value) for name, value in {"group_by": "none", **given}.items()}
        query |= {"resource_type": resource_type, "limit": str(_PAGE)}
        timeline = self._page(query)
        while query["group_by"] == "resource" and timeline.more:
            timeline = self._with_next_page(timeline, query)
        return timeline

    def _with_next_page(self, timeline: CapacityTimeline, query: Mapping[str, str]) -> CapacityTimeline:
        """Return the timeline with the resources that come after its last one, for the same period."""
        period = query_of(start_date=timeline.start_date, end_date=timeline.end_date)
        page = self._page({**query, **period, "marker": timeline.groups[-1].resource_id or ""})
        steps = [step for step in (timeline.step, page.step) if step is not None]
        groups = (*timeline.groups, *page.groups)
        return replace(timeline, groups=groups, more=page.more, step=max(steps, default=None))

    def _page(self, query: Mapping[str, str]) -> CapacityTimeline:
        answer = self._transport.call("GET", "availability", query=query, feature=_FEATURE)
        return answer.read(CapacityTimeline.from_wire)
