"""Exchanges that were recorded with Blazar 18 on a real cloud, asked of us.

The status and the shape of every answer are the same, save for the differences that are listed here and in
``docs/api/differences-from-blazar.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tests.api.rig import Api, open_api

EXCHANGES = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "blazar-exchanges.jsonl").read_text().splitlines()
]
RECORDED_AT = datetime(2026, 11, 21, 3, 25, tzinfo=UTC)

#: What we answer where Blazar answered otherwise or in another form, by the number of the exchange, and why.
DIFFERENCES: Mapping[int, tuple[int, str]] = {
    2: (200, "the version has a document"),
    3: (404, "there is no v2"),
    4: (404, "there is no v2"),
    6: (300, "discovery needs no token"),
    9: (200, "1.1 exists"),
    10: (200, "the latest version is 1.2, which pages and shows more"),
    11: (406, "the error can be read as 1.0 and as later"),
    19: (400, "a body that is no object is the client's mistake"),
    33: (400, "an unknown type is the client's mistake"),
    39: (400, "a full cloud is told as such"),
    41: (201, "numbers as text are taken"),
    46: (400, "nothing has that property, so too few hosts match"),
    50: (400, "nothing has that property, so too few hosts match"),
    52: (400, "nothing has that property, so too few hosts match"),
    62: (400, "nothing has that property, so too few hosts match"),
    66: (400, "nothing has that property, so too few hosts match"),
    68: (400, "nothing has that property, so too few hosts match"),
    72: (400, "an expression that is no text is the client's mistake"),
    92: (400, "a full cloud is told as such"),
    95: (400, "the type of a reservation cannot change"),
    103: (404, "leases of others are not known to exist"),
    104: (404, "leases of others are not known to exist"),
    107: (204, "what is deleted stays deleted"),
    108: (404, "leases of others are not known to exist"),
    109: (404, "leases of others are not known to exist"),
    110: (404, "leases of others are not known to exist"),
    120: (400, "a number that is none is the client's mistake"),
    121: (400, "a full cloud is told as such"),
    122: (400, "an instance without a processor is the client's mistake"),
    123: (400, "what is missing is the client's mistake"),
    124: (400, "what is missing is the client's mistake"),
    125: (400, "what is missing is the client's mistake"),
    126: (400, "what is missing is the client's mistake"),
    129: (400, "a full cloud is told as such"),
    130: (400, "nothing has that property, so too few hosts match"),
    133: (200, "the amount of a flavor's instances can change"),
    139: (400, "a flavor that there is not is the client's mistake, and final for him"),
    141: (400, "a full cloud is told as such"),
    162: (400, "the name of the error is its code, as everywhere"),
    164: (400, "a value that is no text is the client's mistake"),
    168: (400, "the length of names is checked here as well"),
    170: (200, "a property never hides a field"),
    177: (404, "there is no such property"),
    178: (404, "there is no such property"),
    179: (400, "the body lacks what it is for"),
    183: (409, "an address that is registered is no failure"),
    198: (404, "there is no v2"),
    199: (404, "there is no v2"),
    200: (404, "there is no v2"),
}
#: How many exchanges were recorded; they are numbered in their order.
RECORDED = 201
#: What the cloud of the recording calls what ours has under another name: a network, its addresses, a flavor.
CALLED = {
    "630c66c3-7839-4fa4-b5d4-e060272a420c": PUBLIC_NETWORK,
    "172.24.4.": "203.0.113.",
    "2aa1680d-b8e0-4596-865d-6dc224dd9622": "1",
}


def test_every_recorded_exchange_is_replayed() -> None:
    assert [exchange["number"] for exchange in EXCHANGES] == list(range(RECORDED))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A cloud like the one of the recording, at that time."""
    with open_api(tmp_path_factory.mktemp("recorded"), hosts=0) as api:
        api.world.clock.set(RECORDED_AT)
        for number in (1, 2, 3):
            name = f"compute-{number}"
            memory = 32768 if number == 3 else 16384
            facts = {"vcpus": 8, "memory_mb": memory, "local_gb": 200, "hypervisor_type": "fake"}
            api.world.cloud.world.add_host(name, facts=facts, traits=())
            assert api.using("admin").post("/v1/os-hosts", {"name": name}).status_code == 201
        yield api


def test_the_answers_are_those_of_blazar(cloud: Api) -> None:
    ours: dict[str, str] = dict(CALLED)
    failures: list[str] = []
    for exchange in EXCHANGES:
        _bring_about(cloud, exchange["number"], ours)
        failures += _compare(exchange, _ask(cloud, exchange, ours), ours)
        _forget(cloud, exchange, ours)
    assert not failures, "\n".join(failures)


def _bring_about(api: Api, number: int, ours: dict[str, str]) -> None:
    """What the recording made before an exchange without telling."""
    if number == 74:
        here = '["==", "$hypervisor_hostname", "compute-2"]'
        lease = api.using("admin").book(start=72, hours=24, reservations=[_host(resource_properties=here)])
        ours["b8537793-1adb-4ccb-a12a-65cb1315cc1d"] = lease["id"]
    if number == 108:
        lease = api.using("demo").book(start=72, hours=24, name="demo-lease")
        ours["bea0f173-17f0-4b7d-b5c6-1d8df58a07d9"] = lease["id"]
    if number == 114:
        instance = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1, "amount": 1, "affinity": False}
        _book(api, ours, EXCHANGES[number], resource_type="virtual:instance", resource_properties="", **instance)
    if number == 132:
        _book(api, ours, EXCHANGES[number], resource_type="flavor:instance", flavor_id="1", amount=1, affinity=None)
    if number == 183:
        body = {"floating_network_id": PUBLIC_NETWORK, "floating_ip_address": "203.0.113.20"}
        made = api.using("admin").post("/v1/floatingips", body).json["floatingip"]
        ours["a601d06c-9ab9-48f5-928b-18bd8f2c8a3d"] = made["id"]
    if number == 153:
        for lease in api.using("admin").get("/v1/leases").json["leases"]:
            assert api.using("admin").delete(f"/v1/leases/{lease['id']}").status_code == 204


def _book(api: Api, ours: dict[str, str], shown: Mapping[str, Any], **reservation: Any) -> None:
    """Make the lease that was shown, with such a reservation, and remember which ids are whose."""
    lease = api.using("admin").book(start=240, hours=24, reservations=[reservation])
    _pair(shown["response"], {"lease": lease}, ours)


def _host(**parameters: str) -> dict[str, Any]:
    return {
        "resource_type": "physical:host",
        "min": 1,
        "max": 1,
        "hypervisor_properties": "",
        "resource_properties": "",
        **parameters,
    }


def _ask(api: Api, exchange: Mapping[str, Any], ours: Mapping[str, str]) -> Any:
    path, raw = exchange["path"], exchange["request"]
    for theirs, our in ours.items():
        path = path.replace(theirs, our)
        raw = raw.replace(theirs, our) if raw else raw
    headers = dict(exchange["headers"])
    if exchange["who"] == "bad token":
        headers["X-Auth-Token"] = "not a token of anybody"
    return api.using(exchange["who"]).call(exchange["method"], path, raw=raw, headers=headers)


def _compare(exchange: Mapping[str, Any], result: Any, ours: dict[str, str]) -> list[str]:
    number = exchange["number"]
    what = f"{number} {exchange['note']}: {result.status_code} {result.text[:300]}"
    status, _reason = DIFFERENCES.get(number, (exchange["status"], ""))
    if result.status_code != status:
        return [f"{what}\n    should be {status}"]
    found = [f"{what}\n    {problem}" for problem in _headers(exchange, result)]
    if number in DIFFERENCES:
        return found
    if exchange["response"] == "":
        return found + ([what] if result.text else [])
    _pair(exchange["response"], result.json, ours)
    return found + [f"{what}\n    {problem}" for problem in _shape(exchange["response"], result.json, "answer")]


def _headers(exchange: Mapping[str, Any], result: Any) -> Iterator[str]:
    if result.status_code != 204 and result.headers.get("content-type") != "application/json":
        yield f"content type {result.headers.get('content-type')}"
    if not result.headers.get("x-openstack-request-id", "").startswith("req-"):
        yield "no request id"
    if exchange["number"] in DIFFERENCES:
        return
    for name in ("OpenStack-API-Version", "Vary"):
        if result.headers.get(name) != exchange["response_headers"].get(name):
            yield f"{name} is {result.headers.get(name)!r}, was {exchange['response_headers'].get(name)!r}"
    if ("WWW-Authenticate" in exchange["response_headers"]) != ("www-authenticate" in result.headers):
        yield "WWW-Authenticate"


def _shape(theirs: Any, our: Any, path: str) -> Iterator[str]:
    """Where the one has another form than the other; null may stand for any value."""
    if theirs is None or our is None:
        return
    if isinstance(theirs, dict) and isinstance(our, dict):
        if theirs.keys() != our.keys():
            yield f"{path}: {sorted(theirs.keys() ^ our.keys())}"
        for name in theirs.keys() & our.keys():
            yield from _shape(theirs[name], our[name], f"{path}.{name}")
    elif isinstance(theirs, list) and isinstance(our, list):
        if theirs and our:
            yield from _shape(theirs[0], our[0], f"{path}[0]")
    elif type(theirs) is not type(our):
        yield f"{path}: {type(theirs).__name__} was it, {type(our).__name__} is it"


def _pair(theirs: Any, our: Any, ours: dict[str, str]) -> None:
    """Remember which of our ids stands for which of theirs."""
    if isinstance(theirs, dict) and isinstance(our, dict):
        for name, value in theirs.items():
            if name == "id" and isinstance(value, str) and len(value) == 36:
                ours.setdefault(value, our[name])
            else:
                _pair(value, our.get(name), ours)
    elif isinstance(theirs, list) and isinstance(our, list):
        for one, other in zip(theirs, our, strict=False):
            _pair(one, other, ours)


def _forget(api: Api, exchange: Mapping[str, Any], ours: Mapping[str, str]) -> None:
    """Delete a lease that was made and is not spoken of any more: the recording did so without telling."""
    if exchange["method"] != "POST" or exchange["path"] != "/v1/leases" or exchange["status"] != 201:
        return
    theirs = exchange["response"]["lease"]["id"]
    if not any(theirs in later["path"] for later in EXCHANGES if later["number"] > exchange["number"]):
        assert api.using("admin").delete(f"/v1/leases/{ours[theirs]}").status_code == 204
