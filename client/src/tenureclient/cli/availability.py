"""availability"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from datetime import tzinfo
from typing import Any

from tenureclient.availability import HOSTS, CapacityQuery, CapacitySelection, CapacitySteps, CapacityTimeline
from tenureclient.cli.arguments import end_option, start_option
from tenureclient.cli.chart import characters_for, chart
from tenureclient.cli.command import ReservationLister
from tenureclient.cli.render import Row, Table, row_of, table
from tenureclient.moments import MOMENT_FORMS
from tenureclient.options import Group, Option, options_of
from tenureclient.resources import RESERVATION_TYPES

#: Resource types by their short names.
TYPES = {
    reservation_type.short: reservation_type.name
    for reservation_type in RESERVATION_TYPES.values()
    if reservation_type.short is not None
}
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
#: The columns that can be asked for, in their order.
_ALL = (
    *("properties", "capacity", "availability_zone", "region", "resource_id", "resource_name", "project_id"),
    *("resource_class", "start_date", "resources", "total", *_AMOUNTS, "least_available"),
)


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

    formatters_last = True
    arguments = (
        Option(
            field="resource_type",
            metavar="TYPE",
            count="?",
            default=HOSTS,
            help=f"The resource type whose resources are counted: {', '.join(TYPES.values())} or another one of the"
            f" site; or in short {', '.join(TYPES)} (default: host)",
        ),
        start_option(f"Start of the period: {MOMENT_FORMS} (default: now)"),
        end_option("End of the period, written like its start (default: 7 days after it)"),
        *options_of(CapacitySteps).values(),
        Option("--long", flag=True, help="A row for each step of each group"),
        Group("which resources, and in what unit", *options_of(CapacitySelection).values()),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        start = self.date(parsed_args.start, "--from")
        fields = self.fields_given(CapacityQuery, parsed_args)
        fields |= {
            "start": start,
            "end": None if parsed_args.end is None else self.instant(parsed_args.end, "--to", after=start),
        }
        resource_type = TYPES.get(parsed_args.resource_type, parsed_args.resource_type)
        timeline = self.client().availability.show(resource_type, **fields)
        if timeline.more:
            self.log.warning("There are more groups than are shown; select fewer resources.")
        self._timeline = timeline
        columns = _columns(timeline, parsed_args.group_by or "none", long=parsed_args.long)
        return table(_rows(timeline, self.zone, long=parsed_args.long), columns, parsed_args.columns)

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
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


def _rows(timeline: CapacityTimeline, zone: tzinfo | None, *, long: bool) -> Iterator[Row]:
    """Yield a row for each group, or for each step of each group."""
    for group in timeline.groups:
        of_group = {**row_of(group, zone), "resource_class": timeline.resource_class}
        for step in group.steps if long else group.steps[:1]:
            cells = {**of_group, **row_of(step, zone)}
            yield {name: cells[name] for name in _ALL}


def _columns(timeline: CapacityTimeline, by: str, *, long: bool) -> tuple[str, ...]:
    regions = ("region",) if any(group.region for group in timeline.groups) else ()
    amounts = _AMOUNTS_OF_PROJECT if by == "project" else _AMOUNTS
    if long:
        return (*_COLUMNS_BY[by], *regions, "start_date", *amounts)
    if by == "project":
        return (*_COLUMNS_BY[by], *amounts)
    counts = ("total",) if by == "resource" else ("resources", "total")
    return (*_COLUMNS_BY[by], *regions, *counts, *amounts, "least_available")
