"""Repair: making the cloud what the ledger says, whoever has changed it: a stranger, or a late call of our own."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tenure.drivers.contract import CloudBusy, CloudDriver, CloudError, ResourceOccupied, ResourceRef, parts_of
from tenure.services.events import EventService

LOG = logging.getLogger(__name__)

#: How many trusts one look deletes.
TRUSTS = 100


@dataclass
class DriftTally:
    """How much was found to be other than the ledger says, and how much was mended, by resource type.

    All that is wrong with one reservation, or with one resource that nobody holds, counts as one, and again at a later
    look if it was not mended by then. ``on_found`` and ``on_mended`` are called with the type for each.
    """

    found: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)
    on_found: Callable[[str], object] = lambda _resource_type: None
    on_mended: Callable[[str], object] = lambda _resource_type: None
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count_found(self, resource_type: str) -> None:
        with self._guard:
            self.found[resource_type] += 1
        self.on_found(resource_type)

    def count_mended(self, resource_type: str) -> None:
        with self._guard:
            self.mended[resource_type] += 1
        self.on_mended(resource_type)


def take_back(events: EventService, driver: CloudDriver, reservation_id: str) -> bool:
    """Take back the effects of a reservation that is over; whether they are gone."""
    try:
        order = events.leftover(reservation_id)
        return order is None or driver.ensure_ended(order).done
    except CloudError as error:
        LOG.warning("taking back reservation %s will be tried again: %s", reservation_id, error)
        return False


class Repair:
    """Compares the cloud with the ledger: takes back what is over, and has mended what is not as it should be.

    What belongs to a running lease is mended by an event of that lease, so that it meets no start, change or end of it.
    Any number of managers may do this at the same time.
    """

    def __init__(
        self,
        events: EventService,
        driver: CloudDriver,
        inventories: Collection[str],
        *,
        tally: DriftTally | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._events = events
        self._driver = driver
        self._inventories = sorted(inventories)
        self._wake = wake
        self.tally = tally or DriftTally()
        #: What looks like a reservation and is none of ours, as far as it was told already, by inventory and region.
        self._strange: dict[tuple[str, str | None], set[str]] = {}
        #: What was taken back, as far as the cloud lets it be, and may look held all the same; it is told of once.
        self._lasting: dict[tuple[str, str | None], set[str]] = {}
        #: The trusts over which a pass was broken off.
        self._resisting: set[str] = set()

    def run(self) -> int:
        """Look once, and mend what can be mended at once; how much was found that is not as it should be."""
        found = 0
        for inventory in self._inventories:
            for region, cloud in parts_of(self._driver, inventory).items():
                for look in (self._take_back, self._compare, self._let_go):
                    try:
                        found += look(inventory, region, cloud)
                    except CloudError as error:
                        LOG.warning("the repair pass will be tried again: %s", error)
        self._revoke_trusts()
        return found

    def _revoke_trusts(self) -> None:
        """Delete the trusts of leases that are over, until the cloud does not answer: the rest waits for the next pass.

        Each call may last as long as the cloud is waited for. One that resists keeps no other from it for ever: it is
        the last next time.
        """
        idle = self._events.idle_trusts(TRUSTS)
        self._resisting &= set(idle)
        for trust_id in sorted(idle, key=lambda one: one in self._resisting):
            try:
                self._driver.revoke(trust_id)
            except CloudBusy as error:
                LOG.warning("deleting trust %s, and those after it, will be tried again: %s", trust_id, error)
                self._resisting.add(trust_id)
                return
            except CloudError as error:
                LOG.warning("deleting trust %s will be tried again: %s", trust_id, error)
            else:
                self._events.forget_trust(trust_id)

    def _take_back(self, inventory: str, region: str | None, cloud: CloudDriver) -> int:
        """Take back the effects of reservations that are over; how many there were.

        What the ledger does not know is left alone: somebody else may use the same cloud, and the same names.
        """
        held = set(cloud.held(inventory))
        over = self._events.over(held)
        where = (inventory, region)
        self._tell_strange(where, held - over - self._events.known(held - over))
        lasting = self._lasting.get(where, set()) & over
        for reservation_id in sorted(over - lasting):
            LOG.warning("reservation %s is over and still has effects; taking them back", reservation_id)
            self.tally.count_found(inventory)
            if take_back(self._events, self._driver, reservation_id):
                self.tally.count_mended(inventory)
                lasting.add(reservation_id)
        for reservation_id in sorted(over & self._lasting.get(where, set())):
            take_back(self._events, self._driver, reservation_id)
        self._lasting[where] = lasting
        return len(over)

    def _tell_strange(self, where: tuple[str, str | None], strange: set[str]) -> None:
        for name in sorted(strange - self._strange.get(where, set())):
            LOG.warning("%s looks like a reservation and is none that is known here; it is left alone", name)
        self._strange[where] = strange

    def _compare(self, inventory: str, region: str | None, cloud: CloudDriver) -> int:
        """Look for what is not as the ledger says; how many reservations and resources that concerns."""
        # What is free first: what is handed over meanwhile is then in the orders, and nobody puts it into the pool.
        pooled = self._events.unheld(inventory, region=region)
        drifts = cloud.drift(inventory, list(self._events.running(inventory, region=region)), pooled)
        lasting = {one.reservation_id: one.what for one in drifts if one.reservation_id is not None and one.lasts}
        reservations = {one.reservation_id for one in drifts if one.reservation_id is not None and not one.lasts}
        resources = {one.resource for one in drifts if one.reservation_id is None and one.resource is not None}
        for one in drifts:
            if not one.lasts:
                LOG.warning("not as it should be: %s", one.what)
        for reservation_id, what in lasting.items():
            self.tally.count_found(inventory)
            if self._events.tell_drift(reservation_id, what):
                LOG.warning("not as it should be, and nothing mends it: reservation %s: %s", reservation_id, what)
        found = self._events.mend(reservations)  # not those that have ended, or changed, since they were read
        for _ in found:
            self.tally.count_found(inventory)
        if found:
            self._wake()
        loose = [one for one in resources if self._events.is_registered(inventory, one)]
        for resource in sorted(loose, key=lambda one: one.external_id):
            self.tally.count_found(inventory)
            self._set_aside(inventory, resource)
        return len(found) + len(loose) + len(lasting)

    def _let_go(self, inventory: str, region: str | None, cloud: CloudDriver) -> int:
        """Give back the room of what was kept after leases and is not there any more; nothing of it was wrong."""
        kept = [one for one in self._events.kept(inventory) if region in {None, one.region}]
        if kept:
            remaining = cloud.remaining(inventory, kept)
            gone = self._events.let_go(inventory, remaining, of={one.reservation_id for one in kept})
            if gone:
                LOG.info("%d of what was kept of %s is gone; its room is free", gone, inventory)
        return 0

    def _set_aside(self, inventory: str, resource: ResourceRef) -> None:
        """Have a resource as it is to be once registered: in the pool, unless a reservation has it."""
        try:
            self._driver.ensure_registered(inventory, resource)
        except ResourceOccupied as error:
            LOG.error(
                "%s is not in the pool any more, and others use it; remove them or the host: %s", resource.name, error
            )
        except CloudError as error:
            LOG.warning("putting %s back into the pool will be tried again: %s", resource.name, error)
        else:
            self.tally.count_mended(inventory)
            if not self._events.is_registered(inventory, resource):  # somebody took it back in the meantime
                self._driver.ensure_unregistered(inventory, resource)
