"""host list, show, create, set, unset, delete, disable, enable, reallocate"""

from __future__ import annotations

import argparse

from osc_lib import exceptions

from tenureclient.cli.command import (
    ReservationLister,
    ReservationShowOne,
    reading,
)
from tenureclient.cli.inventory import (
    DeleteCommand,
    DisableCommand,
    EnableCommand,
    OfHosts,
    ReallocateCommand,
    add_only_region,
    add_region,
    add_reservable,
)
from tenureclient.cli.render import Shown, Table

_LISTED = ("id", "hypervisor_hostname", "vcpus", "memory_mb", "local_gb")
_SORTABLE = (
    "id",
    "hypervisor_hostname",
    "vcpus",
    "memory_mb",
    "local_gb",
    "availability_zone",
    "service_name",
)


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"'{text}' is not key=value.")
    return key, value


def _add_values(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--extra",
        "--property",
        dest="properties",
        metavar="<key>=<value>",
        type=reading(_key_value),
        action="append",
        default=[],
        help="A property of the host, by which users can choose it (may be repeated)",
    )


class ListHosts(ReservationLister):
    """List the hosts that can be reserved.

    With -c any field of a host can be asked for.
    """

    examples = (("--reservable -c hypervisor_hostname -c properties", "by what users choose them"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--sort-by",
            metavar="<host_column>",
            choices=_SORTABLE,
            default="hypervisor_hostname",
            help=f"Field to sort by: {', '.join(_SORTABLE)} (default: hypervisor_hostname)",
        )
        add_reservable(parser, "hosts", "failed")
        add_only_region(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        hosts = sorted(
            self.client().hosts.list(reservable=parsed_args.reservable, region=parsed_args.region),
            key=lambda host: (getattr(host, parsed_args.sort_by), host.hypervisor_hostname),
        )
        return self.table(hosts, _LISTED, parsed_args)


class ShowHost(OfHosts, ReservationShowOne):
    """Show a host with its properties."""

    examples = (("compute-1", "by name"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_resource_argument(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return self.shown(self.client().hosts.find(parsed_args.resource))


class CreateHost(ReservationShowOne):
    """Make a host of Nova reservable. Nothing may run on it."""

    examples = (("compute-1 --extra gpu=v100 --extra rack=r2", "with two properties"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="HOST", help="Host name of the hypervisor")
        add_region(parser)
        _add_values(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        host = self.client().hosts.create(
            parsed_args.name, properties=dict(parsed_args.properties), region=parsed_args.region
        )
        return self.shown(host)


class SetHost(OfHosts):
    """Give properties to a host, or change their values."""

    examples = (("compute-1 --extra gpu=a100", "another value"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_resource_argument(parser)
        _add_values(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.properties:
            raise exceptions.CommandError("Nothing to change: give --extra KEY=VALUE.")
        client = self.client()
        host = client.hosts.find(parsed_args.resource)
        client.hosts.update(host.id, properties=dict(parsed_args.properties))
        self.output.write(f"Updated host: {parsed_args.resource}\n")


class UnsetHost(OfHosts):
    """Take properties away from a host."""

    examples = (("compute-1 --extra gpu", "one property"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_resource_argument(parser)
        parser.add_argument(
            "--extra",
            "--property",
            dest="names",
            metavar="<key>",
            action="append",
            default=[],
            help="Name of a property (may be repeated)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.names:
            raise exceptions.CommandError("Nothing to change: give --extra KEY.")
        client = self.client()
        client.hosts.unset(client.hosts.find(parsed_args.resource).id, parsed_args.names)
        self.output.write(f"Updated host: {parsed_args.resource}\n")


class DeleteHost(OfHosts, DeleteCommand):
    """Give hosts back to Nova. No lease may need them any more."""

    examples = (("compute-1", "one host"),)


class DisableHost(OfHosts, DisableCommand):
    """Close a host to new reservations, whatever the cloud says of it.

    Existing reservations keep it; the list shows them. You are asked before it is done.
    """

    examples = (
        ("compute-1 --reason 'a broken fan'", "and be asked before it is done"),
        ("compute-1 --dry-run", "see which reservations it has"),
    )


class EnableHost(OfHosts, EnableCommand):
    """Open a host to reservations again. It takes them as far as the cloud reports it as well."""

    examples = (("compute-1", "and be asked before it is done"),)


class ReallocateHost(OfHosts, ReallocateCommand):
    """Move the reservations of a host to other hosts, as far as there are any.

    Reservations that have started stay, unless --running is given. The list shows what happens to each
    reservation. You are asked before it is done. To keep the host empty, disable it first.
    """

    lost = "servers"
    examples = (
        ("compute-1 --dry-run", "see what would move, and where to"),
        ("compute-1 --lease bio-42 --yes", "of one lease, without being asked"),
        ("compute-1 --running", "also reservations that have started; they lose their servers there"),
    )
