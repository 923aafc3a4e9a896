"""usage"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import timedelta

from tenureclient.cli.arguments import end_option, start_option
from tenureclient.cli.availability import TYPES
from tenureclient.cli.command import PROJECT, ReservationLister
from tenureclient.cli.render import Table
from tenureclient.moments import MOMENT_FORMS
from tenureclient.options import Option
from tenureclient.usage import UsageSum

#: The length of the period, if no start is given.
_USUAL = timedelta(days=30)


class ShowUsage(ReservationLister):
    """Show what the project has had in a period, in resource-hours; for administrators, of all projects.

    booked_hours were promised to leases, whether these have started or not; held_hours had leases that had
    started, up to now. A host for an hour is one hour of WHOLE; parts of hosts are counted by class: 2048 MB
    for an hour are 2048 hours of MEMORY_MB. Deleted leases count, too.
    """

    examples = (
        ("", "the last 30 days"),
        ("host --from 2027-02-01 --to 2027-03-01 -f csv", "hosts in February, for a program"),
        ("--project physics --to +30d", "of a project, with what it has booked for 30 days"),
    )

    formatters_last = True
    arguments = (
        Option(
            field="resource_type",
            metavar="TYPE",
            count="?",
            help=f"Only reservations of this resource type, in short {', '.join(TYPES)} (default: all)",
        ),
        start_option(f"Start of the period: {MOMENT_FORMS} (default: 30 days before its end)"),
        end_option("End of the period, not included (default: now)"),
        PROJECT,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        end = self.instant("now" if parsed_args.end is None else parsed_args.end, "--to")
        start = end - _USUAL if parsed_args.start is None else self.instant(parsed_args.start, "--from")
        usage = self.client().usage.show(
            start=start,
            end=end,
            project_id=parsed_args.project,
            resource_type=TYPES.get(parsed_args.resource_type, parsed_args.resource_type),
        )
        if usage.incomplete_before is not None:
            moment = usage.incomplete_before.isoformat()
            self.log.warning("Leases that ended before %s were purged: the sums lack them.", moment)
        return self.table(usage.sums, _columns(usage.sums), parsed_args)


def _columns(sums: Sequence[UsageSum]) -> tuple[str, ...]:
    regions = ("region",) if any(row.region for row in sums) else ()
    used = ("used_hours",) if any(row.used_hours is not None for row in sums) else ()
    return ("project_id", "resource_type", *regions, "resource_class", "booked_hours", "held_hours", *used)
