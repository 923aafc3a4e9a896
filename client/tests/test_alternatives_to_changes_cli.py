"""What the refused change of a lease names in its place."""

from __future__ import annotations

import shlex
from datetime import timedelta

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import OwnEvent, ReservationRequest
from tenureclient.models import Lease
from tenureclient.testing import FakeServer
from tenureclient.wire import JsonValue
from test_alternatives_cli import HOUR, alternatives, refuse


@pytest.fixture(autouse=True)
def hosts(server: FakeServer) -> None:
    """A host with one kind of GPU, and three with another; a lease of all of them from 5 to 7 o'clock."""
    for number, gpu in enumerate(("a100", "v100", "v100", "v100")):
        server.add_host(f"c{number}", properties={"gpu": gpu})
    book(server, 4, name="other", start=5, hours=2)


def book(server: FakeServer, count: int, *, name: str = "mine", start: int = 2, hours: int = 1) -> Lease:
    begin = BEGINNING + start * HOUR
    wanted = [ReservationRequest.hosts(count)]
    return server.client().leases.create(name, start=begin, end=begin + hours * HOUR, reservations=wanted)


def run(tenure: Run, command: str) -> Outcome:
    outcome = tenure(*shlex.split(command)[1:])
    assert outcome.code == 0, outcome.errors
    return outcome


def test_dates_are_replaced_by_those_that_are_possible(server: FakeServer, tenure: Run) -> None:
    book(server, 2)
    typed = "--prolong-for 3h --name theirs --notify '2027-03-01 14:30' 'almost over' --before-end +4h30m"
    found = alternatives(tenure("lease", "set", "mine", *shlex.split(typed)))
    assert found == {
        "an earlier end: 2027-03-01 15:30 CET, after 3h": (
            "tenure lease set mine --name theirs --end 2027-03-01T14:30:00Z --before-end 2027-03-01T13:00:00Z"
            " --notify '2027-03-01 14:30' 'almost over'"
        ),
    }
    for command in found.values():
        run(tenure, f"{command} --dry-run")


@pytest.mark.parametrize(
    "typed",
    [
        "--start +3h --end +6h",
        "--defer-by 1h --prolong-for 1h",
        "--start-date '2027-03-01 12:30' --end-date '2027-03-01 15:30'",
    ],
)
def test_every_way_to_give_dates_is_replaced(server: FakeServer, tenure: Run, typed: str) -> None:
    book(server, 2, hours=3)
    found = alternatives(tenure("lease", "set", "mine", *shlex.split(typed)))
    assert len(found) >= 1
    for command in found.values():
        run(tenure, f"{command} --dry-run")


def test_a_change_of_a_reservation_is_made_smaller(server: FakeServer, tenure: Run) -> None:
    book(server, 1, name="third")
    lease = book(server, 1)
    change = f"id={lease.reservations[0].id},min=4"
    found = alternatives(tenure("lease", "set", "mine", "--reservation", f"{change},max=4", "--wait"))
    smaller = f"tenure lease set mine --reservation id={lease.reservations[0].id},min=3,max=3 --wait"
    assert found == {"a smaller amount: 3 hosts": smaller}
    run(tenure, found["a smaller amount: 3 hosts"])


def test_a_change_names_another_kind(server: FakeServer, tenure: Run) -> None:
    lease = book(server, 2)
    gpu = 'resource_properties=["==", "$gpu", "a100"]'
    found = alternatives(tenure("lease", "set", "mine", "--reservation", f"id={lease.reservations[0].id},{gpu}"))
    run(tenure, found["another kind: gpu=v100"])


@pytest.mark.parametrize("option", [[], ["--dry-run"]])
def test_a_prolongation_is_shortened(server: FakeServer, tenure: Run, option: list[str]) -> None:
    book(server, 2)
    found = alternatives(tenure("lease", "prolong", "mine", "--by", "3h", *option))
    end = next(command for description, command in found.items() if "end" in description)
    assert end == shlex.join(["tenure", "lease", "set", "mine", *option, "--end", "2027-03-01T14:30:00Z"])
    run(tenure, end)


def test_an_added_reservation_is_made_smaller(server: FakeServer, tenure: Run) -> None:
    book(server, 1)
    typed = ["--hosts", "3-4", "--with", "gpu=v100", "--wait"]
    assert server.client().leases.create(
        "third",
        start=BEGINNING + 2 * HOUR,
        end=BEGINNING + 3 * HOUR,
        reservations=[ReservationRequest.hosts(1, conditions=["gpu=v100"])],
    )
    found = alternatives(tenure("lease", "reservation", "add", "mine", *typed))
    command = found["a smaller amount: 2 hosts"]
    assert command == "tenure lease reservation add mine --hosts 2 --with gpu=v100 --wait"
    run(tenure, command)


@pytest.mark.parametrize(
    ("moved", "start"),
    [("--defer-by 1h", "2027-03-01T12:30:00Z"), ("--advance-by 1h", "2027-03-01T10:30:00Z")],
)
def test_an_earlier_end_has_no_relative_start(server: FakeServer, tenure: Run, moved: str, start: str) -> None:
    book(server, 2)
    found = alternatives(tenure("lease", "set", "mine", *moved.split(), "--prolong-for", "3h"))
    command = found[next(description for description in found if "an earlier end" in description)]
    assert command == f"tenure lease set mine --end 2027-03-01T14:30:00Z --start {start}"
    run(tenure, command)


@pytest.mark.parametrize(
    ("start", "notified", "new", "possible"),
    [(2, 2.5, "+4h30m", "an earlier end"), (7, 8, "+8h", "a later start")],
)
def test_notifications_that_exist_stay_within_the_lease(
    server: FakeServer, tenure: Run, start: int, notified: float, new: str, possible: str
) -> None:
    lease = book(server, 2, start=start, hours=2)
    server.client().leases.update(lease.id, events=[OwnEvent(BEGINNING + notified * HOUR, "there")])
    typed = ("--start", "+4h", "--end", "+8h30m", "--notify", new, "new")
    found = alternatives(tenure("lease", "set", "mine", *typed))
    assert [description.partition(":")[0] for description in found] == [possible]
    for command in found.values():
        run(tenure, f"{command} --dry-run")
    run(tenure, found[list(found)[-1]])
    changed = server.client().leases.get(lease.id)
    times = [event.time for event in changed.events if event.message is not None and event.time]
    assert len(times) == 2
    assert all(changed.start_date <= time <= changed.end_date for time in times)


def test_a_moment_before_the_end_is_left_out_if_it_has_passed(server: FakeServer, tenure: Run) -> None:
    book(server, 2, start=0, hours=4)
    server.advance(timedelta(hours=2, minutes=30))
    typed = ("--prolong-for", "2h", "--before-end", "+15m")
    [command] = alternatives(tenure("lease", "set", "mine", *typed)).values()
    assert command == "tenure lease set mine --end 2027-03-01T14:30:00Z"
    run(tenure, command)


def test_a_prolongation_keeps_its_output_options(server: FakeServer, tenure: Run) -> None:
    book(server, 2)
    typed = ("--by", "3h", "--dry-run", "-f", "json", "-c", "end_date")
    command = list(alternatives(tenure("lease", "prolong", "mine", *typed)).values())[-1]
    assert run(tenure, command).output == '{\n  "end_date": "2027-03-01T14:30:00Z"\n}\n'


def test_a_name_that_looks_like_an_option(server: FakeServer, tenure: Run) -> None:
    book(server, 2, name="-x")
    for command in alternatives(tenure("lease", "prolong", "--by", "3h", "--", "-x")).values():
        run(tenure, f"{command.removesuffix(' -- -x')} --dry-run -- -x")


@pytest.mark.parametrize(
    "offered",
    [
        {"change": "colour"},
        {"change": "amount", "reservation": 0, "amount": 1},
        {"change": "amount", "reservation": 1, "amount": 1},
        {"change": "kind", "reservation": 1, "resource_properties": '["==", "$gpu", "v100"]'},
    ],
)
def test_an_alternative_without_a_command_is_left_out(
    server: FakeServer, tenure: Run, offered: dict[str, JsonValue]
) -> None:
    lease = book(server, 2)
    refuse(server, offered)
    change = f"id={lease.reservations[0].id},before_end=notify"
    assert alternatives(tenure("lease", "set", "mine", "--reservation", change)) == {}


def test_the_dates_of_an_added_reservation_are_those_of_the_lease(server: FakeServer, tenure: Run) -> None:
    book(server, 2)
    refuse(server, {"change": "end"})
    assert alternatives(tenure("lease", "reservation", "add", "mine", "--hosts", "4")) == {}
