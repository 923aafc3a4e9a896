"""Instances on hosts that serve others as well: of a size, or of a flavor of the cloud."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tenureclient.options import Option
from tenureclient.reservation_request import ReservationRequest
from tenureclient.reservation_type import ReservationType, UnreadableReservation, parse_amount
from tenureclient.resources.hosts import options_for_hosts, resources_of, specs_of
from tenureclient.sizes import parse_size


class InstanceReservations(ReservationType):
    name = "virtual:instance"
    position = 20
    short = "instance"
    units = ("instance", "instances")
    parameters = (
        "amount=COUNT vcpus=COUNT memory_mb=MB disk_gb=GB [affinity=true|false|none]",
        "[resource_properties=EXPRESSION]",
    )
    has_zone = True
    has_extra_specs = True
    has_resources = True
    heading = "instances, on hosts that serve others as well"
    requesting = ("instances",)
    options = (
        Option(
            "--instances",
            "COUNT",
            parse_amount,
            help="Reserve room for this many instances, of the size that the next options give",
        ),
        Option("--flavor", "FLAVOR_ID", help="The size and the requirements of a flavor of the cloud"),
        Option("--vcpus", "COUNT", parse_amount, help="Virtual processors of each"),
        Option("--ram", "SIZE", parse_size("m"), help="Memory of each, in MB, or such as 4g"),
        Option(
            "--disk",
            "SIZE",
            parse_size("g"),
            help="Disk of each, in GB, or such as 1t (default: 0, for instances that boot from a volume)",
        ),
        # No exclusive group: its options could not be in different choices.
        Option("--affinity", rule=True, help="All of them on one host (default: no rule)"),
        Option("--anti-affinity", rule=False, field="affinity", help="Each of them on a host of its own"),
    )

    def requests(self, given: argparse.Namespace) -> Iterator[ReservationRequest]:
        amount = given.instances
        if amount is None:
            self.refuse_details(given)
            return
        if given.flavor is not None:
            for name in ("vcpus", "ram", "disk"):
                if getattr(given, name) is not None:
                    raise UnreadableReservation(f"--{name}: the size is that of the flavor; give either.")
            for option in options_for_hosts(given):
                raise UnreadableReservation(f"{option}: the flavor itself says which hosts its instances need.")
            yield ReservationRequest.flavor(given.flavor, amount, affinity=given.affinity)
            return
        if given.vcpus is None or given.ram is None:
            raise UnreadableReservation("--instances: say of which size, with --flavor, or with --vcpus and --ram.")
        request = ReservationRequest.instances(
            amount,
            vcpus=given.vcpus,
            memory_mb=given.ram,
            disk_gb=given.disk or 0,
            affinity=given.affinity,
            conditions=given.conditions,
        )
        yield request.with_place(extra_specs=specs_of(given)).with_resources(resources_of(given))

    def takes_conditions(self, given: argparse.Namespace) -> bool:
        return given.flavor is None


class FlavorReservations(ReservationType):
    """Instances of a flavor. On the command line they are instances, too."""

    name = "flavor:instance"
    position = 21
    units = ("instance", "instances")
    parameters = ("amount=COUNT flavor_id=ID [affinity=true|false|none]",)
    has_zone = True

    def requests(self, given: argparse.Namespace) -> Iterator[ReservationRequest]:
        return iter(())
