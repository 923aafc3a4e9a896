"""What the refused change of a lease names in its place."""

from __future__ import annotations

import shlex

import pytest

from conftest import BEGINNING, Outcome, Run
from tenureclient import ReservationRequest
from tenureclient.models import Lease
from tenureclient.testing import FakeServer
from test_alternatives_cli import HOUR, alternatives


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
    typed = "--prolong-for 3h --name theirs --notify '2027-03-01 14:30' 'almost over' --before-end +5h"
    found = alternatives(tenure("lease", "set", "mine", *shlex.split(typed)))
    assert found == {
        "a later start: 2027-03-01 17:30 CET to 2027-03-01 21:30 CET": (
            "tenure lease set mine --name theirs --end 2027-03-01T20:30:00Z --start 2027-03-01T16:30:00Z"
            " --before-end 2027-03-01T19:30:00Z --notify 2027-03-01T18:30:00Z 'almost over'"
        ),
        "an earlier end: 2027-03-01 15:30 CET, after 3h": (
            "tenure lease set mine --name theirs --end 2027-03-01T14:30:00Z --before-end 2027-03-01T13:30:00Z"
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
    found = alternatives(
        tenure("lease", "set", "mine", "--reservation", f"id={lease.reservations[0].id},{gpu}")
    )
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
