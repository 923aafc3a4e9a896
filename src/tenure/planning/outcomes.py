"""What planning returns: a plan, or what finds no room."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.admission import AdmissionWay
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension, NewUnits


@dataclass(frozen=True, slots=True)
class Plan:
    """A snapshot in which all tasks are done, and how room was found for that."""

    snapshot: Snapshot
    way: AdmissionWay


@dataclass(frozen=True, slots=True)
class NoRoom:
    """What finds no room, and the snapshot in which room for it was searched.

    It is hopeless if a count shows that there is too little room, wherever plans move.
    """

    task: NewUnits | Extension
    snapshot: Snapshot
    is_hopeless: bool = False
