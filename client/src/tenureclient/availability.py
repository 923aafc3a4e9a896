"""Capacity over time: how much of a type of resource is reserved, in use and free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from tenureclient.conditions import conditions_to_json
from tenureclient.documents import Document, document
from tenureclient.moments import Moment
from tenureclient.transport import Transport, parsed
from tenureclient.wire import Version, moment_to_wire

HOSTS = "physical:host"
Grouping: TypeAlias = Literal["none", "kind", "zone", "resource", "project"]

_FEATURE = "availability over time"
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


class Availability:
    """How much can be reserved when. It needs API 1.3."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def show(
        self,
        resource_type: str = HOSTS,
        *,
        start: Moment | None = None,
        end: datetime | None = None,
        resource_class: str | None = None,
        region: str | None = None,
        availability_zone: str | None = None,
        conditions: Iterable[str] = (),
        required_traits: Iterable[str] = (),
        forbidden_traits: Iterable[str] = (),
        step: timedelta | None = None,
        group_by: Grouping = "none",
    ) -> CapacityTimeline:
        """Return the amounts of the resources that serve a type, by default for a week from now on.

        ``resource_class`` is the unit, such as ``VCPU`` (default: the usual one of the type). The arguments
        after it select resources; each condition must hold. With ``step``, in whole seconds, the steps have
        this length. ``resource`` and ``project`` as ``group_by`` are for administrators.
        """
        dates = {"start_date": start, "end_date": end}
        texts = {
            "resource_class": resource_class,
            "region": region,
            "availability_zone": availability_zone,
            "resource_properties": conditions_to_json(conditions) or None,
            "required": _joined(required_traits),
            "forbidden": _joined(forbidden_traits),
            "step": None if step is None else str(int(step.total_seconds())),
        }
        query = {
            "resource_type": resource_type,
            **{name: moment_to_wire(moment, Version.V1_3) for name, moment in dates.items() if moment},
            **{name: text for name, text in texts.items() if text is not None},
            "group_by": group_by,
            "limit": str(_PAGE),
        }
        timeline = self._page(query)
        while group_by == "resource" and timeline.more:
            timeline = self._with_next_page(timeline, query)
        return timeline

    def _with_next_page(self, timeline: CapacityTimeline, query: Mapping[str, str]) -> CapacityTimeline:
        """Return the timeline with the resources that come after its last one, for the same period."""
        page = self._page(
            {
                **query,
                "start_date": moment_to_wire(timeline.start_date, Version.V1_3),
                "end_date": moment_to_wire(timeline.end_date, Version.V1_3),
                "marker": timeline.groups[-1].resource_id or "",
            }
        )
        steps = [step for step in (timeline.step, page.step) if step is not None]
        groups = (*timeline.groups, *page.groups)
        return replace(timeline, groups=groups, more=page.more, step=max(steps, default=None))

    def _page(self, query: Mapping[str, str]) -> CapacityTimeline:
        answer = self._transport.call("GET", "availability", query=query, feature=_FEATURE, since=Version.V1_3)
        return parsed(CapacityTimeline.from_wire, answer.body)


def _joined(names: Iterable[str]) -> str | None:
    """Return the names as a parameter of a query; None if there are none. An empty name makes it empty."""
    listed = list(names)
    return ",".join(listed) if listed else None
