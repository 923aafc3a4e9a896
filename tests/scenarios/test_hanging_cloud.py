"""A cloud that hangs while requests need it: these and all other requests are answered. Over real HTTP."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from waitress.server import create_server
from waitress.wasyncore import close_all

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth, TokenUser, write_token_file
from tenure.config import new_config
from tenure.domain.lease import Lease, LeaseStatus
from tenure.drivers.simulated import Fault, FaultKind
from tenure.enforcement.contract import EnforcementFilter, Values
from tests.support.engines import (
    HOUR,
    assert_all_in_pool,
    path_of,
    rebuild,
    status_of,
    wait_for_leases,
)
from tests.support.waiting import patience, wait_for
from tests.support.world import ADMIN, OWNER, World, open_world

THREADS = 6
ROLES = {OWNER: ("member", "reader"), ADMIN: ("admin", "member", "reader")}


class Site:
    """A world behind an HTTP server with ``THREADS`` threads."""

    def __init__(self, world: World, port: int) -> None:
        self.world = world
        self._port = port

    def call(
        self, method: str, path: str, body: object = None, *, user: str = "owner", seconds: float | None = None
    ) -> tuple[int, Any]:
        """Return the status and the document; raise ``TimeoutError`` if there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=seconds or patience())
        headers = {
            "X-Auth-Token": token_of(user),
            "OpenStack-API-Version": "reservation 1.1",
            "Content-Type": "application/json",
        }
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def is_well(self, seconds: float | None = None) -> bool:
        return self.call("GET", "/healthcheck", seconds=seconds)[0] == 200


def token_of(user: str) -> str:
    return f"token-of-{user}-0123456789"


@contextmanager
def open_site(
    folder: Path,
    *,
    hosts: int,
    permits: int = THREADS // 2,
    answer_seconds: float = 600.0,
    filters: Mapping[str, EnforcementFilter] = MappingProxyType({}),
) -> Iterator[Site]:
    with open_world(folder, hosts=hosts, workers=THREADS, filters=filters) as world:
        rebuild(world, permits=permits, answer_seconds=answer_seconds)
        tokens = folder / "tokens.yaml"
        users = {"owner": OWNER, "admin": ADMIN}
        write_token_file(
            tokens,
            [
                TokenUser(user.user_id, name, user.project_id, user.project_id, ROLES[user], token_of(name))
                for name, user in users.items()
            ],
        )
        service = world.service
        app = create_app(
            service.manager, service.components.types, authenticate=lambda inner: TokenFileAuth(inner, tokens)
        )
        sockets: dict[int, Any] = {}
        server = create_server(app, host="127.0.0.1", port=0, threads=THREADS, map=sockets)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        service.engine.start()
        try:
            yield Site(world, server.effective_port)
        finally:
            world.cloud.clear_faults()
            server.task_dispatcher.shutdown(cancel_pending=True, timeout=10)
            server.trigger.pull_trigger(lambda: close_all(sockets))  # in the thread that reads from the sockets
            thread.join(patience())
            service.engine.stop()


def running_leases(site: Site, count: int) -> list[Lease]:
    leases = [site.world.book(1, hours=9) for _ in range(count)]
    wait_for_leases(site.world, leases, {LeaseStatus.ACTIVE})
    return leases


def wait_for_answers(calls: Collection[Future[Any]], count: int) -> None:
    """Wait until exactly ``count`` calls are answered."""

    def answered() -> int:
        return sum(call.done() for call in calls)

    wait_for(lambda: f"{count} answers after {answered()}", lambda: answered() == count)


def hang(site: Site, verb: str) -> None:
    site.world.cloud.inject(Fault(FaultKind.BLOCK, verb=verb, count=None))


@pytest.mark.slow
def test_api_answers_while_more_deletes_hang_than_it_has_threads(tmp_path: Path):
    """As many deletes wait as there are permits; the others are answered at once while they proceed, as in Blazar."""
    with ThreadPoolExecutor(2 * THREADS) as clients, open_site(tmp_path, hosts=2 * THREADS) as site:
        leases = running_leases(site, 2 * THREADS)
        hang(site, "ensure_ended")
        deletes = [clients.submit(site.call, "DELETE", f"/v1/leases/{lease.id}") for lease in leases]
        wait_for_answers(deletes, len(leases) - THREADS // 2)
        assert site.is_well()
        other = site.call("POST", "/v1/leases", {"name": "other", "start_date": "now", "reservations": []})
        assert other[0] == 400  # only the fact of an answer matters
        assert {site.call("GET", f"/v1/leases/{lease.id}")[1]["lease"]["status"] for lease in leases} == {"DELETING"}
        site.world.cloud.clear_faults()
        assert {delete.result()[0] for delete in deletes} == {204}
        wait_for_leases(site.world, leases, {LeaseStatus.DELETED})
        assert_all_in_pool(site.world)


@pytest.mark.slow
def test_api_hangs_with_a_permit_for_every_thread(tmp_path: Path):
    """The counter-test: the limit of permits is what keeps the API available."""
    with ThreadPoolExecutor(THREADS) as clients, open_site(tmp_path, hosts=THREADS, permits=THREADS) as site:
        leases = running_leases(site, THREADS)
        hang(site, "ensure_ended")
        deletes = [clients.submit(site.call, "DELETE", f"/v1/leases/{lease.id}") for lease in leases]
        assert site.world.cloud.wait_until_blocked(THREADS, timeout_seconds=patience())
        with pytest.raises(TimeoutError):
            site.is_well(seconds=1.0)
        site.world.cloud.clear_faults()
        assert {delete.result()[0] for delete in deletes} == {204}


def test_slow_change_is_answered_before_it_is_done(tmp_path: Path):
    with open_site(tmp_path, hosts=2, answer_seconds=0.1) as site:
        [lease] = running_leases(site, 1)
        hang(site, "ensure_started")
        more = {"reservations": [{"id": lease.reservations[0].id, "min": 2, "max": 2}]}
        status, answer = site.call("PUT", f"/v1/leases/{lease.id}", more)
        assert (status, answer["lease"]["status"]) == (200, "UPDATING")
        assert len(site.world.hosts_of(lease.id)) == 2
        site.world.cloud.clear_faults()
        wait_for_leases(site.world, [lease], {LeaseStatus.ACTIVE})
        assert path_of(site.world, lease.id)[-2:] == ["UPDATING", "ACTIVE"]


def test_changes_without_a_worker_are_done_by_the_engine(tmp_path: Path):
    """The first changes hang in the cloud; one more is left unclaimed, and the engine claims it at once."""
    with ThreadPoolExecutor(THREADS) as clients, open_site(tmp_path, hosts=2 * (THREADS + 1)) as site:
        leases = running_leases(site, THREADS + 1)
        hung, last = leases[:-1], leases[-1]
        for lease in hung:
            site.world.cloud.inject(
                Fault(FaultKind.BLOCK, verb="ensure_started", reservation_id=lease.reservations[0].id, count=None)
            )

        def grow(lease: Lease) -> tuple[int, Any]:
            more = {"reservations": [{"id": lease.reservations[0].id, "min": 2, "max": 2}]}
            return site.call("PUT", f"/v1/leases/{lease.id}", more)

        changes = [clients.submit(grow, lease) for lease in hung]
        assert site.world.cloud.wait_until_blocked(THREADS, timeout_seconds=patience())
        assert grow(last)[0] == 200
        wait_for_leases(site.world, [last], {LeaseStatus.ACTIVE})
        assert len(site.world.cloud.world.groups()[last.reservations[0].id].hosts) == 2
        site.world.cloud.clear_faults()
        assert {change.result()[0] for change in changes} == {200}
        wait_for_leases(site.world, leases, {LeaseStatus.ACTIVE})


@pytest.mark.slow
def test_hanging_registrations_leave_threads_for_other_requests(tmp_path: Path):
    """Registrations without a permit are refused, and leave no trace."""
    with ThreadPoolExecutor(2 * THREADS) as clients, open_site(tmp_path, hosts=1) as site:
        site.world.cloud.world.ensure_hosts(1 + 2 * THREADS)
        hang(site, "look_up")
        calls = [
            clients.submit(site.call, "POST", "/v1/os-hosts", {"name": str(index + 2)}, user="admin")
            for index in range(2 * THREADS)
        ]
        wait_for_answers(calls, 2 * THREADS - THREADS // 2)
        assert site.is_well()
        refused = [call.result() for call in calls if call.done()]
        assert {status for status, _ in refused} == {503}
        assert "too many requests wait" in refused[0][1]["error_message"]
        site.world.cloud.clear_faults()
        assert sorted(call.result()[0] for call in calls) == [201] * (THREADS // 2) + [503] * (len(refused))
        assert len(site.call("GET", "/v1/os-hosts", user="admin")[1]["hosts"]) == 1 + THREADS // 2


def test_delete_waits_for_an_end_in_progress(tmp_path: Path):
    """The engine has claimed the end before; the delete is still answered only when the end is done."""
    with ThreadPoolExecutor(1) as client, open_site(tmp_path, hosts=1) as site:
        [lease] = running_leases(site, 1)
        hang(site, "ensure_ended")
        site.world.clock.advance(9 * HOUR)
        assert site.world.cloud.wait_until_blocked(timeout_seconds=patience())
        delete = client.submit(site.call, "DELETE", f"/v1/leases/{lease.id}")
        wait_for_leases(site.world, [lease], {LeaseStatus.DELETING})
        assert not delete.done()
        site.world.cloud.clear_faults()
        assert delete.result()[0] == 204
        assert status_of(site.world, lease.id) is LeaseStatus.DELETED


class Hanging(EnforcementFilter):
    """A filter whose check hangs until ``let_go`` is set."""

    def __init__(self) -> None:
        super().__init__(new_config())
        self.let_go = threading.Event()
        self.waiting = threading.Semaphore(0)

    def check_create(self, context: Values, lease_values: Values) -> None:
        self.waiting.release()
        self.let_go.wait()


@pytest.mark.slow
def test_hanging_filter_does_not_occupy_every_thread(tmp_path: Path):
    hanging = Hanging()
    with (
        ThreadPoolExecutor(2 * THREADS) as clients,
        open_site(tmp_path, hosts=2 * THREADS, filters={"Hanging": hanging}) as site,
    ):
        body = {
            "name": "lease",
            "start_date": "2030-01-02T10:00:00Z",
            "end_date": "2030-01-02T12:00:00Z",
            "reservations": [{"resource_type": "physical:host", "min": 1, "max": 1}],
        }
        creates = [clients.submit(site.call, "POST", "/v1/leases", body) for _ in range(THREADS)]
        try:
            for _ in range(THREADS // 2):
                assert hanging.waiting.acquire(timeout=patience())
            assert site.is_well()
            assert site.call("GET", "/v1/leases")[0] == 200
            wait_for_answers(creates, THREADS // 2)
        finally:
            hanging.let_go.set()
        refused = [create.result()[0] for create in creates].count(503)
        assert refused >= THREADS // 2
