"""The driver keeps the contract of drivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from instruments.driver import InstrumentDriver
from instruments.laboratory import Badge, Laboratory
from instruments.resource_type import INSTRUMENT
from tenure.domain.actor import Actor
from tenure.drivers.cloud import TypeDrivers
from tenure.drivers.contract import CloudBusy, ResourceRef
from tenure.testing.breaking import Breaker, Watched
from tenure.testing.resources import ResourceContract
from tenure.testing.rig import NEIGHBOUR, OWNER


class BreakingLaboratory(Laboratory):
    """A laboratory to which the connection can break off, before any change."""

    def __init__(self, path: Path, breaker: Breaker) -> None:
        super().__init__(path)
        self._breaker = breaker

    def give(self, badge: Badge) -> None:
        with self._breaker.change():
            super().give(badge)

    def take_back(self, badge: Badge) -> None:
        with self._breaker.change():
            super().take_back(badge)


class InstrumentRig:
    """A laboratory, a driver of it, and people who do things behind its back."""

    resource_type = INSTRUMENT
    owner = OWNER
    neighbour = NEIGHBOUR
    patience = timedelta(0)
    pause = timedelta(0)

    def __init__(self, path: Path, kind: type[InstrumentDriver] = InstrumentDriver) -> None:
        self._path = path
        self._kind = kind
        self._breaker = Breaker()
        self.people = Laboratory(path)
        self._open()

    def _open(self) -> None:
        self._laboratory = BreakingLaboratory(self._path, self._breaker)
        driver = self._kind({}, folder=None)
        driver.laboratory.close()
        driver.laboratory = self._laboratory
        self.driver = Watched.of(TypeDrivers({INSTRUMENT: driver}), self._breaker)

    def reopen(self) -> None:
        self._laboratory.close()
        self._open()

    def close(self) -> None:
        self._laboratory.close()
        self.people.close()

    def effects(self) -> int:
        return self._breaker.effects

    def fail(self, verb: str, *, after_effects: int) -> None:
        self._breaker.arm(verb, after_effects)

    def lose_reply(self, verb: str) -> None:
        self._breaker.lose_reply(verb)

    def caller(self, project_id: str) -> Actor:
        return Actor("somebody", project_id, frozenset({"member"}))

    def resources(self) -> Sequence[ResourceRef]:
        return [ResourceRef(instrument.id, instrument.name) for instrument in self.people.instruments()]

    def references(self, resource: ResourceRef) -> Sequence[str]:
        return [resource.external_id, resource.name]

    def parameters(self, resources: Sequence[ResourceRef]) -> Mapping[str, object]:
        return {"kind": "microscope", "amount": max(1, len(resources)), "resource_properties": ""}

    def holders(self) -> Mapping[str, str]:
        return {instrument_id: badge.project for instrument_id, badge in self.people.badges().items()}

    def take(self, resource: ResourceRef, project_id: str) -> None:
        self.people.give(Badge(resource.external_id, project_id, "just so"))

    def release(self, resource: ResourceRef) -> None:
        self.people.take_back(self.people.badges()[resource.external_id])

    def spoil(self, resource: ResourceRef) -> None:
        self.people.report(resource.external_id, "the lamp is broken")

    def absent(self) -> ResourceRef:
        return ResourceRef("99", "nothing-1")


class TestInstruments(ResourceContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[InstrumentRig]:
        rig = InstrumentRig(tmp_path / "laboratory.db")
        yield rig
        rig.close()


def test_keeps_its_file_where_the_operator_says(tmp_path: Path):
    set_by_him, folder = tmp_path / "own.db", tmp_path / "data"
    folder.mkdir()
    for settings, place, file in (
        ({"laboratory": str(set_by_him)}, folder, set_by_him),
        ({}, folder, folder / "laboratory.db"),
        ({}, None, None),
    ):
        driver = InstrumentDriver(settings, folder=place)
        assert len(driver.discover()) == 5
        assert file is None or file.exists()
    assert set(InstrumentDriver.SETTINGS) == {"laboratory"}


def test_a_laboratory_that_does_not_answer_is_asked_again_later(tmp_path: Path):
    driver = InstrumentDriver({}, folder=tmp_path)
    driver.laboratory.close()
    with pytest.raises(CloudBusy, match="does not answer"):
        driver.discover()
