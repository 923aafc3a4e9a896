"""Parts of hosts of a simulated cloud, as Nova and Placement hand them out: instances of a reservation's own flavor."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Collection
from datetime import timedelta
from typing import Final

from tenure.domain.reason import Reason
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudRefused,
    Order,
    Progress,
    ResourceMissing,
)
from tenure.drivers.simulated.effects import Effects, hosts_of, ids_of, refuse_broken_trust, servers_of
from tenure.drivers.simulated.faults import Call
from tenure.drivers.simulated.preemption import Preemption
from tenure.drivers.simulated.state import EffectKind, StateFile
from tenure.drivers.simulated.wanted import (
    SIZES,
    Wanted,
    class_of,
    group_name,
    policy_of,
    text_of,
    units_of,
    wanted_of,
)

_GOT_MORE: Final = Progress(False, timedelta(seconds=1), Reason("The reservation got more while it was taken back."))


class Instances:
    """What the verbs of a driver do for instances.

    The hosts stay in the pool, and each may serve several reservations. What servers are booted with is the flavor of
    the reservation's id; that goes with the aggregate's hosts only, and each of these has as many units of the
    reservation's resource class as there may be servers. Access is given last and taken away first.
    """

    def __init__(self, state: StateFile, effects: Effects, preemption: Preemption) -> None:
        self._state = state
        self._effects = effects
        self._preemption = preemption

    def prepare(self, call: Call, order: Order) -> Progress:
        if policy_of(order) is None and self._group(order) is None:
            return DONE
        return Progress(True, effects={"server_group_id": self._ensure_group(call, order, needs_trust=True)})

    def start(self, call: Call, order: Order) -> Progress:
        with self._state.look() as tx:
            hosts, missing = hosts_of(tx, order.resources)
            for host in hosts:
                if host["reservation_id"] is not None:
                    raise CloudBusy(f"{host['name']} is not released yet by reservation {host['reservation_id']}.")
            returning = ids_of(tx, order.returning)
        keep = {host["id"] for host in hosts}
        lingering = self._return_surplus(call, order, keep, only=returning if missing else None)
        group_id = self._ensure_group(call, order, needs_trust=False)
        wanted = wanted_of(order, group_id)
        self._ensure_flavor(call, wanted)
        aggregate_id = self._ensure_aggregate(call, wanted)
        self._do(
            call,
            EffectKind.CLASS_MADE,
            wanted.id,
            "INSERT INTO resource_class VALUES (?, ?) ON CONFLICT DO NOTHING",
            (wanted.resource_class, wanted.id),
        )
        for host in hosts:
            units = units_of(order, str(host["id"]))
            self._ensure_part(call, wanted, aggregate_id, host["id"], units)
            lingering = self._effects.delete_servers(call, wanted.id, host["id"], but=units) or lingering
        lingering = self._preemption.clear(call, order) or lingering
        self._ensure_access(call, wanted.id, order.project_id)
        if missing:
            raise ResourceMissing(missing)
        told = {"flavor_id": wanted.id, "aggregate_id": aggregate_id, "server_group_id": group_id}
        if lingering is not None:
            return Progress(False, lingering.look_again_after, lingering.reason, told)
        return Progress(True, effects=told)

    def end(self, call: Call, order: Order) -> Progress:
        reservation_id = order.reservation_id
        with self._state.look() as tx:
            if not _has_more_than_flavor(tx, reservation_id) and not _has_flavor(tx, reservation_id):
                return DONE
        self._ensure_access(call, reservation_id, None)
        unfinished = self._effects.delete_servers(call, reservation_id)
        if unfinished is not None:
            return unfinished
        with self._state.look() as tx:
            hosts = _hosts_of_reservation(tx, reservation_id)
        for host_id in sorted(hosts):
            self._remove_part(call, reservation_id, host_id)
            self._drop_host(call, reservation_id, host_id)
        for kind, table, key, name in (
            (EffectKind.CLASS_REMOVED, "resource_class", "reservation_id", reservation_id),
            (EffectKind.AGGREGATE_REMOVED, "aggregate", "name", reservation_id),
            (EffectKind.SERVER_GROUP_REMOVED, "server_group", "name", group_name(reservation_id)),
        ):
            try:
                self._do(call, kind, reservation_id, f"DELETE FROM {table} WHERE {key} = ?", (name,))
            except sqlite3.IntegrityError:
                return _GOT_MORE
        return self._remove_flavor(call, reservation_id)

    def held(self, tx: sqlite3.Connection) -> set[str]:
        rows = tx.execute(
            "SELECT id AS held FROM flavor WHERE name = 'reservation:' || id UNION SELECT name FROM aggregate"
            " WHERE json_extract(metadata, '$.reservation') = name"
            " UNION SELECT substr(name, 13) FROM server_group WHERE name LIKE 'reservation:%'"
            " UNION SELECT reservation_id FROM resource_class"
            " UNION SELECT reservation_id FROM server WHERE reservation_id IS NOT NULL"
        )
        return {row["held"] for row in rows}

    # The server group, which is the owner's

    def _group(self, order: Order) -> sqlite3.Row | None:
        with self._state.look() as tx:
            row: sqlite3.Row | None = tx.execute(
                "SELECT * FROM server_group WHERE name = ? AND project_id = ?",
                (group_name(order.reservation_id), order.project_id),
            ).fetchone()
        return row

    def _ensure_group(self, call: Call, order: Order, *, needs_trust: bool) -> str | None:
        """The id of the group that the order wants. One of another policy is replaced; both take a trust."""
        found, policy = self._group(order), policy_of(order)
        if policy == (None if found is None else found["policy"]):
            return None if found is None else str(found["id"])
        if policy is not None:
            try:
                self._refuse_without_trust(order)
            except CloudRefused:
                if needs_trust:
                    raise
                return None if found is None else str(found["id"])
        if found is not None:
            statement = "DELETE FROM server_group WHERE id = ?"
            self._do(call, EffectKind.SERVER_GROUP_REMOVED, order.reservation_id, statement, (found["id"],))
        if policy is None:
            return None
        name = group_name(order.reservation_id)
        self._do(
            call,
            EffectKind.SERVER_GROUP_MADE,
            order.reservation_id,
            "INSERT INTO server_group SELECT ?, ?, ?, ? WHERE NOT EXISTS"
            " (SELECT 1 FROM server_group WHERE name = ? AND project_id = ?)",
            (str(uuid.uuid4()), name, order.project_id, policy, name, order.project_id),
        )
        made = self._group(order)
        return None if made is None else str(made["id"])

    def _refuse_without_trust(self, order: Order) -> None:
        if order.trust_id is None:
            raise CloudRefused(Reason("A server group is made as the lease's owner, who has given no trust."))
        with self._state.look() as tx:
            refuse_broken_trust(tx, order)

    # What the operator makes

    def _ensure_flavor(self, call: Call, wanted: Wanted) -> None:
        with self._state.look() as tx:
            row = tx.execute("SELECT * FROM flavor WHERE id = ?", (wanted.id,)).fetchone()
        if row is not None and tuple(row[name] for name in SIZES) != wanted.sizes:
            # The sizes of a flavor cannot be changed. Servers have a copy of the one that they were booted with.
            self._do(call, EffectKind.FLAVOR_REMOVED, wanted.id, "DELETE FROM flavor WHERE id = ?", (wanted.id,))
            row = None
        if row is None:
            columns = ", ".join(SIZES)
            self._do(
                call,
                EffectKind.FLAVOR_MADE,
                wanted.id,
                f"INSERT INTO flavor (id, {columns}, extra_specs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (wanted.id, *wanted.sizes, text_of(wanted.extra_specs)),
            )
        self._do(
            call,
            EffectKind.FLAVOR_CHANGED,
            wanted.id,
            "UPDATE flavor SET extra_specs = ? WHERE id = ? AND extra_specs IS NOT ?",
            (text_of(wanted.extra_specs), wanted.id, text_of(wanted.extra_specs)),
        )

    def _ensure_aggregate(self, call: Call, wanted: Wanted) -> int:
        metadata = text_of(wanted.metadata)
        self._do(
            call,
            EffectKind.AGGREGATE_MADE,
            wanted.id,
            "INSERT INTO aggregate (name, metadata) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (wanted.id, metadata),
        )
        self._do(
            call,
            EffectKind.AGGREGATE_CHANGED,
            wanted.id,
            "UPDATE aggregate SET metadata = ? WHERE name = ? AND metadata IS NOT ?",
            (metadata, wanted.id, metadata),
        )
        with self._state.look() as tx:
            row = tx.execute("SELECT id FROM aggregate WHERE name = ?", (wanted.id,)).fetchone()
        if row is None:
            raise _removed_meanwhile("aggregate", wanted.id)
        return int(row["id"])

    def _ensure_part(self, call: Call, wanted: Wanted, aggregate_id: int, host_id: int, units: int) -> None:
        """Let the host have so many units, and be one of the aggregate's."""
        try:
            self._do(
                call,
                EffectKind.INVENTORY_SET,
                wanted.id,
                "INSERT INTO part VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET total = excluded.total"
                " WHERE total != excluded.total",
                (host_id, wanted.resource_class, units),
                host=host_id,
            )
            self._do(
                call,
                EffectKind.HOST_ADDED,
                wanted.id,
                "INSERT INTO aggregate_host VALUES (?, ?) ON CONFLICT DO NOTHING",
                (aggregate_id, host_id),
                host=host_id,
            )
        except sqlite3.IntegrityError:
            raise _removed_meanwhile("aggregate, class or host", wanted.id) from None

    def _ensure_access(self, call: Call, reservation_id: str, project_id: str | None) -> None:
        """Let that project see the flavor, and no other."""
        with self._state.look() as tx:
            rows = tx.execute("SELECT project_id FROM flavor_access WHERE flavor_id = ?", (reservation_id,)).fetchall()
        for row in rows:
            if row["project_id"] != project_id:
                self._do(
                    call,
                    EffectKind.ACCESS_TAKEN,
                    reservation_id,
                    "DELETE FROM flavor_access WHERE flavor_id = ? AND project_id = ?",
                    (reservation_id, row["project_id"]),
                )
        if project_id is None:
            return
        try:
            self._do(
                call,
                EffectKind.ACCESS_GIVEN,
                reservation_id,
                "INSERT INTO flavor_access VALUES (?, ?) ON CONFLICT DO NOTHING",
                (reservation_id, project_id),
            )
        except sqlite3.IntegrityError:
            raise _removed_meanwhile("flavor", reservation_id) from None

    # Giving back

    def _return_surplus(
        self, call: Call, order: Order, keep: set[int], *, only: Collection[int] | None
    ) -> Progress | None:
        """Give up the hosts that it keeps no more, or ``only`` some; says so while servers vanish there."""
        with self._state.look() as tx:
            surplus = _hosts_of_reservation(tx, order.reservation_id) - keep
        lingering: Progress | None = None
        for host_id in sorted(surplus if only is None else surplus & set(only)):
            self._drop_host(call, order.reservation_id, host_id)  # nothing is booted there from now on
            unfinished = self._effects.delete_servers(call, order.reservation_id, host_id)
            if unfinished is None:
                self._remove_part(call, order.reservation_id, host_id)
            lingering = lingering or unfinished
        return lingering

    def _drop_host(self, call: Call, reservation_id: str, host_id: int) -> None:
        self._do(
            call,
            EffectKind.HOST_DROPPED,
            reservation_id,
            "DELETE FROM aggregate_host WHERE host_id = ? AND aggregate_id = (SELECT id FROM aggregate WHERE name = ?)",
            (host_id, reservation_id),
            host=host_id,
        )

    def _remove_part(self, call: Call, reservation_id: str, host_id: int) -> None:
        self._do(
            call,
            EffectKind.INVENTORY_REMOVED,
            reservation_id,
            "DELETE FROM part WHERE host_id = ? AND resource_class = ?",
            (host_id, class_of(reservation_id)),
            host=host_id,
        )

    def _remove_flavor(self, call: Call, reservation_id: str) -> Progress:
        """The last step of an end: as long as there is a flavor, the repair pass sees the reservation."""
        with self._state.change() as tx:
            if _has_more_than_flavor(tx, reservation_id):
                return _GOT_MORE
            removed = tx.execute("DELETE FROM flavor WHERE id = ?", (reservation_id,)).rowcount
            if removed:
                self._state.record(tx, call.verb, EffectKind.FLAVOR_REMOVED, reservation_id=reservation_id)
        if removed:
            call.effect_happened()
        return DONE

    def _do(
        self,
        call: Call,
        kind: EffectKind,
        reservation_id: str,
        statement: str,
        values: tuple[object, ...],
        *,
        host: int | None = None,
    ) -> None:
        """One effect, which is none where the statement finds nothing to do."""
        with self._state.change() as tx:
            done = tx.execute(statement, values).rowcount > 0
            if done:
                self._state.record(tx, call.verb, kind, reservation_id=reservation_id, host=host)
        if done:
            call.effect_happened()


def _removed_meanwhile(what: str, reservation_id: str) -> CloudBusy:
    return CloudBusy(f"The {what} of reservation {reservation_id} was removed meanwhile.")


def _has_flavor(tx: sqlite3.Connection, reservation_id: str) -> bool:
    return tx.execute("SELECT 1 FROM flavor WHERE id = ?", (reservation_id,)).fetchone() is not None


def _has_more_than_flavor(tx: sqlite3.Connection, reservation_id: str) -> bool:
    more = tx.execute(
        "SELECT 1 FROM aggregate WHERE name = ? UNION SELECT 1 FROM resource_class WHERE reservation_id = ?"
        " UNION SELECT 1 FROM flavor_access WHERE flavor_id = ? UNION SELECT 1 FROM server_group WHERE name = ?",
        (reservation_id, reservation_id, reservation_id, group_name(reservation_id)),
    ).fetchone()
    return more is not None or bool(servers_of(tx, reservation_id))


def _hosts_of_reservation(tx: sqlite3.Connection, reservation_id: str) -> set[int]:
    """The hosts that have anything of the reservation."""
    rows = tx.execute(
        "SELECT host_id FROM part WHERE resource_class = ? UNION"
        " SELECT host_id FROM aggregate_host JOIN aggregate ON id = aggregate_id WHERE name = ?",
        (class_of(reservation_id), reservation_id),
    )
    return {row["host_id"] for row in rows}
