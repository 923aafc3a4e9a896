"""The driver: makes the laboratory do what the ledger says. All it remembers is in the laboratory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from instruments.kind import INSTRUMENT
from instruments.laboratory import Badge, Laboratory, Taken
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    Drift,
    Health,
    Order,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.plain import PlainDriver

#: What the purpose of a badge begins with that was given for a reservation.
_OURS = "reservation:"


class InstrumentDriver(PlainDriver):
    """A driver of instruments: a reservation has a badge for each of its own."""

    #: What an operator can set in the group [lab:instrument] of tenure.conf.
    SETTINGS: Mapping[str, str] = {  # never written to
        "laboratory": "The file of the laboratory; laboratory.db in the folder of Tenure's data if it is not set."
    }
    longest_call = timedelta(seconds=20)

    def __init__(self, settings: Mapping[str, str], *, folder: Path | None) -> None:
        file = settings.get("laboratory")
        path = Path(file) if file else folder and folder / "laboratory.db"
        self._laboratory = Laboratory(path)

    @classmethod
    def over(cls, laboratory: Laboratory) -> InstrumentDriver:
        """A driver of a laboratory that is open already."""
        driver = cls.__new__(cls)
        driver._laboratory = laboratory
        return driver

    # What there is

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        with _reaching():
            return [
                DiscoveredResource(
                    resource_type=INSTRUMENT,
                    external_id=one.id,
                    name=one.name,
                    capacity=Capacity({WHOLE: 1}),
                    facts={"kind": one.kind, "room": one.room, "resolution_nm": one.resolution_nm},
                )
                for one in self._laboratory.instruments()
            ]

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        with _reaching():
            found = self._laboratory.instruments()
        return {one.id: Health(one.fault is None, one.fault) for one in found}

    # In and out of what can be reserved: nothing has to be done for it but to refuse

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        with _reaching():
            known = {one.id for one in self._laboratory.instruments()}
            badge = self._laboratory.badges().get(resource.external_id)
        if resource.external_id not in known:
            raise CloudNotFound(f"The laboratory has no {resource.name}.")
        if badge is not None and reservation_of(badge) is None:
            raise ResourceOccupied({resource.external_id: f"{badge.project} uses {resource.name}"})

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        with _reaching():
            badge = self._laboratory.badges().get(resource.external_id)
        if badge is not None and reservation_of(badge) is not None:
            raise CloudBusy(f"{resource.name} is not released yet by reservation {reservation_of(badge)}.")

    # Starting and ending

    def ensure_started(self, order: Order) -> Progress:
        with _reaching():
            known = {one.id for one in self._laboratory.instruments()}
            badges = self._laboratory.badges()
            present = {one.external_id: one for one in order.resources if one.external_id in known}
            missing = {
                one.external_id: f"The laboratory has no {one.name}."
                for one in order.resources
                if one not in present.values()
            }
            _refuse_strangers(present, badges)
            # First what goes, then what comes: two reservations may trade.
            going = {one.external_id for one in order.returning} if missing else badges.keys() - present.keys()
            for badge in _badges_of(order, badges):
                if badge.instrument_id in going or badge.project != order.project_id:
                    self._laboratory.take_back(badge)
            for external_id, resource in present.items():
                self._give(order, resource, badges.get(external_id))
        if missing:
            raise ResourceMissing(missing)
        return DONE

    def ensure_ended(self, order: Order) -> Progress:
        with _reaching():
            for badge in _badges_of(order, self._laboratory.badges()):
                self._laboratory.take_back(badge)
        return DONE

    def _give(self, order: Order, resource: ResourceRef, badge: Badge | None) -> None:
        wanted = Badge(resource.external_id, order.project_id, f"{_OURS}{order.reservation_id}")
        if badge == wanted:
            return
        try:
            self._laboratory.give(wanted)
        except Taken:
            holder = self._laboratory.badges().get(resource.external_id)
            raise CloudBusy(f"{resource.name} is not free: {holder.purpose if holder else 'try again'}.") from None

    # What is, and what should be

    def held(self, resource_type: str) -> Iterable[str]:
        with _reaching():
            badges = self._laboratory.badges().values()
        return sorted({found for badge in badges if (found := reservation_of(badge)) is not None})

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        with _reaching():
            badges = self._laboratory.badges()  # one call, however many orders there are
        found: list[Drift] = []
        for order in orders:
            own = {badge.instrument_id for badge in _badges_of(order, badges) if badge.project == order.project_id}
            wanted = {one.external_id: one for one in order.resources}
            lost = [
                Drift(order.reservation_id, wanted[one], f"nobody was let in to {wanted[one].name}")
                for one in sorted(wanted.keys() - own)
            ]
            found += lost
            found += [
                Drift(order.reservation_id, None, f"the badge for {one} is left over")
                for one in sorted(own - wanted.keys())
            ]
        return found


def reservation_of(badge: Badge) -> str | None:
    """The reservation that a badge was given for, None for one that somebody else gave."""
    return badge.purpose.removeprefix(_OURS) if badge.purpose.startswith(_OURS) else None


def _badges_of(order: Order, badges: Mapping[str, Badge]) -> list[Badge]:
    return [badge for badge in badges.values() if reservation_of(badge) == order.reservation_id]


def _refuse_strangers(present: Mapping[str, ResourceRef], badges: Mapping[str, Badge]) -> None:
    """Raise ``ResourceOccupied`` for what people have who did not get it from us."""
    strangers = {
        one: f"{badges[one].project} uses {resource.name}"
        for one, resource in present.items()
        if one in badges and reservation_of(badges[one]) is None
    }
    if strangers:
        raise ResourceOccupied(strangers)


@contextmanager
def _reaching() -> Iterator[None]:
    """A laboratory that does not answer is asked again later."""
    try:
        yield
    except ConnectionError as error:
        raise CloudBusy(str(error)) from error
