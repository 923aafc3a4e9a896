"""Bad input to every endpoint, at both versions: a 4xx that names the wrong field, and an unchanged database.

Each endpoint has a list of its fields, with a kind each, and a list of what is wrong in other ways. Every value of
``WRONG`` is tried in every field of its kind. From 1.1 on ``field`` says where the mistake is. 1.0 has Blazar's texts,
frozen: they name the field, or repeat the value where it is a date or an expression.

Bodies that are no JSON, of another type, or too large: ``test_bodies.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from tenure.api.openapi import describe
from tenure.api.schemas.resources import WireInventory
from tenure.api.table import operations_of
from tenure.api.versions import LATEST, OLDEST, Version
from tenure.resources.contract import load_types
from tests.api.rig import HOSTS, Api, open_api
from tests.api.test_reserved_servers import TINY
from tests.support.samples import (
    NEEDED_QUERIES,
    UNKNOWN_ID,
    Bad,
    Body,
    FieldPath,
    InventorySamples,
    Kind,
    ParameterSamples,
    TypeSamples,
    installed_samples,
    sampled_inventories,
)

HUGE = 10**30
LONG = "x" * 20_000
LISTS: Sequence[object] = ([], [[]], {}, {"a": {"b": []}})
OLD_COUNTS: Sequence[object] = (None, True, "", "two", "1.5", 1.5, -1, 0, "0", 2**31, str(2**31), HUGE, *LISTS)
OLD_DISKS: Sequence[object] = tuple(count for count in OLD_COUNTS if count not in (0, "0"))
NO_ADDRESS: Sequence[object] = (
    True,
    5,
    "",
    "bogus",
    "203.0.113",
    "203.0.113.300",
    "203.0.113.010",
    "203.0.113.10/32",
    " 203.0.113.10",
    "2001:db8::1%eth0",
    "a\0b",
    "x" * 65,
    HUGE,
    *LISTS,
)
NO_ADDRESSES: Sequence[object] = (
    None,
    True,
    5,
    "203.0.113.10",
    {},
    *([address] for address in (None, *NO_ADDRESS)),
    ["203.0.113.10", "203.0.113.10"],
    HUGE,
)
NO_DATES: Sequence[object] = (
    True,
    0,
    -1,
    HUGE,
    "",
    "soon",
    "2030-02-30 10:00",
    "2030-13-01 10:00",
    "2030-01-01",
    "2030-01-01 11:00:00",
    "2030-01-01T11:00",
    "2030-01-01 11:00+01:00",
    "9999-12-31 23:59",
    "0001-01-01 00:00",
    *LISTS,
)
OLD_DATES: Sequence[object] = (*NO_DATES, "2030-01-02T11:00:00Z", "2030-01-02T11:00:00+01:00")
DATES: Sequence[object] = (
    *NO_DATES,
    "2030-01-01 11:00",
    "2030-01-01T11:00:00",
    "2030-01-01T11:00:60Z",
    "2030-01-01T11:00:00+24:00",
    "2030-02-30T11:00:00Z",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    "2030-01-01T11:00:00\u0660Z",
)

#: What a field of a kind must not be, at 1.0 and from 1.1 on.
WRONG: dict[str, Mapping[str, Sequence[object]]] = {
    "1.0": {
        "name": (None, True, "x" * 81, HUGE, "a\0b", "\ud800", *LISTS),
        "date": (None, *OLD_DATES),
        "no date or null": OLD_DATES,
        "count": OLD_COUNTS,
        "expression": (True, 5, HUGE, "nonsense", "[1", '["=="]', '["or"]', "[[]]", "a\0b", LONG, *LISTS),
        "before_end": (True, 5, "email", HUGE, *LISTS),
        "list": (None, True, 5, "x", {}, [5], [None], ["x"], [[]], HUGE),
        "events": (True, 5, "x", {}, [5], [None], HUGE),
        "id": (None, True, 5, "x" * 65, "a\0b", HUGE, *LISTS),
        "reference": (True, "x" * 256, "a\0b", HUGE, *LISTS),
        "property": ([], {}, [[]], "x" * 16385, "a\0b", HUGE),
        "flag": (None, 0, 1, "yes", "true", HUGE, *LISTS),
        "size": OLD_COUNTS,
        "disk": OLD_DISKS,
        "affinity": ("maybe", "2", 5, 1.5, HUGE, *LISTS),
        "flavor": ("", "x" * 256, "a\0b", 1.5, True, HUGE, *LISTS),
        "network": (None, True, 5, "", "x" * 65, "a\0b", HUGE, *LISTS),
        "addresses": NO_ADDRESSES,
        "network of an address": (None, True, 5, "", "x" * 65, "a\0b", "a/b", HUGE, *LISTS),
        "address": (None, *NO_ADDRESS),
    },
    "1.1": {
        "name": (None, True, 5, 1.5, "", "x" * 81, HUGE, "a\0b", "\ud800", *LISTS),
        "date": (None, *DATES),
        "no date or null": DATES,
        "count": (None, *OLD_COUNTS[1:], "1"),
        "expression": (True, 5, HUGE, "nonsense", "[1", '["=="]', '["or"]', "[[]]", "a\0b", LONG, *LISTS),
        "before_end": (True, 5, "email", "Notify", HUGE, *LISTS),
        "before_end of an address": (True, 5, "email", "snapshot", HUGE, *LISTS),
        "list": (None, True, 5, "x", {}, [5], [None], ["x"], [[]], HUGE),
        "id": (None, True, 5, "", "x" * 65, "a\0b", HUGE, *LISTS),
        "reference": (None, True, 5, "", "x" * 256, "a\0b", HUGE, *LISTS),
        "properties": (None, True, 5, "x", [], HUGE),
        "property": (True, 5, 1.5, [], {}, "x" * 16385, "a\0b", HUGE),
        "flag": (None, 0, 1, "yes", "true", HUGE, *LISTS),
        "size": (None, *OLD_COUNTS[1:], "1"),
        "disk": (None, *OLD_DISKS[1:], "1"),
        "affinity": ("true", "None", "", 0, 1, 1.5, HUGE, *LISTS),
        "flavor": (None, True, 5, "", "x" * 256, "a\0b", HUGE, *LISTS),
        "network": (None, True, 5, "", "x" * 65, "a\0b", HUGE, *LISTS),
        "addresses": NO_ADDRESSES,
        "network of an address": (None, True, 5, "", "x" * 65, "a\0b", "a/b", HUGE, *LISTS),
        "address": (None, *NO_ADDRESS),
    },
}
#: Kinds of parameters that a change may name with null, which changes nothing.
NULLABLE = frozenset({"count", "size", "disk", "flavor", "network", "addresses"})
for _version, _kinds in WRONG.items():
    _nullable = {f"{kind} or null": tuple(value for value in _kinds[kind] if value is not None) for kind in NULLABLE}
    WRONG[_version] = {**_kinds, **_nullable}
WRONG["1.2"] = {
    **WRONG["1.1"],
    "reason": (None, True, 5, "x" * 1001, "a\0b", HUGE, *LISTS),
    "id or null": WRONG["1.1"]["id"][1:],
    "message": (None, True, 5, "", "x" * 1001, "a\0b", "\ud800", HUGE, *LISTS),
    "event type": (None, True, 5, "", "start_lease", "user_defined", HUGE, *LISTS),
}
WRONG["1.3"] = WRONG["1.4"] = WRONG["1.2"]


#: Where 1.0 repeats the value and does not name the field.
SAID: Mapping[str, str] = {
    "date": "is an invalid date",
    "no date or null": "is an invalid date",
    "expression": "Malformed requirements",
    "count": "min and max",
    "count or null": "min and max",
    "id": "reservation ID",
    "addresses": "IP address",
    "address": "IP address",
}


@dataclass(frozen=True)
class Endpoint:
    """One method of one URL at one version: what is right, and all that can be wrong."""

    version: str
    method: str
    path: str
    good: Mapping[str, Any] | None = None
    #: The kind of every field, by its path from the body down.
    fields: Mapping[FieldPath, Kind] | None = None
    required: Sequence[FieldPath] = ()
    #: The objects in which an unknown field is refused.
    closed: Sequence[FieldPath] = ()
    also: Sequence[Bad] = ()
    #: The type of its resources, if not hosts.
    subject: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.version, self.method, self.path, self.subject)))


NO_QUERY = Bad("force", path="?force=1")
BAD_LEASE_IDS = (
    Bad("lease_id", path=f"/v1/leases/{UNKNOWN_ID}", status=404),
    Bad("lease_id", path=f"/v1/leases/{'x' * 65}", status=404),
    Bad("lease_id", path=f"/v1/leases/{'x' * 5000}", status=404),
    Bad("lease_id", path="/v1/leases/%00", status=404),
    Bad("lease_id", path="/v1/leases/%FF", status=404),
    Bad("lease_id", path="/v1/leases/' OR 1=1 --", status=404),
)
#: What is neither yes nor no.
NO_TRUTHS = ("", "maybe", "TRUE", "2", "y", "null", "%20true")


def _below(bad: Sequence[Bad], rest: str) -> tuple[Bad, ...]:
    return tuple(Bad(case.field, case.body, case.path + rest, case.status) for case in bad)


OLD_LEASE = {
    "name": "lease",
    "start_date": "2030-01-02 10:00",
    "end_date": "2030-01-02 12:00",
    "before_end_date": "2030-01-02 11:00",
    "events": [],
    "reservations": [{**HOSTS, "before_end": "default"}],
}
LEASE = {
    "name": "lease",
    "start_date": "2030-01-02T10:00:00Z",
    "end_date": "2030-01-02T12:00:00Z",
    "before_end_date": "2030-01-02T11:00:00Z",
    "reservations": [{**HOSTS, "before_end": "default"}],
}
OLD_LEASE_CHANGE = {**OLD_LEASE, "reservations": [{"id": "RESERVATION", "min": 1, "max": 1}]}
LEASE_CHANGE = {**LEASE, "reservations": [{"id": "RESERVATION", "min": 1, "max": 1}]}


def _with(body: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**body, **changes}


#: An event of an owner's, and the kinds of its fields.
EVENT = {"event_type": "notify_lease", "time": "2030-01-02T11:00:00Z", "message": "half time"}
EVENT_FIELDS = {"event_type": "event type", "time": "date", "message": "message"}


def _events(body: Mapping[str, Any], *changes: Mapping[str, object]) -> dict[str, Any]:
    return {**body, "events": [{**EVENT, **change} for change in changes]}


def _reservations(body: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**body, "reservations": [{**body["reservations"][0], **changes}]}


def _parameters(kinds: Mapping[str, Kind], *, changing: bool = False) -> dict[FieldPath, Kind]:
    """Return the kinds of the parameters of a lease's first reservation; a change may name some with null."""
    return {("reservations", 0, name): _changed(kind) if changing else kind for name, kind in kinds.items()}


def _changed(kind: Kind) -> Kind:
    """Return the kind of a parameter in a change."""
    if isinstance(kind, tuple):
        return tuple(value for value in kind if value is not None)
    return f"{kind} or null" if kind in NULLABLE else kind


#: The types whose parameters are tried.
ASKED: Mapping[str, tuple[TypeSamples, ParameterSamples]] = {
    name: (samples, samples.parameters)
    for name, samples in installed_samples().items()
    if samples.parameters is not None
}
#: The kinds of the parameters of hosts, which leases are tried with.
HOSTS_ASKED = ASKED["host"][1].kinds(LATEST)
_UNTIL_1_1 = (
    # --- leases at 1.0
    Endpoint(
        "1.0",
        "POST",
        "/v1/leases",
        good=OLD_LEASE,
        fields={
            ("name",): "name",
            ("start_date",): "date",
            ("end_date",): "date",
            ("before_end_date",): "no date or null",
            ("events",): "events",
            ("reservations",): "list",
            **_parameters(HOSTS_ASKED),
        },
        required=(
            ("name",),
            ("start_date",),
            ("end_date",),
            ("reservations", 0, "resource_type"),
            ("reservations", 0, "min"),
            ("reservations", 0, "max"),
            ("reservations", 0, "hypervisor_properties"),
            ("reservations", 0, "resource_properties"),
        ),
        also=(
            Bad("Start date", _with(OLD_LEASE, start_date="2030-01-01 09:59")),
            Bad("End date", _with(OLD_LEASE, end_date="2030-01-02 10:00")),
            Bad("End date", _with(OLD_LEASE, end_date="2030-01-02 09:00")),
            Bad("End date", _with(OLD_LEASE, start_date="now", end_date="now", before_end_date=None)),
            Bad("limits", _with(OLD_LEASE, before_end_date="2030-01-02 12:00"), status=403),
            Bad("limits", _with(OLD_LEASE, before_end_date="2030-01-02 10:00"), status=403),
            Bad("min/max", _reservations(OLD_LEASE, min=2, max=1)),
            Bad("hosts", _reservations(OLD_LEASE, min=5, max=5)),
            Bad("hosts", _reservations(OLD_LEASE, resource_properties='["==", "$nothing", "1"]')),
            Bad("physical:ship", _reservations(OLD_LEASE, resource_type="physical:ship")),
            Bad("resource_type", _reservations(OLD_LEASE, resource_type=None)),
            Bad("[]", _reservations(OLD_LEASE, resource_type=[])),
            Bad("reservations", _with(OLD_LEASE, reservations=[HOSTS] * 101)),
            Bad("colour", _with(OLD_LEASE, colour="a\0b")),
            Bad("colour", _with(OLD_LEASE, colour=HUGE)),
        ),
    ),
    Endpoint(
        "1.0",
        "PUT",
        "/v1/leases/LEASE",
        good=OLD_LEASE_CHANGE,
        fields={
            ("name",): "name",
            ("start_date",): "date",
            ("end_date",): "date",
            ("before_end_date",): "no date or null",
            ("events",): "events",
            ("reservations",): "list",
            ("reservations", 0, "id"): "id",
            **_parameters(HOSTS_ASKED, changing=True),
        },
        required=(("reservations", 0, "id"),),
        also=(
            *(Bad(case.field, {"name": "new"}, case.path, case.status) for case in BAD_LEASE_IDS),
            Bad("Start date", {"start_date": "2030-01-01 09:59"}),
            Bad("End date", {"end_date": "2030-01-01 09:00"}),
            Bad("End date", {"start_date": "2031-01-01 10:00", "end_date": "2030-12-31 10:00"}),
            Bad("limits", {"before_end_date": "2031-01-01 10:00"}, status=403),
            Bad("min/max", {"reservations": [{"id": "RESERVATION", "min": 2, "max": 1}]}),
            Bad("hosts", {"reservations": [{"id": "RESERVATION", "min": 5, "max": 5}]}),
            Bad(UNKNOWN_ID, {"reservations": [{"id": UNKNOWN_ID, "max": 2}]}),
            Bad("reservation ID", {"reservations": [{"id": ""}]}),
            Bad("twice", {"reservations": [{"id": "RESERVATION"}, {"id": "RESERVATION"}]}),
            Bad("resource_type", {"reservations": [{"id": "RESERVATION", "resource_type": "virtual:instance"}]}),
            # All of it or nothing: what is right beside what is wrong is not done either.
            Bad("limits", {"name": "half", "before_end_date": "2031-01-01 10:00"}, status=403),
            Bad("hosts", {"name": "half", "reservations": [{"id": "RESERVATION", "max": 9, "min": 9}]}),
        ),
    ),
    # --- leases at 1.1
    Endpoint(
        "1.1",
        "GET",
        "/v1/leases",
        also=(
            *(Bad("limit", path=f"?limit={bad}") for bad in ("", "0", "-1", "1001", "1.5", "ten", HUGE, "%D9%A1")),
            *(Bad("marker", path=f"?marker={bad}") for bad in ("", "%00", "x" * 65)),
            *(Bad("sort_key", path=f"?sort_key={bad}") for bad in ("", "id", "colour", "name;drop")),
            *(Bad("sort_dir", path=f"?sort_dir={bad}") for bad in ("", "up", "ASC")),
            *(Bad("name", path=f"?name={bad}") for bad in ("", "%00", "x" * 81)),
            *(Bad("status", path=f"?status={bad}") for bad in ("", "active", "DELETED", "%00")),
            *(Bad("user_id", path=f"?user_id={bad}") for bad in ("", "%00", "x" * 256)),
            *(Bad("project_id", path=f"?project_id={bad}") for bad in ("", "%00", "x" * 256)),
            *(
                Bad("starts_before", path=f"?starts_before={bad}")
                for bad in ("", "now", "2030-01-01", "2030-01-01T10:00:00")
            ),
            *(
                Bad("ends_after", path=f"?ends_after={bad}")
                for bad in ("", "now", "2030-01-01", "9999-12-31T23:59:59Z")
            ),
            Bad("limit", path="?limit=1&limit=2"),
            Bad("colour", path="?colour=red"),
        ),
    ),
    Endpoint(
        "1.1",
        "DELETE",
        "/v1/leases/LEASE/reservations/RESERVATION",
        also=(
            *_below(BAD_LEASE_IDS, "/reservations/RESERVATION"),
            Bad("reservation_id", path=f"/v1/leases/LEASE/reservations/{UNKNOWN_ID}", status=404),
            Bad("reservation_id", path=f"/v1/leases/LEASE/reservations/{'x' * 65}", status=404),
            Bad("reservation_id", path="/v1/leases/LEASE/reservations/%00", status=404),
            NO_QUERY,
        ),
    ),
    Endpoint(
        "1.1",
        "POST",
        "/v1/leases",
        good=LEASE,
        fields={
            ("name",): "name",
            ("start_date",): "date",
            ("end_date",): "date",
            ("before_end_date",): "no date or null",
            ("reservations",): "list",
            **_parameters(HOSTS_ASKED),
        },
        required=(
            ("name",),
            ("start_date",),
            ("end_date",),
            ("reservations", 0, "min"),
            ("reservations", 0, "max"),
        ),
        closed=((), ("reservations", 0)),
        also=(
            Bad("start_date", _with(LEASE, start_date="2030-01-01T09:59:59Z")),
            Bad("start_date", _with(LEASE, start_date="2030-01-01T10:59:59+01:00")),
            Bad("end_date", _with(LEASE, end_date="2030-01-02T10:00:00Z")),
            Bad("end_date", _with(LEASE, end_date="2030-01-02T10:30:00+01:00")),
            Bad("end_date", _with(LEASE, end_date="now")),
            Bad("before_end_date", _with(LEASE, before_end_date="now")),
            Bad("before_end_date", _with(LEASE, before_end_date="2030-01-02T12:00:00Z")),
            Bad("before_end_date", _with(LEASE, before_end_date="2030-01-02T10:00:00Z")),
            Bad("reservations[0]", _reservations(LEASE, min=2, max=1)),
            Bad("reservations[0].min", _reservations(LEASE, min=5, max=5), status=409),
            Bad("reservations[0].resource_type", _reservations(LEASE, resource_type="physical:ship")),
            Bad("reservations[0]", _reservations(LEASE, resource_type=None)),
            Bad("reservations", _with(LEASE, reservations=[HOSTS] * 101)),
            NO_QUERY,
        ),
    ),
    Endpoint(
        "1.1",
        "PUT",
        "/v1/leases/LEASE",
        good=LEASE_CHANGE,
        fields={
            ("name",): "name",
            ("start_date",): "date",
            ("end_date",): "date",
            ("before_end_date",): "date",
            ("reservations",): "list",
            ("reservations", 0, "id"): "id",
            **_parameters(HOSTS_ASKED, changing=True),
        },
        required=(("reservations", 0, "id"),),
        closed=((), ("reservations", 0)),
        also=(
            *(Bad(case.field, {"name": "new"}, case.path, case.status) for case in BAD_LEASE_IDS),
            Bad("start_date", {"start_date": "2030-01-01T09:59:59Z"}),
            Bad("end_date", {"end_date": "2030-01-01T09:00:00Z"}),
            Bad("end_date", {"start_date": "2031-01-01T10:00:00Z", "end_date": "2030-12-31T10:00:00Z"}),
            Bad("start_date", {"start_date": "2031-01-01T10:00:00Z"}),
            Bad("before_end_date", {"before_end_date": "2031-01-01T10:00:00Z"}),
            Bad("reservations[0]", {"reservations": [{"id": "RESERVATION", "min": 2, "max": 1}]}),
            Bad("reservations[0].min", {"reservations": [{"id": "RESERVATION", "min": 5, "max": 5}]}, status=409),
            Bad("reservations", {"reservations": [{"id": UNKNOWN_ID, "max": 2}]}),
            Bad("reservations", {"reservations": [{"id": "RESERVATION"}, {"id": "RESERVATION"}]}),
            Bad("reservations[0]", {"reservations": [{"id": "RESERVATION", "resource_type": "virtual:instance"}]}),
            Bad("before_end_date", {"name": "half", "before_end_date": "2031-01-01T10:00:00Z"}),
            Bad(
                "reservations[0].min",
                {"name": "half", "reservations": [{"id": "RESERVATION", "max": 9, "min": 9}]},
                status=409,
            ),
            NO_QUERY,
        ),
    ),
)


def _asked_at(version: Version) -> list[str]:
    return [name for name, (samples, _) in ASKED.items() if not version < samples.since]


def _reservation(name: str) -> dict[str, Any]:
    return {**ASKED[name][0].reservation, "before_end": "default"}


def _create(version: Version, name: str) -> Endpoint:
    """Making a lease of one reservation of a type."""
    parameters = ASKED[name][1]
    body = {**(OLD_LEASE if version is OLDEST else LEASE), "reservations": [_reservation(name)]}
    return Endpoint(
        version.value,
        "POST",
        "/v1/leases",
        good=body,
        fields=_parameters(parameters.kinds(version)),
        required=[("reservations", 0, field) for field in parameters.required(version)],
        closed=() if version is OLDEST else (("reservations", 0),),
        also=[unfit.bad(version, _reservations(body, **unfit.wrong), "reservations[0]") for unfit in parameters.unfit],
        subject=name,
    )


def _change(version: Version, name: str) -> Endpoint:
    """Changing a reservation of a type."""
    parameters, reservation, its_id = ASKED[name][1], _reservation(name), f"{{{name}}}"
    good = {field: reservation[field] for field in parameters.kinds(version)}
    unfit = (*(unfit for unfit in parameters.unfit if unfit.changing), *parameters.fixed)
    return Endpoint(
        version.value,
        "PUT",
        f"/v1/leases/{{of_{name}}}",
        good={"reservations": [{**good, "id": its_id}]},
        fields=_parameters(parameters.kinds(version), changing=True),
        closed=() if version is OLDEST else (("reservations", 0),),
        also=[
            unfit.bad(version, {"name": "half", "reservations": [{"id": its_id, **unfit.wrong}]}, "reservations[0]")
            for unfit in unfit
        ],
        subject=name,
    )


def _add(version: Version, name: str) -> Endpoint:
    """Adding a reservation of a type to a lease."""
    parameters, reservation = ASKED[name][1], _reservation(name)
    return Endpoint(
        version.value,
        "POST",
        "/v1/leases/LEASE/reservations",
        good=reservation,
        fields={(field,): kind for field, kind in parameters.kinds(version).items()},
        required=[("resource_type",), *((field,) for field in parameters.required(version))],
        closed=((),),
        also=(
            *(unfit.bad(version, {**reservation, **unfit.wrong}, "") for unfit in parameters.unfit),
            *_below([replace(case, body=reservation) for case in BAD_LEASE_IDS], "/reservations"),
            Bad("resource_type", {**reservation, "resource_type": "physical:ship"}),
            NO_QUERY,
        ),
        subject=name,
    )


def _queries(**values: Sequence[object]) -> Iterator[Bad]:
    """Yield queries with each of these values of a parameter."""
    for name, bad in values.items():
        yield from (Bad(name, path=f"?{name}={value}") for value in bad)


class _Inventory:
    """What can be wrong with requests for an inventory, at a version."""

    def __init__(self, wire: WireInventory, samples: InventorySamples, version: Version) -> None:
        self._wire = wire
        self._samples = samples
        self._version = version
        self._is_old = version is OLDEST
        self._bad_ids = tuple(
            Bad(samples.missing, path=f"{wire.path}/{bad}", status=404)
            for bad in (UNKNOWN_ID, "x" * 256, "%00", *samples.bad_ids)
        )

    def endpoints(self) -> Iterator[Endpoint]:
        wire, version, samples = self._wire, self._version, self._samples
        if version < wire.since:
            return
        if not self._is_old:  # 1.0 ignores the query of a list
            yield self._reading(wire.path, *self._listing())
            bad = _below(BAD_LEASE_IDS, f"/{wire.many}")
            yield self._reading(wire.leased_path.replace("{lease_id}", "LEASE"), *bad)
        yield self._writing("POST", wire.path, samples.registration(version))
        yield self._reading(wire.resource_path, *self._bad_ids)
        yield self._reading(wire.resource_path, *self._bad_ids, method="DELETE")
        if samples.change is not None:
            yield self._writing("PUT", wire.resource_path, samples.change(version), *self._bad_ids)
        if wire.properties is not None:
            yield from self._of_properties()
        if not version < wire.allocations_since:
            yield from self._of_allocations()
        if not version < Version.V1_2:
            yield from self._of_health()

    def _reading(self, path: str, *also: Bad, method: str = "GET") -> Endpoint:
        """A request without a body. Only 1.0 ignores an unknown query."""
        return Endpoint(self._version.value, method, path, also=(*also, *self._no_query()))

    def _writing(self, method: str, path: str, body: Body, *also: Bad) -> Endpoint:
        return Endpoint(
            self._version.value,
            method,
            path,
            good=body.good,
            fields=body.fields,
            required=body.required,
            closed=body.closed,
            also=(*also, *body.also, *self._no_query()),
        )

    def _no_query(self) -> tuple[Bad, ...]:
        return () if self._is_old else (NO_QUERY, Bad("colour", path="?colour=red"))

    def _listing(self) -> Iterator[Bad]:
        return _queries(
            limit=("", "0", "-1", "1001", "ten"),
            marker=("", "%00", "x" * 256, UNKNOWN_ID),
            sort_key=("", self._samples.unsorted),
            sort_dir=("", "up"),
            reservable=NO_TRUTHS,
            **{self._wire.query.NAME: ("", "%00", "x" * 256, *self._samples.bad_names)},
        )

    def _of_properties(self) -> Iterator[Endpoint]:
        path = f"{self._wire.path}/properties"
        truths: Sequence[object] = ("%00", "x" * 256, *(() if self._is_old else NO_TRUTHS))
        yield self._reading(path, *_queries(detail=truths, all=truths))
        setting = Body(
            good={"private": True},
            fields={("private",): "flag"},
            required=(("private",),),
            closed=() if self._is_old else ((),),
            also=(
                Bad("nothing", {"private": True}, f"{path}/nothing", 404),
                Bad("Property", {"private": True}, f"{path}/%00", 404),
                Bad("Property", {"private": True}, f"{path}/{'x' * 256}", 404),
            ),
        )
        yield self._writing("PATCH", f"{path}/{self._samples.property_name}", setting)

    def _of_allocations(self) -> Iterator[Endpoint]:
        ids = _queries(
            lease_id=("", "%00", "x" * 65, "a&lease_id=b"),
            reservation_id=("", "%00", "x" * 65, "a&reservation_id=b"),
        )
        pages = () if self._is_old else _queries(limit=("", "0", "1001"), marker=("", "%00"))
        yield self._reading(f"{self._wire.path}/allocations", *ids, *pages)
        filters = () if self._is_old else (*_queries(lease_id=("",)), *_queries(limit=(1,)))
        path = f"{self._wire.resource_path}/allocation"
        yield self._reading(path, *_below(self._bad_ids, "/allocation"), *filters)

    def _of_health(self) -> Iterator[Endpoint]:
        """Closing, opening and emptying a resource; only dry runs, which change nothing."""
        dry: dict[FieldPath, Kind] = {("dry_run",): "flag"}
        reallocation = Body(
            good={"running": False, "dry_run": True},
            fields={("lease_id",): "id or null", ("running",): "flag", **dry},
            also=(Bad("Lease", {"lease_id": UNKNOWN_ID, "dry_run": True}, status=404),),
        )
        bodies = {
            "disable": Body(good={"reason": "new disk", "dry_run": True}, fields={("reason",): "reason", **dry}),
            "enable": Body(good={"dry_run": True}, fields=dry),
            "reallocate": reallocation,
        }
        for verb, body in bodies.items():
            bad = _below(self._bad_ids, f"/{verb}")
            yield self._writing("POST", f"{self._wire.resource_path}/{verb}", body, *bad)


_CONFIRMATION = Endpoint(
    "1.2",
    "POST",
    "/v1/leases/HELD/confirm",
    good={"reservations": [{"id": "HELD_ONE", "min": 1, "max": 1}]},
    fields={
        ("reservations",): "list",
        ("reservations", 0, "id"): "id",
        ("reservations", 0, "min"): "count or null",
        ("reservations", 0, "max"): "count or null",
    },
    required=(("reservations", 0, "id"),),
    closed=((), ("reservations", 0)),
    also=(
        *_below(BAD_LEASE_IDS, "/confirm"),
        Bad("reservations", {"reservations": [{"id": UNKNOWN_ID, "max": 2}]}),
        Bad("reservations[0].min", {"reservations": [{"id": "HELD_ONE", "min": 9, "max": 9}]}, status=409),
        NO_QUERY,
    ),
)


def _of_leases(version: Version) -> Iterator[Endpoint]:
    """Yield the operations of a lease that have no body: only the id of the lease, and the query, can be wrong."""
    of_inventories = {wire.leased_path for wire, _ in sampled_inventories()}
    for operation in operations_of(tuple(load_types())):
        is_of_lease = operation.path_parameters == ["lease_id"] and operation.path not in of_inventories
        if is_of_lease and operation.body is None and operation.since <= version:
            path = operation.path.replace("{lease_id}", "LEASE")
            bad_ids = _below(BAD_LEASE_IDS, path.removeprefix("/v1/leases/LEASE"))
            no_query = () if version is OLDEST else (NO_QUERY,)
            yield Endpoint(version.value, operation.method, path, also=(*bad_ids, *no_query))


#: What parameters of a question for availability must not be.
WRONG_AVAILABILITY: Mapping[str, Sequence[str]] = {
    "start_date": ("", "yesterday", "2030-01-01", "9999-12-31T23:59:59Z", "%00"),
    "end_date": ("", "now", "2029-12-31T00:00:00Z", "2090-01-01T00:00:00Z"),
    "resource_class": ("", "COAL", "x" * 256, "%00"),
    "region": ("", "nowhere", "x" * 25, "a/b"),
    "availability_zone": ("", "x" * 256, "%00"),
    "resource_properties": ("nonsense", "[1", '["=="]', "[[]]", "x" * 4097),
    "required": ("x" * 256, "%00"),
    "forbidden": ("x" * 256, "%00"),
    "step": ("", "0", "-1", "1", "1.5", "9" * 10, "hour"),
    "group_by": ("", "colour", "KIND"),
    "limit": ("", "0", "1001", "x"),
    "marker": ("", "x" * 256, "%00"),
    "colour": ("red",),
}
#: What parameters of a question for accounts must not be.
WRONG_USAGE: Mapping[str, Sequence[str]] = {
    "project_id": ("", "x" * 256, "%00"),
    "resource_type": ("", "physical:ship", "x" * 256, "%00"),
    "format": ("", "xml", "CSV"),
    "limit": ("5",),
}
_JANUARY = "start_date=2030-01-01T00:00:00Z&end_date=2030-02-01T00:00:00Z"
#: What lengths of time, and numbers of offers, must not be.
_NUMBERS = (None, True, 0, -1, 1.5, "1", 10**12, HUGE, *LISTS)
_TIMES_OF_DAY = (None, True, 5, "", "24:00", "9", "09:60", "now", HUGE, *LISTS)
_SEARCHED = [{**HOSTS, "before_end": "default"}]
_NO_RESERVATIONS: Sequence[object] = ("physical:ship", True, 5, "", HUGE)
#: Searches for offers.
_SEARCHES = (
    Endpoint(
        "1.3",
        "GET",
        "/v1/offers",
        also=(
            Bad("reservations", path="?duration=60"),
            Bad("duration", path="?reservations=[]"),
            *(Bad("reservations", path=f"?duration=60&reservations={bad}") for bad in ("", "[", "{}", "[]", "5")),
            *(Bad("duration", path=f"?reservations=[]&duration={bad}") for bad in ("", "0", "-1", "x", "9" * 10)),
            Bad("colour", path="?reservations=[]&duration=60&colour=red"),
        ),
    ),
    Endpoint(
        "1.3",
        "POST",
        "/v1/offers",
        good={
            "reservations": _SEARCHED,
            "duration": 3600,
            "earliest": "2030-01-02T10:00:00Z",
            "latest": "2030-01-03T10:00:00Z",
            "weekdays": ["mon"],
            "starts_after": "09:00",
            "starts_before": "17:30",
            "time_zone": "Europe/Paris",
            "limit": 2,
        },
        fields={
            ("reservations",): "list",
            ("duration",): _NUMBERS,
            ("earliest",): "date",
            ("latest",): "date",
            ("weekdays",): (None, True, 5, "mon", ["Monday"], [0], {}, HUGE),
            ("starts_after",): _TIMES_OF_DAY,
            ("starts_before",): _TIMES_OF_DAY,
            ("time_zone",): (None, True, 5, "", "Europe/Atlantis", "../etc", "x" * 65, "a\0b", HUGE, *LISTS),
            ("limit",): _NUMBERS,
            **_parameters(HOSTS_ASKED),
        },
        required=(("reservations", 0, "resource_type"), ("duration",)),
        closed=((), ("reservations", 0)),
        also=(
            Bad("reservations", {"duration": 60}),
            Bad("earliest", {"reservations": _SEARCHED, "duration": 60, "earliest": "2029-12-31T10:00:00Z"}),
            Bad("latest", {"reservations": _SEARCHED, "duration": 60, "latest": "2029-12-31T10:00:00Z"}),
            Bad("latest", {"reservations": _SEARCHED, "duration": 60, "latest": "2090-12-31T10:00:00Z"}),
            NO_QUERY,
        ),
    ),
    Endpoint(
        "1.3",
        "POST",
        "/v1/offers/longest",
        good={"reservations": _SEARCHED, "start_date": "2030-01-02T10:00:00Z"},
        fields={("reservations",): "list", ("start_date",): "date", **_parameters(HOSTS_ASKED)},
        required=(("reservations", 0, "resource_type"),),
        closed=((), ("reservations", 0)),
        also=(
            Bad("reservations", {"start_date": "2030-01-02T10:00:00Z"}),
            Bad("start_date", {"reservations": _SEARCHED, "start_date": "2029-12-31T10:00:00Z"}),
            Bad("reservations[0].min", {"reservations": [{**_SEARCHED[0], "min": 9, "max": 9}]}, status=409),
            NO_QUERY,
        ),
    ),
    Endpoint(
        "1.3",
        "POST",
        "/v1/offers/largest",
        good={
            "reservation": _SEARCHED[0],
            "start_date": "2030-01-02T10:00:00Z",
            "end_date": "2030-01-03T10:00:00Z",
        },
        fields={("start_date",): "date", ("end_date",): "date"},
        required=(("reservation",), ("end_date",)),
        closed=((), ("reservation",)),
        also=(
            *(Bad("reservation", {"reservation": bad, "end_date": "2030-01-03T10:00:00Z"}) for bad in _NO_RESERVATIONS),
            Bad("end_date", {"reservation": _SEARCHED[0], "end_date": "2029-12-31T10:00:00Z"}),
            NO_QUERY,
        ),
    ),
)
#: What came with 1.3, beside searches.
_SINCE_1_3 = (
    *_SEARCHES,
    Endpoint(
        "1.3",
        "GET",
        "/v1/usage",
        also=(
            Bad("start_date", path="?end_date=2030-02-01T00:00:00Z"),
            Bad("end_date", path="?start_date=2030-01-01T00:00:00Z"),
            *(
                Bad("start_date", path=f"?end_date=2030-02-01T00:00:00Z&start_date={value}")
                for value in ("", "now", "2030-01-01", "%00")
            ),
            *(
                Bad("end_date", path=f"?start_date=2030-01-01T00:00:00Z&end_date={value}")
                for value in ("", "now", "2030-01-01T00:00:00Z", "2029-01-01T00:00:00Z", "2034-01-01T00:00:00Z")
            ),
            *(
                Bad(name, path=f"?{_JANUARY}&{name}={value}")
                for name, values in WRONG_USAGE.items()
                for value in values
            ),
        ),
    ),
    Endpoint(
        "1.3",
        "GET",
        "/v1/availability",
        also=(
            Bad("resource_type", path=""),
            *(
                Bad(name, path=f"?resource_type=physical:host&{name}={value}")
                for name, values in WRONG_AVAILABILITY.items()
                for value in values
            ),
        ),
    ),
)
#: What came with 1.2, and is served at later versions as well.
_SINCE_1_2 = (
    # --- events of owners at 1.2
    Endpoint(
        "1.2",
        "POST",
        "/v1/leases",
        good={**LEASE, "events": [EVENT]},
        fields={("events",): "list", **{("events", 0, name): kind for name, kind in EVENT_FIELDS.items()}},
        required=(("events", 0, "time"), ("events", 0, "message")),
        closed=(("events", 0),),
        also=(
            Bad("events[0].time", _events(LEASE, {"time": "2030-01-02T09:59:59Z"})),
            Bad("events[1].time", _events(LEASE, {}, {"time": "2030-01-02T12:00:01Z"})),
            Bad("events[0].time", _events(LEASE, {"time": "now"})),
            Bad("events[0].id", _events(LEASE, {"id": "EVENT"})),
            Bad("events", _events(LEASE, *[{}] * 21)),
        ),
        subject="events",
    ),
    Endpoint(
        "1.2",
        "PUT",
        "/v1/leases/LEASE",
        good={**LEASE_CHANGE, "events": [{"id": "EVENT", **EVENT}]},
        fields={
            ("events",): "list",
            ("events", 0, "id"): "id",
            **{("events", 0, name): kind for name, kind in EVENT_FIELDS.items()},
        },
        required=(("events", 0, "time"), ("events", 0, "message")),
        closed=(("events", 0),),
        also=(
            Bad("events[0].time", _events({"name": "half"}, {"time": "2030-01-01T09:59:59Z"})),
            Bad("events[0].time", _events({"name": "half"}, {"time": "2031-01-01T09:59:59Z"})),
            Bad("events[0].time", _events({"end_date": "2030-01-02T11:30:00Z"}, {"time": "2030-01-02T11:30:01Z"})),
            Bad("events[0].id", _events({"name": "half"}, {"id": UNKNOWN_ID})),
            Bad("events[0].id", _events({"name": "half"}, {"id": "EVENT"}, {"id": "EVENT"})),
            Bad("events", _events({"name": "half"}, *[{}] * 21)),
            Bad(
                "reservations[0].min",
                _events({"reservations": [{"id": "RESERVATION", "min": 9, "max": 9}]}),
                status=409,
            ),
        ),
        subject="events",
    ),
    # --- limits, and leases that are held, at 1.2
    Endpoint(
        "1.2",
        "GET",
        "/v1/limits",
        also=(
            *(Bad("project_id", path=f"?project_id={bad}") for bad in ("", "%00", "x" * 256, "a&project_id=b")),
            Bad("colour", path="?colour=red"),
        ),
    ),
    _CONFIRMATION,
)
#: A lease whose server is made at its start.
_BOOTED = {
    **LEASE,
    "reservations": [{"resource_type": "virtual:server", "flavor_id": TINY, "server_name": "web"}],
    "boot": {
        "request": {"server": {"name": "web", "flavorRef": TINY}},
        "microversion": "2.90",
        "flavor": {"id": TINY, "name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1},
    },
}
_NO_OBJECTS: tuple[object, ...] = (None, True, 5, "x", [], HUGE)
#: What asks Nova for several servers at once.
_OF_SEVERAL: tuple[dict[str, object], ...] = ({"min_count": 2}, {"max_count": "2"}, {"return_reservation_id": True})
_NO_SIZES: tuple[object, ...] = (None, True, -1, 1.5, "1", 2**31, HUGE, *LISTS)


def _boot(**changes: object) -> dict[str, Any]:
    return {**_BOOTED, "boot": {**_BOOTED["boot"], **changes}}  # type: ignore[dict-item]  # a value of each kind


#: What came with 1.4.
_SINCE_1_4 = (
    Endpoint(
        "1.4",
        "POST",
        "/v1/leases",
        good=_BOOTED,
        fields={
            ("boot",): (*_NO_OBJECTS, {}),
            ("boot", "request"): (
                *_NO_OBJECTS,
                {},
                {"server": []},
                {"server": {"name": "x" * 300_000}},
                *({"server": {"flavorRef": "1", **more}} for more in _OF_SEVERAL),
            ),
            ("boot", "microversion"): (None, True, 5, 2.1, "", "latest", "2", "2.1.1", "02.1", "2.x", "x" * 99, *LISTS),
            ("boot", "flavor"): _NO_OBJECTS,
            ("boot", "flavor", "id"): "reference",
            ("boot", "flavor", "name"): (None, True, 5, "x" * 256, *LISTS),
            **{("boot", "flavor", name): _NO_SIZES for name in ("vcpus", "ram", "disk", "ephemeral", "swap")},
            ("boot", "flavor", "extra_specs"): (None, True, 5, "x", [], {"a": 1}, {"a": None}, {"a": {}}, HUGE),
            ("reservations", 0, "server_name"): (None, True, 5, "x" * 256, "a\0b", "\ud800", *LISTS),
        },
        required=(
            ("boot", "request"),
            ("boot", "flavor", "id"),
            ("boot", "flavor", "vcpus"),
            ("boot", "flavor", "ram"),
            ("boot", "flavor", "disk"),
        ),
        closed=(("boot",),),
        also=(
            Bad("boot", _reservations(_BOOTED, server_name="")),
            Bad("reservations[0].flavor_id", _reservations(_BOOTED, flavor_id="another")),
            Bad("boot.flavor.id", _boot(flavor={"id": "another", "vcpus": 1, "ram": 512, "disk": 1})),
            Bad("boot.request", _boot(request={"server": {"name": "web"}})),
        ),
        subject="boot",
    ),
    Endpoint(
        "1.4",
        "GET",
        "/v1/planned-servers/RESERVATION",
        also=(
            Bad("planned server", path="", status=404),  # this reservation is not one of a server
            Bad("planned server", path=f"/v1/planned-servers/{UNKNOWN_ID}", status=404),
            Bad("reservation_id", path=f"/v1/planned-servers/{'x' * 65}", status=404),
            Bad("reservation_id", path="/v1/planned-servers/%00", status=404),
            NO_QUERY,
        ),
    ),
)

ENDPOINTS = (
    *_UNTIL_1_1,
    *(endpoint for version in Version for endpoint in _of_leases(version)),
    *(_create(version, name) for version in Version for name in _asked_at(version)),
    *(_change(version, name) for version in Version for name in _asked_at(version)),
    *(_add(version, name) for version in Version if version is not OLDEST for name in _asked_at(version)),
    *(
        endpoint
        for version in Version
        for wire, samples in sampled_inventories()
        for endpoint in _Inventory(wire, samples, version).endpoints()
    ),
    *(
        replace(endpoint, version=version.value)
        for version in Version
        if version > Version.V1_1
        for endpoint in _UNTIL_1_1
        if endpoint.version == "1.1"
    ),
    *(
        replace(endpoint, version=version.value)
        for version in Version
        if version > Version.V1_1
        for endpoint in _SINCE_1_2
    ),
    *(
        replace(endpoint, version=version.value)
        for version in Version
        if version > Version.V1_2
        for endpoint in _SINCE_1_3
    ),
    *_SINCE_1_4,
)


def _other_queries() -> Iterator[Endpoint]:
    """Yield the endpoints that no table above has, and that have a query: what is wrong with every query."""
    listed = {(endpoint.version, endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    for operation in operations_of(tuple(load_types())):
        for version in Version:
            if operation.public or operation.path_parameters or version < operation.since or version is OLDEST:
                continue
            names = operation.query(version).model_fields.keys()
            if names and (version.value, operation.method, operation.path) not in listed:
                needed = NEEDED_QUERIES.get(operation.path, "")
                wrong = (
                    *(Bad(name, path=f"?{needed}&{name}=%00") for name in names if f"{name}=" not in needed),
                    *(Bad(name, path=f"?{needed}&{name}=a&{name}=a") for name in names),
                    Bad("colour", path=f"?{needed}&colour=red"),
                )
                yield Endpoint(version.value, operation.method, operation.path, also=wrong)


ENDPOINTS = (*ENDPOINTS, *_other_queries())


class Cloud:
    """Something of everything: a lease that runs, one that waits, one that is held, one of each type, resources."""

    def __init__(self, api: Api) -> None:
        self.api = api.using("admin")
        self.api.book(start=0, hours=100)
        api.world.pass_time(timedelta(seconds=30))
        latest = self.api.using(version=LATEST.value)
        lease = self.api.book(name="waits", start=24, hours=2)
        own = latest.put(f"/v1/leases/{lease['id']}", {"events": [EVENT]}).json["lease"]["events"]
        held = latest.book(name="held", start=48, hours=2, hold_for=3600)
        self._ids = {
            "RESERVATION": lease["reservations"][0]["id"],
            "LEASE": lease["id"],
            "HELD_ONE": held["reservations"][0]["id"],
            "HELD": held["id"],
            "EVENT": next(event["id"] for event in own if event["event_type"] == "notify_lease"),
        }
        for wire, samples in sampled_inventories():
            samples.prepare(api.world.cloud.world)
            resources = self.api.register_samples(wire, samples)
            self._ids[f"{{{wire.path_parameter}}}"] = resources[0]["id"]
            if samples.property_name:
                path = wire.resource_path.format(**{wire.path_parameter: resources[0]["id"]})
                changed = latest.put(path, {"properties": {samples.property_name: "r1"}})
                assert changed.status_code == 200, changed.text
        for name in ASKED:
            lease = latest.book(name=name, start=72, hours=2, reservations=[_reservation(name)])
            self._ids |= {f"{{of_{name}}}": lease["id"], f"{{{name}}}": lease["reservations"][0]["id"]}

    def ask(self, endpoint: Endpoint, body: object = None, path: str = "") -> Any:
        if not path.startswith("/"):
            path = endpoint.path + path
        return self.api.using(version=endpoint.version).call(endpoint.method, self._fill(path), self._fill(body))

    def _fill(self, value: Any) -> Any:
        """The value with the ids of what is there."""
        if isinstance(value, str):
            for name, object_id in self._ids.items():
                value = value.replace(name, object_id)
        elif isinstance(value, list):
            return [self._fill(item) for item in value]
        elif isinstance(value, dict):
            return {name: self._fill(item) for name, item in value.items()}
        return value


@pytest.fixture(scope="module")
def shared_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with open_api(tmp_path_factory.mktemp("bad-input")) as api:
        yield Cloud(api)


def _replaced(body: Mapping[str, Any], path: FieldPath, value: object) -> dict[str, Any]:
    changed: Any = deepcopy(dict(body))
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return dict(changed)


def _without(body: Mapping[str, Any], path: FieldPath) -> dict[str, Any]:
    changed: Any = deepcopy(dict(body))
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return dict(changed)


def _name(path: FieldPath) -> str:
    found = ""
    for step in path:
        found += f"[{step}]" if isinstance(step, int) else f".{step}" if found else step
    return found


def _said(kind: str) -> str:
    """Return what 1.0 says of a field of a kind."""
    return SAID.get(kind) or SAID.get(kind.removesuffix(" or null"), "")


def bad_requests(endpoint: Endpoint) -> Iterator[Bad]:
    """Everything that can be wrong with a request to the endpoint."""
    good = endpoint.good or {}
    for path, kind in (endpoint.fields or {}).items():
        values, said = (kind, "") if isinstance(kind, tuple) else (WRONG[endpoint.version][kind], _said(kind))
        yield from (Bad(_name(path), _replaced(good, path, value), said=said) for value in values)
    for path in endpoint.required:
        yield Bad(_name(path), _without(good, path), said=_name(path[-1:]).replace("id", "reservation ID"))
    for path in endpoint.closed:
        for name in ("colour", "status", "user_id", "degraded"):
            yield Bad(_name((*path, name)), _replaced(good, (*path, name), "x"))
    for bad in endpoint.also:
        yield Bad(bad.field, good if bad.body is None and good else bad.body, bad.path, bad.status, bad.said)


def _is_named(bad: Bad, version: str, document: Mapping[str, Any]) -> bool:
    message = document["error_message"]
    last = re.split(r"[.\]]", bad.field)[-1] or bad.field
    if version == "1.0" or bad.status == 404 or bad.field not in _paths(bad):
        return last in message or bool(bad.said and bad.said in message)
    field = document.get("field", "")
    return field == bad.field or field.startswith((f"{bad.field}.", f"{bad.field}["))


def _paths(bad: Bad) -> Sequence[str]:
    """What ``field`` can be; the rest is what the message must tell."""
    return () if bad.status == 409 and "[" not in bad.field else (bad.field,)


def test_no_endpoint_is_forgotten(shared_cloud: Cloud) -> None:
    # The queries of lists are ignored at 1.0.
    lists = ["/v1/leases", *(wire.path for wire, _ in sampled_inventories() if wire.since is OLDEST)]
    anything_goes = {("1.0", "GET", path) for path in lists}
    types = shared_cloud.api.world.service.components.types
    served = {
        (version.value, method.upper(), path)
        for version in Version
        for path, methods in describe(operations_of(tuple(types)), version)["paths"].items()
        for method, operation in methods.items()
        if operation["security"]
    }
    path_parameters = {
        **{f"{{of_{name}}}": "{lease_id}" for name in ASKED},
        **{
            f"/properties/{samples.property_name}": "/properties/{property_name}"
            for _, samples in sampled_inventories()
            if samples.property_name
        },
        "HELD": "{lease_id}",
        "LEASE": "{lease_id}",
        "RESERVATION": "{reservation_id}",
    }
    tried = set()
    for endpoint in ENDPOINTS:
        path = endpoint.path
        for given, value in path_parameters.items():
            path = path.replace(given, value)
        tried.add((endpoint.version, endpoint.method, path))
    assert tried == served - anything_goes


def _tried(endpoints: Iterable[Endpoint]) -> list[Any]:
    """Return the endpoints as parameters of a test: at the oldest and the newest version, at others in a long run."""
    usual = {OLDEST.value, LATEST.value}
    return [
        pytest.param(endpoint, marks=[] if endpoint.version in usual else pytest.mark.long, id=str(endpoint))
        for endpoint in endpoints
    ]


@pytest.mark.parametrize("endpoint", _tried(ENDPOINTS))
def test_a_wrong_field_is_named_and_changes_nothing(shared_cloud: Cloud, endpoint: Endpoint) -> None:
    before = shared_cloud.api.dump()
    tried, failures = 0, []
    for bad in bad_requests(endpoint):
        tried += 1
        result = shared_cloud.ask(endpoint, bad.body, bad.path)
        case = f"{bad.field} {bad.path} {str(bad.body)[:200]} -> {result.status_code} {result.text[:200]}"
        if result.status_code != bad.status:
            failures.append(f"not {bad.status}: {case}")
        elif not _is_named(bad, endpoint.version, result.json):
            failures.append(f"not named: {case}")
        if shared_cloud.api.dump() != before:
            pytest.fail(f"the database has changed: {case}")
    assert tried
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", _tried(endpoint for endpoint in ENDPOINTS if endpoint.good))
def test_a_valid_request_is_accepted(api: Api, endpoint: Endpoint) -> None:
    """Each table above changes one field of a valid request. Only dry runs and searches change nothing."""
    cloud = Cloud(api)
    before = api.dump()
    result = cloud.ask(endpoint, endpoint.good)
    assert result.status_code in (200, 201), result.text
    is_dry = (isinstance(endpoint.good, dict) and endpoint.good.get("dry_run", False)) or endpoint.path.startswith(
        "/v1/offers"
    )
    assert (api.dump() == before) == is_dry


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_unknown_fields_are_ignored_and_never_assigned_at_1_0(api: Api, method: str) -> None:
    cloud = Cloud(api)
    [endpoint] = [
        endpoint
        for endpoint in ENDPOINTS
        if endpoint.path.startswith("/v1/leases")
        if (endpoint.version, endpoint.method, endpoint.subject) == ("1.0", method, "")
    ]
    unknown: dict[str, Any] = {
        "id": "mine",
        "project_id": "other-project",
        "user_id": "other-user",
        "trust_id": "t" * 32,
        "status": "ACTIVE",
        "status_reason": "mine",
        "degraded": True,
        "version": 99,
        "created_at": "1999-01-01 00:00:00",
        "deleted_at": "1999-01-01 00:00:00",
        "colour": {"a": [None]},
    }
    inner = {key: value for key, value in unknown.items() if key != "id"}
    good: Any = endpoint.good
    body = {**good, **unknown, "reservations": [{**inner, "lease_id": "mine", **good["reservations"][0]}]}
    lease = cloud.ask(endpoint, body).json["lease"]
    assert (lease["user_id"], lease["project_id"]) == ("admin-user", "admin-project")
    assert (lease["trust_id"], lease["status"], lease["degraded"]) == ("", "PENDING", False)
    assert lease["created_at"].startswith("2030-01-01")
    [reservation] = lease["reservations"]
    assert reservation["lease_id"] == lease["id"] != "mine"
    assert (reservation["status"], reservation["missing_resources"]) == ("pending", False)
    assert not {"colour", "status_reason", "version", "deleted_at"} & (lease.keys() | reservation.keys())
    assert cloud.api.get(f"/v1/leases/{lease['id']}").json == {"lease": lease}


def test_at_1_0_the_setting_of_a_property_is_all_that_changes(api: Api) -> None:
    cloud = Cloud(api)
    path = "/v1/os-hosts/properties/rack"
    changed = cloud.api.patch(path, {"private": True, "property_name": "stolen", "id": "x", "resource_type": "y"})
    setting = changed.json["resource_property"]
    assert (setting["property_name"], setting["resource_type"], setting["private"]) == ("rack", "physical:host", True)
