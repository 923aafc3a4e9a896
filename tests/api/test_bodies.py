"""Invalid bodies: every endpoint refuses them alike, and they change nothing."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from falcon import testing

from tests.api.rig import USERS, Api
from tests.support.standalone import Standalone, standalone
from tests.support.waiting import patience

WRITES = (
    ("POST", "/v1/leases"),
    ("PUT", "/v1/leases/00000000-0000-0000-0000-000000000000"),
    ("POST", "/v1/os-hosts"),
    ("PUT", "/v1/os-hosts/1"),
    ("PATCH", "/v1/os-hosts/properties/gpu"),
)
DEEP = 9_000
#: A body that is as large as may be, of values that take two bytes each.
MANY = 500_000
BODIES = {
    "no JSON": (b"{", 400, "The body is not JSON"),
    "blank": (b" \n", 400, "The body is not JSON"),
    "cut off": (b'{"name": "x', 400, "The body is not JSON"),
    "two values": (b"{} {}", 400, "The body is not JSON"),
    "NaN": (b'{"name": NaN}', 400, "NaN is no number"),
    "infinite": (b'{"name": -Infinity}', 400, "-Infinity is no number"),
    "a huge fraction": (b'{"name": 1e999}', 400, "name: the number 1e999 is too large"),
    "a huge number": (b'{"name": ' + b"9" * 5000 + b"}", 400, "name: the number 9999"),
    "a list": (b"[]", 400, "must be a JSON object"),
    "a text": (b'"x"', 400, "must be a JSON object"),
    "null": (b"null", 400, "must be a JSON object"),
    "a field twice": (b'{"name": "a", "name": "b"}', 400, "the field name more than once"),
    "deep": (b'{"name": ' + b"[" * DEEP + b"]" * DEEP + b"}", 400, "nested deeper"),
    "many values": (b'{"name": [' + b",".join([b"0"] * MANY) + b"]}", 400, "more than 20000 values"),
    "many names": (
        b"{" + b",".join(b'"%d":0' % number for number in range(20_001)) + b"}",
        400,
        "more than 20000 values",
    ),
    "many texts": (b'{"name": [' + b",".join([b'""'] * 300_000) + b"]}", 400, "more than 20000 values"),
    "many brackets": (b'{"name": ' + b"[" * MANY, 400, "more than 20000 values"),
    "a field twice among many": (
        b"{" + b",".join(b'"%d":0' % number for number in range(19_000)) + b',"18999":0}',
        400,
        "the field 18999 more than",
    ),
    "rather deep": (b'{"name": ' + b"[" * 40 + b"]" * 40 + b"}", 400, "nested deeper"),
    "deep objects": (b'{"a":' * 40 + b"1" + b"}" * 40, 400, "nested deeper"),
    "NUL": (b'{"name": "a\\u0000b"}', 400, "name holds a NUL"),
    "NUL in a name": (b'{"na\\u0000me": "a"}', 400, "na?me holds a NUL"),
    "NUL deep inside": (b'{"reservations": [{"a": "\\u0000"}]}', 400, "reservations[0].a holds a NUL"),
    "half a character": (b'{"name": "\\ud800"}', 400, "half of a character"),
    "not UTF-8": (b'{"name": "\xff"}', 400, "not UTF-8"),
    "UTF-16": ('{"name": "x"}'.encode("utf-16"), 400, "not UTF-8"),
    "10 MB": (b'{"name": "' + b"x" * 10_000_000 + b'"}', 413, "larger than 1048576 bytes"),
    "a byte too many": (b'{"name": "' + b"x" * (1024 * 1024 - 11) + b'"}', 413, "larger than 1048576 bytes"),
}


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("kind", BODIES)
def test_a_bad_body_is_refused_everywhere(shared_api: Api, kind: str, version: str) -> None:
    raw, status, message = BODIES[kind]
    api = shared_api.using("admin", version)
    before = api.dump()
    for method, path in WRITES:
        result = api.call(method, path, raw=raw)
        assert result.status_code == status, (method, path, result.text[:300])
        assert message in result.json["error_message"]
        assert result.headers["OpenStack-API-Version"] == f"reservation {version}"
        assert result.headers["content-type"] == "application/json"
        assert len(result.text) < 1000
        if version == "1.1":
            assert result.json["error_name"] == ("TooLarge" if status == 413 else "InvalidParameter")
            assert result.json["field"]
    assert api.dump() == before


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "x"])
def test_a_body_of_another_type_is_refused_everywhere(shared_api: Api, content_type: str, version: str) -> None:
    api = shared_api.using("admin", version)
    before = api.dump()
    for method, path in WRITES:
        result = api.call(method, path, raw="a=1", headers={"Content-Type": content_type})
        assert result.json["error_message"] == f"Content type '{content_type}' isn't supported"
        assert result.headers["OpenStack-API-Version"] == f"reservation {version}"
        if version == "1.0":
            assert (result.status_code, result.json["error"]) == (400, 400)
        else:
            assert (result.status_code, result.json["error_name"]) == (415, "UnsupportedMediaType")
            assert result.json["field"] == "Content-Type"
    assert api.dump() == before


@pytest.mark.parametrize(
    "content_type", ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8", ""]
)
def test_json_content_types_are_accepted(api: Api, content_type: str) -> None:
    body = json.dumps(api.lease_body(reservations=[])).encode()
    result = api.call("POST", "/v1/leases", raw=body, headers={"Content-Type": content_type})
    assert result.status_code == 201, result.text


def test_the_whole_allowance_may_be_used(api: Api) -> None:
    body = json.dumps(api.lease_body(reservations=[], note="")).encode()
    padded = body[:-2] + b"x" * (1024 * 1024 - len(body)) + body[-2:]
    assert len(padded) == 1024 * 1024
    assert api.call("POST", "/v1/leases", raw=padded).status_code == 201


def test_the_body_of_a_request_without_a_length_is_read_up_to_the_limit(api: Api) -> None:
    class Endless:
        def __init__(self) -> None:
            self.taken = 0

        def read(self, size: int = -1) -> bytes:
            assert size > 0
            self.taken += size
            return b" " * size

        readline = readlines = __iter__ = read  # the validator wants them to be there

    stream = Endless()
    result = api.call(
        "POST",
        "/v1/leases",
        headers={"Content-Type": "application/json"},
        extras={"wsgi.input": stream, "wsgi.input_terminated": True},
    )
    assert result.status_code == 413
    assert stream.taken == 1024 * 1024 + 1


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_large_body_in_chunks_is_refused_by_a_server(served: Standalone, version: str) -> None:
    """Over a connection, where nothing tells the length before the end."""
    body = b'{"name": "' + b"x" * (1024 * 1024) + b'"}'
    status, document = _post_in_chunks(served, body, version)
    assert status == 413
    assert document["error_message"] == "The body is larger than 1048576 bytes."
    if version == "1.1":
        assert (document["error_name"], document["field"]) == ("TooLarge", "body")
    assert served.caller().call("GET", "/leases") == (200, {"leases": []})


@pytest.mark.slow
def test_a_small_body_in_chunks_is_read_whole(served: Standalone) -> None:
    status, document = _post_in_chunks(served, b'{"name": "' + b"x" * 1000 + b'"}', "1.1")
    assert (status, document["error_message"]) == (400, "Missing parameter start_date, end_date")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("served") / "data") as service:
        yield service


def _post_in_chunks(service: Standalone, body: bytes, version: str) -> tuple[int, dict[str, object]]:
    caller = service.caller()
    connection = http.client.HTTPConnection("127.0.0.1", caller.port, timeout=patience())
    chunks = (body[start : start + 4096] for start in range(0, len(body), 4096))
    headers = {
        "X-Auth-Token": caller.token,
        "OpenStack-API-Version": f"reservation {version}",
        "Content-Type": "application/json",
        "Transfer-Encoding": "chunked",
    }
    with closing(connection):
        connection.request("POST", "/v1/leases", chunks, headers, encode_chunked=True)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("length", ["-1", "x"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_invalid_length_is_refused(shared_api: Api, length: str, version: str) -> None:
    environ = testing.create_environ(
        "/v1/leases",
        method="POST",
        headers={
            "X-Auth-Token": USERS["demo"].token,
            "Content-Type": "application/json",
            "OpenStack-API-Version": f"reservation {version}",
        },
    )
    environ["CONTENT_LENGTH"] = length
    started = testing.StartResponseMock()
    body = b"".join(shared_api.app(environ, started))
    assert (started.status or "").startswith("400")
    assert json.loads(body)["error_message"]


def test_no_body_counts_as_an_empty_object(shared_api: Api) -> None:
    for raw in (None, b""):
        result = shared_api.call("POST", "/v1/leases", raw=raw, headers={"Content-Type": "application/json"})
        assert result.json["error_message"] == "Missing parameter name, end_date, start_date"
