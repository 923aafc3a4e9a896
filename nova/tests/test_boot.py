"""Requests to boot: their hints for a reservation, and the request that Nova gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenurenova.boot import (
    HintError,
    microversion_of,
    read_wanted_lease,
    takes_tags,
    with_reservation,
)
from tenurenova.shown import show_reservations

LEASE = {"name": "lease1", "start": "2027-12-01 09:00", "end": "2027-12-01 16:07"}


def body(hints: Any = None, **server: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"server": {"name": "web", "flavorRef": "3", "imageRef": "i", **server}}
    return document if hints is None else {**document, "os:scheduler_hints": hints}


def reserved(lease: Any = LEASE, **server: Any) -> dict[str, Any]:
    text = lease if isinstance(lease, str) else json.dumps(lease)
    return body({"reserved": "True", "lease_params": text}, **server)


@pytest.mark.parametrize(
    "document",
    [None, [], "x", {}, {"server": 1}, body(), body({}), body({"group": "g"}), body({"reserved": "false"}), body([])],
)
def test_boot_without_the_hint_is_ignored(document: Any) -> None:
    assert read_wanted_lease(document) is None


@pytest.mark.parametrize("word", ["True", "true", True, "1", 1, "yes"])
def test_a_lease_is_requested_by_hints(word: Any) -> None:
    document = body({"reserved": word, "lease_params": json.dumps(LEASE)})
    wanted = read_wanted_lease(document)
    assert wanted is not None
    assert wanted.to_lease(300) == {
        "name": "lease1",
        "start_date": "2027-12-01T09:00:00Z",
        "end_date": "2027-12-01T16:07:00Z",
        "hold_for": 300,
        "reservations": [{"resource_type": "virtual:server", "flavor_id": "3"}],
    }


def test_hints_may_have_their_old_name_or_be_an_object_and_flavors_may_be_links() -> None:
    server = body(flavorRef="http://nova/v2.1/flavors/m1.big")["server"]
    old = {"server": {**server, "OS-SCH-HNT:scheduler_hints": {"reserved": True, "lease_params": LEASE}}}
    wanted = read_wanted_lease(old)
    assert wanted is not None
    assert wanted.reservation == {"flavor_id": "m1.big"}
    assert with_reservation(old, "L", "R", tagged=False)["server"].keys() == {*server, "metadata"}


@pytest.mark.parametrize(
    ("zone", "asked"),
    [(None, {}), ("", {}), ("west", {"availability_zone": "west"}), ("west:host:node", {"availability_zone": "west"})],
)
def test_the_zone_of_the_boot_is_that_of_the_lease(zone: str | None, asked: dict[str, str]) -> None:
    wanted = read_wanted_lease(reserved(availability_zone=zone))
    assert wanted is not None
    assert wanted.reservation == {"flavor_id": "3", **asked}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("2027-12-1 16:07", "2027-12-01T16:07:00Z"),
        ("2027-12-01 16:07", "2027-12-01T16:07:00Z"),
        ("2027-12-01T16:07:30Z", "2027-12-01T16:07:30Z"),
        ("2027-12-01T16:07:00+02:00", "2027-12-01T14:07:00Z"),
    ],
)
def test_dates_are_blazars_minutes_or_complete(given: str, meant: str) -> None:
    wanted = read_wanted_lease(reserved({"name": "x", "start": "now", "end": given}))
    assert wanted is not None
    assert (wanted.start, wanted.end) == ("now", meant)


def test_lease_has_the_servers_name_and_starts_now_by_default() -> None:
    wanted = read_wanted_lease(reserved({"end": "2027-12-01 16:07", "at_end": "snapshot"}))
    assert wanted is not None
    assert (wanted.name, wanted.start, wanted.reservation["at_end"]) == ("web", "now", "snapshot")
    long = read_wanted_lease(
        reserved({"end": "2027-12-01 16:07"}, name="n" * 255)
    )  # as Nova takes it, and leases do not
    assert long is not None
    assert long.name == "n" * 80


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (body({"reserved": "perhaps"}), "reserved"),
        (body({"reserved": ["True", "True"]}), "reserved"),
        (body({"reserved": "True"}), "lease_params"),
        (body({"lease_params": "{}"}), "reserved"),
        (reserved("{"), "lease_params"),
        (reserved("[]"), "lease_params"),
        (reserved("[" * 100_000), "lease_params"),
        (reserved('{"end": "2027-12-01 16:07", "at_end": NaN}'), "NaN"),
        (reserved({**LEASE, "ende": "x"}), "ende"),
        (reserved({"name": "x"}), "end"),
        (reserved({**LEASE, "end": "now"}), "end"),
        (reserved({**LEASE, "end": 5}), "end"),
        (reserved({**LEASE, "start": "tomorrow"}), "start"),
        (reserved({**LEASE, "end": ""}), "end"),
        (reserved({**LEASE, "end": "0001-01-01T00:00:00+23:00"}), "end"),
        (reserved({**LEASE, "name": " "}), "name"),
        (reserved(LEASE, flavorRef=""), "flavorRef"),
        (reserved(LEASE, max_count=101), "max_count"),
        (reserved(LEASE, min_count="0"), "min_count"),
        (reserved(LEASE, min_count=3, max_count=2), "min_count"),
        (reserved(LEASE, min_count="many"), "min_count"),
        (reserved(LEASE, return_reservation_id=True), "return_reservation_id"),
    ],
)
def test_invalid_hint_is_named(document: dict[str, Any], named: str) -> None:
    with pytest.raises(HintError, match=named):
        read_wanted_lease(document)


def test_the_server_is_marked_and_nova_never_sees_our_hints() -> None:
    document = reserved(LEASE, metadata={"mine": "1"}, tags=["blue"])
    document["os:scheduler_hints"]["group"] = "g"
    marked = with_reservation(document, "L", "R", tagged=True)
    marks = {"tenure:lease": "L", "tenure:reservation": "R", "tenure:reserved": "true"}
    assert marked["server"]["metadata"] == {"mine": "1", **marks}
    assert marked["server"]["tags"] == ["blue", "tenure:reserved", "tenure:lease=L"]
    assert marked["os:scheduler_hints"] == {"group": "g"}
    plain = with_reservation(reserved(), "L", "R", tagged=False)
    assert plain.keys() == {"server"}
    assert "tags" not in plain["server"]
    assert document["server"]["metadata"] == {"mine": "1"}


@pytest.mark.parametrize(
    ("reference", "flavor"),
    [
        ("5", "5"),
        (5, "5"),
        ("http://nova/v2.1/flavors/5", "5"),
        ("5?x=/1", "5"),
        ("5#/1", "5"),
        ("http://nova/flavors/5?x=1", "5"),
        ("//1/5", "5"),
    ],
)
def test_the_flavor_is_read_as_nova_reads_it(reference: object, flavor: str) -> None:
    """Otherwise room would be booked for one flavor, and a server of another flavor would be booted."""
    wanted = read_wanted_lease(reserved(LEASE, flavorRef=reference))
    assert wanted is not None
    assert wanted.reservation["flavor_id"] == flavor


@pytest.mark.parametrize(
    ("version", "legacy", "taken"),
    [
        (None, None, False),
        ("compute 2.52", None, True),
        ("compute 2.51", None, False),
        ("compute latest", None, True),
        ("identity 3, compute 2.95", None, True),
        ("volume 3.70", None, False),
        (None, "2.60", True),
        (None, "2.6", False),
        ("compute x", None, False),
        ("compute ².²", None, False),
        (None, "2.52²", False),
        (None, f"2.{'9' * 5000}", False),
    ],
)
def test_tags_are_set_if_the_microversion_has_them(version: str | None, legacy: str | None, taken: bool) -> None:
    assert takes_tags(microversion_of(version, legacy)) is taken


MARKS = {"tenure:lease": "L", "tenure:reservation": "R", "tenure:reserved": "true"}


def shown(server: dict[str, Any]) -> dict[str, Any]:
    (shown,) = json.loads(show_reservations(json.dumps({"servers": [server]}).encode()))["servers"]
    return dict(shown)


def test_a_server_shelved_until_its_lease_is_shown_as_reserved() -> None:
    server = {"status": "SHELVED_OFFLOADED", "metadata": MARKS}
    assert shown(server)["status"] == "RESERVED"
    for other in ({**server, "metadata": {}}, {**server, "status": "ACTIVE"}):
        assert shown(other) == other
    for body in (b"", b'{"tenure:reserved"', b'["tenure:reserved"]'):
        assert show_reservations(body) is body
