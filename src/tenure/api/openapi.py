"""The API's description, OpenAPI 3.1, from the models that read the requests and those of the answers."""

from __future__ import annotations

import json
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
from tenure.api.links import Links
from tenure.api.schemas import answers, hosts, queries
from tenure.api.schemas.answers import Answers
from tenure.api.schemas.bounds import ANYTHING, anything, bounded
from tenure.api.schemas.leases import LeaseSchemas, ReservationKind
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


def operations(schemas: LeaseSchemas, shown: Answers, version: Version) -> tuple[Operation, ...]:
    """All that is served at one version."""
    return (*_public(), *_leases(schemas, shown, version), *_hosts(shown, version))


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
    return (
        *everywhere,
        Operation("get", f"{one}/history", "Show what happened", 200, shown.history, refusals=(404,)),
        Operation("get", f"{one}/hosts", "List the hosts of a lease", 200, shown.leased_hosts, refusals=(404,)),
        Operation("delete", reservation, "Drop a reservation", 204, None, refusals=(404, 409)),
    )


def _hosts(shown: Answers, version: Version) -> tuple[Operation, ...]:
    old = version is OLDEST
    create: type[BaseModel] = hosts.LenientHostCreate if old else hosts.HostCreate
    update: type[BaseModel] = hosts.LenientHostUpdate if old else hosts.HostUpdate
    setting: type[BaseModel] = hosts.LenientPropertyUpdate if old else hosts.PropertyUpdate
    path = "/v1/os-hosts"
    one = "/v1/os-hosts/{host_id}"
    done = shown.host_change
    since_1_2 = (
        Operation(
            "post",
            f"{one}/disable",
            "Close a host to new reservations",
            200,
            done,
            hosts.HostDisable,
            refusals=(404, 409),
        ),
        Operation("post", f"{one}/enable", "Open a host again", 200, done, hosts.HostEnable, refusals=(404, 409)),
        Operation(
            "post",
            f"{one}/reallocate",
            "Move what is booked on a host",
            200,
            done,
            hosts.HostReallocate,
            refusals=(404, 409),
        ),
    )
    return (
        *(() if version < Version.V1_2 else since_1_2),
        Operation("get", path, "List hosts", 200, shown.hosts, query=queries.HostListQuery),
        Operation("post", path, "Make a host reservable", 201, shown.host, body=create, refusals=(404, 409)),
        Operation("get", one, "Show a host", 200, shown.host, refusals=(404,)),
        Operation("put", one, "Change a host's properties", 200, shown.host, body=update, refusals=(404, 409)),
        Operation("delete", one, "Take a host back", 204, None, refusals=(404, 409)),
        Operation(
            "get",
            f"{path}/allocations",
            "List who has a part in which hosts",
            200,
            shown.allocations,
            query=queries.AllocationListQuery,
        ),
        Operation(
            "get",
            f"{one}/allocation",
            "Show who has a part in a host",
            200,
            shown.allocation,
            query=queries.AllocationQuery,
            refusals=(404,),
        ),
        Operation(
            "get",
            f"{path}/properties",
            "List the properties that hosts have",
            200,
            shown.properties,
            query=queries.LenientPropertyListQuery if old else queries.PropertyListQuery,
        ),
        Operation(
            "patch",
            f"{path}/properties/{{property_name}}",
            "Make a property private or public",
            200,
            shown.property_setting,
            body=setting,
            refusals=(404,),
        ),
    )


#: What the parts of a path may be.
_PATH_PARTS: Mapping[str, int] = {
    "lease_id": MAX_ID,
    "reservation_id": MAX_ID,
    "host_id": MAX_EXTERNAL_ID,
    "property_name": MAX_EXTERNAL_ID,
}
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
    served = operations(schemas, Answers(kinds, version), version)
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
            "schema": {"type": "string", "minLength": 1, "maxLength": _PATH_PARTS[part]},
        }
        for part in parts
    ]
    schema = operation.query.model_json_schema(mode="validation")
    for name, described in schema.get("properties", {}).items():
        if version is OLDEST and operation.query in (queries.LeaseListQuery, queries.HostListQuery):
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
    """Serves the description of the version that is asked for, by the header or by ``?version=``."""

    def __init__(self, schemas: Mapping[Version, LeaseSchemas], kinds: Iterable[ReservationKind], links: Links) -> None:
        self._links = links
        kinds = tuple(kinds)
        self._documents = {version: describe(schemas[version], kinds, version) for version in Version}

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
        document = self._documents[version or OLDEST]
        answer(resp, {**document, "servers": [{"url": self._links.base(req) or "/"}]})
