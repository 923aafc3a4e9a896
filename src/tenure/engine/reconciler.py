"""Reconciliation: making the cloud match the ledger again, after a change from outside or a late call of our own."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tenure.drivers.contract import CloudBusy, CloudDriver, CloudError, ResourceOccupied, ResourceRef, drivers_by_region
from tenure.services.execution.at_once import take_back
from tenure.services.leases.trusts import IdleTrusts
from tenure.services.resources.in_use import InventoriesInUse
from tenure.services.resources.reconciliation import ReconciliationService

LOG = logging.getLogger(__name__)

#: How many trusts one pass deletes at most.
TRUSTS = 100


@dataclass
class ReconciliationTally:
    """How many differences from the ledger were found, and how many were reconciled, by resource type.

    All differences of one reservation, or of one resource that is not held, count as one. They count again in a later
    pass if they are still there. ``on_found`` and ``on_reconciled`` are called with the type for each.
    """

    found: Counter[str] = field(default_factory=Counter)
    reconciled: Counter[str] = field(default_factory=Counter)
    on_found: Callable[[str], object] = lambda _resource_type: None
    on_reconciled: Callable[[str], object] = lambda _resource_type: None
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count_found(self, resource_type: str) -> None:
        with self._guard:
            self.found[resource_type] += 1
        self.on_found(resource_type)

    def count_reconciled(self, resource_type: str) -> None:
        with self._guard:
            self.reconciled[resource_type] += 1
        self.on_reconciled(resource_type)


class Reconciler:
    """Compares the cloud with the ledger: takes back what is over, and has differences reconciled.

    An event of the lease reconciles what belongs to a running lease, so that it never coincides with a start, change or
    end of it. Any number of managers may run the pass at the same time.
    """

    def __init__(
        self,
        reconciliation: ReconciliationService,
        trusts: IdleTrusts,
        driver: CloudDriver,
        inventories: InventoriesInUse,
        *,
        tally: ReconciliationTally | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._reconciliation = reconciliation
        self._trusts = trusts
        self._driver = driver
        self._inventories = inventories
        self._wake = wake
        self.tally = tally or ReconciliationTally()
        #: Names that look like reservations and are not ours, as far as they were logged, by inventory and region.
        self._strange: dict[tuple[str, str | None], set[str]] = {}
        #: Reservations that were taken back as far as the cloud allows, and may still look held. They are logged once.
        self._lasting: dict[tuple[str, str | None], set[str]] = {}
        #: The trusts at which a pass was aborted.
        self._resisting: set[str] = set()

    def run(self) -> int:
        """Run a pass, and reconcile what can be reconciled at once; return how many differences were found."""
        count = 0
        for inventory in self._inventories.names():
            for region, cloud in drivers_by_region(self._driver, inventory).items():
                for step in (self._take_back, self._compare, self._release_deleted):
                    try:
                        count += step(inventory, region, cloud)
                    except CloudError as error:
                        LOG.warning("the reconciliation pass will be tried again: %s", error)
        self._revoke_trusts()
        return count

    def _revoke_trusts(self) -> None:
        """Delete the trusts of leases that are over, until the cloud does not answer; the rest waits for the next pass.

        Each call may last as long as the time-out of the cloud. A trust that causes this cannot block others for ever:
        it comes last in the next pass.
        """
        idle = self._trusts.find(TRUSTS)
        self._resisting &= set(idle)
        for trust_id in sorted(idle, key=lambda trust_id: trust_id in self._resisting):
            try:
                self._driver.revoke(trust_id)
            except CloudBusy as error:
                LOG.warning("deleting trust %s, and those after it, will be tried again: %s", trust_id, error)
                self._resisting.add(trust_id)
                return
            except CloudError as error:
                LOG.warning("deleting trust %s will be tried again: %s", trust_id, error)
            else:
                self._trusts.forget(trust_id)

    def _take_back(self, inventory: str, region: str | None, cloud: CloudDriver) -> int:
        """Take back the cloud resources of reservations that are over; return their number.

        What the ledger does not know is left alone: others may use the same cloud, and the same names.
        """
        held = set(cloud.held(inventory))
        over = self._reconciliation.over(held)
        where = (inventory, region)
        self._log_unknown(where, held - over - self._reconciliation.known(held - over))
        lasting = self._lasting.get(where, set()) & over
        for reservation_id in sorted(over - lasting):
            LOG.warning("reservation %s is over and still has effects; taking them back", reservation_id)
            self.tally.count_found(inventory)
        gone = take_back(self._reconciliation, self._driver, over)
        for _ in gone - lasting:
            self.tally.count_reconciled(inventory)
        self._lasting[where] = lasting | gone
        return len(over)

    def _log_unknown(self, where: tuple[str, str | None], strange: set[str]) -> None:
        for name in sorted(strange - self._strange.get(where, set())):
            LOG.warning("%s looks like a reservation, but is not known here; it is left alone", name)
        self._strange[where] = strange

    def _compare(self, inventory: str, region: str | None, cloud: CloudDriver) -> int:
        """Look for differences from the ledger; return how many reservations and resources have any."""
        # Free resources first: one that is handed over meanwhile is then among the commands, and not put into the pool.
        pooled = self._reconciliation.unheld(inventory, region=region)
        drifts = cloud.drift(inventory, list(self._reconciliation.running(inventory, region=region)), pooled)
        lasting = {
            drift.reservation_id: drift.text for drift in drifts if drift.reservation_id is not None and drift.lasts
        }
        reservations = {
            drift.reservation_id for drift in drifts if drift.reservation_id is not None and not drift.lasts
        }
        resources = {drift.resource for drift in drifts if drift.reservation_id is None and drift.resource is not None}
        for drift in drifts:
            if not drift.lasts:
                LOG.warning("drift found: %s", drift.text)
        for reservation_id, difference in lasting.items():
            self.tally.count_found(inventory)
            if self._reconciliation.show_drift(reservation_id, difference):
                LOG.warning("drift that cannot be reconciled: reservation %s: %s", reservation_id, difference)
        # Not those that have ended, or changed, since they were read.
        reconciling = self._reconciliation.reconcile(reservations)
        for _ in reconciling:
            self.tally.count_found(inventory)
        if reconciling:
            self._wake()
        loose = [resource for resource in resources if self._reconciliation.is_registered(inventory, resource)]
        for resource in sorted(loose, key=lambda resource: resource.external_id):
            self.tally.count_found(inventory)
            self._return_to_pool(inventory, resource)
        return len(reconciling) + len(loose) + len(lasting)

    def _release_deleted(self, inventory: str, region: str | None, cloud: CloudDriver) -> int:
        """Free the room of kept things that their owners have deleted. This is not a difference, so it returns 0."""
        kept = [subject for subject in self._reconciliation.kept(inventory) if region in {None, subject.region}]
        if kept:
            remaining = cloud.remaining(inventory, kept)
            gone = self._reconciliation.release_deleted(
                inventory, remaining, of={subject.reservation_id for subject in kept}
            )
            if gone:
                LOG.info("%d of what was kept of %s is gone; its room is free", gone, inventory)
        return 0

    def _return_to_pool(self, inventory: str, resource: ResourceRef) -> None:
        """Put a resource into the pool again, unless a reservation has it."""
        try:
            self._driver.ensure_registered(inventory, resource)
        except ResourceOccupied as error:
            LOG.error(
                "%s is not in the pool any more, and others use it; remove them or the host: %s", resource.name, error
            )
        except CloudError as error:
            LOG.warning("putting %s back into the pool will be tried again: %s", resource.name, error)
        else:
            self.tally.count_reconciled(inventory)
            if not self._reconciliation.is_registered(inventory, resource):  # it was unregistered in the meantime
                self._driver.ensure_unregistered(inventory, resource)
