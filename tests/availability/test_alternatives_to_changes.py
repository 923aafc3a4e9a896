"""Alternatives to refused changes after random histories: each succeeds, and changes the lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from tenure.domain.availability import Alternative, Change
from tenure.domain.errors import NotEnoughResources, TenureError
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseChange, ReservationChange, ReservationRequest
from tests.availability.test_alternatives import HOUR, MINUTE, amount_of, resized
from tests.availability.test_offers import History, open_site
from tests.support.world import OWNER, World

#: The batches of the long test, and the histories of each.
BATCHES, HISTORIES = 4, 5


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_site(tmp_path) as world:
        yield world


def changed(change: LeaseChange, alternative: Alternative) -> LeaseChange:
    """Return the change with what the alternative changes."""
    if alternative.reservation is None:
        return replace(change, starts_at=alternative.starts_at, ends_at=alternative.ends_at)
    asked = list(change.reservations)
    index = alternative.reservation
    request = ReservationRequest("", asked[index].parameters)
    assert alternative.amount is not None
    asked[index] = replace(asked[index], parameters=resized(request, alternative.amount).parameters)
    return replace(change, reservations=tuple(asked))


def draw_change(history: History, lease: Lease) -> LeaseChange:
    """Return a random change: another end, another start and end, or more units, or an end and more units."""
    dice = history.dice
    end = lease.ends_at + dice.randint(1, 5) * HOUR
    grown = [
        ReservationChange(known.id, resized(request, amount_of(request) + dice.randint(1, 4)).parameters)
        for known in lease.reservations
        for request in [ReservationRequest("", sizes_of(known.parameters))]
    ]
    more = (dice.choice(grown),)
    later = dice.randint(-2, 3) * HOUR
    return dice.choice(
        [
            LeaseChange(ends_at=end),
            LeaseChange(starts_at=lease.starts_at + later, ends_at=lease.ends_at + later),
            LeaseChange(reservations=more),
            LeaseChange(ends_at=end, reservations=more),
        ]
    )


def sizes_of(parameters: object) -> dict[str, object]:
    assert isinstance(parameters, dict)
    return {name: value for name, value in parameters.items() if name in {"min", "max", "amount"}}


def check_refusal(history: History) -> int:
    """Try a random change of a random lease; return the number of alternatives to it, after a check of each."""
    world, now = history.world, history.now
    known = [world.leases.get(OWNER, lease.id, look_ahead=True) for lease in living(history)]
    if not known:
        return 0
    lease = history.dice.choice(known)
    change = draw_change(history, lease)
    manager = world.service.manager
    try:
        manager.dry_runs.update(OWNER, lease.id, change)
    except NotEnoughResources as refusal:
        lacking = refusal.shortfall.reservation
    except TenureError:
        return 0
    else:
        return 0
    found = manager.alternatives.to_change(OWNER, lease.id, change, lacking)
    assert len({alternative.change for alternative in found}) == len(found) <= 3
    for alternative in found:
        other = changed(change, alternative)
        outcome = manager.dry_runs.update(OWNER, lease.id, other)
        assert (outcome.lease.starts_at, outcome.lease.ends_at) == (alternative.starts_at, alternative.ends_at)
        assert is_change(lease, other)
        check_end(lease, change, alternative, now)
    if is_prolongation(lease, change) and lease.may_end_at is not None:
        assert lease.may_end_at < lease.ends_at + MINUTE or any(
            alternative.change is Change.END for alternative in found
        )
    return len(found)


def living(history: History) -> list[Lease]:
    leases = [history.world.leases.get(OWNER, lease.id) for lease in history.leases if is_there(history, lease)]
    return [lease for lease in leases if lease.status in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}]


def is_there(history: History, lease: Lease) -> bool:
    try:
        history.world.leases.get(OWNER, lease.id)
    except TenureError:
        return False
    return True


def is_change(lease: Lease, change: LeaseChange) -> bool:
    """Whether the change asks for something else than the lease has."""
    moves = change.starts_at not in {None, lease.starts_at} or change.ends_at not in {None, lease.ends_at}
    parameters = {reservation.id: reservation.parameters for reservation in lease.reservations}
    return moves or any(
        sizes_of(parameters[asked.reservation_id]) != sizes_of(dict(asked.parameters)) for asked in change.reservations
    )


def is_prolongation(lease: Lease, change: LeaseChange) -> bool:
    return change.starts_at is None and not change.reservations


def check_end(lease: Lease, change: LeaseChange, alternative: Alternative, now: datetime) -> None:
    """An earlier end is after the present, and later than that of a lease that is only to be prolonged."""
    if alternative.change is not Change.END:
        return
    assert isinstance(change.ends_at, datetime)
    assert now < alternative.ends_at < change.ends_at
    if is_prolongation(lease, change):
        assert alternative.ends_at > lease.ends_at
        assert lease.may_end_at is None or alternative.ends_at >= lease.may_end_at


@pytest.mark.slow
def test_alternatives_to_changes_succeed(world: World):
    history = History(world, 1)
    found = 0
    for _ in range(40):
        history.step()
        found += check_refusal(history)
    assert found >= 8


@pytest.mark.long
@pytest.mark.parametrize("batch", range(BATCHES))
def test_alternatives_to_many_refused_changes_succeed(tmp_path: Path, batch: int):
    found = 0
    for number in range(HISTORIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_site(folder) as world:
            history = History(world, 9000 + batch * HISTORIES + number)
            for _ in range(80):
                history.step()
                found += check_refusal(history)
    assert found >= 50
