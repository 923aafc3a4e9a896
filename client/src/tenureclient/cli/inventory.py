"""The parts that the commands for all inventories share: delete, disable, enable, reallocate."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from osc_lib import exceptions

from tenureclient.addresses import FloatingIP
from tenureclient.cli.command import ReservationCommand, ReservationLister
from tenureclient.cli.each import Each
from tenureclient.cli.printable import printable
from tenureclient.cli.render import Table
from tenureclient.client import Client
from tenureclient.floatingips import FloatingIPs
from tenureclient.hosts import Hosts
from tenureclient.models import Host, ResourceChange
from tenureclient.volumepools import VolumePool, VolumePools

Change = ResourceChange[Host] | ResourceChange[FloatingIP] | ResourceChange[VolumePool]


class OfInventory(ReservationCommand):
    """A command for resources of one type; ``metavar`` is their placeholder in the help."""

    noun: ClassVar[str]
    metavar: ClassVar[str]
    name_or_id: ClassVar[str]

    def inventory(self, client: Client) -> Hosts | FloatingIPs | VolumePools:
        """Return the interface to the resources of this type."""
        raise NotImplementedError

    def add_resource_argument(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("resource", metavar=self.metavar, help=f"{self.name_or_id} of the {self.noun}")


def add_reservable(parser: argparse.ArgumentParser, nouns: str, others: str) -> None:
    """Add the options that restrict a list to resources that do, or do not, take reservations."""
    reservable = parser.add_mutually_exclusive_group()
    reservable.add_argument(
        "--reservable", action="store_true", default=None, help=f"Only {nouns} that take reservations"
    )
    reservable.add_argument(
        "--not-reservable",
        dest="reservable",
        action="store_false",
        default=None,
        help=f"Only {nouns} that take none, for example {others} ones",
    )


def add_only_region(parser: argparse.ArgumentParser) -> None:
    """Add the option that restricts a list to a region."""
    parser.add_argument("--region", metavar="NAME", help="Only what is in this region of the service")


def add_region(parser: argparse.ArgumentParser) -> None:
    """Add the option for the region of a new resource."""
    parser.add_argument(
        "--region", metavar="NAME", help="The region that it is in (default: the service's home region)"
    )


class OfHosts(OfInventory):
    noun = "host"
    metavar = "HOST"
    name_or_id = "Name or id"

    def inventory(self, client: Client) -> Hosts:
        return client.hosts


class OfFloatingIPs(OfInventory):
    noun = "floating IP"
    metavar = "FLOATINGIP"
    name_or_id = "Address or id"

    def inventory(self, client: Client) -> FloatingIPs:
        return client.floatingips


class OfVolumePools(OfInventory):
    noun = "volume pool"
    metavar = "POOL"
    name_or_id = "Name or id"

    def inventory(self, client: Client) -> VolumePools:
        return client.volume_pools


class DeleteCommand(OfInventory):
    """A command that removes resources from the service."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("resources", metavar=self.metavar, nargs="+", help=f"{self.name_or_id} of a {self.noun}")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        inventory = self.inventory(self.client())

        def delete(name: str) -> None:
            inventory.delete(inventory.find(name).id)
            self.output.write(f"Deleted {self.noun}: {printable(name)}\n")

        each = Each()
        each.do(dict.fromkeys(parsed_args.resources), delete)
        each.complain(len(parsed_args.resources), f"{self.noun}s were not deleted")


class ChangeCommand(OfInventory, ReservationLister):
    """A command that affects reservations: it shows what would happen and asks before it acts."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_resource_argument(parser)
        parser.add_argument("--dry-run", action="store_true", help="Only show what would be done")
        parser.add_argument("--yes", action="store_true", help="Do it without asking")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        client = self.client()
        resource_id = self.inventory(client).find(parsed_args.resource).id
        if not parsed_args.yes or parsed_args.dry_run:
            plan = self.change(client, resource_id, parsed_args, dry_run=True)
            if parsed_args.dry_run:
                return self._table(plan, parsed_args)
            self._confirm(self.describe(parsed_args.resource, plan))
        return self._table(self.change(client, resource_id, parsed_args, dry_run=False), parsed_args)

    def change(self, client: Client, resource_id: str, parsed_args: Any, *, dry_run: bool) -> Change:
        """Make the change; with ``dry_run``, only return what it would do."""
        raise NotImplementedError

    def describe(self, name: str, plan: Change) -> str:
        """Return what would be done, as a sentence."""
        raise NotImplementedError

    def _confirm(self, sentence: str) -> None:
        """Ask the user; raise ``CommandError`` unless they agree."""
        if not self.app.stdin.isatty():
            raise exceptions.CommandError(f"{sentence} Nothing was done. Say --yes to do it without being asked.")
        self.app.stderr.write(f"{sentence} Do it? [y/N] ")
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise exceptions.CommandError("Nothing was done.")

    def _table(self, change: Change, parsed_args: argparse.Namespace) -> Table:
        shown = ("lease_id", "status", "start_date", "end_date", "moves_to", "reason")
        return self.table(change.reservations, shown, parsed_args)


class DisableCommand(ChangeCommand):
    """A command that closes a resource to new reservations."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", metavar="TEXT", default="", help="Why, for other administrators")
        return parser

    def change(self, client: Client, resource_id: str, parsed_args: Any, *, dry_run: bool) -> Change:
        return self.inventory(client).disable(resource_id, reason=parsed_args.reason, dry_run=dry_run)

    def describe(self, name: str, plan: Change) -> str:
        return f"{name} takes no new reservations; those that have a part in it keep it: {len(plan.reservations)}."


class EnableCommand(ChangeCommand):
    """A command that opens a resource to reservations again."""

    def change(self, client: Client, resource_id: str, parsed_args: Any, *, dry_run: bool) -> Change:
        return self.inventory(client).enable(resource_id, dry_run=dry_run)

    def describe(self, name: str, plan: Change) -> str:
        if plan.resource.reservable:
            return f"{name} takes reservations again."
        return f"{name} takes reservations again as soon as it is well; it is {plan.resource.health}."


class ReallocateCommand(ChangeCommand):
    """A command that moves the reservations of a resource to others."""

    #: What running reservations lose when they move.
    lost: ClassVar[str]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--lease", metavar="LEASE", help="Only of this lease, by name or id")
        parser.add_argument(
            "--running",
            action="store_true",
            help=f"Also what has started: the lease gets another {self.noun} and loses its {self.lost} on this one",
        )
        return parser

    def change(self, client: Client, resource_id: str, parsed_args: Any, *, dry_run: bool) -> Change:
        lease_id = None if parsed_args.lease is None else client.leases.find(parsed_args.lease).id
        return self.inventory(client).reallocate(
            resource_id, lease_id=lease_id, running=parsed_args.running, dry_run=dry_run
        )

    def describe(self, name: str, plan: Change) -> str:
        moving = [reservation for reservation in plan.reservations if reservation.moves_to is not None]
        running = sum(reservation.status == "held" for reservation in moving)
        lost = f" {running} of them run, and lose their {self.lost} there." if running else ""
        return f"Of {len(plan.reservations)} reservations on {name}, {len(moving)} move to other {self.noun}s.{lost}"
