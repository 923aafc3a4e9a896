"""limits show"""

from __future__ import annotations

import argparse

from tenureclient.cli.command import PROJECT, ReservationLister
from tenureclient.cli.render import Table


class ShowLimits(ReservationLister):
    """Show how much the project may book, and how much it has booked.

    A limit of -1 means no limit. Hours are counted over the next days, as many as the site has set.
    """

    examples = (("", "of your own project"), ("-f value -c name -c used", "for a script"))

    arguments = (PROJECT,)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        project_limits = self.client().limits.show(project_id=parsed_args.project)
        return self.table(project_limits.limits, ("name", "limit", "used"), parsed_args)
