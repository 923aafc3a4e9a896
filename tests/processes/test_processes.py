"""APIs and managers as processes of their own, on a simulated cloud: races for few hosts, and ends at any point.

What holds for one process holds for several, on a database server and a message bus.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text, update
from sqlalchemy.pool import NullPool

from tenure.drivers.simulated import EffectKind
from tenure.services.context import Rules
from tenure.store.tables import EventRow
from tests.conftest import FreshDatabase
from tests.support import ledger
from tests.support.crashes import Traces, delete, wait_for_event, wait_until_gone
from tests.support.databases import MARIADB, POSTGRESQL
from tests.support.deployment import Deployment, Options, Program, deploy
from tests.support.engines import POINTS
from tests.support.lengths import RACE_OPERATIONS, times
from tests.support.racers import Race, run
from tests.support.races import TOKEN, broken_promises, lay_out, watched
from tests.support.site import delete_queues
from tests.support.standalone import Caller
from tests.support.waiting import patience, wait_for

OPERATIONS = max(150, RACE_OPERATIONS * 2 // 5)
#: In which all leases are: so few that even a short race wants more than there is.
HOURS = times(2, 12)
THREADS = 16
HOSTS = 9

KINDS = [pytest.param(POSTGRESQL, marks=pytest.mark.postgresql), pytest.param(MARIADB, marks=pytest.mark.mariadb)]


@dataclass(frozen=True)
class Processes:
    """A deployment on a simulated cloud, and what it leaves behind."""

    deployment: Deployment
    database: str
    traces: Traces

    @property
    def caller(self) -> Caller:
        return Caller(self.deployment.ports[0], TOKEN)


@contextmanager
def processes(
    folder: Path, bus: str, fresh_database: FreshDatabase, kind: str, *, managers: int, apis: int
) -> Iterator[Processes]:
    topic = f"tenure_{uuid4().hex[:8]}"
    with fresh_database(kind) as url:
        cloud, tokens = lay_out(url, folder, HOSTS)
        settings: Options = {
            "DEFAULT": {"driver": "simulated", "auth_strategy": "token_file", "transport_url": bus},
            "api": {"token_file": tokens},
            "simulated": {"path": cloud},
            "manager": {"rpc_topic": topic, "minutes_before_end_lease": 0},
        }
        try:
            with deploy(folder, url, settings, managers=managers, apis=apis) as deployment:
                yield Processes(deployment, url, Traces(url, cloud, HOSTS))
        finally:
            delete_queues([topic, *(f"{topic}.{folder.name}-{number}" for number in range(managers))], bus)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(POSTGRESQL, marks=[pytest.mark.postgresql, pytest.mark.long]),
        pytest.param(MARIADB, marks=pytest.mark.mariadb),
    ],
)
def test_concurrent_bookings_never_share_a_host(
    message_bus: str, tmp_path: Path, fresh_database: FreshDatabase, kind: str, capsys: pytest.CaptureFixture[str]
):
    """16 clients of two APIs over two managers, few hosts; hours of them, planned over and over again."""
    with processes(tmp_path, message_bus, fresh_database, kind, managers=2, apis=2) as found:
        race = Race(
            ports=found.deployment.ports, tokens=[TOKEN], threads=THREADS, operations=OPERATIONS, seed=3, hours=HOURS
        )
        with watched(found.database) as faults:
            report = run(race)
        wait_for("the last events", lambda: not ledger.busy(found.database))
        with capsys.disabled():
            print(
                f"\n{kind}: {report.operations} operations in {report.seconds:.1f} s, median "
                f"{report.median * 1000:.0f} ms, slowest {report.slowest:.2f} s"
            )
        assert report.wrong == []
        assert ledger.faults(found.database) == []
        assert faults == []
        assert broken_promises(found.database, report) == []
        least = max(1, OPERATIONS // 200)
        for verb in ("POST", "PUT", "DELETE"):
            assert report.count(verb) >= least, verb
        assert report.answers["POST 409 NotEnoughResources"] >= least


# --- at every named point


#: Who dies does so in Python; on each kind of database it is shown by ``tests/scenarios/test_crashes.py``.
@pytest.fixture(scope="module", params=KINDS)
def mortal(
    request: pytest.FixtureRequest,
    message_bus: str,
    fresh_database: FreshDatabase,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Processes]:
    """One API over a manager that is to be replaced; each test begins and ends with no manager."""
    folder = tmp_path_factory.mktemp("mortal")
    with processes(folder, message_bus, fresh_database, request.param, managers=1, apis=1) as found:
        found.deployment.managers[0].stop()
        yield found


@contextmanager
def dying_at(found: Processes, point: str) -> Iterator[None]:
    """A manager that kills itself there, in place of any other; no manager takes up its claims before the end."""
    deployment = found.deployment
    command = [sys.executable, "-m", "tests.support.dying", point, *deployment.managers[0].command[1:]]
    program = Program(f"dying at {point}", command, deployment.folder / "dying.log")
    prolong_claims(found.database)
    program.start()
    try:
        deployment.wait_until_well()
        yield
        assert program.process is not None
        assert program.process.wait(patience()) == -signal.SIGKILL, program.tail()
        prolong_claims(found.database)
    finally:
        if program.process is not None and program.process.poll() is None:
            program.kill()


@contextmanager
def taking_over(found: Processes) -> Iterator[Caller]:
    """Another manager, until the end of the block; what the dead had claimed has run out."""
    have_claims_end(found.database, datetime.now(UTC))
    manager = found.deployment.managers[0]
    manager.start()
    try:
        found.deployment.wait_until_well()
        yield found.caller
    finally:
        manager.stop()


def prolong_claims(database: str) -> None:
    """Have claims end as late as claims can. A manager that starts ends longer ones, as after a clock was set back."""
    have_claims_end(database, datetime.now(UTC) + Rules().claim_time)


def have_claims_end(database: str, moment: datetime) -> None:
    with create_engine(database, poolclass=NullPool).begin() as connection:
        connection.execute(update(EventRow).where(EventRow.claim_token.is_not(None)).values(ready_at=moment))


@pytest.mark.long
def test_managers_killed_during_starts_lose_no_lease(mortal: Processes):
    leases = []
    for point in POINTS:
        with dying_at(mortal, f"start_lease:{point}"):
            leases.append(booked(mortal.caller.book(2, seconds=600)))
        assert len(mortal.traces.has(leases[-1])) == (0 if point == "after_claim" else 2)
    with taking_over(mortal) as caller:
        for lease in leases:
            assert caller.wait_for_status(lease["id"], "ACTIVE", "ERROR")["status"] == "ACTIVE"
            assert mortal.traces.counts(lease) == {EffectKind.GROUP_MADE: 1, EffectKind.HOST_TAKEN: 2}
        mortal.traces.assert_sound(idle=False)
        for lease in leases:
            delete(caller, lease)
    mortal.traces.assert_sound(idle=True)


@pytest.mark.long
def test_managers_killed_during_snapshots_make_each_image_once(mortal: Processes):
    leases = []
    for point in POINTS:
        with dying_at(mortal, f"before_end_lease:{point}"):
            leases.append(booked(mortal.caller.book(1, seconds=600, notice=3)))
            mortal.caller.wait_for_status(leases[-1]["id"], "ACTIVE")
            mortal.traces.boot(leases[-1])
        assert mortal.traces.counts(leases[-1])[EffectKind.IMAGE_MADE] == (0 if point == "after_claim" else 1)
    with taking_over(mortal) as caller:
        for lease in leases:
            wait_for_event(caller, lease, "before_end_lease")
            assert caller.lease(lease["id"])["status"] == "ACTIVE"
            assert mortal.traces.counts(lease)[EffectKind.IMAGE_MADE] == 1
            delete(caller, lease)
    mortal.traces.assert_sound(idle=True)


@pytest.mark.long
def test_managers_killed_during_ends_lose_no_lease(mortal: Processes):
    leases = []
    for point in POINTS:
        with dying_at(mortal, f"end_lease:{point}"):
            leases.append(booked(mortal.caller.book(2, seconds=3, before_end="default")))
            mortal.caller.wait_for_status(leases[-1]["id"], "ACTIVE")
            mortal.traces.boot(leases[-1])
        assert len(mortal.traces.has(leases[-1])) == (2 if point == "after_claim" else 0)
    with taking_over(mortal) as caller:
        for lease in leases:
            caller.wait_for_status(lease["id"], "TERMINATED")
            assert mortal.traces.counts(lease)[EffectKind.HOST_RETURNED] == 2
            assert mortal.traces.counts(lease)[EffectKind.SERVER_DELETED] == 1
    mortal.traces.assert_sound(idle=True)


@pytest.mark.long
def test_managers_killed_during_changes_complete_each_change(mortal: Processes):
    """The change is answered with 503, as its outcome is unknown; it is made."""
    leases, answers = [], []
    with ThreadPoolExecutor(len(POINTS)) as asking:
        for point in POINTS:
            with dying_at(mortal, f"update_lease:{point}"):
                lease = booked(mortal.caller.book(1, seconds=600))
                mortal.caller.wait_for_status(lease["id"], "ACTIVE")
                grown = {"reservations": [{"id": lease["reservations"][0]["id"], "min": 3, "max": 3}]}
                answers.append(asking.submit(mortal.caller.call, "PUT", f"/leases/{lease['id']}", grown))
            leases.append(lease)
    assert [answer.result()[0] for answer in answers] == [503] * len(POINTS), answers[0].result()
    assert {answer.result()[1]["error_name"] for answer in answers} == {"Unavailable"}
    with taking_over(mortal) as caller:
        for lease in leases:
            after = caller.wait_for_status(lease["id"], "ACTIVE")
            assert after["reservations"][0]["max"] == 3
            assert mortal.traces.counts(lease) == {EffectKind.GROUP_MADE: 1, EffectKind.HOST_TAKEN: 3}
            delete(caller, lease)
    mortal.traces.assert_sound(idle=True)


@pytest.mark.long
def test_managers_killed_during_deletions_complete_each_deletion(mortal: Processes):
    """The delete was not answered, and yet begun: it is not forgotten."""
    leases, answers = [], []
    with ThreadPoolExecutor(len(POINTS)) as asking:
        for point in POINTS:
            with dying_at(mortal, f"end_lease:{point}"):
                leases.append(booked(mortal.caller.book(2, seconds=600)))
                mortal.caller.wait_for_status(leases[-1]["id"], "ACTIVE")
                answers.append(asking.submit(mortal.caller.call, "DELETE", f"/leases/{leases[-1]['id']}"))
    assert [answer.result()[0] for answer in answers] == [503] * len(POINTS), answers[0].result()
    with taking_over(mortal) as caller:
        for lease in leases:
            wait_until_gone(caller, lease)
            assert mortal.traces.counts(lease)[EffectKind.HOST_RETURNED] == 2
    mortal.traces.assert_sound(idle=True)


# --- without a database


@contextmanager
def out_of_reach(database: str) -> Iterator[None]:
    """The server refuses connections, and has closed those to the database."""
    url = make_url(database)
    folder_or_socket = Path(str(url.query.get("unix_socket") or url.query.get("host") or ""))
    socket = folder_or_socket / f".s.PGSQL.{url.port or 5432}" if folder_or_socket.is_dir() else folder_or_socket
    if not socket.is_socket():
        pytest.skip("the server is not one of the tests' own")
    away = socket.with_name("away")
    own, others, end = (
        (
            "pg_backend_pid()",
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()",
            "pg_terminate_backend",
        )
        if url.get_backend_name() == "postgresql"
        else ("CONNECTION_ID()", "SELECT id FROM information_schema.processlist WHERE db = DATABASE()", "KILL")
    )
    engine = create_engine(database, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        socket.rename(away)
        try:
            mine = connection.execute(text(f"SELECT {own}")).scalar_one()
            for number in connection.execute(text(others)).scalars().all():
                if number != mine:
                    connection.execute(text(f"KILL {number}" if end == "KILL" else f"SELECT {end}({number})"))
            yield
        finally:
            away.rename(socket)


@pytest.mark.long
@pytest.mark.parametrize("mortal", KINDS, indirect=True)
def test_the_service_is_unavailable_without_its_database(mortal: Processes):
    """503, so that clients come again, for whatever is asked; and all is well when it is back."""
    with taking_over(mortal) as caller:
        lease = booked(caller.book(1, seconds=600))
        caller.wait_for_status(lease["id"], "ACTIVE")
        path = f"/leases/{lease['id']}"
        with out_of_reach(mortal.database):
            for method, where, body in (
                ("GET", "/leases", None),
                ("GET", path, None),
                ("PUT", path, {"name": "renamed"}),
                ("DELETE", path, None),
            ):
                status, answer = caller.call(method, where, body)
                assert (status, answer["error_name"]) == (503, "Unavailable"), (method, where, answer)
            assert caller.book(1, seconds=600)[0] == 503
            assert mortal.deployment.health() == 503
        mortal.deployment.wait_until_well()
        assert caller.lease(lease["id"])["name"] == lease["name"]
        delete(caller, lease)
    mortal.traces.assert_sound(idle=True)


def booked(answer: tuple[int, Any]) -> dict[str, Any]:
    status, lease = answer
    assert status == 201, lease
    return dict(lease)
