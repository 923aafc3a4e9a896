"""Servers, each of which is shelved until its lease starts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tenureclient.options import Option
from tenureclient.reservation_request import AT_END_ACTIONS, ReservationRequest
from tenureclient.reservation_type import ReservationType, UnreadableReservation


class ServerReservations(ReservationType):
    name = "virtual:server"
    position = 50
    short = "server"
    units = ("server", "servers")
    parameters = (
        "server_id=ID | flavor_id=ID [server_name=NAME] | vcpus=COUNT memory_mb=MB disk_gb=GB",
        "[at_end=delete|stop|shelve|snapshot] [in_place=true|false] [resource_properties=EXPRESSION]",
    )
    has_zone = True
    has_extra_specs = True
    has_resources = True
    before_end = ()
    heading = "one server"
    requesting = ("server", "server_flavor")
    options = (
        Option(
            "--server",
            "SERVER_ID",
            help="Reserve this server: it is shelved until the start, and unshelved then on reserved room",
        ),
        Option(
            "--server-flavor",
            "FLAVOR_ID",
            help="Reserve room for a server of this flavor; name it later, with server_id=... in lease set",
        ),
        Option(
            "--at-end",
            "ACTION",
            choices=AT_END_ACTIONS,
            help="What happens to the server at the end: delete (the default), stop, shelve, or snapshot (an"
            " image of it, and then its deletion)",
        ),
        Option("--in-place", flag=True, help="The server stays where it is; the lease only sets its end"),
    )

    def requests(self, given: argparse.Namespace) -> Iterator[ReservationRequest]:
        server, flavor = given.server, given.server_flavor
        if server is None and flavor is None:
            for value, option in ((given.at_end, "--at-end"), (given.in_place, "--in-place")):
                if value:
                    raise UnreadableReservation(f"{option}: say which server with --server, or --server-flavor.")
            return
        if server is not None and flavor is not None:
            raise UnreadableReservation("--server-flavor: a server that exists has a flavor; give either.")
        if given.in_place and server is None:
            raise UnreadableReservation(
                "--in-place: only a server that is there can stay there; name it with --server."
            )
        yield ReservationRequest.server(server, flavor_id=flavor, at_end=given.at_end, in_place=given.in_place)

    def with_amount(self, given: argparse.Namespace, amount: int) -> bool:
        return amount == 1
