"""volume pool list, show, create, set, delete, disable, enable, reallocate"""

from __future__ import annotations

import argparse

from tenureclient.cli.command import ReservationLister, ReservationShowOne, reading
from tenureclient.cli.inventory import (
    DeleteCommand,
    DisableCommand,
    EnableCommand,
    OfVolumePools,
    ReallocateCommand,
    add_only_region,
    add_region,
    add_reservable,
)
from tenureclient.cli.render import Shown, Table
from tenureclient.sizes import parse_size

_LISTED = ("id", "name", "capacity_gb", "reservable")


def _add_capacity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "capacity", metavar="SIZE", type=reading(parse_size("g")), help="How much, in GB, or such as 1t"
    )


class ListVolumePools(ReservationLister):
    """List the pools from which volumes can be reserved.

    With -c any field of a pool can be asked for.
    """

    examples = (("--not-reservable -c name -c disabled_reason", "which are closed, and why"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--sort-by",
            metavar="<volume_pool_column>",
            choices=_LISTED,
            default="name",
            help=f"Field to sort by: {', '.join(_LISTED)} (default: name)",
        )
        add_reservable(parser, "pools", "closed")
        add_only_region(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        pools = sorted(
            self.client().volume_pools.list(reservable=parsed_args.reservable, region=parsed_args.region),
            key=lambda pool: (getattr(pool, parsed_args.sort_by), pool.id),
        )
        return self.table(pools, _LISTED, parsed_args)


class ShowVolumePool(OfVolumePools, ReservationShowOne):
    """Show a volume pool: how much of it is lent, and whether it takes reservations."""

    examples = (("storage-1@lvm#lvm", "by name"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_resource_argument(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        pool = self.client().volume_pools.find(parsed_args.resource)
        return self.shown(pool)


class CreateVolumePool(ReservationShowOne):
    """Lend a volume pool, or a part of it, to reservations.

    Cinder does not close the pool to others: lend no more than they leave free.
    """

    examples = (("storage-1@lvm#lvm 500", "500 GB of it"), ("storage-1@lvm#lvm 2t", "2 TB of it"))

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="POOL", help="The pool as Cinder calls it: HOST@BACKEND#POOL")
        _add_capacity(parser)
        add_region(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        made = self.client().volume_pools.create(parsed_args.name, parsed_args.capacity, region=parsed_args.region)
        return self.shown(made)


class SetVolumePool(OfVolumePools, ReservationShowOne):
    """Lend more or less of a volume pool to reservations.

    At most the size of the pool, and at least what is promised or kept in it at any time.
    """

    examples = (("storage-1@lvm#lvm 800", "800 GB of it from now on"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_resource_argument(parser)
        _add_capacity(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        pools = self.client().volume_pools
        lent = pools.lend(pools.find(parsed_args.resource).id, parsed_args.capacity)
        return self.shown(lent)


class DeleteVolumePool(OfVolumePools, DeleteCommand):
    """Take volume pools out of the reservation service.

    No lease may need them, and nothing may be kept in them.
    """

    examples = (("storage-1@lvm#lvm", "one pool"),)


class DisableVolumePool(OfVolumePools, DisableCommand):
    """Close a volume pool to new reservations.

    Existing reservations keep their volumes; the list shows them. You are asked before it is done.
    """

    examples = (("storage-1@lvm#lvm --reason 'old disks' --yes", "without being asked"),)


class EnableVolumePool(OfVolumePools, EnableCommand):
    """Open a volume pool to reservations again."""

    examples = (("storage-1@lvm#lvm --yes", "without being asked"),)


class ReallocateVolumePool(OfVolumePools, ReallocateCommand):
    """Move the volumes that are reserved in a pool to other pools, as far as there are any.

    Volumes of reservations that have started stay, unless --running is given. The list shows what happens to
    each reservation. You are asked before it is done. To keep the pool empty, disable it first.
    """

    lost = "volumes"
    examples = (
        ("storage-1@lvm#lvm --dry-run", "see what would move, and where to"),
        ("storage-1@lvm#lvm --lease bio-42 --yes", "of one lease, without being asked"),
    )
