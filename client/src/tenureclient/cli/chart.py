"""Availability over time as lines of block characters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from math import ceil
from typing import TextIO

from tenureclient.availability import CapacityGroup, CapacityTimeline
from tenureclient.cli.printable import printable
from tenureclient.moments import format_moment

#: Characters from nothing available to everything available.
BLOCKS = "·▁▂▃▄▅▆▇█"
ASCII = "._:-=+*%#"
#: The part of the width that labels may take.
_LABELS = 1 / 3


def characters_for(stream: TextIO) -> str:
    """Return the block characters, or others if the stream cannot encode them."""
    try:
        BLOCKS.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def chart(timeline: CapacityTimeline, width: int, zone: tzinfo | None, characters: str = BLOCKS) -> list[str]:
    """Return a line for each group, and a line with the dates at both ends.

    A character shows the least available amount of its time. Groups without a total, those of projects, have
    no line.
    """
    groups = [group for group in timeline.groups if group.total is not None]
    if not groups:
        return []
    begin, end = (format_moment(date, zone) for date in (timeline.start_date, timeline.end_date))
    names = labels(groups)
    longest = min(max(len(name) for name in names), int(width * _LABELS))
    indent = longest + 1 if longest else 0
    length = max(width - indent, len(begin) + 1 + len(end))
    strips = [strip(group, timeline.start_date, timeline.end_date, length, characters) for group in groups]
    lines = [f"{_cut(name, longest):<{indent}}{shown}" for name, shown in zip(names, strips, strict=True)]
    return [*lines, " " * indent + begin + end.rjust(length - len(begin))]


def strip(group: CapacityGroup, start: datetime, end: datetime, length: int, characters: str = BLOCKS) -> str:
    """Return the availability of a group from start to end as this many characters."""
    starts = [step.start_date for step in group.steps]
    cell = (end - start) / length

    def least(position: int) -> int:
        first = max(0, bisect_right(starts, start + position * cell) - 1)
        last = max(first + 1, bisect_right(starts, start + (position + 1) * cell - cell / 1000))
        return min((step.available or 0 for step in group.steps[first:last]), default=0)

    return "".join(_character(least(position), group.total or 0, characters) for position in range(length))


def labels(groups: Sequence[CapacityGroup]) -> list[str]:
    """Return a label for each group, of the attributes in which the groups differ."""
    described = [_attributes(group) for group in groups]
    names = list(dict.fromkeys(name for attributes in described for name in attributes))
    if len(groups) > 1:
        names = [name for name in names if len({attributes.get(name) for attributes in described}) > 1]
    shown = {name: "" if name in {"zone", "name", "region"} else f"{name}=" for name in names}
    return [
        printable(" ".join(f"{shown[name]}{attributes[name]}" for name in names if name in attributes))
        for attributes in described
    ]


def _attributes(group: CapacityGroup) -> Mapping[str, str]:
    named = {"zone": group.availability_zone, "name": group.resource_name or group.resource_id, "region": group.region}
    return {
        **{name: value for name, value in named.items() if value},
        **group.properties,
        **{name: str(amount) for name, amount in group.capacity.items() if name != "WHOLE"},
    }


def _character(available: int, total: int, characters: str) -> str:
    """Return the first character for nothing, the last for everything, one of the others for a part."""
    top = len(characters) - 1
    if available <= 0:
        return characters[0]
    if available >= total:
        return characters[top]
    return characters[ceil(available * (top - 1) / total)]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(0, length - 3)] + "..."
