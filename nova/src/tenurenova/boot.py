"""Read and rewrite requests to boot a server with a reservation. Pure: JSON in, JSON out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

RESERVED, PARAMETERS = "reserved", "lease_params"
#: The names under which Nova accepts scheduler hints.
HINTS = ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints")
LEASE, RESERVATION, MARK = "tenure:lease", "tenure:reservation", "tenure:reserved"
#: The maximum length of a lease's name, in characters. A server's name may be longer.
MAX_NAME = 80
#: The first compute microversion in which a server can be booted with tags.
TAGS_SINCE = (2, 52)
#: The maximum number of servers of a lease, and of choices between numbers of servers.
MAX_SERVERS, MAX_CHOICES = 100, 10

_MICROVERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_YES, _NO = ("1", "on", "t", "true", "y", "yes"), ("0", "off", "f", "false", "n", "no")
#: The keys that the lease's parameters may have, and those among them that belong to the reservation.
_OF_LEASE, _OF_RESERVATION = ("name", "start", "end"), ("at_end", "resource_properties")
FIELDS = (*_OF_LEASE, *_OF_RESERVATION)


class HintError(ValueError):
    """A hint is invalid; the text names the hint."""


@dataclass(frozen=True)
class WantedLease:
    """The lease that a request to boot asks for."""

    name: str
    start: str
    end: str
    #: The parameters of each reservation, without the server.
    reservation: Mapping[str, Any]
    #: The name of the server, and how many there shall be: at least, and at most.
    server_name: str
    least: int = 1
    most: int = 1

    def to_lease(self, hold_seconds: int, region: str = "") -> dict[str, Any]:
        """Return the request for a held lease of one server that exists when the lease is confirmed.

        Without a ``region`` it is in the service's home region.
        """
        return {**self._dates(), "hold_for": hold_seconds, "reservations": [self._reservation(region)]}

    def to_booking(self, boot: Mapping[str, Any], region: str = "") -> dict[str, Any]:
        """Return the request for a lease whose servers are made at its start by the ``boot``.

        If the number of servers is open, the largest number that fits is taken; of many numbers, ten are tried.
        """
        one = self._reservation(region)
        choices = [[{**one, "server_name": name} for name in self.names(count)] for count in self._counts()]
        if len(choices) == 1:
            return {**self._dates(), "boot": boot, "reservations": choices[0]}
        return {**self._dates(), "boot": boot, "any_of": [{"reservations": choice} for choice in choices]}

    def names(self, count: int) -> list[str]:
        """Return the names that Nova would give so many servers."""
        if self.most == 1:
            return [self.server_name]
        return [f"{self.server_name}-{number}" for number in range(1, count + 1)]

    def _counts(self) -> list[int]:
        """Return the numbers of servers to try, the largest first."""
        span, steps = self.most - self.least, min(self.most - self.least, MAX_CHOICES - 1)
        if not steps:
            return [self.most]
        return [self.most - span * step // steps for step in range(steps + 1)]

    def _dates(self) -> dict[str, Any]:
        return {"name": self.name, "start_date": self.start, "end_date": self.end}

    def _reservation(self, region: str) -> dict[str, Any]:
        where = {"region": region} if region else {}
        return {"resource_type": "virtual:server", **where, **self.reservation}


def field_of_hint(field: str) -> str:
    """Return the name of the hint for a field of the lease request."""
    name = field.rpartition(".")[2]
    if name in ("start_date", "end_date"):
        name = name.removesuffix("_date")
    if name in FIELDS:
        return f"{PARAMETERS}.{name}"
    return "flavorRef" if name == "flavor_id" else name if name == "availability_zone" else field


def read_wanted_lease(document: Any) -> WantedLease | None:
    """Return the lease that the body of a boot request asks for; None if it asks for none, or is not such a body.

    Raises ``HintError``.
    """
    server, hints = _server_of(document), _hints_of(document)
    if server is None or not _is_reserved(hints):
        return None
    least, most = _counts_of(server)
    if server.get("return_reservation_id"):
        raise HintError(f"return_reservation_id: it cannot be asked for with the hint '{RESERVED}'.")
    parameters = _parameters(hints.get(PARAMETERS))
    wanted = {name: parameters[name] for name in _OF_RESERVATION if name in parameters}
    if zone := _zone_of(server):
        wanted["availability_zone"] = zone
    return WantedLease(
        name=_text(parameters.get("name", str(server.get("name") or "")[:MAX_NAME]), "name"),
        start=_moment(parameters.get("start", "now"), "start", now=True),
        end=_moment(parameters.get("end"), "end", now=False),
        reservation={"flavor_id": _flavor_of(server), **wanted},
        server_name=str(server.get("name") or ""),
        least=least,
        most=most,
    )


def kept_request(document: Any) -> dict[str, Any]:
    """Return the body of a boot request as it is kept for the start: of one server, and without the hints for Tenure.

    Its zone has no host: the host is planned.
    """
    body = _without_hints(document)
    server = {name: value for name, value in body["server"].items() if name not in ("min_count", "max_count")}
    if isinstance(server.get("availability_zone"), str):
        server["availability_zone"] = _zone_of(server)
    return {**body, "server": server}


def with_reservation(document: Any, lease_id: str, reservation_id: str, *, tagged: bool) -> dict[str, Any]:
    """Return the body for Nova: marked with the reservation, and without the hints that are meant for Tenure."""
    body = _without_hints(document)
    server = dict(body["server"])
    metadata = server.get("metadata")
    if metadata is None or isinstance(metadata, dict):
        marks = {LEASE: lease_id, RESERVATION: reservation_id, MARK: "true"}
        server["metadata"] = {**(metadata or {}), **marks}
    tags = server.get("tags")
    if tagged and (tags is None or isinstance(tags, list)):
        server["tags"] = [*(tags or []), MARK, f"{LEASE}={lease_id}"]
    return {**body, "server": server}


def microversion_of(version: str | None, legacy: str | None) -> str:
    """Return the microversion of a request, given by the values of the two version headers; 2.1 by default."""
    asked = legacy or ""
    for part in (version or "").split(","):
        words = part.split()
        if len(words) == 2 and words[0].lower() == "compute":
            asked = words[1]
    return asked.strip().lower() or "2.1"


def numbers_of(microversion: str) -> tuple[int, int]:
    """Return the numbers of a microversion, by which versions are compared; those of ``latest`` are the greatest."""
    if microversion == "latest":
        return (9999, 9999)
    named = _MICROVERSION.fullmatch(microversion)
    return (2, 1) if named is None else (int(named[1]), int(named[2]))


def takes_tags(microversion: str) -> bool:
    """Whether servers can have tags at this microversion."""
    return numbers_of(microversion) >= TAGS_SINCE


def _without_hints(document: Any) -> dict[str, Any]:
    """Return a copy of the body without the hints for Tenure; the others are in it under their present name."""
    hints = {name: value for name, value in _hints_of(document).items() if name not in (RESERVED, PARAMETERS)}
    body = {name: value for name, value in document.items() if name not in HINTS}
    body["server"] = {name: value for name, value in document["server"].items() if name not in HINTS}
    return {**body, HINTS[0]: hints} if hints else body


def _counts_of(server: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many servers are asked for: at least, and at most. Without a maximum, as many as the minimum."""
    counts = []
    for name in ("min_count", "max_count"):
        given = server.get(name)
        text = "" if given is None else str(given)
        if text and not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_SERVERS):
            raise HintError(f"{name}: a lease is of 1 to {MAX_SERVERS} servers.")
        counts.append(int(text) if text else None)
    least = counts[0] or 1
    most = counts[1] or least
    if least > most:
        raise HintError("min_count: it must be at most max_count.")
    return least, most


def _server_of(document: Any) -> Mapping[str, Any] | None:
    server = document.get("server") if isinstance(document, dict) else None
    return server if isinstance(server, dict) else None


def _hints_of(document: Any) -> Mapping[str, Any]:
    """Return all scheduler hints; empty if there are none."""
    hints_by_name: dict[str, Any] = {}
    for place in (_server_of(document), document):
        for name in HINTS:
            hints = place.get(name) if isinstance(place, dict) else None
            hints_by_name.update(hints if isinstance(hints, dict) else {})
    return hints_by_name


def _is_reserved(hints: Mapping[str, Any]) -> bool:
    if RESERVED not in hints:
        if PARAMETERS in hints:
            raise HintError(f"The hint '{PARAMETERS}' is of use only with the hint '{RESERVED}=true'.")
        return False
    word = str(hints[RESERVED]).strip().lower()
    if word not in _YES + _NO:
        raise HintError(f"The hint '{RESERVED}' is true or false.")
    return word in _YES


def _parameters(given: Any) -> Mapping[str, Any]:
    """Return the parameters of the lease, which are given as text or as an object."""
    if isinstance(given, str):
        try:
            given = json.loads(given, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise HintError(f"The hint '{PARAMETERS}' is not JSON: {error}.") from None
    if not isinstance(given, dict):
        example = '{"name": "lease1", "start": "now", "end": "2027-12-01 16:00"}'
        raise HintError(f"The hint '{PARAMETERS}' is an object, such as {example}.")
    unknown = sorted(set(given) - set(FIELDS))
    if unknown:
        text = f"does not know {', '.join(unknown)[:80]}; it knows {', '.join(FIELDS)}."
        raise HintError(f"The hint '{PARAMETERS}' {text}")
    return given


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it has no {name}")


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise HintError(f"The hint '{PARAMETERS}': {field} is a text that is not empty.")
    return value


def _moment(value: Any, field: str, *, now: bool) -> str:
    """Return a date in the form of the API. Accepts RFC 3339, Blazar's minutes, and ``now`` if allowed."""
    words = "'now', " if now else ""
    refusal = HintError(
        f"The hint '{PARAMETERS}': {field} is {words}a minute in UTC such as '2027-12-01 16:07', or a date such as"
        " '2027-12-01T16:07:30+01:00'."
    )
    if not isinstance(value, str):
        raise refusal
    text = value.strip()
    if now and text.lower() == "now":
        return "now"
    try:
        moment = datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=timezone.utc)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
        except ValueError:
            raise refusal from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        raise refusal from None


def _zone_of(server: Mapping[str, Any]) -> str:
    """Return the availability zone of the server, without the host that may follow it; empty for any zone."""
    zone = server.get("availability_zone")
    return zone.partition(":")[0] if isinstance(zone, str) else ""


def _flavor_of(server: Mapping[str, Any]) -> str:
    """Return the id of the flavor. Like Nova, accept an id or a link whose path ends with it."""
    try:
        reference = urlsplit(str(server.get("flavorRef") or "")).path.rpartition("/")[2]
    except ValueError:
        reference = ""
    if not reference:
        raise HintError("flavorRef: a flavor is needed.")
    return reference
