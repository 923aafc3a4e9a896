"""Of several requests for the same server at the same time one wins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest

from tenure.domain.errors import Conflict
from tenure.domain.request import LeaseRequest, ReservationRequest
from tests.support.world import OWNER, open_world

REQUESTS = 6


@pytest.mark.races
def test_concurrent_requests_for_one_server_book_one_lease(database_url: str):
    with open_world(database_url, hosts=4) as world:
        world.cloud.world.add_host("general")
        server_id = world.cloud.world.instances.boot(OWNER.project_id, "1")
        starts_at = world.clock.now() + timedelta(hours=1)
        asked = LeaseRequest(
            name="mine",
            starts_at=starts_at,
            ends_at=starts_at + timedelta(hours=1),
            reservations=(ReservationRequest("virtual:server", {"server_id": server_id}),),
        )
        together = Barrier(REQUESTS)

        def book(_number: int) -> str | None:
            together.wait()
            try:
                return world.leases.create(OWNER, asked).id
            except Conflict:
                return None

        with ThreadPoolExecutor(REQUESTS) as threads:
            made = [lease for lease in threads.map(book, range(REQUESTS)) if lease is not None]
        assert len(made) == 1
        [server] = world.cloud.world.servers()
        assert server.metadata["tenure:lease"] == made[0]
