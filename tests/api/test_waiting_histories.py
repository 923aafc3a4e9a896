"""Random histories of leases that wait, on the wire: for room, and for limits, with choices in any order.

What waits has no room, and is shown and listed alike at every version.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tenure.services.limits.quotas import FixedLimits, Quotas
from tenure.services.waiting import waiting_list
from tests.api.rig import HOSTS, USERS, Api, api_over, rfc3339
from tests.support.engines import rebuild
from tests.support.world import open_world

HOUR = timedelta(hours=1)
VERSIONS = ("1.1", "1.2", "1.3")
#: How many leases of a project may wait, and how many hosts one of the two projects may have.
MOST, HOSTS_AT_ONCE = 2, 2


class WaitingHistory:
    """Leases of two projects, one of which has a limit; those for which there is no room wait."""

    def __init__(self, api: Api, seed: int) -> None:
        self.api = api
        self.dice = Random(seed)
        self.bodies: dict[str, dict[str, Any]] = {}

    def using(self, user: str, version: str = "1.3") -> Api:
        return self.api.using(user, version)

    def draw(self) -> list[dict[str, Any]]:
        """Return the reservations of a choice; five hosts are more than there are, or may be had."""
        count = self.dice.choice((1, 2, 2, 3, 4, 5))
        return [{**HOSTS, "min": count, "max": count}]

    def body(self) -> dict[str, Any]:
        """Return a request for fixed dates, or for any hours in a window, of one choice or two."""
        dice = self.dice
        start = self.api.now + dice.randint(1, 4) * HOUR
        dates = dice.choice(
            (
                {"start_date": rfc3339(start), "end_date": rfc3339(start + dice.randint(1, 3) * HOUR)},
                {"duration": 3600, "earliest": rfc3339(start), "latest": rfc3339(start + HOUR)},
            )
        )
        choices = [{"reservations": self.draw()} for _ in range(dice.choice((1, 2)))]
        return {"name": "w", **dates, **(choices[0] if len(choices) == 1 else {"any_of": choices})}

    def step(self) -> None:
        """Ask for a lease, which waits if there is no room; delete one; or let time pass."""
        dice, user = self.dice, self.dice.choice(("demo", "other"))
        match dice.choice(("ask", "ask", "ask", "ask", "delete", "pass")):
            case "delete":
                known = self.using(user).get("/v1/leases").json["leases"]
                if known:
                    chosen = sorted(known, key=lambda lease: lease["created_at"])[dice.randrange(len(known))]
                    self.using(user).delete(f"/v1/leases/{chosen['id']}")
            case "pass":
                self.api.world.pass_time(HOUR / 2, leap=timedelta(minutes=5))
            case _:
                body = self.body()
                answer = self.using(user).post("/v1/leases", {**body, "if_full": "wait"})
                assert answer.status_code in {201, 403, 409}, answer.text
                if answer.status_code == 201:
                    self.bodies[answer.json["lease"]["id"]] = body
        self.api.world.engine.settle()


def check_lists(history: WaitingHistory) -> None:
    """A list by a status has the leases that this version shows with it; no more wait than may."""
    for user in ("demo", "other"):
        shown: dict[str, str] = {}
        for version in VERSIONS:
            api = history.using(user, version)
            shown = {lease["id"]: lease["status"] for lease in api.get("/v1/leases").json["leases"]}
            for status in {"CREATING", "PENDING", "WAITING", *shown.values()}:
                if status == "WAITING" and version != "1.3":
                    continue  # no status of this version
                listed = {lease["id"] for lease in api.get(f"/v1/leases?status={status}").json["leases"]}
                assert listed == {lease_id for lease_id, each in shown.items() if each == status}, (version, status)
        assert list(shown.values()).count("WAITING") <= MOST


def check_waiting(history: WaitingHistory) -> None:
    """For what waits there is no room, nor for any of its choices."""
    for user in ("demo", "other"):
        api = history.using(user)
        for lease in api.get("/v1/leases?status=WAITING").json["leases"]:
            answer = api.post("/v1/leases?dry_run=true", history.bodies[lease["id"]])
            assert answer.status_code in {400, 403, 409}, answer.text  # 400 if its latest start has come


def check_orders(history: WaitingHistory) -> None:
    """Ask for two choices in both orders: the lease is booked, waits, or is refused alike."""
    start = history.api.now + history.dice.randint(1, 6) * HOUR
    dates = {"start_date": rfc3339(start), "end_date": rfc3339(start + HOUR)}
    choices = [{"reservations": history.draw()} for _ in range(2)]
    for user in ("demo", "other"):
        api, outcomes = history.using(user), []
        for ordered in (choices, choices[::-1]):
            answer = api.post("/v1/leases", {"name": "o", **dates, "any_of": ordered, "if_full": "wait"})
            outcomes.append(answer.json["lease"]["status"] if answer.status_code == 201 else "refused")
            if answer.status_code == 201:
                api.delete(f"/v1/leases/{answer.json['lease']['id']}")
                history.api.world.engine.settle()
        assert outcomes[0] == outcomes[1], (user, choices)


def run(folder: Path, seed: int, steps: int) -> None:
    with open_world(folder, hosts=4) as world:
        limits = FixedLimits({"hosts": HOSTS_AT_ONCE}, (USERS["other"].project_id,))
        rebuild(world, quotas=Quotas(limits))
        history = WaitingHistory(api_over(world, folder), seed)
        for _ in range(steps):
            history.step()
            for check in (check_lists, check_waiting, check_orders):
                check(history)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 60))])
def test_leases_wait_for_room_and_limits_and_are_listed_as_they_are_shown(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(waiting_list, "MOST_WAITING", MOST)
    run(tmp_path, seed, 12)
