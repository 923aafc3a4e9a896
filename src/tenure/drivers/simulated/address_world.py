"""Networks and floating IP addresses of a simulated cloud, and what people do with them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from tenure.drivers.contract import CloudRefused
from tenure.drivers.simulated.catalogue import PRIVATE_NETWORK, PUBLIC_NETWORK
from tenure.drivers.simulated.state import StateFile


@dataclass(frozen=True, slots=True)
class FloatingIP:
    """An address that a project has; ``port_id`` is what it is associated with."""

    network_id: str
    address: str
    project_id: str
    description: str
    tags: frozenset[str]
    port_id: str | None


class AddressWorld:
    """What there is of networks. An address is named by itself, in the public network where no other is named."""

    #: The ids of the networks that every simulated cloud has; the private one is not external.
    public = PUBLIC_NETWORK
    private = PRIVATE_NETWORK

    def __init__(self, state: StateFile) -> None:
        self._state = state

    def floating_ips(self, network_id: str = PUBLIC_NETWORK) -> dict[str, FloatingIP]:
        """What projects have of a network, by address."""
        with self._state.look() as tx:
            rows = tx.execute("SELECT * FROM floating_ip WHERE network_id = ? ORDER BY number", (network_id,))
            return {
                row["address"]: FloatingIP(
                    row["network_id"],
                    row["address"],
                    row["project_id"],
                    row["description"],
                    frozenset(json.loads(row["tags"])),
                    row["port_id"],
                )
                for row in rows
            }

    def take(self, address: str, project_id: str, *, network_id: str = PUBLIC_NETWORK) -> None:
        """Somebody gets himself that address. Raises ``CloudRefused`` where another has it."""
        with self._state.change() as tx:
            taken = tx.execute(
                "INSERT INTO floating_ip (network_id, address, project_id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (network_id, address, project_id),
            ).rowcount
            if not taken:
                raise CloudRefused(f"The address {address} is in use.")

    def associate(self, address: str, *, network_id: str = PUBLIC_NETWORK) -> str:
        """Somebody gives his address to a port. Returns the port's id."""
        port = str(uuid.uuid4())
        self._change("UPDATE floating_ip SET port_id = ?", network_id, address, port)
        return port

    def change_tags(
        self, address: str, tags: Iterable[str], *, description: str | None = None, network_id: str = PUBLIC_NETWORK
    ) -> None:
        """Somebody replaces the tags of an address, and its description where one is given."""
        self._change("UPDATE floating_ip SET tags = ?", network_id, address, json.dumps(sorted(tags)))
        if description is not None:
            self._change("UPDATE floating_ip SET description = ?", network_id, address, description)

    def release(self, address: str, *, network_id: str = PUBLIC_NETWORK) -> None:
        """Somebody deletes a floating IP; nobody has the address then."""
        self._change("DELETE FROM floating_ip", network_id, address)

    def add_network(self, name: str, *, external: bool = True) -> str:
        """A network without subnets. Returns its id."""
        made = str(uuid.uuid4())
        with self._state.change() as tx:
            tx.execute("INSERT INTO network VALUES (?, ?, ?)", (made, name, external))
        return made

    def add_subnet(
        self,
        network_id: str,
        cidr: str,
        *,
        gateway: str | None = None,
        pools: Iterable[tuple[str, str]] = (),
    ) -> str:
        """A subnet whose ``pools`` are the first and last addresses of what it hands out itself. Returns its id."""
        made = str(uuid.uuid4())
        with self._state.change() as tx:
            tx.execute(
                "INSERT INTO subnet VALUES (?, ?, ?, ?, ?)", (made, network_id, cidr, gateway, json.dumps(list(pools)))
            )
        return made

    def remove_network(self, network_id: str) -> None:
        """A network is gone, with its subnets and addresses."""
        with self._state.change() as tx:
            tx.execute("DELETE FROM floating_ip WHERE network_id = ?", (network_id,))
            tx.execute("DELETE FROM network WHERE id = ?", (network_id,))

    def _change(self, statement: str, network_id: str, address: str, *values: str) -> None:
        with self._state.change() as tx:
            tx.execute(f"{statement} WHERE network_id = ? AND address = ?", (*values, network_id, address))
