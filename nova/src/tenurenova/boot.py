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
    #: The parameters of the reservation, without the server.
    reservation: Mapping[str, Any]

    def to_lease(self, hold_seconds: int, region: str = "") -> dict[str, Any]:
        """Return the request for a held lease. Without a ``region`` it is in the service's home region."""
        where = {"region": region} if region else {}
        return {
            "name": self.name,
            "start_date": self.start,
            "end_date": self.end,
            "hold_for": hold_seconds,
            "reservations": [{"resource_type": "virtual:server", **where, **self.reservation}],
        }


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
    for name in ("min_count", "max_count"):
        if str(server.get(name) or document.get(name) or 1) != "1":
            raise HintError(f"{name}: a lease is of one server; with the hint '{RESERVED}' only one can be booted.")
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
    )


def with_reservation(document: Any, lease_id: str, reservation_id: str, *, tagged: bool) -> dict[str, Any]:
    """Return the body for Nova: marked with the reservation, and without the hints that are meant for Tenure."""
    hints = {name: value for name, value in _hints_of(document).items() if name not in (RESERVED, PARAMETERS)}
    server = dict(document["server"])
    body = {name: value for name, value in document.items() if name not in HINTS}
    inner = next((name for name in HINTS if name in server), None)
    if inner is not None:
        del server[inner]
    if hints:
        body[HINTS[0]] = hints
    metadata = server.get("metadata")
    if metadata is None or isinstance(metadata, dict):
        marks = {LEASE: lease_id, RESERVATION: reservation_id, MARK: "true"}
        server["metadata"] = {**(metadata or {}), **marks}
    tags = server.get("tags")
    if tagged and (tags is None or isinstance(tags, list)):
        server["tags"] = [*(tags or []), MARK, f"{LEASE}={lease_id}"]
    return {**body, "server": server}


def takes_tags(version: str | None, legacy: str | None) -> bool:
    """Whether servers can have tags at this microversion, given by the values of the two version headers."""
    asked = legacy or ""
    for part in (version or "").split(","):
        words = part.split()
        if len(words) == 2 and words[0].lower() == "compute":
            asked = words[1]
    if asked.strip().lower() == "latest":
        return True
    named = _MICROVERSION.fullmatch(asked.strip())
    return named is not None and (int(named[1]), int(named[2])) >= TAGS_SINCE


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
