"""The OpenAPI 3.1 description of the API, built from the table of operations and their models."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, Literal

import falcon
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from tenure.api.answers import TaggedLease
from tenure.api.bodies import MAX_BYTES
from tenure.api.context import call_of
from tenure.api.dialects import BLAZAR, OURS, dialect_of
from tenure.api.errors import VersionNotSupported
from tenure.api.links import Links
from tenure.api.operations import (
    CONDITION_PATTERN,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    MAX_CONDITION,
    MAX_KEY,
    Operation,
    longest_path_parameter,
)
from tenure.api.renderers import JSON
from tenure.api.schemas import answers
from tenure.api.schemas.availability import ErrorOf13
from tenure.api.schemas.bounds import bounded
from tenure.api.versions import HEADER, LATEST, OLDEST, SERVICE_TYPE, Version

Document = dict[str, Any]
Mode = Literal["validation", "serialization"]
_COMPONENTS = "#/components/schemas/"


#: The models of errors.
_ERRORS: tuple[type[BaseModel], ...] = (
    *(model for dialect in (BLAZAR, OURS) for model in (*dialect.models, *dialect.unauthorized)),
    answers.ErrorWithoutVersion,
)
_REFUSALS: Mapping[int, str] = {
    400: "Something in the request is wrong",
    401: "Authentication is needed",
    403: "The policy does not allow it",
    404: "There is no such thing",
    405: "The URL does not take this method",
    406: "The version is not supported",
    409: "It contradicts something that exists, or cannot be done now",
    412: "The lease has changed since it was read",
    413: f"The body is larger than {MAX_BYTES} bytes",
    415: "The body is not JSON",
    500: "The service failed",
    503: "The service cannot answer now",
}


def describe(operations: Iterable[Operation], version: Version) -> Document:
    """Return the description of a version, without ``servers``."""
    served = [operation.at(version) for operation in operations if operation.since <= version]
    references, components = _schemas(served, version)
    bodies = [references(operation.body(version), "validation") for operation in served if operation.body]
    paths: dict[str, Document] = {}
    for operation in served:
        described = _operation(operation, references, version)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
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
            "schemas": _bounded(bodies, components),
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
        },
    }


References = Callable[[type[BaseModel], Mode], Document]


def _schemas(served: Iterable[Operation], version: Version) -> tuple[References, Document]:
    errors: tuple[type[BaseModel], ...] = _ERRORS if version < Version.V1_3 else (*_ERRORS, ErrorOf13)
    models: list[tuple[type[BaseModel], Mode]] = [(model, "serialization") for model in errors]
    for operation in served:
        models += [(operation.body(version), "validation")] if operation.body else []
        models += [
            (shape.document(version), "serialization")
            for shapes in operation.successes(version).values()
            for shape in shapes
        ]
    found, definitions = models_json_schema(
        list(dict.fromkeys(models)), ref_template=_COMPONENTS + "{model}", by_alias=True
    )
    schemas = {name: _titled(name, schema) for name, schema in definitions["$defs"].items()}
    return (lambda model, mode: dict(found[model, mode])), schemas


def _titled(name: str, schema: Document) -> Document:
    """Return a schema whose title no other one has: a model that is read and written has two schemas."""
    return {**schema, "title": name.replace("-", "")} if "-" in name and "title" in schema else schema


def _bounded(bodies: Iterable[Document], components: Document) -> Document:
    """Return the schemas; those of bodies exclude values that are refused in every body."""
    schemas = dict(components)
    for name in _names_in([*bodies], components, frozenset()):
        schemas[name] = bounded(components[name])
    return schemas


def _names_in(schema: Any, components: Document, known: frozenset[str]) -> frozenset[str]:
    """Return ``known`` and the components that ``schema`` refers to, directly or indirectly."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.removeprefix(_COMPONENTS)
            if name not in known:
                known = _names_in(components[name], components, known | {name})
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            known = _names_in(part, components, known)
    return known


def _operation(operation: Operation, references: References, version: Version) -> Document:
    described: Document = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "parameters": _parameters(operation, version),
        "responses": _responses(operation, references, version),
        "security": [] if operation.public else [{"token": []}],
    }
    if operation.body is not None:
        body = operation.body(version)
        described["requestBody"] = {
            "required": _needs_fields(body),
            "content": {"application/json": {"schema": references(body, "validation")}},
        }
    return described


def _operation_id(operation: Operation) -> str:
    words = re.split("/", re.sub("[-.]", "_", re.sub("[{}]", "", operation.path)))
    ends = ["slash"] if operation.path.endswith("/") and operation.path != "/" else []  # apart from it without a slash
    return "_".join([operation.method.lower(), *filter(None, words), *ends])


def _needs_fields(body: type[BaseModel]) -> bool:
    """Whether an empty body, which counts as an empty object, is refused."""
    if body.model_json_schema().get("minProperties"):
        return True
    try:
        body.model_validate({})
    except ValidationError:
        return True
    return False


def _parameters(operation: Operation, version: Version) -> list[Document]:
    found: list[Document] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": longest_path_parameter(name)},
        }
        for name in operation.path_parameters
    ]
    schema = operation.query(version).model_json_schema(mode="validation")
    for name, described in schema.get("properties", {}).items():
        required = name in schema.get("required", ())
        found.append({"name": name, "in": "query", "required": required, "schema": _plain(described, schema)})
    if not operation.public:
        found.append(
            {
                "name": HEADER,
                "in": "header",
                "required": False,
                "schema": {"type": "string", "enum": [f"{SERVICE_TYPE} {version.value}"]},
            }
        )
    if operation.is_repeatable:
        key = {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[!-~]+$"}
        found.append({"name": IDEMPOTENCY_KEY, "in": "header", "required": False, "schema": key})
    if operation.is_conditional:
        condition = {"type": "string", "maxLength": MAX_CONDITION, "pattern": CONDITION_PATTERN}
        found.append({"name": IF_MATCH, "in": "header", "required": False, "schema": condition})
    return found


def _plain(described: Document, schema: Document) -> Document:
    """Return the schema of a query parameter without null, which a query cannot express, and without references."""
    variants = [variant for variant in described.get("anyOf", [described]) if variant.get("type") != "null"]
    plain = dict(variants[0])
    if "$ref" in plain:
        plain = dict(schema["$defs"][plain["$ref"].rpartition("/")[2]])
    for key in ("default", "description"):
        if described.get(key) is not None:
            plain[key] = described[key]
    plain.pop("title", None)
    if plain.get("type") == "string" and isinstance(plain.get("default"), bool):  # a query has texts for true and false
        plain["default"] = str(plain["default"]).lower()
    return plain


def _responses(operation: Operation, references: References, version: Version) -> Document:
    headers: Document = {"x-openstack-request-id": {"schema": {"type": "string"}, "required": True}}
    responses: Document = {}

    def shown(model: type[BaseModel]) -> Document:
        return references(model, "serialization")

    for status, shapes in operation.successes(version).items():
        success: Document = {"description": operation.summary, "headers": headers}
        if isinstance(operation.answer, TaggedLease) and status == operation.success:
            success["headers"] = {**headers, "ETag": {"schema": {"type": "string"}}}
        models = [shape.document(version) for shape in shapes]
        if models:
            success["content"] = {
                renderer.content_type.partition(";")[0]: {"schema": renderer.schema(models, shown)}
                for renderer in operation.renderers
            }
        responses[str(status)] = success
    if operation.public:
        statuses = {405, *operation.refusals}
    else:
        statuses = {400, 401, 403, 405, 406, 500, 503, *operation.refusals}
        statuses |= set(dialect_of(version).refuses_bodies_with if operation.body is not None else ())
    for status in sorted(statuses):
        responses[str(status)] = {
            "description": _REFUSALS[status],
            "headers": headers,
            "content": {"application/json": {"schema": JSON.schema(_refusals(operation, status, version), shown)}},
        }
    return responses


def _refusals(operation: Operation, status: int, version: Version) -> tuple[type[answers.Answer], ...]:
    """Return the models of refusals with this status."""
    if operation.public and operation.answer is not None and status in operation.refusals:
        return (operation.answer.document(version),)
    if status == 406:
        return (answers.ErrorWithoutVersion,)
    dialect = dialect_of(version)
    models: tuple[type[answers.Answer], ...] = (ErrorOf13,) if version >= Version.V1_3 else dialect.models
    if status == 400:
        models = (*models, answers.ErrorWithoutVersion)
    return (*models, *dialect.unauthorized) if status == 401 else models


class Description:
    """Serves the description of the version that the header or ``?version=`` requests.

    A description is built at its first request, because that takes longer than the rest of the start of the API.
    """

    def __init__(self, operations: Iterable[Operation], links: Links) -> None:
        self._operations = tuple(operations)
        self._links = links
        self._documents: dict[Version, Document] = {}
        self._describing = threading.Lock()

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        given = req.params.get("version")
        call = call_of(req)
        version = call.version
        if given is not None:
            version = next((known for known in Version if known.value == given), None)
            if version is None:
                raise VersionNotSupported(str(given), OLDEST.value, LATEST.value)
        elif version is None and call.version_refusal is not None:
            raise call.version_refusal
        resp.set_header("Vary", HEADER)
        document = self._document(version or OLDEST)
        resp.content_type = "application/json"
        resp.data = json.dumps({**document, "servers": [{"url": self._links.base(req) or "/"}]}).encode()

    def _document(self, version: Version) -> Document:
        with self._describing:
            if version not in self._documents:
                self._documents[version] = describe(self._operations, version)
            return self._documents[version]
