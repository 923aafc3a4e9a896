"""planned server list, show"""

from __future__ import annotations

import argparse
from itertools import islice

from tenureclient.cli.command import ReservationLister, ReservationShowOne
from tenureclient.cli.render import Shown, Table
from tenureclient.options import Option, options_of
from tenureclient.planned_servers import PlannedServerFilter


class ListPlannedServers(ReservationLister):
    """List the servers of the project that are still to be made at the start of their leases, the newest first.

    For an administrator they are those of all projects.
    """

    examples = (
        ("", "what will be made"),
        ("--project physics -f json", "of a project, for a program"),
        ("-c name -c lease_status -c status_reason", "what could not be made, and why"),
    )

    arguments = (
        *options_of(PlannedServerFilter).values(),
        Option("--limit", "COUNT", int, help="Not more than this many"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        servers = self.client().planned_servers.list(**self.fields_given(PlannedServerFilter, parsed_args))
        shown = ("id", "name", "lease_name", "start_date", "end_date", "lease_status")
        return self.table(islice(servers, parsed_args.limit), shown, parsed_args)


class ShowPlannedServer(ReservationShowOne):
    """Show a server that is made at the start of its lease, or was made then.

    server_id is its id in Nova, once it is made. From then on it is found by the id of its reservation only.
    """

    examples = (
        ("web", "by name"),
        ("708732fc-f222-4437-acc2-3b9d36539b4c -f value -c server_id", "its id in Nova, by the id of its reservation"),
    )

    arguments = (Option(field="server", metavar="SERVER", help="Name of the server, or id of its reservation"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return self.shown(self.client().planned_servers.find(parsed_args.server))
