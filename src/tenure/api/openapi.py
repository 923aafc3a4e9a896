"""The API's description, OpenAPI 3.1, from the models that read the requests and those of the answers."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import falcon
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from tenure.api.answers import answer
from tenure.api.bodies import MAX_BYTES
from tenure.api.context import call_of
from tenure.api.errors import VersionNotSupported
from tenure.api.inventories import served_inventories
from tenure.api.links import Links
from tenure.api.schemas import answers, queries
from tenure.api.schemas.answers import Answers, InventoryAnswers
from tenure.api.schemas.bounds import ANYTHING, anything, bounded
from tenure.api.schemas.leases import LeaseSchemas, ReservationKind, can_be_held
from tenure.api.schemas.resources import SETTING, Disable, Enable, Reallocate, WireInventory, registration_model
from tenure.api.schemas.texts import MAX_EXTERNAL_ID, MAX_ID
from tenure.api.versions import HEADER, LATEST, OLDEST, SERVICE_TYPE, Version

Document = dict[str, Any]
Mode = Literal["validation", "serialization"]
_COMPONENTS = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one URL."""

    method: str
    path: str
    summary: str
    status: int
    answer: type[BaseModel] | None
    body: type[BaseModel] | None = None
    query: type[queries.Query] = queries.Query
    refusals: tuple[int, ...] = ()
    public: bool = False

    @property
    def id(self) -> str:
        words = self.path.replace("-", "_").replace(".", "_").replace("{", "").replace("}", "").strip("/").split("/")
        return "_".join([self.method, *filter(None, words)])


def operations(
    schemas: LeaseSchemas, kinds: Iterable[ReservationKind], shown: Answers, version: Version
) -> tuple[Operation, ...]:
    """All that is served at one version."""
    inventories = itertools.chain.from_iterable(
        _inventory(served.wire, shown, version) for served in served_inventories(kinds)
    )
    return (*_public(), *_leases(schemas, shown, version), *_limits(version), *inventories)


def _public() -> tuple[Operation, ...]:
    return (
        Operation("get", "/", "List the versions", 300, answers.VersionList, public=True),
        Operation("get", "/versions", "List the versions", 300, answers.VersionList, public=True),
        Operation("get", "/v1", "Show the version", 200, answers.VersionDocument, public=True),
        Operation("get", "/v1/", "Show the version", 200, answers.VersionDocument, public=True),
        Operation("get", "/healthcheck", "Say whether the service is well", 200, answers.HealthDocument, public=True),
    )


def _leases(schemas: LeaseSchemas, shown: Answers, version: Version) -> tuple[Operation, ...]:
    one = "/v1/leases/{lease_id}"
    everywhere = (
        Operation("get", "/v1/leases", "List leases", 200, shown.leases, query=queries.LeaseListQuery),
        Operation(
            "post", "/v1/leases", "Make a lease", 201, shown.lease, body=schemas.create_model, refusals=(404, 409)
        ),
        Operation("get", one, "Show a lease", 200, shown.lease, refusals=(404,)),
        Operation("put", one, "Change a lease", 200, shown.lease, body=schemas.update_model, refusals=(404, 409)),
        Operation("delete", one, "Delete a lease", 204, None, refusals=(404, 409)),
    )
    if version is OLDEST:
        return everywhere
    reservation = f"{one}/reservations/{{reservation_id}}"
    body, confirm = schemas.confirm_model, f"{one}/confirm"
    return (
        *everywhere,
        *(
            [Operation("post", confirm, "Keep a held lease", 200, shown.lease, body=body, refusals=(404, 409))]
            if can_be_held(version)
            else []
        ),
        Operation(
            "get",
            f"{one}/history",
            "Show what happened",
            200,
            shown.history,
            query=queries.HistoryQuery,
            refusals=(404,),
        ),
        Operation(
            "post",
            f"{one}/reservations",
            "Add a reservation",
            201,
            shown.lease,
            body=schemas.add_model,
            refusals=(404, 409),
        ),
        Operation("delete", reservation, "Drop a reservation", 204, None, refusals=(404, 409)),
    )


def _limits(version: Version) -> tuple[Operation, ...]:
    if version < Version.V1_2:
        return ()
    what = "Show what a project may have booked, and what it has"
    return (Operation("get", "/v1/limits", what, 200, answers.LimitsDocument, query=queries.LimitsQuery),)


def _inventory(wire: WireInventory, shown: Answers, version: Version) -> tuple[Operation, ...]:
    """All that is served of an inventory; from 1.1 on also what a lease has of it."""
    if version < wire.since:
        return ()
    found = InventoryAnswers(wire, version)
    path, one, noun, nouns = wire.path, f"{wire.path}/{{{wire.part}}}", wire.noun, wire.nouns
    create, query = registration_model(wire, version), queries.list_query(wire.query, version)
    operations = [
        Operation("get", path, f"List {nouns}", 200, found.many, query=query),
        Operation("post", path, f"Make a {noun} reservable", 201, found.new, body=create, refusals=(404, 409)),
        Operation("get", one, f"Show a {noun}", 200, found.one, refusals=(404,)),
        Operation("delete", one, f"Take a {noun} back", 204, None, refusals=(404, 409)),
        *_properties(wire, found, shown, version),
    ]
    if not version < wire.allocations_since:
        operations += _allocations(wire, shown)
    if version is not OLDEST:
        leased = f"/v1/leases/{{lease_id}}/{wire.many}"
        operations.append(Operation("get", leased, f"List the {nouns} of a lease", 200, found.leased, refusals=(404,)))
    if not version < Version.V1_2:
        operations += _closing(wire, found)
    return tuple(operations)


def _closing(wire: WireInventory, found: InventoryAnswers) -> tuple[Operation, ...]:
    one, noun, done, refusals = f"{wire.path}/{{{wire.part}}}", wire.noun, found.change, (404, 409)
    return (
        Operation("post", f"{one}/disable", f"Close a {noun} to reservations", 200, done, Disable, refusals=refusals),
        Operation("post", f"{one}/enable", f"Open a {noun} again", 200, done, Enable, refusals=refusals),
        Operation("post", f"{one}/reallocate", f"Empty a {noun}", 200, done, Reallocate, refusals=refusals),
    )


def _allocations(wire: WireInventory, shown: Answers) -> tuple[Operation, ...]:
    return (
        Operation(
            "get",
            f"{wire.path}/allocations",
            f"List who has a part in which {wire.nouns}",
            200,
            shown.allocations,
            query=queries.AllocationListQuery,
        ),
        Operation(
            "get",
            f"{wire.path}/{{{wire.part}}}/allocation",
            f"Show who has a part in a {wire.noun}",
            200,
            shown.allocation,
            query=queries.AllocationQuery,
            refusals=(404,),
        ),
    )


def _properties(
    wire: WireInventory, found: InventoryAnswers, shown: Answers, version: Version
) -> tuple[Operation, ...]:
    one = f"{wire.path}/{{{wire.part}}}"
    if wire.properties is None:
        if wire.lending is None:
            return ()
        what = f"Change how much of a {wire.noun} is lent"
        return (Operation("put", one, what, 200, found.one, body=wire.lending.model, refusals=(404, 409)),)
    update = wire.properties.models.at(version)
    query = queries.LenientPropertyListQuery if version is OLDEST else queries.PropertyListQuery
    path, what = f"{wire.path}/properties", f"the properties that {wire.nouns} have"
    return (
        Operation("put", one, f"Change a {wire.noun}'s properties", 200, found.one, body=update, refusals=(404, 409)),
        Operation("get", path, f"List {what}", 200, shown.properties, query=query),
        Operation(
            "patch",
            f"{path}/{{property_name}}",
            "Make a property private or public",
            200,
            shown.property_setting,
            body=SETTING.at(version),
            refusals=(404,),
        ),
    )


#: How long the parts of a path may be that name something of ours; all others name something of the cloud's.
_PATH_PARTS: Mapping[str, int] = {"lease_id": MAX_ID, "reservation_id": MAX_ID}
_REFUSALS: Mapping[int, str] = {
    400: "Something in the request is wrong",
    401: "Authentication is needed",
    403: "The policy does not allow it",
    404: "There is no such thing",
    405: "The URL does not take this method",
    406: "The version is not supported",
    409: "It contradicts something that exists, or cannot be done now",
    413: f"The body is larger than {MAX_BYTES} bytes",
    415: "The body is not JSON",
    500: "The service failed",
    503: "The service cannot answer now",
}


def describe(schemas: LeaseSchemas, kinds: Iterable[ReservationKind], version: Version) -> Document:
    """The description of one version, without ``servers``."""
    kinds = tuple(kinds)
    served = operations(schemas, kinds, Answers(kinds, version), version)
    references, components = _schemas(served)
    paths: dict[str, Document] = {}
    for operation in served:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, references, version)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "summary": "Reservations of hosts and other resources of a cloud",
            "version": f"{version.value}",
            "x-server-version": metadata.version("tenure"),
        },
        "paths": paths,
        "components": {
            "schemas": _bounded(served, references, components),
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
        },
    }


References = Callable[[type[BaseModel], Mode], Document]


def _schemas(served: Iterable[Operation]) -> tuple[References, Document]:
    wanted: list[tuple[type[BaseModel], Mode]] = []
    for operation in served:
        wanted += [(operation.body, "validation")] if operation.body else []
        wanted += [(operation.answer, "serialization")] if operation.answer else []
    wanted += [
        (model, "serialization")
        for model in (
            answers.ErrorOfRoute,
            answers.ErrorOfFramework,
            answers.ErrorDocument,
            answers.ErrorWithoutVersion,
            answers.UnauthorizedDocument,
        )
    ]
    found, definitions = models_json_schema(
        list(dict.fromkeys(wanted)), ref_template=_COMPONENTS + "{model}", by_alias=True
    )
    return (lambda model, mode: dict(found[model, mode])), definitions["$defs"]


def _bounded(served: Iterable[Operation], references: References, components: Document) -> Document:
    """The schemas; those of bodies without what no body may hold."""
    bodies = [references(operation.body, "validation") for operation in served if operation.body]
    found = dict(components)
    for name in _names_in(bodies, components, frozenset()):
        found[name] = bounded(components[name], _COMPONENTS + ANYTHING)
    if any(_COMPONENTS + ANYTHING in json.dumps(schema) for schema in found.values()):
        found[ANYTHING] = anything(_COMPONENTS + ANYTHING)
    return found


def _names_in(schema: Any, components: Document, known: frozenset[str]) -> frozenset[str]:
    """The components that ``schema`` refers to, and those that they refer to, and ``known``."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.removeprefix(_COMPONENTS)
            if name not in known:
                known = _names_in(components[name], components, known | {name})
        schema = list(schema.values())
    if isinstance(schema, list):
        for one in schema:
            known = _names_in(one, components, known)
    return known


def _operation(operation: Operation, references: References, version: Version) -> Document:
    described: Document = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": _parameters(operation, version),
        "responses": _responses(operation, references, version),
        "security": [] if operation.public else [{"token": []}],
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": _needs_fields(operation.body),
            "content": {"application/json": {"schema": references(operation.body, "validation")}},
        }
    return described


def _needs_fields(body: type[BaseModel]) -> bool:
    """Whether no body, which counts as an empty object, is refused."""
    if body.model_json_schema().get("minProperties"):
        return True
    try:
        body.model_validate({})
    except ValidationError:
        return True
    return False


def _parameters(operation: Operation, version: Version) -> list[Document]:
    parts = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    found: list[Document] = [
        {
            "name": part,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": _PATH_PARTS.get(part, MAX_EXTERNAL_ID)},
        }
        for part in parts
    ]
    schema = operation.query.model_json_schema(mode="validation")
    for name, described in schema.get("properties", {}).items():
        if version is OLDEST and issubclass(operation.query, queries.LeaseListQuery | queries.ResourceListQuery):
            continue
        if version is OLDEST and name in ("limit", "marker"):
            continue
        found.append({"name": name, "in": "query", "required": False, "schema": _plain(described, schema)})
    if not operation.public:
        found.append(
            {
                "name": HEADER,
                "in": "header",
                "required": False,
                "schema": {"type": "string", "enum": [f"{SERVICE_TYPE} {version.value}"]},
            }
        )
    return found


def _plain(described: Document, schema: Document) -> Document:
    """A query parameter's schema: without null, which a query cannot say, and without references."""
    variants = [variant for variant in described.get("anyOf", [described]) if variant.get("type") != "null"]
    plain = dict(variants[0])
    if "$ref" in plain:
        plain = dict(schema["$defs"][plain["$ref"].rpartition("/")[2]])
    for key in ("default", "description"):
        if described.get(key) is not None:
            plain[key] = described[key]
    plain.pop("title", None)
    return plain


def _responses(operation: Operation, references: References, version: Version) -> Document:
    headers: Document = {"x-openstack-request-id": {"schema": {"type": "string"}, "required": True}}
    success: Document = {"description": operation.summary, "headers": headers}
    if operation.answer is not None:
        success["content"] = {"application/json": {"schema": references(operation.answer, "serialization")}}
    responses: Document = {str(operation.status): success}
    if operation.public:
        statuses = {405} | ({503} if operation.path == "/healthcheck" else set())
    else:
        statuses = {400, 401, 403, 405, 406, 500, 503, *operation.refusals}
        statuses |= {413, *((415,) if version is not OLDEST else ())} if operation.body is not None else set()
    for status in sorted(statuses):
        responses[str(status)] = {
            "description": _REFUSALS[status],
            "headers": headers,
            "content": {"application/json": {"schema": _refusal(operation, status, references, version)}},
        }
    return responses


def _refusal(operation: Operation, status: int, references: References, version: Version) -> Document:
    def model(found: type[BaseModel]) -> Document:
        return references(found, "serialization")

    if operation.path == "/healthcheck" and status == 503:
        return model(answers.HealthDocument)
    if status == 406:
        return model(answers.ErrorWithoutVersion)
    shapes: list[Document] = []
    if version is OLDEST:
        shapes += [model(answers.ErrorOfRoute), model(answers.ErrorOfFramework)]
    else:
        shapes += [model(answers.ErrorDocument)]
    if status == 400:
        shapes += [model(answers.ErrorWithoutVersion)]
    if status == 401 and version is OLDEST:
        shapes += [model(answers.UnauthorizedDocument)]
    return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}


class Description:
    """Serves the description of the version that is asked for, by the header or by ``?version=``.

    Each is made when it is first asked for: it takes longer than all else that a start of the API does.
    """

    def __init__(self, schemas: Mapping[Version, LeaseSchemas], kinds: Iterable[ReservationKind], links: Links) -> None:
        self._links = links
        self._schemas = schemas
        self._kinds = tuple(kinds)
        self._documents: dict[Version, Document] = {}
        self._describing = threading.Lock()

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        asked = req.params.get("version")
        call = call_of(req)
        version = call.version
        if asked is not None:
            version = next((known for known in Version if known.value == asked), None)
            if version is None:
                raise VersionNotSupported(str(asked), OLDEST.value, LATEST.value)
        elif version is None and call.version_refusal is not None:
            raise call.version_refusal
        resp.set_header("Vary", HEADER)
        document = self._document(version or OLDEST)
        answer(resp, {**document, "servers": [{"url": self._links.base(req) or "/"}]})

    def _document(self, version: Version) -> Document:
        with self._describing:
            if version not in self._documents:
                self._documents[version] = describe(self._schemas[version], self._kinds, version)
            return self._documents[version]
