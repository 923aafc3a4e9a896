"""host list, show, create, set, unset, delete, disable, enable, reallocate"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from osc_lib import exceptions

from tenureclient.cli.command import (
    ReservationCommand,
    ReservationLister,
    ReservationShowOne,
    reading,
)
from tenureclient.cli.render import affected_row, fields, host_row, table
from tenureclient.models import Host, HostChange

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


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", help="Name or id of the host")


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
        reservable = parser.add_mutually_exclusive_group()
        reservable.add_argument(
            "--reservable", action="store_true", default=None, help="Only hosts that take reservations"
        )
        reservable.add_argument(
            "--not-reservable",
            dest="reservable",
            action="store_false",
            default=None,
            help="Only hosts that take none, for example failed ones",
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        found = sorted(
            self.client().hosts.list(reservable=parsed_args.reservable),
            key=lambda host: (getattr(host, parsed_args.sort_by), host.hypervisor_hostname),
        )
        zone = self.surroundings.zone
        return table(found, lambda host: host_row(host, zone), _LISTED, parsed_args.columns)


class ShowHost(ReservationShowOne):
    """Show a host with its properties."""

    examples = (("compute-1", "by name"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_host(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[object]]:
        return fields(host_row(self.client().hosts.find(parsed_args.host), self.surroundings.zone))


class CreateHost(ReservationShowOne):
    """Make a host of Nova reservable. Nothing may run on it."""

    examples = (("compute-1 --extra gpu=v100 --extra rack=r2", "with two properties"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="HOST", help="Host name of the hypervisor")
        _add_values(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[object]]:
        host = self.client().hosts.create(parsed_args.name, properties=dict(parsed_args.properties))
        return fields(host_row(host, self.surroundings.zone))


class SetHost(ReservationCommand):
    """Give properties to a host, or change their values."""

    examples = (("compute-1 --extra gpu=a100", "another value"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_host(parser)
        _add_values(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.properties:
            raise exceptions.CommandError("Nothing to change: give --extra KEY=VALUE.")
        client = self.client()
        host = client.hosts.find(parsed_args.host)
        client.hosts.update(host.id, properties=dict(parsed_args.properties))
        self.output.write(f"Updated host: {parsed_args.host}\n")


class UnsetHost(ReservationCommand):
    """Take properties away from a host."""

    examples = (("compute-1 --extra gpu", "one property"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_host(parser)
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
        client.hosts.unset(client.hosts.find(parsed_args.host).id, parsed_args.names)
        self.output.write(f"Updated host: {parsed_args.host}\n")


class DeleteHost(ReservationCommand):
    """Give hosts back to Nova. No lease may need them any more."""

    examples = (("compute-1", "one host"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("hosts", metavar="HOST", nargs="+", help="Name or id of a host")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.client()
        for name in parsed_args.hosts:
            client.hosts.delete(client.hosts.find(name).id)
            self.output.write(f"Deleted host: {name}\n")


class _ChangeHost(ReservationLister):
    """A command that changes a host for its reservations: first it is told what comes of it, then done."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_host(parser)
        parser.add_argument("--dry-run", action="store_true", help="Only show what would be done")
        parser.add_argument("--yes", action="store_true", help="Do it without asking")
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        host = self.client().hosts.find(parsed_args.host)
        if not parsed_args.yes or parsed_args.dry_run:
            plan = self.change(host, parsed_args, dry_run=True)
            if parsed_args.dry_run:
                return self._table(plan, parsed_args)
            self._confirm(self.describe(host, plan))
        return self._table(self.change(host, parsed_args, dry_run=False), parsed_args)

    def change(self, host: Host, parsed_args: argparse.Namespace, *, dry_run: bool) -> HostChange:
        """Do it, or have it told."""
        raise NotImplementedError

    def describe(self, host: Host, plan: HostChange) -> str:
        """What would be done, in a sentence."""
        raise NotImplementedError

    def _confirm(self, sentence: str) -> None:
        """Go on only where whoever sits there agrees."""
        if not self.app.stdin.isatty():
            raise exceptions.CommandError(
                f"{sentence} Nothing was done. Say --yes to do it without being asked."
            )
        self.app.stderr.write(f"{sentence} Do it? [y/N] ")
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise exceptions.CommandError("Nothing was done.")

    def _table(
        self, change: HostChange, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
        zone = self.surroundings.zone
        shown = ("lease_id", "status", "start_date", "end_date", "moves_to", "reason")
        return table(change.reservations, lambda one: affected_row(one, zone), shown, parsed_args.columns)


class DisableHost(_ChangeHost):
    """Close a host to new reservations, whatever the cloud says of it.

    Who has a part in it keeps it; the list shows them. It is shown before it is done.
    """

    examples = (
        ("compute-1 --reason 'a broken fan'", "and be asked before it is done"),
        ("compute-1 --dry-run", "see who has a part in it"),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", metavar="TEXT", default="", help="Why, for other administrators")
        return parser

    def change(self, host: Host, parsed_args: argparse.Namespace, *, dry_run: bool) -> HostChange:
        return self.client().hosts.disable(host.id, reason=parsed_args.reason, dry_run=dry_run)

    def describe(self, host: Host, plan: HostChange) -> str:
        return (
            f"{host.hypervisor_hostname} takes no new reservations;"
            f" those that have a part in it keep it: {len(plan.reservations)}."
        )


class EnableHost(_ChangeHost):
    """Open a host to reservations again. It takes them as far as the cloud says that it is well."""

    examples = (("compute-1", "and be asked before it is done"),)

    def change(self, host: Host, parsed_args: argparse.Namespace, *, dry_run: bool) -> HostChange:
        return self.client().hosts.enable(host.id, dry_run=dry_run)

    def describe(self, host: Host, plan: HostChange) -> str:
        if plan.host.reservable:
            return f"{host.hypervisor_hostname} takes reservations again."
        name, health = host.hypervisor_hostname, plan.host.health
        return f"{name} takes reservations again as soon as it is well; it is {health}."


class ReallocateHost(_ChangeHost):
    """Move what is booked on a host to others, as far as there are any.

    What runs there stays, unless --running says otherwise. The list shows what becomes of each; it is shown
    before it is done. To keep the host empty, disable it first.
    """

    examples = (
        ("compute-1 --dry-run", "see what would move, and where to"),
        ("compute-1 --lease bio-42 --yes", "of one lease, without being asked"),
        ("compute-1 --running", "also what runs, which loses its servers there"),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--lease", metavar="LEASE", help="Only of this lease, by name or id")
        parser.add_argument(
            "--running",
            action="store_true",
            help="Also what has started: the lease gets another host and loses its servers on this one",
        )
        return parser

    def change(self, host: Host, parsed_args: argparse.Namespace, *, dry_run: bool) -> HostChange:
        client = self.client()
        lease_id = None if parsed_args.lease is None else client.leases.find(parsed_args.lease).id
        return client.hosts.reallocate(
            host.id, lease_id=lease_id, running=parsed_args.running, dry_run=dry_run
        )

    def describe(self, host: Host, plan: HostChange) -> str:
        moving = [one for one in plan.reservations if one.moves_to is not None]
        running = sum(one.status == "held" for one in moving)
        lost = f" {running} of them run, and lose their servers there." if running else ""
        return (
            f"Of {len(plan.reservations)} reservations on {host.hypervisor_hostname},"
            f" {len(moving)} move to other hosts.{lost}"
        )
