"""Reading the bodies of requests, which are JSON objects."""

from __future__ import annotations

import falcon

from tenure.api.errors import TooLarge, UnsupportedMediaType
from tenure.domain.errors import InvalidParameter
from tenure.domain.json_text import JsonObject, read_json

#: The largest size of a body.
MAX_BYTES = 1024 * 1024


def read_object(req: falcon.Request) -> JsonObject:
    """Return the body as a JSON object, which is empty if there is no body."""
    content_type = (req.content_type or "").partition(";")[0].strip().lower()
    if content_type not in ("", "application/json"):
        raise UnsupportedMediaType(content_type)
    content = _read(req)
    if not content:
        return {}
    document = read_json(content)
    if not isinstance(document, dict):
        raise InvalidParameter("The body must be a JSON object.", field="body")
    return document


def _read(req: falcon.Request) -> bytes:
    if (req.content_length or 0) > MAX_BYTES:
        raise TooLarge(MAX_BYTES)
    chunked = req.content_length is None and req.env.get("wsgi.input_terminated")
    stream = req.env["wsgi.input"] if chunked else req.bounded_stream
    body = stream.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise TooLarge(MAX_BYTES)
    return bytes(body)
