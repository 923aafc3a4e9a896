"""Floating IP addresses of a simulated cloud."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final

from tenure.domain.address import address_id, lies_in
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Health,
    Order,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.simulated.faults import Call
from tenure.drivers.simulated.state import EffectKind, StateFile

FLOATING_IP: Final = "virtual:floatingip"
_OURS: Final = "reservation:"


class Addresses:
    """What the verbs of a driver do for floating IP addresses.

    Nothing sets an address aside but that it lies outside of its subnet's allocation pools. An address that was made
    for a reservation is told by its description, which it has from the first moment, or by its tags.
    """

    def __init__(self, state: StateFile, region: str) -> None:
        self._state = state
        self._region = region

    def discover(self) -> list[DiscoveredResource]:
        return []

    def look_up(self, reference: str) -> DiscoveredResource:
        network_id, _, text = reference.partition("/")
        with self._state.look() as tx:
            network = tx.execute("SELECT * FROM network WHERE id = ?", (network_id,)).fetchone()
            if not text or (network is None and not network_id):
                raise CloudNotFound(f"There is no floating IP {reference}.")
            if network is None:
                raise CloudRefused(Reason(f"Failed to find network {network_id}"), about="floating_network_id")
            if not network["external"]:
                raise CloudRefused(f"The network {network_id} is not external.", about="floating_network_id")
            subnet, address = _subnet_of(tx, network_id, text)
        if _is_used_by(subnet, address):
            raise CloudRefused(
                f"The floating IP {address} is used in allocation_pools or gateway_ip in subnet {subnet['id']} ."
            )
        facts = {"floating_network_id": network_id, "subnet_id": subnet["id"], "floating_ip_address": address}
        return DiscoveredResource(
            resource_type=FLOATING_IP,
            external_id=address_id(network_id, address),
            name=address,
            capacity=Capacity({WHOLE: 1}),
            facts=facts,
            region=self._region,
        )

    def register(self, call: Call, resource: ResourceRef) -> None:
        with self._state.look() as tx:
            network_id = _network_of(tx, resource)
            row = _floating_ip(tx, network_id, resource.name)
        if row is not None and not marks_of(row):
            raise ResourceOccupied({resource.external_id: _in_use(row)})

    def check(self, registered: Iterable[ResourceRef]) -> dict[str, Health]:
        """All are well but those that somebody else has, or that there is no network for any more."""
        healths: dict[str, Health] = {}
        with self._state.look() as tx:
            for resource in registered:
                try:
                    row = _floating_ip(tx, _network_of(tx, resource), resource.name)
                except CloudNotFound as error:
                    healths[resource.external_id] = Health(False, str(error))
                    continue
                if row is not None and not marks_of(row):
                    healths[resource.external_id] = Health(False, f"{_in_use(row)}.")
                else:
                    healths[resource.external_id] = Health(True)
        return healths

    def unregister(self, call: Call, resource: ResourceRef) -> None:
        with self._state.look() as tx:
            try:
                row = _floating_ip(tx, _network_of(tx, resource), resource.name)
            except CloudNotFound:
                return
        if row is not None and (holders := marks_of(row)):
            raise CloudBusy(f"{resource.name} is not released yet by reservation {min(holders)}.")

    def prepare(self, call: Call, order: Order) -> Progress:
        return DONE

    def start(self, call: Call, order: Order) -> Progress:
        network_id = str(order.parameters["network_id"])
        present, missing = self._judge(order, network_id)
        keep = {resource.name for resource in present}
        returning = {resource.name for resource in order.returning}
        for row in self._own(order.reservation_id):
            # What is not known may come back, so what else there is is not taken for given up.
            surplus = row["address"] in returning if missing else row["address"] not in keep
            stale = row["project_id"] != order.project_id or row["network_id"] != network_id
            if surplus or stale:
                self._remove(call, order.reservation_id, row)
        made: list[ResourceRef] = []
        for resource in present:
            try:
                if self._make(call, order, network_id, resource):
                    made.append(resource)
                self._tag(call, order, network_id, resource)
            except ResourceOccupied:
                # Somebody took it since we looked. Nothing is handed over then, not even the others.
                for row in self._own(order.reservation_id):
                    if row["address"] in {one.name for one in made}:
                        self._remove(call, order.reservation_id, row)
                raise
        if missing:
            raise ResourceMissing(missing)
        return DONE

    def end(self, call: Call, order: Order) -> Progress:
        network_id = str(order.parameters.get("network_id"))
        with self._state.look() as tx:
            had = [_floating_ip(tx, network_id, resource.name) for resource in order.resources]
        hidden = [row for row in had if row is not None and not marks_of(row) and row["project_id"] == order.project_id]
        for row in [*self._own(order.reservation_id), *hidden]:
            self._remove(call, order.reservation_id, row)
        return DONE

    def held(self, tx: sqlite3.Connection) -> set[str]:
        return {name for row in tx.execute("SELECT * FROM floating_ip").fetchall() for name in marks_of(row)}

    def _judge(self, order: Order, network_id: str) -> tuple[list[ResourceRef], dict[str, str]]:
        """The addresses of the order that there are, and what is known of the others; refuses what others have."""
        present: list[ResourceRef] = []
        missing: dict[str, str] = {}
        occupied: dict[str, str] = {}
        with self._state.look() as tx:
            for resource in order.resources:
                row = _floating_ip(tx, network_id, resource.name)
                if row is not None and not _is_for(order, row):
                    if marks_of(row):
                        holder = min(marks_of(row))
                        raise CloudBusy(f"{resource.name} is not released yet by reservation {holder}.")
                    occupied[resource.external_id] = _in_use(row)
                try:
                    _subnet_of(tx, network_id, resource.name)
                    present.append(resource)
                except CloudNotFound as error:
                    missing[resource.external_id] = str(error)
        if occupied:
            raise ResourceOccupied(occupied)
        return present, missing

    def _own(self, reservation_id: str) -> list[sqlite3.Row]:
        with self._state.look() as tx:
            rows = tx.execute("SELECT * FROM floating_ip ORDER BY number").fetchall()
        return [row for row in rows if reservation_id in marks_of(row)]

    def _make(self, call: Call, order: Order, network_id: str, resource: ResourceRef) -> bool:
        with self._state.change() as tx:
            row = _floating_ip(tx, network_id, resource.name)
            if row is not None and _is_for(order, row):
                return False
            if row is not None:
                raise ResourceOccupied({resource.external_id: _in_use(row)})
            tx.execute(
                "INSERT INTO floating_ip (network_id, address, project_id, description) VALUES (?, ?, ?, ?)",
                (network_id, resource.name, order.project_id, f"{_OURS}{order.reservation_id}"),
            )
            self._record(tx, call, EffectKind.ADDRESS_MADE, order.reservation_id, resource.name)
        call.effect_happened()
        return True

    def _tag(self, call: Call, order: Order, network_id: str, resource: ResourceRef) -> None:
        with self._state.change() as tx:
            row = _floating_ip(tx, network_id, resource.name)
            if row is None:
                raise CloudBusy(f"{resource.name} of reservation {order.reservation_id} was removed meanwhile.")
            if is_tagged_for(order, row):
                return
            kept = {tag for tag in json.loads(row["tags"]) if not tag.startswith(_OURS)}
            tx.execute(
                "UPDATE floating_ip SET tags = ? WHERE number = ?",
                (json.dumps(sorted(kept | _tags_of(order))), row["number"]),
            )
            self._record(tx, call, EffectKind.ADDRESS_TAGGED, order.reservation_id, resource.name)
        call.effect_happened()

    def _remove(self, call: Call, reservation_id: str, row: sqlite3.Row) -> None:
        """Take the address from whatever has it, and delete it."""
        for kind, statement in (
            (
                EffectKind.ADDRESS_DISASSOCIATED,
                "UPDATE floating_ip SET port_id = NULL WHERE number = ? AND port_id IS NOT NULL",
            ),
            (EffectKind.ADDRESS_REMOVED, "DELETE FROM floating_ip WHERE number = ?"),
        ):
            with self._state.change() as tx:
                done = tx.execute(statement, (row["number"],)).rowcount
                if done:
                    self._record(tx, call, kind, reservation_id, row["address"])
            if done:
                call.effect_happened()

    def _record(self, tx: sqlite3.Connection, call: Call, kind: EffectKind, reservation_id: str, address: str) -> None:
        self._state.record(tx, call.verb, kind, reservation_id=reservation_id, subject=address)


def is_tagged_for(order: Order, row: sqlite3.Row) -> bool:
    """Whether an address has the tags of that reservation and of no other, whatever other tags its owner gave it."""
    tags = set(json.loads(row["tags"]))
    return _tags_of(order) == {"blazar", *(tag for tag in tags if tag.startswith(_OURS))} and "blazar" in tags


def _tags_of(order: Order) -> set[str]:
    return {"blazar", f"{_OURS}{order.reservation_id}"}


def marks_of(row: sqlite3.Row) -> set[str]:
    """The reservations for which an address was made; none for what others have made."""
    texts = [row["description"], *json.loads(row["tags"])]
    return {text.removeprefix(_OURS) for text in texts if text.startswith(_OURS)}


def _floating_ip(tx: sqlite3.Connection, network_id: str, address: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = tx.execute(
        "SELECT * FROM floating_ip WHERE network_id = ? AND address = ?", (network_id, address)
    ).fetchone()
    return row


def _is_for(order: Order, row: sqlite3.Row) -> bool:
    """Whether an address that somebody has is the order's; what its owner has and nothing says for whom is, too."""
    marks = marks_of(row)
    return order.reservation_id in marks or (not marks and row["project_id"] == order.project_id)


def _in_use(row: sqlite3.Row) -> str:
    return f"project {row['project_id']} has {row['address']}"


def _network_of(tx: sqlite3.Connection, resource: ResourceRef) -> str:
    """The network of an address, which its id is made from."""
    for row in tx.execute("SELECT id FROM network WHERE external").fetchall():
        if address_id(row["id"], resource.name) == resource.external_id:
            _subnet_of(tx, row["id"], resource.name)
            return str(row["id"])
    raise CloudNotFound(f"There is no network of the floating IP {resource.name} any more.")


def _subnet_of(tx: sqlite3.Connection, network_id: str, text: str) -> tuple[sqlite3.Row, str]:
    """The subnet in which an address of the network lies, and the address as it is written."""
    try:
        address = ip_address(text)
    except ValueError:
        raise CloudRefused(Reason(f"{text} is no address.")) from None
    for subnet in tx.execute("SELECT * FROM subnet WHERE network_id = ? ORDER BY id", (network_id,)).fetchall():
        if lies_in(str(address), subnet["cidr"]):
            return subnet, str(address)
    raise CloudNotFound(Reason(f"Valid subnet for the floating IP {address} is not found."))


def _is_used_by(subnet: sqlite3.Row, text: str) -> bool:
    """Whether the subnet hands the address out itself, or has it for a gateway."""
    address = ip_address(text)
    pools: Sequence[tuple[str, str]] = json.loads(subnet["pools"])
    in_pool = any(int(ip_address(first)) <= int(address) <= int(ip_address(last)) for first, last in pools)
    return in_pool or subnet["gateway"] == text
