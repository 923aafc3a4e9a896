"""Exchanges that were recorded with Blazar 18 on a real cloud, repeated with Tenure, and the known differences.

They are repeated in order on a cloud with the recording's first three hosts, with their dates moved to now. Status and
shape of every answer must be the same, and an error must begin with the same words, except for the differences listed
here; each names the text in ``docs/api/differences-from-blazar.md`` that explains it. A listed difference that no
longer exists is a failure as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.cloud import REPOSITORY

PAGE = REPOSITORY / "docs/api/differences-from-blazar.md"
RECORDED_AT = datetime(2026, 11, 21, 3, 25, tzinfo=UTC)
#: The number of recorded exchanges; they are numbered in order.
RECORDED = 201
#: The reservable hosts of the recording.
HOSTS = ("compute-1", "compute-2", "compute-3")
#: The recording's external network, its address prefix, and a flavor.
NETWORK = "630c66c3-7839-4fa4-b5d4-e060272a420c"
ADDRESSES = "172.24.4."
FLAVOR = "2aa1680d-b8e0-4596-865d-6dc224dd9622"

#: Ids in error messages.
IDS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=host )\d+")

#: The formats of times in answers; any other text is compared as text.
FORMS = (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}"), re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"))

DATE = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A recorded request, its user, and Blazar's answer."""

    number: int
    note: str
    who: str
    method: str
    path: str
    headers: Mapping[str, str]
    request: str | None
    status: int
    response_headers: Mapping[str, str]
    response: Any


def read_exchanges() -> list[Exchange]:
    """Return all exchanges in order."""
    lines = (Path(__file__).parent / "blazar-exchanges.jsonl").read_text().splitlines()
    return [Exchange(**json.loads(line)) for line in lines]


@dataclass(frozen=True)
class Difference:
    """An intended difference: our status, and the text in the documentation that explains it."""

    status: int
    explanation: str


def _differences() -> Iterator[tuple[int, Difference]]:
    for status, explanation, numbers in (
        (200, "404 for `/v1`", [2]),
        (404, "**API v2.**", [3, 4, 198, 199, 200]),
        (300, "401 to `GET /` and `/versions` without a token", [6]),
        (200, "406 for a version after 1.0, and `latest` is 1.0", [9, 10]),
        (406, "A request that asks for a version that is not spoken", [11]),
        (400, "500 for a body that is no JSON or no object, for a value of the wrong type", [19, 72, 164]),
        (400, "500 `The foo resource type is not supported`", [33]),
        (400, "500 `Not enough hosts available`", [39, 92, 121, 129, 141]),
        (201, "**Numbers may be text.**", [41]),
        (400, "500 for a property that no host has", [46, 50, 52, 62, 66, 68, 130]),
        (400, "500 for another `resource_type` of a reservation", [95]),
        (404, "403 for a lease of another project", [103, 104, 108, 109, 110]),
        (204, "404 or 500 for a second `DELETE` of a lease", [107]),
        (400, "500 for a parameter of instances that is missing, or of the wrong type", [120, 122, 123, 124, 125, 126]),
        (200, "409 for a change of a `flavor:instance` reservation", [133]),
        (400, "404 for a `flavor_id` that the cloud does not know", [139]),
        (400, "`error_name` `INTERNAL_SERVER_ERROR` for a host `PUT` without data", [162]),
        (400, "(64) is checked in a change as well", [168]),
        (200, "**A property cannot be called like a field of the host.**", [170]),
        (404, "500 for `PATCH` of a property that does not exist", [177, 178]),
        (400, "500 for `PATCH` of a property with nothing in it to change", [179]),
        (409, "500 for a floating IP that is registered already", [183]),
    ):
        for number in numbers:
            yield number, Difference(status, explanation)


#: By number of the exchange.
DIFFERENCES: Mapping[int, Difference] = dict(_differences())

#: Errors that do not begin with Blazar's words, by number of the exchange, with the text that explains it.
TEXTS: Mapping[int, str] = {
    5: "and a hint to check one's spelling",
    16: "and a hint to check one's spelling",
    17: "**The order is fixed**",
    20: "**The order is fixed**",
    161: "`Conflict on creating resource provider blazar_<host>`",
    171: "`Policy doesn't allow blazar:oshosts:get`",
}

#: Fields that are null in only one of them, with the text that explains it.
NULLS: Mapping[str, str] = {
    "aggregate_id": "**`aggregate_id` is null until the lease starts**",
    "updated_at": "**`updated_at` is null until something is changed.**",
}


@dataclass(frozen=True)
class Answer:
    """Our answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str], text: str) -> Answer:
        return cls(status, {name.lower(): value for name, value in headers.items()}, text)

    @property
    def document(self) -> Any:
        return json.loads(self.text)


#: Asks as a user: name, method, path, body, headers. ``none`` sends no token, and ``bad token`` an invalid one.
Ask = Callable[[str, str, str, str | None, Mapping[str, str]], Answer]


@dataclass
class Replay:
    """Repeats the exchanges, and reports different answers."""

    ask: Ask
    #: The time since the recording.
    later: timedelta
    #: Our names for theirs; leases and their ids are added as they are created.
    called: dict[str, str]
    exchanges: Sequence[Exchange] = field(default_factory=read_exchanges)
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Repeat all exchanges; problems are in ``failures`` afterwards."""
        differing: set[str] = set()
        for exchange in self.exchanges:
            self._bring_about(exchange)
            path, raw = self._ours(exchange.path), exchange.request and self._ours(exchange.request)
            answer = self.ask(exchange.who, exchange.method, path, raw, exchange.headers)
            what = f"{exchange.number} {exchange.note}: {answer.status} {answer.text[:300]}"
            if problems := list(self._compare(exchange, answer, differing)):
                self.failures.append("\n    ".join([what, *problems]))
            self._forget(exchange)
        self.failures += [f"{name} is not null with one only any more" for name in sorted(NULLS.keys() - differing)]

    def register_hosts(self) -> None:
        """Make the hosts reservable; in the recording they were 1, 2 and 3."""
        for number, name in enumerate(HOSTS, start=1):
            host = self.make("admin", "/v1/os-hosts", {"name": name})["host"]
            self.called[f"/os-hosts/{number}"] = f"/os-hosts/{host['id']}"

    def make(self, who: str, path: str, body: Mapping[str, Any]) -> Any:
        """Create something that the recording had created outside of the exchanges."""
        headers = {"Content-Type": "application/json"}
        answer = self.ask(who, "POST", path, self._ours(json.dumps(body)), headers)
        assert answer.status == 201, answer.text
        return answer.document

    def delete(self, path: str) -> None:
        answer = self.ask("admin", "DELETE", path, None, {})
        assert answer.status == 204, answer.text

    def _ours(self, text: str) -> str:
        """Replace names in a path or a body by ours, and move dates to now."""
        words = re.compile("|".join(re.escape(theirs) for theirs in self.called))
        return DATE.sub(self._later, words.sub(lambda word: self.called[word[0]], text))

    def _later(self, date: re.Match[str]) -> str:
        return f"{datetime.strptime(date[0], '%Y-%m-%d %H:%M') + self.later:%Y-%m-%d %H:%M}"  # noqa: DTZ007

    def _bring_about(self, exchange: Exchange) -> None:
        """Create what the recording had created before an exchange, outside of the exchanges."""
        match exchange.number:
            case 75:
                here = '["==", "$hypervisor_hostname", "compute-2"]'
                self._book("admin", exchange.response["leases"][0], resource_properties=here)
            case 108:
                shown = next(lease for lease in self.exchanges[111].response["leases"] if lease["name"] == "demo-lease")
                self._book("demo", shown)
            case 114 | 132:
                self._book("admin", exchange.response["lease"], amount=1)
            case 183:
                body = json.loads(exchange.request or "")
                made = self.make("admin", "/v1/floatingips", body)
                pair(self.exchanges[191].response, made, self.called)
            case 153:
                answer = self.ask("admin", "GET", "/v1/leases", None, {})
                for lease in answer.document["leases"]:
                    self.delete(f"/v1/leases/{lease['id']}")

    def _book(self, who: str, shown: Mapping[str, Any], **other: Any) -> None:
        """Create a lease as the recording shows it, except for ``other`` values in its reservations."""
        named = {
            "physical:host": ["min", "max", "hypervisor_properties", "resource_properties"],
            "virtual:instance": ["vcpus", "memory_mb", "disk_gb", "amount", "affinity", "resource_properties"],
            "flavor:instance": ["flavor_id", "amount", "affinity"],
        }
        (reservation,) = shown["reservations"]
        resource_type = reservation["resource_type"]
        parameters = {name: reservation[name] for name in named[resource_type]}
        if resource_type == "flavor:instance":
            parameters["flavor_id"] = json.loads(reservation["resource_properties"])["id"]
        body = {
            "name": shown["name"],
            "start_date": shown["start_date"].replace("T", " ")[:16],
            "end_date": shown["end_date"].replace("T", " ")[:16],
            "reservations": [{"resource_type": resource_type, **parameters, **other}],
        }
        pair({"lease": shown}, self.make(who, "/v1/leases", body), self.called)

    def _compare(self, exchange: Exchange, answer: Answer, differing: set[str]) -> Iterator[str]:
        difference = DIFFERENCES.get(exchange.number)
        status = difference.status if difference else exchange.status
        if answer.status != status:
            yield f"should be {status}"
            return
        if answer.status != 204 and answer.headers.get("content-type") != "application/json":
            yield f"content type {answer.headers.get('content-type')}"
        if not answer.headers.get("x-openstack-request-id", "").startswith("req-"):
            yield "no request id"
        found = [*_headers(exchange, answer), *self._body(exchange, answer, differing)]
        if difference is None:
            yield from [*found, *self._text(exchange, answer)]
        elif answer.status >= 400 and not isinstance(answer.document.get("error_message"), str):
            yield "does not say why"
        elif not found and answer.status == exchange.status:
            yield f"is as it was, which is not what is explained: {difference.explanation}"

    def _body(self, exchange: Exchange, answer: Answer, differing: set[str]) -> Iterator[str]:
        if exchange.response == "" or not answer.text:
            if answer.text or exchange.response != "":
                yield "one has a body, the other has not"
            return
        if exchange.number not in DIFFERENCES:
            pair(exchange.response, answer.document, self.called)
        for where, problem in shapes(exchange.response, answer.document):
            field_name = where.rpartition(".")[2]
            if "null" in problem and field_name in NULLS:
                differing.add(field_name)
            else:
                yield f"{where}: {problem}"

    def _text(self, exchange: Exchange, answer: Answer) -> Iterator[str]:
        if exchange.status < 400 or "error_message" not in exchange.response:
            return
        theirs, ours = self._ours(exchange.response["error_message"]), answer.document["error_message"]
        begins_alike = IDS.sub("-", ours).startswith(IDS.sub("-", theirs.strip(" .")))
        if begins_alike is (exchange.number in TEXTS):
            yield f"said: {theirs}"

    def _forget(self, exchange: Exchange) -> None:
        """Delete a lease that the recording had deleted outside of the exchanges."""
        if (exchange.method, exchange.path, exchange.status) != ("POST", "/v1/leases", 201):
            return
        theirs = exchange.response["lease"]["id"]
        ours = self.called.get(theirs)
        if ours is not None and not any(theirs in later.path for later in self.exchanges[exchange.number + 1 :]):
            self.delete(f"/v1/leases/{ours}")


def _headers(exchange: Exchange, answer: Answer) -> Iterator[str]:
    theirs = {name.lower(): value for name, value in exchange.response_headers.items()}
    for name in ("openstack-api-version", "vary"):
        if answer.headers.get(name) != theirs.get(name):
            yield f"{name} is {answer.headers.get(name)!r}, was {theirs.get(name)!r}"
    if ("www-authenticate" in theirs) != ("www-authenticate" in answer.headers):
        yield "www-authenticate is with one only"


def shapes(theirs: Any, ours: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield the differences between the shapes of two values. Items of our lists are compared with their first item."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in sorted(theirs.keys() | ours.keys()):
            path = f"{where}.{name}" if where else name
            if name not in theirs or name not in ours:
                yield path, f"{'was not there' if name in ours else 'is not there'}"
            else:
                yield from shapes(theirs[name], ours[name], path)
    elif isinstance(theirs, list) and isinstance(ours, list):
        if bool(theirs) != bool(ours):
            yield where, f"had {len(theirs)}, has {len(ours)}"
        elif theirs:
            yield from min((list(shapes(theirs[0], item, f"{where}[]")) for item in ours), key=len)
    elif (theirs is None) != (ours is None):
        yield where, "was null" if theirs is None else "is null"
    elif type(theirs) is not type(ours):
        yield where, f"was {type(theirs).__name__}, is {type(ours).__name__}"
    elif isinstance(theirs, str) and [form.fullmatch(theirs) is None for form in FORMS] != [
        form.fullmatch(ours) is None for form in FORMS
    ]:
        yield where, f"was {theirs}, is {ours}"


def pair(theirs: Any, ours: Any, called: dict[str, str]) -> None:
    """Record which of our ids stands for which of theirs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name, value in theirs.items():
            if name == "id" and isinstance(value, str) and len(value) == 36:
                called.setdefault(value, ours[name])
            else:
                pair(value, ours.get(name), called)
    elif isinstance(theirs, list) and isinstance(ours, list):
        for item, other in zip(theirs, ours, strict=False):
            pair(item, other, called)
