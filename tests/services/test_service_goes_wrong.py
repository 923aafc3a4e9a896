"""Each call to a service of the site goes wrong in each way: leases stay right, and so does the account."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import Denied, Unavailable
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseChange, LeaseQuery
from tests.support.credits import Credits
from tests.support.engines import deliver_all
from tests.support.waiting import patience
from tests.support.world import ADMIN, OWNER, World, open_world

HOUR = timedelta(hours=1)
#: Slow, slower, wrong in two ways, no answer, and an answer that is lost after the deed.
MOODS = ("is slow", "drips", "talks nonsense", "answers", "refuses connections", "dies after the deed")


def booked(world: World) -> dict[str, Lease]:
    return {lease.id: lease for lease in world.leases.list(ADMIN, LeaseQuery(limit=10)).items}


@contextmanager
def wrong(credits: Credits, call: str, mood: str) -> Iterator[None]:
    credits.only, credits.mood = call, mood
    yield
    credits.mood = "well"
    credits.patience.set()
    credits.patience.clear()


@pytest.mark.slow
@pytest.mark.parametrize("mood", MOODS)
def test_lease_survives_every_fault_of_every_call(tmp_path: Path, credits: Credits, mood: str):
    """Each call, one after the other, when it is made for the first time."""
    credits.status = 500
    filters = {"ExternalServiceFilter": credits.filter(timeout=patience(0.15))}
    refused = Denied if mood == "answers" else Unavailable
    with open_world(tmp_path, filters=filters) as world:
        with wrong(credits, "check-create", mood), pytest.raises(refused):
            world.book(1, start=1, hours=2)
        assert booked(world) == {}
        with wrong(credits, "commit-create", mood):
            lease = world.book(1, start=1, hours=2)
            world.engine.settle()
        longer = LeaseChange(ends_at=lease.ends_at + HOUR)
        with wrong(credits, "check-update", mood), pytest.raises(refused):
            world.leases.update(OWNER, lease.id, longer)
        assert booked(world)[lease.id] == lease
        with wrong(credits, "commit-update", mood):
            world.leases.update(OWNER, lease.id, longer)
            world.pass_time(timedelta(minutes=1))  # it follows repeated notifications
        deliver_all(world)
        assert credits.order[lease.id] == ["commit-create", "commit-update"]
        with wrong(credits, "on-end", mood):  # an end does not wait for the service
            world.pass_time(timedelta(hours=4, minutes=1))
            assert booked(world)[lease.id].status is LeaseStatus.TERMINATED
        deliver_all(world)
        [left] = booked(world).values()
        assert (left.id, left.status, left.ends_at) == (lease.id, LeaseStatus.TERMINATED, longer.ends_at)
        assert len(world.cloud.world.pool()) == 4
    assert credits.order.pop(lease.id) == ["commit-create", "commit-update", "on-end"]
    # What may have been reserved for what never came about is given back.
    assert list(credits.order.values()) == ([] if refused is Denied else [["on-end"]])
    for call in ("commit-create", "commit-update", "on-end"):
        keys = [request.headers["idempotency-key"] for request in credits.calls if request.path.endswith(f"/{call}")]
        was_heard = mood in {"answers", "dies after the deed"}
        assert (len(keys) > len(set(keys))) == was_heard, call
