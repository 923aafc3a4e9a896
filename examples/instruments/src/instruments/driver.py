"""The driver: makes the laboratory do what the ledger says. All it remembers is in the laboratory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from instruments.laboratory import Badge, Laboratory, Taken
from instruments.resource_type import INSTRUMENT
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    Command,
    Drift,
    Health,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.type_driver import TypeDriver

#: What the purpose of a badge begins with that was given for a reservation.
_OURS = "reservation:"


class InstrumentDriver(TypeDriver):
    """A driver of instruments: a reservation has a badge for each of its instruments."""

    #: What an operator can set in the group [lab:instrument] of tenure.conf.
    SETTINGS: ClassVar[Mapping[str, str]] = {
        "laboratory": "The file of the laboratory; laboratory.db in the folder of Tenure's data if it is not set."
    }
    longest_call = timedelta(seconds=20)

    def __init__(self, settings: Mapping[str, str], *, folder: Path | None) -> None:
        file = settings.get("laboratory")
        self.laboratory = Laboratory(Path(file) if file else folder and folder / "laboratory.db")

    # What there is

    def discover(self) -> list[DiscoveredResource]:
        with _reaching():
            return [
                DiscoveredResource(
                    resource_type=INSTRUMENT,
                    external_id=instrument.id,
                    name=instrument.name,
                    capacity=Capacity({WHOLE: 1}),
                    facts={"kind": instrument.kind, "room": instrument.room, "resolution_nm": instrument.resolution_nm},
                )
                for instrument in self.laboratory.instruments()
            ]

    def check(self, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        with _reaching():
            found = self.laboratory.instruments()
        return {instrument.id: Health(instrument.fault is None, instrument.fault) for instrument in found}

    # In and out of what can be reserved: nothing has to be done for it but to refuse

    def ensure_registered(self, resource: ResourceRef) -> None:
        with _reaching():
            known = {instrument.id for instrument in self.laboratory.instruments()}
            badge = self.laboratory.badges().get(resource.external_id)
        if resource.external_id not in known:
            raise CloudNotFound(f"The laboratory has no {resource.name}.")
        if badge is not None and reservation_of(badge) is None:
            raise ResourceOccupied({resource.external_id: f"{badge.project} uses {resource.name}"})

    def ensure_unregistered(self, resource: ResourceRef) -> None:
        with _reaching():
            badge = self.laboratory.badges().get(resource.external_id)
        if badge is not None and reservation_of(badge) is not None:
            raise CloudBusy(f"{resource.name} is not released yet by reservation {reservation_of(badge)}.")

    # Starting and ending

    def ensure_started(self, command: Command) -> Progress:
        with _reaching():
            known = {instrument.id for instrument in self.laboratory.instruments()}
            badges = self.laboratory.badges()
            present = {
                resource.external_id: resource for resource in command.resources if resource.external_id in known
            }
            missing = {
                resource.external_id: f"The laboratory has no {resource.name}."
                for resource in command.resources
                if resource.external_id not in known
            }
            _refuse_strangers(present, badges)
            # First what goes, then what comes: two reservations may trade.
            returning = {resource.external_id for resource in command.returning}
            going = returning if missing else badges.keys() - present.keys()
            for badge in _badges_of(command, badges):
                if badge.instrument_id in going or badge.project != command.project_id:
                    self.laboratory.take_back(badge)
            for external_id, resource in present.items():
                self._give(command, resource, badges.get(external_id))
        if missing:
            raise ResourceMissing(missing)
        return DONE

    def ensure_ended(self, command: Command) -> Progress:
        with _reaching():
            for badge in _badges_of(command, self.laboratory.badges()):
                self.laboratory.take_back(badge)
        return DONE

    def _give(self, command: Command, resource: ResourceRef, badge: Badge | None) -> None:
        expected = Badge(resource.external_id, command.project_id, f"{_OURS}{command.reservation_id}")
        if badge == expected:
            return
        try:
            self.laboratory.give(expected)
        except Taken:
            holder = self.laboratory.badges().get(resource.external_id)
            raise CloudBusy(f"{resource.name} is not free: {holder.purpose if holder else 'try again'}.") from None

    # What is, and what should be

    def held(self) -> Sequence[str]:
        with _reaching():
            badges = self.laboratory.badges().values()
        return sorted({found for badge in badges if (found := reservation_of(badge)) is not None})

    def drift(self, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        with _reaching():
            badges = self.laboratory.badges()  # one call, however many commands there are
        found: list[Drift] = []
        for command in commands:
            own = {badge.instrument_id for badge in _badges_of(command, badges) if badge.project == command.project_id}
            expected = {resource.external_id: resource for resource in command.resources}
            for lost in sorted(expected.keys() - own):
                found.append(
                    Drift(
                        command.reservation_id, expected[lost], f"{expected[lost].name} has no badge of the reservation"
                    )
                )
            for surplus in sorted(own - expected.keys()):
                found.append(Drift(command.reservation_id, None, f"the badge for {surplus} is left over"))
        return found


def reservation_of(badge: Badge) -> str | None:
    """The reservation that a badge was given for, None for one that somebody else gave."""
    return badge.purpose.removeprefix(_OURS) if badge.purpose.startswith(_OURS) else None


def _badges_of(command: Command, badges: Mapping[str, Badge]) -> list[Badge]:
    return [badge for badge in badges.values() if reservation_of(badge) == command.reservation_id]


def _refuse_strangers(present: Mapping[str, ResourceRef], badges: Mapping[str, Badge]) -> None:
    """Raise ``ResourceOccupied`` for what people have who did not get it from us."""
    strangers = {
        external_id: f"{badges[external_id].project} uses {resource.name}"
        for external_id, resource in present.items()
        if external_id in badges and reservation_of(badges[external_id]) is None
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
