"""Knowledge of the API for schemathesis: valid requests that may be refused, and sensible leases."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from zlib import crc32

import schemathesis

from tenure.api.blazar.fields import MINUTE_PATTERN
from tenure.api.operations import CONDITION_PATTERN, IDEMPOTENCY_KEY, IF_MATCH
from tenure.api.schemas.bounds import ANYTHING
from tenure.api.schemas.moments import RFC3339_PATTERN
from tenure.api.schemas.texts import PRINTABLE
from tenure.domain.json_text import NUMBER_LIMIT
from tenure.resources.contract import load_types
from tenure.services.leases.bounds import MAX_RESERVATIONS
from tests.support.samples import installed_samples, sampled_inventories

_LEASE = "/v1/leases/{lease_id}"
#: What a schema cannot express of leases: how dates lie to each other and to now, and what is free.
_DATES = (
    "Start date must be later than current date",
    "End date must be later than start date",
    "End date must be later than current and start date",
    "Cannot modify the start date of already started leases",
)
_REGION = r"There is no region (.|\n)*"
#: The number of the reservation at fault, where the request has several.
_NAMED = r"(any_of\[\d+\]\.)?reservations?(\[\d+\])?"
_PLACE = rf"({_NAMED}: )?"
_CHOICE = (
    rf"Not enough ({'|'.join(sorted(known.noun for known in load_types()))}) available",  # 1.0; a 409 later
    "Malformed requirements",
    _REGION,
    rf"({_NAMED}\.resource_properties: )?The property (.|\n)* is a number everywhere, and (.|\n)* is none",
    *(f"{_PLACE}{refusal}" for samples in installed_samples().values() for refusal in samples.refusals),
)
_RESERVATIONS = (
    "Please enter valid reservation IDs",
    "A reservation is named twice",
    "resource_type cannot be updated",
    "A reservation that has its server gets no other one",
)
#: Of a project or a user; which ones there are, the cloud knows.
_NAME = (
    r"No user (with leases in your project )?has the id or the name (.|\n)*|No project has the id or the name (.|\n)*"
)
_EVENTS = ("The event must lie between the start and the end of the lease", "The time of the event has passed")
_MARKER = r"marker: there is (no lease|nothing of id) (.|\n)* that a list could go on after\."
_KEY_USED = "This Idempotency-Key was sent with another request"
_LENGTH = r"A lease lasts for (\d+ days at most|a second at least)"
_TYPE = r"The (.|\n)* resource type is not supported"
#: What a schema cannot express of a window for the start.
_WINDOW = (
    r"time_zone: a name of the time zone database is needed(.|\n)*",
    "It must not be in the past",
    "It must not be before the earliest start",
    "It must be within",
    "No start up to this date is on these days, at these times",
    _LENGTH,
)
#: Texts in a query that stand for a body, which has a schema of its own.
_IN_TEXT = (
    r"(duration|earliest|latest|limit|reservations?|start_date|end_date|starts_after|starts_before|time_zone|weekdays)"
    r"\b(.|\n)*",
    r"Missing parameter (.|\n)*",
    _TYPE,
)
_SEARCH = ("A search needs a reservation at least", *_WINDOW, *_CHOICE)


def _of_inventories() -> dict[str, tuple[str, ...]]:
    """Return the refusals of the operations of inventories."""
    expected: dict[str, tuple[str, ...]] = {}
    for wire, samples in sampled_inventories():
        expected[f"GET {wire.path}"] = (_MARKER, _REGION)
        expected[f"GET {wire.path}/allocations"] = (_MARKER,)
        expected[f"POST {wire.path}"] = (*samples.refusals, _REGION)
        expected[f"PUT {wire.resource_path}"] = tuple(samples.change_refusals)
    return expected


#: The refusals with 400 that a request may meet although it fits the schema, by operation. Nothing else may be refused.
EXPECTED = {
    "GET /v1/leases": (_MARKER, _NAME),
    "GET /v1/limits": (_NAME,),
    "GET /v1/planned-servers": (r"marker: there is no server (.|\n)* that a list could go on after\.", _NAME),
    **_of_inventories(),
    "GET /v1/usage": (
        r"The period must end after it starts\.",
        r"The period lasts for \d+ days at most, and this one for [\w ]+\.",
        _TYPE,
        _NAME,
    ),
    "GET /v1/availability": (
        r"The period must end after it starts, and after now\.",
        r"The period lasts for \d+ days at most, and this one for [\w ]+\.",
        r"There would be \d+ steps, and may be \d+ at most\.",
        r"No resource of (.|\n)* has (.|\n)*\.",
        r"No (.|\n)* is in an availability zone '(.|\n)*'\.",
        _TYPE,
        *_CHOICE,
    ),
    "GET /v1/offers": (*_SEARCH, *_IN_TEXT),
    "POST /v1/offers": _SEARCH,
    "POST /v1/offers/longest": _SEARCH,
    "POST /v1/offers/largest": (*_SEARCH, *_DATES),
    "POST /v1/leases": (
        *_DATES,
        *_WINDOW,
        *_CHOICE,
        *_EVENTS,
        "Datetime is out of lease limits",
        r"It cannot be given together with (a duration|reservations)\.",
        "Missing parameter duration",
        "Only a lease that may wait can ask to be confirmed",
        "A lease that may wait is not held",
        "A lease can only wait if it may start later",
    ),
    f"GET {_LEASE}/history": (r"marker: there is no entry (.|\n)* that the history could go on after\.",),
    f"POST {_LEASE}/reservations": (*_CHOICE, "Invalid lease status"),
    f"POST {_LEASE}/confirm": (*_CHOICE, *_RESERVATIONS),
    f"PUT {_LEASE}": (
        *_DATES,
        _LENGTH,
        *_CHOICE,
        *_EVENTS,
        "(.|\n)* is no event that the lease's owner has defined",
        "(.|\n)* is named twice",  # an event
        "Datetime is out of lease limits",
        *_RESERVATIONS,
        "Terminated leases can only be renamed",
        "A lease in ERROR can only be renamed or deleted",
        "The action before the end has run already",
        "Invalid lease status",  # it is being started or ended
    ),
}
#: A reservation that can be had.
HOST = {
    "resource_type": "physical:host",
    "min": 1,
    "max": 1,
    "hypervisor_properties": "",
    "resource_properties": '["==", "$gpu", "a100"]',
}


@schemathesis.check
def refusals_are_explained(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """A request that fits the schema is refused with 400 only for what no schema can say."""
    if response.status_code != 400 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    condition = case.headers.get(IF_MATCH)
    if condition is not None and not re.match(CONDITION_PATTERN, str(condition)):
        return  # schemathesis calls some requests with an invalid optional header valid
    message = response.json()["error_message"]
    allowed = EXPECTED.get(case.operation.label, ())
    if IDEMPOTENCY_KEY in case.headers:
        allowed = (*allowed, _KEY_USED)
    if not any(re.match(start, message) for start in allowed):
        raise AssertionError(f"{case.operation.label} refuses what fits its schema: {message}")


#: The name of the schema of ignored values that says what the description says in words.
_ANY_JSON = "AnyJSON"


def _any_json() -> dict[str, Any]:
    """Return the schema of JSON without what every body must not contain."""
    again = {"$ref": f"#/components/schemas/{_ANY_JSON}"}
    return {
        "anyOf": [
            {"type": ["null", "boolean"]},
            {"type": "number", "exclusiveMinimum": -NUMBER_LIMIT, "exclusiveMaximum": NUMBER_LIMIT},
            {"type": "string", "pattern": PRINTABLE},
            {"type": "array", "items": again},
            {"type": "object", "propertyNames": {"pattern": PRINTABLE}, "additionalProperties": again},
        ]
    }


@schemathesis.hook
def before_load_schema(_context: schemathesis.HookContext, raw_schema: dict[str, Any]) -> None:
    """Keep NUL characters and huge numbers out of fields that are ignored."""
    _bound(raw_schema)
    raw_schema["components"]["schemas"][_ANY_JSON] = _any_json()


def _bound(document: object) -> None:
    """Let each object in a document refer to the exact schema of ignored values."""
    if isinstance(document, dict):
        if document.get("additionalProperties") == ANYTHING:
            document["additionalProperties"] = {"$ref": f"#/components/schemas/{_ANY_JSON}"}
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            _bound(part)


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Most random leases are in the past or end before they start; make most of them such that they can be had.

    Only what is valid is replaced, by what is valid as well: a body that must be refused stays one.
    """
    if context.operation is None or not isinstance(body, dict):
        return body
    number = crc32(repr(body).encode("utf-8", "replace"))
    if context.operation.label == f"POST {_LEASE}/reservations":
        return _whole(body) if number % 5 == 0 else _possible(_whole(body))
    if context.operation.label not in ("POST /v1/leases", f"PUT {_LEASE}"):
        return _whole(body)
    body = _whole(body)
    if number % 5 == 0:
        return body
    _set_dates(body, number // 5)
    if isinstance(body.get("reservations"), list):
        body["reservations"] = [
            _possible(reservation) if isinstance(reservation, dict) else reservation
            for reservation in body["reservations"]
        ]
        if len(body["reservations"]) <= MAX_RESERVATIONS and all(map(_is_sound, body["reservations"])):
            del body["reservations"][2:]
    elif "reservations" not in body and "any_of" not in body and context.operation.method == "post":
        body["reservations"] = [HOST]
    return body


def _set_dates(body: dict[str, Any], number: int) -> None:
    """Dates to come and in order, where they are dates; each lease has days of its own, as far as that goes."""
    year, day = 2100 + number % 800, 1 + number // 800 % 28
    for pattern, show in _FORMS:
        names = [name for name in ("start_date", "before_end_date", "end_date") if _is(pattern, body.get(name))]
        for month, name in enumerate(names, start=1):
            body[name] = show(f"{year}-{month:02}-{day:02}")
    if isinstance(body.get("events"), list):
        began = f"{year}-01-{day:02}T10:00:00Z"  # when the lease begins, where the body says so
        body["events"] = [
            {**event, "time": began} if isinstance(event, dict) and _is(RFC3339_PATTERN, event.get("time")) else event
            for event in body["events"]
        ]


_FORMS: tuple[tuple[str, Callable[[str], str]], ...] = (
    (MINUTE_PATTERN, lambda day: f"{day} 10:00"),
    (RFC3339_PATTERN, lambda day: f"{day}T10:00:00Z"),
)
#: Of what there can be some.
_AMOUNTS = ("amount", "vcpus", "memory_mb", "disk_gb")
_EXPRESSIONS = ("", '["==", "$gpu", "a100"]', '["and", [">=", "$vcpus", "1"], ["<=", "$memory_mb", "10000000"]]')


def _possible(reservation: dict[str, Any]) -> dict[str, Any]:
    changed = dict(reservation)
    least, most = changed.get("min"), changed.get("max")
    if _is_count(least) and _is_count(most):
        changed["min"] = 1
        changed["max"] = 1 + int(most or 0) % 3
    for name in _AMOUNTS:
        if _is_count(changed.get(name)):
            changed[name] = 1 + int(changed[name]) % 3
    if isinstance(changed.get("flavor_id"), str) and 1 <= len(changed["flavor_id"]) <= 255:
        changed["flavor_id"] = str(1 + len(changed["flavor_id"]) % 4)
    for name in ("hypervisor_properties", "resource_properties"):
        value = changed.get(name)
        if isinstance(value, str) and len(value) <= 16384 and "\0" not in value:
            changed[name] = _EXPRESSIONS[len(value) % len(_EXPRESSIONS)]
    return changed


def _is_sound(reservation: object) -> bool:
    """Whether nothing is wrong with it, so that it may be left out of a body that must be refused."""
    return (
        isinstance(reservation, dict)
        and HOST.keys() <= reservation.keys() <= {*HOST, "before_end"}
        and reservation["resource_type"] == HOST["resource_type"]
        and (reservation["min"], reservation["max"]) in ((1, 1), (1, 2), (1, 3))
        and reservation["hypervisor_properties"] in _EXPRESSIONS
        and reservation["resource_properties"] in _EXPRESSIONS
        and reservation.get("before_end", "") in ("", "none", "default", "snapshot", "notify")
    )


def _is_count(value: object) -> bool:
    if isinstance(value, str):
        return re.fullmatch("[1-9][0-9]{0,8}", value) is not None
    return type(value) is int and 1 <= value < 2**31


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    """The body with ``2`` for ``2.0``, also in its reservations, choices and resource classes.

    JSON Schema takes ``2.0`` for an integer and cannot be told otherwise; the API, as Blazar, does not.
    """
    body = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in body.items()
    }
    for name in ("reservations", "any_of"):
        if isinstance(body.get(name), list):
            body[name] = [_whole(found) if isinstance(found, dict) else found for found in body[name]]
    for name in ("reservation", "resources"):
        if isinstance(body.get(name), dict):
            body[name] = _whole(body[name])
    return body


def _is(pattern: str, value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None
