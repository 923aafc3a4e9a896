"""The use case of capacity over time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from math import ceil

import numpy as np

from tenure import deadlines
from tenure.domain.actor import Actor
from tenure.domain.allocation import Demand
from tenure.domain.availability import Availability, AvailabilityGroup, AvailabilityQuery, AvailabilityStep, Grouping
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import Forbidden, InvalidParameter
from tenure.domain.period import length_text
from tenure.domain.regions import region_of
from tenure.domain.requirement import parse_expression
from tenure.planning.room import used
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import Loads, Mask, moment, no_loads, ticks, ticks_of
from tenure.resources.contract import ResourceType
from tenure.services.context import Context, ContextualService, require, target_of
from tenure.services.leases.dates import resolve
from tenure.services.leases.properties import check_private, check_values
from tenure.services.planning.index import AvailabilityIndex

#: The period of an answer, if the question names no end.
USUAL_SPAN = timedelta(days=7)
#: The longest period of an answer.
LONGEST_SPAN = timedelta(days=3 * 366)
#: The largest number of steps of a group, and of all groups together.
MOST_STEPS = 1000
MOST_STEPS_IN_ALL = 20_000
#: The lengths of steps that are chosen if there are too many changes.
_ROUND = tuple(
    timedelta(minutes=minutes) for minutes in (1, 5, 15, 30, 60, 2 * 60, 6 * 60, 12 * 60, 24 * 60, 7 * 24 * 60)
)
#: Of fewer resources than this, members do not see which part is out of order.
FEW = 3
#: The attribute of resources with their availability zone.
ZONE = "availability_zone"


class AvailabilityService(ContextualService):
    """The use cases of availability. They read the index, and promise nothing."""

    def __init__(self, context: Context, index: AvailabilityIndex) -> None:
        super().__init__(context)
        self._index = index

    def show(self, actor: Actor, query: AvailabilityQuery) -> Availability:
        """Return the amounts of the resources over time.

        Raises ``Forbidden``, also for groups that only administrators may see; ``InvalidParameter``; and
        ``Unavailable`` if the database does not work.
        """
        target = target_of(actor)
        require(self._authorize, "tenure:availability:get", actor, target)
        sees = self._authorize("admin", actor, target)
        if query.group_by in {Grouping.RESOURCE, Grouping.PROJECT} and not sees:
            raise Forbidden("tenure:availability:get")
        resource_type = self._types.bookable(query.resource_type)
        start, end = self._period(query)
        names = self._check(query, resource_type, sees=sees)
        view = self._index.view()
        catalogue = view.catalogue
        region = region_of(query.region, self._rules.regions, field="region") if query.region else None
        chosen = catalogue.of_type(resource_type.inventory, region)
        chosen &= catalogue.meets(parse_expression(query.resource_properties, field="resource_properties"))
        chosen &= catalogue.has_traits(query.required, query.forbidden)
        if query.zone is not None:
            in_zone = catalogue.has(ZONE, query.zone)
            if not (catalogue.of_type(resource_type.inventory) & in_zone).any():
                noun = self._types.inventory(resource_type.inventory).noun
                raise InvalidParameter(f"No {noun} is in an availability zone '{query.zone[:80]}'.", field=ZONE)
            chosen &= in_zone
        classes = catalogue.classes(catalogue.of_type(resource_type.inventory))
        resource_class = query.resource_class or resource_type.counted or next(iter(classes), WHOLE)
        if resource_class not in {WHOLE, *classes} and query.resource_class is not None:
            raise InvalidParameter(
                f"No resource of {resource_type.name} has {resource_class[:80]}.", field="resource_class"
            )
        groups = list(islice(deadlines.checked(self._groups(view, chosen, query, names)), query.limit + 1))
        shown = groups[: query.limit]
        amounts = [_Amounts.of(view, mask, resource_class, group.project_id) for group, mask in shown]
        bounds = ticks(start), ticks(end)
        health = sees or _may_show_health(view, resource_type.inventory, resource_class, query)
        step = query.step or _needed_step([loads.changes(*bounds) for loads in amounts], end - start)
        return Availability(
            resource_type=resource_type.name,
            resource_class=resource_class,
            starts_at=start,
            ends_at=end,
            step=step,
            groups=tuple(
                loads.shown_in(group, *bounds, None if step is None else ticks_of(step), health=health)
                for (group, _), loads in zip(shown, amounts, strict=True)
            ),
            more=len(groups) > len(shown),
        )

    def _period(self, query: AvailabilityQuery) -> tuple[datetime, datetime]:
        """Return the period of the answer, which does not begin before now."""
        now = self._clock.now()
        start = max(now, resolve(query.starts_at, now)) if query.starts_at is not None else now
        end = start + USUAL_SPAN if query.ends_at is None else query.ends_at
        if end <= start:
            raise InvalidParameter("The period must end after it starts, and after now.", field="end_date")
        if end - start > LONGEST_SPAN:
            length = length_text(end - start)
            raise InvalidParameter(
                f"The period lasts for {LONGEST_SPAN.days} days at most, and this one for {length}.", field="end_date"
            )
        if query.step is not None and (end - start) / query.step > MOST_STEPS:
            steps = ceil((end - start) / query.step)
            raise InvalidParameter(f"There would be {steps} steps, and may be {MOST_STEPS} at most.", field="step")
        return start, end

    def _check(self, query: AvailabilityQuery, resource_type: ResourceType, *, sees: bool) -> list[str]:
        """Check the expression of the query; return the names of the properties by which kinds are told apart."""
        expression = parse_expression(query.resource_properties, field="resource_properties")
        with self._db.read() as tx:
            try:
                check_private(tx, self._rules, resource_type.inventory, expression.names, 0, seen=sees)
                self._check_apart(resource_type, expression.names, sees=sees)
                anything = Demand(
                    resource_type.inventory, resource_type.noun, 1, 1, expression, Capacity(), exclusive=False
                )
                check_values(tx, anything, expression.comparisons, 0)
            except InvalidParameter as error:
                error.field = "resource_properties"
                raise
            private = frozenset() if sees else tx.resources.private_properties(resource_type.inventory)
            return sorted(tx.resources.property_names(resource_type.inventory) - private)

    def _check_apart(self, resource_type: ResourceType, names: Collection[str], *, sees: bool) -> None:
        """Raise ``InvalidParameter`` if the caller asks for single resources without being allowed to see them."""
        apart = self._types.inventory(resource_type.inventory).apart & set(names)
        if apart and not sees:
            raise InvalidParameter(
                f"The property {min(apart)} tells single resources apart: only administrators can ask for it."
            )

    def _groups(
        self, view: Snapshot, chosen: Mask, query: AvailabilityQuery, names: Sequence[str]
    ) -> Iterator[tuple[AvailabilityGroup, Mask]]:
        """Yield the groups without their steps, each with the resources that it is about."""
        catalogue = view.catalogue
        match query.group_by:
            case Grouping.NONE:
                yield AvailabilityGroup(()), chosen
            case Grouping.KIND:
                for kind in catalogue.kinds(chosen, names):
                    group = AvailabilityGroup(
                        (), properties=kind.attributes, capacity=kind.capacity, region=kind.region or None
                    )
                    yield group, kind.chosen
            case Grouping.ZONE:
                rest = chosen
                for zone in catalogue.values(ZONE, chosen):
                    yield AvailabilityGroup((), zone=zone), chosen & catalogue.has(ZONE, zone)
                    rest = rest & ~catalogue.has(ZONE, zone)
                if rest.any():
                    yield AvailabilityGroup(()), rest
            case Grouping.RESOURCE:
                for row in _rows_after(view, chosen, query.marker):
                    alone = np.zeros(len(chosen), dtype=np.bool_)
                    alone[row] = True
                    group = AvailabilityGroup(
                        (), resource_id=catalogue.external_ids[row], resource_name=catalogue.names[row]
                    )
                    yield group, alone
            case Grouping.PROJECT:
                for project_id in sorted(view.distinct.projects.values):
                    yield AvailabilityGroup((), project_id=project_id), chosen


def _may_show_health(view: Snapshot, inventory: str, resource_class: str, query: AvailabilityQuery) -> bool:
    """Whether a member may see how much is out of order, in an answer to this query.

    It is shown of all resources of a type, if they are not few; and by zone and region, if those have not few each. It
    is not shown of resources that conditions choose, and not by kind: the difference of two answers would be the
    health of a single resource.
    """
    if query.resource_properties.strip() or query.required or query.forbidden or query.group_by is Grouping.KIND:
        return False
    catalogue = view.catalogue
    every = catalogue.of_type(inventory) & (catalogue.amounts(resource_class) > 0)
    cells = [every]
    if query.zone is not None or query.region is not None or query.group_by is Grouping.ZONE:
        for region in catalogue.regions(every):
            rest = every & catalogue.of_type(inventory, region)
            for zone in catalogue.values(ZONE, rest):
                cells.append(rest & catalogue.has(ZONE, zone))
                rest = rest & ~cells[-1]
            if rest.any():
                cells.append(rest)
    return all(int(cell.sum()) >= FEW for cell in cells)


def _rows_after(view: Snapshot, chosen: Mask, marker: str | None) -> Iterator[int]:
    """Yield the rows of the chosen resources in the order of their registration, after the one with this id."""
    after = 0
    if marker is not None:
        if marker not in view.catalogue.external_ids:
            raise InvalidParameter(f"There is no resource {marker} that a list could go on after.", field="marker")
        after = view.catalogue.ids[view.catalogue.external_ids.index(marker)]
    rows = [int(row) for row in np.flatnonzero(chosen) if view.catalogue.ids[row] > after]
    yield from sorted(rows, key=lambda row: view.catalogue.ids[row])


@dataclass(frozen=True, slots=True)
class _Amounts:
    """What the resources of a group have of a class, and what allocations take of it over time."""

    resources: int
    #: The amounts of reservable resources, and of the others.
    in_order: int
    out_of_order: int
    #: What allocations take of the first, what of the second, and what those of running leases take of both.
    used: Loads
    used_out_of_order: Loads
    held: Loads
    is_of_project: bool

    @classmethod
    def of(cls, view: Snapshot, chosen: Mask, resource_class: str, project_id: str | None) -> _Amounts:
        """Return the amounts of the chosen resources; or of a project, which has no resources of its own."""
        deadlines.check()
        catalogue = view.catalogue
        capacity = catalogue.amounts(resource_class)
        working, broken = chosen & catalogue.reservable, chosen & ~catalogue.reservable
        return cls(
            resources=int(chosen.sum()),
            in_order=int(capacity[working].sum()),
            out_of_order=int(capacity[broken].sum()),
            used=used(view, working, resource_class, project_id=project_id),
            used_out_of_order=used(view, broken, resource_class, project_id=project_id) if broken.any() else no_loads(),
            held=used(view, chosen, resource_class, planned=False, project_id=project_id),
            is_of_project=project_id is not None,
        )

    def changes(self, start: int, end: int) -> int:
        """Return how many steps there are at most."""
        return sum(loads.changes(start, end) for loads in (self.used, self.used_out_of_order, self.held))

    def shown_in(
        self, group: AvailabilityGroup, start: int, end: int, step: int | None, *, health: bool
    ) -> AvailabilityGroup:
        """Return the group with its steps: exact ones, or of this length with the values at the tightest instant.

        Without ``health``, what is out of order counts as reserved.
        """
        if step is None:
            every = (self.used, self.used_out_of_order, self.held)
            inside = [times[(times > start) & (times < end)] for loads in every for times in (loads.starts, loads.ends)]
            begins = instants = np.unique(np.concatenate((np.array([start], dtype=np.int64), *inside)))
        else:
            begins, instants = self.used.peaks(start, end, step)
        used, broken, held = self.used.at(instants), self.used_out_of_order.at(instants), self.held.at(instants)
        if self.is_of_project:
            values = np.stack((used + broken - held, held), axis=1)
        else:
            values = np.stack((used + broken - held, held, self.out_of_order - broken, self.in_order - used), axis=1)
        if not health and not self.is_of_project:
            values[:, 0] += values[:, 2]
            values[:, 2] = 0
        changed = np.ones(len(begins), dtype=np.bool_)
        if step is None:
            changed[1:] = (values[1:] != values[:-1]).any(axis=1)
        steps = tuple(
            AvailabilityStep(moment(begin), *amounts)
            for begin, amounts in zip(begins[changed].tolist(), values[changed].tolist(), strict=True)
        )
        if self.is_of_project:
            return replace(group, steps=steps)
        if not health:
            steps = tuple(replace(known, out_of_order=None) for known in steps)
        return replace(
            group,
            steps=steps,
            resources=self.resources,
            total=self.in_order + self.out_of_order,
            least=int(values[:, 3].min()),
        )


def _needed_step(changes: Sequence[int], span: timedelta) -> timedelta | None:
    """Return the length of steps with which groups have as many as allowed; None if each change may have a step."""
    allowed = min(MOST_STEPS, MOST_STEPS_IN_ALL // max(1, len(changes)))
    if max(changes, default=0) < allowed:
        return None
    longest = _ROUND[-1]
    return next((step for step in _ROUND if span / step <= allowed), longest * ceil(span / longest / allowed))
