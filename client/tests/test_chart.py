"""Availability as lines of characters."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, timedelta

import pytest

from conftest import BEGINNING
from tenureclient import CapacityGroup, CapacityStep, CapacityTimeline
from tenureclient.cli.chart import ASCII, BLOCKS, characters_for, chart, labels, strip

HOUR = timedelta(hours=1)


def group(
    *amounts: tuple[float, int],
    total: int | None = 8,
    properties: Mapping[str, str] | None = None,
    zone: str | None = None,
) -> CapacityGroup:
    """Return a group with these available amounts, each from some hours after the beginning on."""
    steps = (CapacityStep(BEGINNING + hours * HOUR, 0, 0, 0, available) for hours, available in amounts)
    return CapacityGroup(
        resources=total,
        total=total,
        least_available=None,
        properties=properties or {},
        capacity={"VCPU": 8},
        region=None,
        availability_zone=zone,
        resource_id=None,
        resource_name=None,
        project_id=None,
        steps=tuple(steps),
    )


def timeline(*groups: CapacityGroup) -> CapacityTimeline:
    end = BEGINNING + 8 * HOUR
    return CapacityTimeline("physical:host", "WHOLE", BEGINNING, end, None, groups, more=False)


def drawn(*amounts: tuple[float, int], length: int = 8, total: int = 8) -> str:
    return strip(group(*amounts, total=total), BEGINNING, BEGINNING + 8 * HOUR, length)


def test_a_character_is_an_amount() -> None:
    assert drawn(*((hour, hour) for hour in range(8))) == "·▁▂▃▄▅▆▇"
    assert drawn((0, 8)) == "████████"
    assert drawn((0, 0), total=0) == "········"


def test_a_part_is_never_shown_as_nothing_or_as_everything() -> None:
    assert drawn((0, 1), total=1000) == "▁▁▁▁▁▁▁▁"
    assert drawn((0, 999), total=1000) == "▇▇▇▇▇▇▇▇"


def test_a_character_shows_the_least_amount_of_its_time() -> None:
    assert drawn((0, 8), (2.5, 0), (2.6, 8)) == "██·█████"
    assert drawn((0, 8), (2, 0), (4, 8)) == "██··████"
    assert drawn((0, 8), (2, 0), (4, 8), length=4) == "█·██"
    assert drawn((0, 8), (2, 0), (4, 8), length=2) == "·█"


def test_the_chart_fills_the_width() -> None:
    lines = chart(timeline(group((0, 8), zone="az-1"), group((0, 4), zone="az-2")), 80, UTC)
    assert [len(line) for line in lines] == [80, 80, 80]
    assert lines[0] == "az-1 " + 75 * "█"
    assert lines[1] == "az-2 " + 75 * "▄"
    assert lines[2].startswith("     2027-03-01 09:30 UTC  ")
    assert lines[2].endswith("  2027-03-01 17:30 UTC")


def test_a_single_group_is_labelled_by_its_attributes() -> None:
    lines = chart(timeline(group((0, 8), zone="az-1")), 60, UTC)
    assert lines[0] == "az-1 VCPU=8 " + 48 * "█"


def test_long_labels_are_cut() -> None:
    long = group((0, 8), properties={"motto": 50 * "x"})
    [first, _, _] = chart(timeline(long, group((0, 8))), 60, UTC)
    assert first.startswith("motto=xxxxxxxxxxx... ")
    assert len(first) >= 60


def test_labels_name_only_differences() -> None:
    a100 = group((0, 8), properties={"gpu": "a100", "rack": "r1"})
    plain = group((0, 8), properties={"rack": "r1"})
    assert labels([a100, plain]) == ["gpu=a100", ""]


def test_groups_of_projects_have_no_chart() -> None:
    assert chart(timeline(group((0, 1), total=None)), 80, UTC) == []


@pytest.mark.parametrize(("encoding", "characters"), [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII)])
def test_a_terminal_gets_characters_that_it_can_show(encoding: str, characters: str) -> None:
    assert characters_for(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) == characters
