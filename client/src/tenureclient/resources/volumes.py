"""Volumes, and the pools that administrators lend to reservations of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime
from typing import Unpack

from tenureclient.documents import Document, LooseText, SetFlag, document
from tenureclient.inventory import Help, Inventory, Resource, ResourceQuery, ResourceType
from tenureclient.options import Option
from tenureclient.reservation_request import VOLUMES_AT_END, ReservationRequest
from tenureclient.reservation_type import ReservationType, UnreadableReservation, parse_amount
from tenureclient.sizes import parse_size
from tenureclient.wire import Feature, Version


@document("a volume pool", kw_only=True)
class VolumePool(Resource):
    """A volume pool. ``capacity_gb`` is the part of it that is lent to reservations, in GiB."""

    id: str
    name: str
    capacity_gb: int
    reservable: SetFlag
    health: str


@document("a volume pool of a lease", kw_only=True)
class LeaseVolumePool(Document):
    """A pool with volumes of a lease, as the lease's owner sees it.

    ``status`` is ``planned``, ``held``, ``released``, or ``kept`` while volumes remain after the lease.
    """

    id: str
    name: str
    status: LooseText
    reservation_id: str
    start_date: datetime
    end_date: datetime


class VolumePoolQuery(ResourceQuery, total=False):
    """Which volume pools to list."""

    name: str | None


_CAPACITY = Option(field="capacity_gb", metavar="SIZE", read=parse_size("g"), help="How much, in GB, or such as 1t")


class VolumeReservations(ReservationType):
    name = "virtual:volume"
    position = 40
    short = "volume"
    units = ("volume", "volumes")
    parameters = ("amount=COUNT size_gb=GB [volume_type=TYPE] [at_end=delete|snapshot|keep]",)
    before_end = ("none", "notify", "default")  # snapshots of volumes are for their end
    heading = "volumes"
    requesting = ("volumes",)
    options = (
        Option("--volumes", "COUNT", parse_amount, help="Reserve this many volumes"),
        Option("--size", "SIZE", parse_size("g"), help="Size of each, in GB, or such as 1t"),
        Option("--volume-type", "TYPE", help="Name or id of their volume type (default: the cloud's default)"),
        Option(
            "--volumes-at-end",
            "ACTION",
            choices=VOLUMES_AT_END,
            help="What happens to them when the lease ends: delete (default), keep, or snapshot (one of each;"
            " the volume stays as well)",
        ),
    )

    def requests(self, given: argparse.Namespace) -> Iterator[ReservationRequest]:
        if given.volumes is None:
            self.refuse_details(given)
            return
        if given.size is None:
            raise UnreadableReservation("--volumes: say of which size, with --size.")
        yield ReservationRequest.volumes(
            given.volumes,
            size_gb=given.size,
            volume_type=given.volume_type or "",
            at_end=given.volumes_at_end or "delete",
        )


class VolumePools(Inventory[VolumePool, LeaseVolumePool]):
    """The volume pools that are registered with the reservation service."""

    resource_type = ResourceType(
        resource=VolumePool,
        of_lease=LeaseVolumePool,
        path="volume-pools",
        document_key="volume_pool",
        list_key="volume_pools",
        name="name",
        noun="volume pool",
        feature=Feature("volumes", Version.V1_2),
        short="volumepool",
        words="volume pool",
        metavar="POOL",
        position=40,
        some="pools",
        lost="volumes",
        listed=("id", "name", "capacity_gb", "reservable"),
        listed_of_lease=("id", "name", "status", "reservation_id"),
        sortable=("id", "name", "capacity_gb", "reservable"),
        sorted_by="name",
        query=VolumePoolQuery,
        registration=(
            Option(field="name", metavar="POOL", help="The pool as Cinder calls it: HOST@BACKEND#POOL"),
            _CAPACITY,
        ),
        changes=(_CAPACITY,),
        help={
            "list": Help(
                """List the pools from which volumes can be reserved.

                With -c any field of a pool can be asked for.
                """,
                (("--not-reservable -c name -c disabled_reason", "which are closed, and why"),),
            ),
            "show": Help(
                "Show a volume pool: how much of it is lent, and whether it takes reservations.",
                (("storage-1@lvm#lvm", "by name"),),
            ),
            "create": Help(
                """Lend a volume pool, or a part of it, to reservations.

                Cinder does not close the pool to others: lend no more than they leave free.
                """,
                (("storage-1@lvm#lvm 500", "500 GB of it"), ("storage-1@lvm#lvm 2t", "2 TB of it")),
            ),
            "set": Help(
                """Lend more or less of a volume pool to reservations.

                At most the size of the pool, and at least what is promised or kept in it at any time.
                """,
                (("storage-1@lvm#lvm 800", "800 GB of it from now on"),),
            ),
            "delete": Help(
                """Take volume pools out of the reservation service.

                No lease may need them, and nothing may be kept in them.
                """,
                (("storage-1@lvm#lvm", "one pool"),),
            ),
            "disable": Help(
                """Close a volume pool to new reservations.

                Existing reservations keep their volumes; the list shows them. You are asked before it is done.
                """,
                (("storage-1@lvm#lvm --reason 'old disks' --yes", "without being asked"),),
            ),
            "enable": Help(
                "Open a volume pool to reservations again.", (("storage-1@lvm#lvm --yes", "without being asked"),)
            ),
            "reallocate": Help(
                """Move the volumes that are reserved in a pool to other pools, as far as there are any.

                Volumes of reservations that have started stay, unless --running is given. The list shows what
                happens to each reservation. You are asked before it is done. To keep the pool empty, disable it
                first.
                """,
                (
                    ("storage-1@lvm#lvm --dry-run", "see what would move, and where to"),
                    ("storage-1@lvm#lvm --lease bio-42 --yes", "of one lease, without being asked"),
                ),
            ),
            "of lease": Help(
                "List the pools with volumes of a lease: planned, held, released, or kept after the lease.",
                (("bio-42", "its pools"), ("bio-42 -f value -c name", "their names only")),
            ),
        },
    )

    def create(self, name: str, capacity_gb: int, *, region: str | None = None) -> VolumePool:
        """Lend ``capacity_gb`` GiB of a Cinder pool with this name to reservations.

        Without a ``region``, the pool belongs to the home region.
        """
        return self.register({"name": name, "capacity_gb": capacity_gb, "region": region})

    def lend(self, pool_id: str, capacity_gb: int) -> VolumePool:
        """Change how many GiB are lent: at most the pool's size, at least what is promised or kept."""
        return self.change(pool_id, {"capacity_gb": capacity_gb})

    def list(self, **query: Unpack[VolumePoolQuery]) -> Iterator[VolumePool]:
        """Yield the matching pools; further pages are fetched as needed."""
        return self.matching(query)
