"""The suite sees what a driver does wrong: each of these is broken in one way, and one test at least fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from instruments.driver import InstrumentDriver
from instruments.laboratory import Badge
from tenure.drivers.contract import DONE, Command, Drift, Progress, ResourceRef
from tenure.testing.resources import ResourceContract
from tests.test_driver import InstrumentRig


class KeepsWhatWasGivenUp(InstrumentDriver):
    def ensure_started(self, command: Command) -> Progress:
        badges = self._badges().items()
        had = [ResourceRef(name, name) for name, badge in badges if command.reservation_id in badge.purpose]
        known = {resource.external_id for resource in command.resources}
        more = tuple(resource for resource in had if resource.external_id not in known)
        return super().ensure_started(replace(command, resources=(*command.resources, *more), returning=()))

    def _badges(self) -> dict[str, Badge]:
        return self.laboratory.badges()


class TakesFromStrangers(KeepsWhatWasGivenUp):
    def ensure_started(self, command: Command) -> Progress:
        for resource in command.resources:
            badge = self._badges().get(resource.external_id)
            if badge is not None and "reservation:" not in badge.purpose:
                self.laboratory.take_back(badge)
        return InstrumentDriver.ensure_started(self, command)


class GivesAgain(KeepsWhatWasGivenUp):
    def ensure_started(self, command: Command) -> Progress:
        progress = InstrumentDriver.ensure_started(self, command)
        for resource in command.resources:
            self.laboratory.give(self._badges()[resource.external_id])
        return progress


class EndsNothing(InstrumentDriver):
    def ensure_ended(self, command: Command) -> Progress:
        return DONE


class EndsOnlyWhatIsNamed(KeepsWhatWasGivenUp):
    def ensure_ended(self, command: Command) -> Progress:
        for resource in command.resources:
            if (badge := self._badges().get(resource.external_id)) is not None:
                self.laboratory.take_back(badge)
        return DONE


class Forgets(InstrumentDriver):
    def held(self) -> Sequence[str]:
        return ()


class SeesNothing(InstrumentDriver):
    def drift(self, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        return ()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (KeepsWhatWasGivenUp, "start_gives_up_resources_that_left_the_command"),
        (TakesFromStrangers, "resource_in_use_stops_a_start"),
        (GivesAgain, "repeated_start_changes_nothing"),
        (EndsNothing, "end_frees_only_its_own_resources"),
        (EndsOnlyWhatIsNamed, "end_needs_only_the_reservation_id"),
        (EndsOnlyWhatIsNamed, "end_leaves_resources_that_others_have_now"),
        (Forgets, "held_lists_started_reservations"),
        (SeesNothing, "drift_reports_a_lost_resource_and_a_start_repairs_it"),
    ],
)
def test_sees_a_driver_that(tmp_path: Path, broken: type[InstrumentDriver], test: str):
    for kind in (InstrumentDriver, broken):
        rig = InstrumentRig(tmp_path / f"{kind.__name__}.db", kind)
        things = list(rig.resources())[:4]
        ask = getattr(ResourceContract(), f"test_{test}")
        if kind is broken:
            with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
                ask(rig, things)
        else:
            ask(rig, things)
        rig.close()
