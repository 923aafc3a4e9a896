"""availability"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from tenureclient.availability import (
    HOSTS,
    CapacityGroup,
    CapacityQuery,
    CapacitySelection,
    CapacityStep,
    CapacitySteps,
    CapacityTimeline,
)
from tenureclient.cli.arguments import add_fields, fields_given
from tenureclient.cli.chart import characters_for, chart
from tenureclient.cli.command import ReservationLister
from tenureclient.cli.render import MomentColumn, Row, Table, pairs_column, table
from tenureclient.moments import MOMENT_FORMS
from tenureclient.resources import RESERVATION_TYPES

#: Resource types by their short names.
TYPES = {known.short: known.name for known in RESERVATION_TYPES.values() if known.short is not None}
#: The columns that tell groups apart.
_COLUMNS_BY = {
    "none": (),
    "kind": ("properties", "capacity"),
    "zone": ("availability_zone",),
    "resource": ("resource_id", "resource_name"),
    "project": ("project_id",),
}
_AMOUNTS = ("reserved", "allocated", "out_of_order", "available")
_AMOUNTS_OF_PROJECT = ("reserved", "allocated")


@dataclass(frozen=True, slots=True)
class _Line:
    """A group, and the step that a row shows."""

    timeline: CapacityTimeline
    group: CapacityGroup
    step: CapacityStep


class ShowAvailability(ReservationLister):
    """Show how much can be reserved, now and over time.

    A row shows the amounts at the beginning of the period, and least_available, the smallest amount that is
    available at any moment of it. reserved belongs to leases that have not started, allocated to leases that
    have; out_of_order cannot be reserved; the rest is available. With --long there is a row for each change
    of the amounts, in every output format.

    On a terminal, the table is followed by a line for each group that shows the available part over time: a
    full block for everything, a dot for nothing. A character shows the least amount of its time.
    """

    examples = (
        ("", "hosts, for the next week"),
        ("--by kind --to +30d", "each kind of hosts, for a month"),
        ("--with gpu=a100 --from 'monday 09:00' --to 'friday 18:00'", "some hosts, in a certain period"),
        ("instance --class MEMORY_MB --zone az-1", "memory for instances in a zone"),
        ("--step 1d --to +14d --long -f csv", "the least amounts of each day, for a program"),
    )

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "resource_type",
            metavar="TYPE",
            nargs="?",
            default=HOSTS,
            help=f"The resource type whose resources are counted: {', '.join(TYPES.values())} or another one of the"
            f" site; or in short {', '.join(TYPES)} (default: host)",
        )
        parser.add_argument(
            "--from", dest="start", metavar="DATE", help=f"Start of the period: {MOMENT_FORMS} (default: now)"
        )
        parser.add_argument(
            "--to",
            dest="end",
            metavar="DATE",
            help="End of the period, written like its start (default: 7 days after it)",
        )
        add_fields(parser, CapacitySteps)
        parser.add_argument("--long", action="store_true", help="A row for each step of each group")
        add_fields(parser.add_argument_group("which resources, and in what unit"), CapacitySelection)
        # Output options come last in the help, as in the other commands.
        parser._action_groups.sort(key=lambda group: "formatter" in (group.title or ""))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        zone = self.zone
        start = None if parsed_args.start is None else self.moment(parsed_args.start, "--from", zone=zone)
        after = start if isinstance(start, datetime) else None
        fields = fields_given(self, CapacityQuery, parsed_args)
        fields |= {
            "start": start,
            "end": None if parsed_args.end is None else self.instant(parsed_args.end, "--to", after=after),
        }
        resource_type = TYPES.get(parsed_args.resource_type, parsed_args.resource_type)
        timeline = self.client().availability.show(resource_type, **fields)
        if timeline.more:
            self.log.warning("There are more groups than are shown; select fewer resources.")
        self._timeline = timeline
        lines = _lines(timeline, long=parsed_args.long)
        return table(
            (_row(line, zone) for line in lines),
            _columns(timeline, parsed_args.group_by or "none", long=parsed_args.long),
            parsed_args.columns,
        )

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[object]]
    ) -> int:
        code = super().produce_output(parsed_args, column_names, data)
        is_for_people = parsed_args.formatter == "table" and self.output.isatty()
        if is_for_people and not parsed_args.long and not parsed_args.columns:
            self._write_chart(self._timeline)
        return code

    def _write_chart(self, timeline: CapacityTimeline) -> None:
        width = shutil.get_terminal_size().columns
        characters = characters_for(self.output)
        if lines := chart(timeline, width, self.zone, characters):
            unit = "" if timeline.resource_class == "WHOLE" else f" {timeline.resource_class}"
            heading = f"Available{unit}: {characters[-1]} all, {characters[0]} none"
            self.output.write("\n".join(["", heading, *lines, ""]))


def _lines(timeline: CapacityTimeline, *, long: bool) -> Iterator[_Line]:
    """Yield a line for each group, or for each step of each group."""
    for group in timeline.groups:
        for step in group.steps if long else group.steps[:1]:
            yield _Line(timeline, group, step)


def _columns(timeline: CapacityTimeline, by: str, *, long: bool) -> tuple[str, ...]:
    regions = ("region",) if any(group.region for group in timeline.groups) else ()
    amounts = _AMOUNTS_OF_PROJECT if by == "project" else _AMOUNTS
    if long:
        return (*_COLUMNS_BY[by], *regions, "start_date", *amounts)
    if by == "project":
        return (*_COLUMNS_BY[by], *amounts)
    counts = ("total",) if by == "resource" else ("resources", "total")
    return (*_COLUMNS_BY[by], *regions, *counts, *amounts, "least_available")


def _row(line: _Line, zone: tzinfo | None) -> Row:
    group, step = line.group, line.step
    return {
        "properties": pairs_column(group.properties),
        "capacity": pairs_column(group.capacity),
        "availability_zone": group.availability_zone,
        "region": group.region,
        "resource_id": group.resource_id,
        "resource_name": group.resource_name,
        "project_id": group.project_id,
        "resource_class": line.timeline.resource_class,
        "start_date": MomentColumn(step.start_date, zone),
        "resources": group.resources,
        "total": group.total,
        "reserved": step.reserved,
        "allocated": step.allocated,
        "out_of_order": step.out_of_order,
        "available": step.available,
        "least_available": group.least_available,
    }
