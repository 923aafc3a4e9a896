"""limits show"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tenureclient.cli.command import ReservationLister
from tenureclient.cli.render import Row, table
from tenureclient.limits import Limit

_SHOWN = ("name", "limit", "used")


class ShowLimits(ReservationLister):
    """Show how much the project may have booked, and how much it has.

    A limit of -1 is none. Hours are those of the next days, as many as the site counts.
    """

    examples = (("", "of one's own project"), ("-f value -c name -c used", "for a script"))

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--project", metavar="PROJECT_ID", help="Of this project (for administrators)")
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        found = self.client().limits.show(project_id=parsed_args.project)
        return table(found.limits, _row, _SHOWN, ())


def _row(limit: Limit) -> Row:
    return {"name": limit.name, "limit": limit.limit, "used": limit.used}
