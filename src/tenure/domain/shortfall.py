"""Why a request cannot be met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Stage:
    """How many resources were left after one step of the selection."""

    stage: str
    count: int


#: The words for each stage in a sentence, for one resource and for several.
_WORDS: Mapping[str, tuple[str, str]] = {
    "reservable": ("can be reserved", "can be reserved"),
    "matching": ("matches the properties asked for", "match the properties asked for"),
    "free": ("is free for the whole period", "are free for the whole period"),
    "roomy": ("has room for the whole period", "have room for the whole period"),
    "fitting": ("fits there", "fit there"),
}


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A request that cannot be met: the requested amount, and how many resources passed each stage."""

    resource_type: str
    noun: str
    requested: int
    stages: tuple[Stage, ...]
    reservation: int = 0
    unknown_properties: tuple[str, ...] = ()
    retained: int | None = field(default=None)
    #: The parameter that names resources that are not all free, if there are enough others.
    naming: str = ""
    #: The latest start that was asked for, if later starts would have done; and whether all up to it were tried.
    latest: datetime | None = None
    is_complete: bool = True
    #: How many other choices of reservations were asked for, which do not fit either.
    other_choices: int = 0
    #: Whether single resources were asked for. How many match is not shown then: it would tell which are in service.
    names_resources: bool = False
    #: What is asked for, in words, that no resource has: an amount, and how much there is at most, or at least; traits.
    out_of_reach: tuple[str, ...] = ()

    @property
    def matching(self) -> int:
        """How many resources would do if there were no bookings."""
        return next(stage.count for stage in self.stages if stage.stage == "matching")

    @property
    def shown_stages(self) -> tuple[Stage, ...]:
        """The stages that the caller may see."""
        return tuple(stage for stage in self.stages if not self.names_resources or stage.stage != "matching")

    @property
    def free(self) -> int:
        """How many resources passed all stages."""
        return self.stages[-1].count

    @property
    def message(self) -> str:
        """A sentence for people; clients match on its beginning (``Not enough hosts available``)."""
        counts = ", ".join(f"{stage.count} {_words(stage)}" for stage in self.shown_stages)
        text = f"Not enough {self.noun} available: {self.requested} asked for, {counts}."
        if self.retained is not None:
            text += f" A started reservation keeps the {self.noun} it holds ({self.retained})."
        if self.naming:
            text += f" Not all of those that are {self.naming} can be had."
        if self.unknown_properties:
            text += f" No resource has the property {', '.join(self.unknown_properties)}."
        if not self.names_resources:
            text += "".join(f" {sentence}" for sentence in self.out_of_reach)
        if self.latest is not None:
            tried = "No later start" if self.is_complete else "No later start that could be tried in time"
            text += f" {tried} is possible until {self.latest:%Y-%m-%d %H:%M} UTC."
        if self.other_choices:
            text += f" The other choices ({self.other_choices}) are not possible either."
        return text


def _words(stage: Stage) -> str:
    singular, plural = _WORDS.get(stage.stage, (stage.stage, stage.stage))
    return singular if stage.count == 1 else plural
