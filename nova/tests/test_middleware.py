"""What stands before Nova, between a Nova of a few lines and a reservation service over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tenurenova.middleware import MAX_BYTES, Application, Settings, filter_factory
from tenurenova.permits import Permits

LEASE = {"name": "lease1", "start": "now", "end": "2027-12-1 16:07"}
HINTS = {"reserved": "True", "lease_params": json.dumps(LEASE), "group": "g"}
HELD = {"lease": {"id": "L", "status": "CREATING", "reservations": [{"id": "R"}]}}
TOKEN = "the-token"
RESERVED_ID = "9d1e7b3c-0a52-4c86-8f13-5b7e2d90c4a6"
FLAVOR = {"id": "3", "name": "m1.small", "vcpus": 1, "ram": 2048, "disk": 20, "swap": "", "extra_specs": {}}

Answer = tuple[int, Any]


class Tenure:
    """A reservation service with scripted answers, which records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[str, list[Answer | None]] = {}
        self.moved_to = ""
        self.retry_after = ""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                service.asked.append((self.command, self.path, body))
                service.headers.append({name.lower(): value for name, value in self.headers.items()})
                answer = service.answer(self.command, self.path)
                if answer is None:  # dies before it answers
                    self.close_connection = True
                    return
                status, document = answer
                data = json.dumps(document).encode() if document is not None else b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if service.retry_after:
                    self.send_header("Retry-After", service.retry_after)
                if service.moved_to:
                    self.send_header("Location", service.moved_to + self.path)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815 - the names of http.server

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, method: str, path: str) -> Answer | None:
        kinds = {
            "DELETE": "release",
            "GET": "planned",
            "PUT": "change",
            "POST": "confirm" if path.endswith("/confirm") else "hold",
        }
        kind = kinds[method]
        queue = self.answers.get(kind)
        if queue:
            return queue.pop(0) if len(queue) > 1 else queue[0]
        planned: dict[str, Any] = {"planned_servers": []}
        answers = {"hold": (201, HELD), "confirm": (200, HELD), "release": (204, None), "planned": (200, planned)}
        return answers[kind]

    @property
    def calls(self) -> list[str]:
        return [f"{method} {path}" for method, path, _ in self.asked]


class Nova:
    """Nova's API with scripted answers, which records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.methods: list[str] = []
        self.status = "202 Accepted"
        self.shown: Any = {"server": {"id": "S", "status": "ACTIVE"}}
        self.flavor: dict[str, Any] = dict(FLAVOR)
        self.status_of_deletion = "204 No Content"
        self.document: Any = {"server": {"id": "S", "adminPass": "secret"}}
        self.before: Callable[[], None] = lambda: None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.asked.append((environ["PATH_INFO"], environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))))
        self.methods.append(environ["REQUEST_METHOD"])
        self.before()
        if environ["REQUEST_METHOD"] == "DELETE" and len(self.asked) > 1:
            start_response(self.status_of_deletion, [])
            return []
        if environ["PATH_INFO"].endswith("/flavors/3"):
            start_response("200 OK", [])
            return [json.dumps({"flavor": self.flavor}).encode()]
        if environ["REQUEST_METHOD"] == "GET" and "POST" in self.methods:
            start_response("200 OK", [])
            return [json.dumps(self.shown).encode()]
        body = json.dumps(self.document).encode()
        start_response(self.status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def serve() -> Iterator[Tenure]:
    service = Tenure()
    yield service
    service.server.shutdown()
    service.server.server_close()


tenure = pytest.fixture(serve, name="tenure")
elsewhere = pytest.fixture(serve, name="elsewhere")


@pytest.fixture
def nova() -> Nova:
    return Nova()


@pytest.fixture(autouse=True)
def permits_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a folder of the test's own, apart from other tests on this machine."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def ask(nova: Nova, options: dict[str, str], body: Any = None, **more: Any) -> tuple[int, Any]:
    return send(filter_factory({}, **options)(nova), body, **more)


def send(
    filtered: Application, body: Any = None, *, path: str = "/servers", method: str = "POST", **more: Any
) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "CONTENT_LENGTH": str(len(data)),
        "wsgi.input": BytesIO(data),
        "HTTP_X_AUTH_TOKEN": TOKEN,
        **more,
    }
    got: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        got.update(status=int(status[:3]), headers=dict(headers))

    answer = b"".join(filtered(environ, start_response))
    assert got["headers"]["Content-Length"] == str(len(answer))
    return got["status"], json.loads(answer)


def boot(nova: Nova, tenure: Tenure, hints: Any = HINTS, **more: Any) -> tuple[int, Any]:
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": hints}
    return ask(nova, {"endpoint": tenure.url, "timeout": "5", "make_servers": "at_once"}, body, **more)


def test_a_server_is_booted_for_a_lease_that_is_held_and_then_confirmed(nova: Nova, tenure: Tenure) -> None:
    held_before_the_boot: list[list[str]] = []
    nova.before = lambda: held_before_the_boot.append(list(tenure.calls))
    status, answer = boot(nova, tenure, HTTP_OPENSTACK_API_VERSION="compute 2.90")
    assert (status, answer) == (202, nova.document)
    assert held_before_the_boot == [["POST /v1/leases"]]
    assert tenure.calls == ["POST /v1/leases", "POST /v1/leases/L/confirm"]
    (_, _, lease), (_, _, confirmation) = tenure.asked
    assert (lease["hold_for"], lease["end_date"]) == (300, "2027-12-01T16:07:00Z")
    assert confirmation == {"reservations": [{"id": "R", "server_id": "S"}]}
    assert {headers["x-auth-token"] for headers in tenure.headers} == {TOKEN}
    assert {headers["openstack-api-version"] for headers in tenure.headers} == {"reservation 1.4"}
    assert {headers["prefer"] for headers in tenure.headers} == {"return=minimal"}
    ((_, sent),) = nova.asked
    assert json.loads(sent) == {
        "server": {
            "name": "web",
            "flavorRef": "3",
            "metadata": {"tenure:lease": "L", "tenure:reservation": "R", "tenure:reserved": "true"},
            "tags": ["tenure:reserved", "tenure:lease=L"],
        },
        "os:scheduler_hints": {"group": "g"},
    }


@pytest.mark.parametrize("hints", [{}, {"group": "g"}, {"reserved": "False"}])
def test_boot_without_the_hint_does_not_call_the_service(nova: Nova, hints: dict[str, str]) -> None:
    """Byte by byte as it came, and though there is no service."""
    body = b'{"server" : {"name": "web"},  "os:scheduler_hints": ' + json.dumps(hints).encode() + b"}"
    status, answer = ask(nova, {"endpoint": "http://127.0.0.1:9"}, body)
    assert (status, answer) == (202, nova.document)
    assert nova.asked == [("/servers", body)]


@pytest.mark.parametrize(
    ("method", "path", "calls"),
    [
        ("GET", "/servers", ["GET /v1/planned-servers?limit=1000"]),
        ("POST", "/servers/S/action", []),
        ("DELETE", "/servers/S", []),
        ("POST", "/os-keypairs", []),
    ],
)
def test_nothing_but_a_boot_is_read(nova: Nova, tenure: Tenure, method: str, path: str, calls: list[str]) -> None:
    assert boot(nova, tenure, method=method, path=path) == (202, nova.document)
    assert tenure.calls == calls
    assert b"lease_params" in nova.asked[0][1]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_invalid_body_is_passed_to_nova(nova: Nova, tenure: Tenure, body: bytes) -> None:
    ask(nova, {"endpoint": tenure.url}, body)
    assert nova.asked == [("/servers", body)]


@pytest.mark.parametrize("length", [str(MAX_BYTES + 1), "-1", "many", "", "²"])
def test_too_large_body_is_not_read(nova: Nova, tenure: Tenure, length: str) -> None:
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    unread = BytesIO(json.dumps(body).encode())
    passed: list[Any] = []

    def application(environ: dict[str, Any], _: object) -> list[bytes]:
        passed.append(environ)
        return []

    filtered = filter_factory({}, endpoint=tenure.url)(application)
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/servers", "CONTENT_LENGTH": length, "wsgi.input": unread}
    assert list(filtered(environ, lambda *_: None)) == []
    assert (passed, unread.tell()) == ([environ], 0)
    assert environ["wsgi.input"] is unread
    assert tenure.asked == []


@pytest.mark.parametrize(
    "path",
    ["/servers", "/servers/", "/0f1e2d/servers", "/servers.json", "/os-volumes_boot", "/0f1e2d/os-volumes_boot"],
)
def test_servers_are_booted_under_all_these_paths(nova: Nova, tenure: Tenure, path: str) -> None:
    assert boot(nova, tenure, path=path)[0] == 202
    assert len(tenure.calls) == 2


def test_lease_has_the_configured_region(nova: Nova, tenure: Tenure) -> None:
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    for option, region in (({}, None), ({"lease_region": "south"}, "south")):
        assert ask(nova, {"endpoint": tenure.url, "make_servers": "at_once", **option}, body)[0] == 202
        (reservation,) = next(lease for _, path, lease in reversed(tenure.asked) if path == "/v1/leases")[
            "reservations"
        ]
        assert reservation.get("region") == region


def test_a_chunked_body_is_read_too(nova: Nova, tenure: Tenure) -> None:
    assert boot(nova, tenure, CONTENT_LENGTH="", **{"wsgi.input_terminated": True})[0] == 202
    assert len(tenure.calls) == 2


def test_invalid_hint_is_refused_before_any_call(nova: Nova, tenure: Tenure) -> None:
    status, answer = boot(nova, tenure, {"reserved": "True", "lease_params": "{"})
    assert status == 400
    assert answer["badRequest"]["code"] == 400
    assert "lease_params" in answer["badRequest"]["message"]
    assert (nova.asked, tenure.asked) == ([], [])


def test_hanging_service_blocks_only_the_allowed_number_of_boots(nova: Nova, tenure: Tenure) -> None:
    """For it may wait for the very Nova that waits for it."""
    plain = {"server": {"name": "web", "flavorRef": "3"}}
    seen: list[tuple[int, Any]] = []

    def boot_others() -> None:
        seen.append(boot(nova, tenure))
        seen.append(ask(nova, {"endpoint": tenure.url}, plain))

    nova.before = lambda: boot_others() if not seen else None
    assert boot(nova, tenure)[0] == 202
    (refused, said), (passed, _) = seen
    assert (refused, passed, "right now" in said["serviceUnavailable"]["message"]) == (503, 202, True)
    assert tenure.calls == ["POST /v1/leases", "POST /v1/leases/L/confirm"]
    assert boot(nova, tenure)[0] == 202  # the permit is given back


def test_number_of_waiting_boots_is_limited(tmp_path: Path) -> None:
    permits = Permits(tmp_path / "permits", 2)
    with permits.take("a") as first, permits.take("b") as second, Permits(tmp_path / "permits", 2).take("c") as third:
        assert (first, second, third) == (True, True, False)
    with pytest.raises(RuntimeError), permits.take("a"):
        raise RuntimeError("ended")
    with permits.take("a") as first, permits.take("b") as second:
        assert (first, second) == (True, True)


def test_boots_of_a_project_leave_turns_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "permits"
    permits, others = Permits(folder, 4), Permits(folder, 4)
    with permits.take("a") as first, others.take("a") as second, permits.take("a") as third, permits.take("b") as other:
        assert (first, second, third, other) == (True, True, False, True)
    with permits.take("a") as first, permits.take("a") as second:
        assert (first, second) == (True, True)
    with Permits(folder, 1).take("a") as alone:
        assert alone


def test_unusable_lock_folder_does_not_block_boots_without_hints(
    nova: Nova, tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, hinted = (
        {"server": {"flavorRef": "3", "name": "web"}, "os:scheduler_hints": hints} for hints in ({}, HINTS)
    )
    options = {"endpoint": tenure.url, "lock_folder": str(tmp_path), "make_servers": "at_once"}
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    assert (ask(nova, options, hinted)[0], ask(nova, options, plain)[0], tenure.calls) == (503, 202, [])
    options["lock_folder"] = "/proc/none"
    assert (ask(nova, options, hinted)[0], ask(nova, options, plain)[0], tenure.calls) == (503, 202, [])


@pytest.mark.parametrize(
    ("said", "field", "message"),
    [
        ("end_date: a date must look so.", "end_date", "a date must look so. (lease_params.end)"),
        ("reservations[0].at_end: no.", "reservations[0].at_end", "no. (lease_params.at_end)"),
        ("Not enough.", "reservations[0].flavor_id", "Not enough. (flavorRef)"),
        ("No.", "hold_for", "No. (hold_for)"),
        ("No.", "", "No."),
    ],
)
def test_refusal_names_the_hint_instead_of_the_field(
    nova: Nova, tenure: Tenure, said: str, field: str, message: str
) -> None:
    tenure.answers["hold"] = [(400, {"error_message": said, "field": field})]
    assert boot(nova, tenure)[1]["badRequest"]["message"] == message


@pytest.mark.parametrize(
    ("said", "status", "name"),
    [
        (400, 400, "badRequest"),
        (401, 401, "unauthorized"),
        (403, 403, "forbidden"),
        (409, 409, "conflictingRequest"),
        (404, 503, "serviceUnavailable"),
        (406, 503, "serviceUnavailable"),
        (500, 503, "serviceUnavailable"),
        (503, 503, "serviceUnavailable"),
    ],
)
def test_refusal_of_the_lease_has_novas_error_format(
    nova: Nova, tenure: Tenure, said: int, status: int, name: str
) -> None:
    tenure.answers["hold"] = [(said, {"error_message": "Not enough hosts: 3 match, 0 are free.", "field": "x"})]
    code, answer = boot(nova, tenure)
    assert (code, answer[name]["code"]) == (status, status)
    assert ("0 are free" in answer[name]["message"]) == (status != 503)
    assert nova.asked == []


@pytest.mark.parametrize("answer", [None, (201, {}), (201, {"lease": {"id": "L"}}), (201, [])])
def test_invalid_answer_of_the_service_is_503(nova: Nova, tenure: Tenure, answer: Answer | None) -> None:
    tenure.answers["hold"] = [answer]
    assert boot(nova, tenure)[0] == 503
    assert nova.asked == []


def test_redirects_are_not_followed(nova: Nova, tenure: Tenure, elsewhere: Tenure) -> None:
    tenure.moved_to = elsewhere.url
    tenure.answers["hold"] = [(307, None)]
    assert boot(nova, tenure)[0] == 503
    assert (tenure.calls, elsewhere.calls, nova.asked) == (["POST /v1/leases"], [], [])


@pytest.mark.parametrize("make_servers", ["at_start", "at_once"])
def test_without_a_service_there_is_no_server_with_a_lease(nova: Nova, make_servers: str) -> None:
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    assert ask(nova, {"endpoint": "http://127.0.0.1:9", "make_servers": make_servers}, body)[0] == 503
    assert ask(nova, {"make_servers": make_servers}, body)[0] == 503
    assert "POST" not in nova.methods


def catalogue(**urls: str) -> str:
    """The catalogue of a token, with the reservation service's URLs by region."""
    places = [{"region": region, "publicURL": url} for region, url in urls.items()]
    return json.dumps([{"type": "compute", "endpoints": []}, {"type": "reservation", "endpoints": places}])


def test_the_service_is_found_in_the_catalogue_of_the_token(nova: Nova, tenure: Tenure) -> None:
    known = catalogue(north="http://127.0.0.1:9", south=tenure.url)
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    assert ask(nova, {"region": "south"}, body, HTTP_X_SERVICE_CATALOG=known)[0] == 202
    assert tenure.calls == ["POST /v1/leases"]


def test_an_old_address_without_an_answer_stops_no_boot_by_the_new_one(nova: Nova, tenure: Tenure) -> None:
    """Nova keeps the catalogues of tokens that it has seen before the address was changed."""
    filtered = filter_factory({})(nova)
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    assert send(filtered, body, HTTP_X_SERVICE_CATALOG=catalogue(north="http://127.0.0.1:9"))[0] == 503
    assert send(filtered, body, HTTP_X_SERVICE_CATALOG=catalogue(north=tenure.url))[0] == 202
    assert tenure.calls == ["POST /v1/leases"]


def test_a_list_without_an_answer_stops_no_boot(nova: Nova, tenure: Tenure) -> None:
    """It is given up early, since Nova can answer it alone."""
    filtered = filter_factory({}, endpoint=tenure.url)(nova)
    nova.status, nova.document = "200 OK", {"servers": []}
    tenure.answers["planned"] = [None]
    for _ in range(2):
        assert send(filtered, path="/servers/detail", method="GET") == (200, {"servers": []})
    assert tenure.calls == ["GET /v1/planned-servers?limit=1000"]  # and is not asked again for a while
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    assert send(filtered, body)[0] == 202


def test_after_a_booking_without_an_answer_nobody_is_told_that_there_is_none(nova: Nova, tenure: Tenure) -> None:
    tenure.answers["hold"] = [None]
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    filtered = filter_factory({}, endpoint=tenure.url)(nova)
    said = [send(filtered, body)[1]["serviceUnavailable"]["message"] for _ in range(2)]
    assert ["is not known" in text for text in said] == [True, False]  # the service is not called a second time
    said = [
        ask(nova, {"endpoint": url, "timeout": "0.2"}, body)[1]["serviceUnavailable"]["message"]
        for url in ("http://127.0.0.1:9", "http://no-such-host.invalid", "nothing")
    ]
    assert ["was not booted" in text for text in said] == [True] * 3
    tenure.answers["hold"] = [(503, {"error_message": "Later."})]
    assert "is not known" in ask(nova, {"endpoint": tenure.url}, body)[1]["serviceUnavailable"]["message"]
    tenure.retry_after = "1"  # as the service says where it has done nothing
    assert "was not booted" in ask(nova, {"endpoint": tenure.url}, body)[1]["serviceUnavailable"]["message"]


@pytest.mark.parametrize("key", ["a-key-of-the-client", ""])
def test_a_client_that_gives_a_key_can_repeat_a_booking(nova: Nova, tenure: Tenure, key: str) -> None:
    """The service makes one lease of requests with one key."""
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    tenure.answers["hold"] = [(500, {}), (201, HELD)]
    given = {"HTTP_IDEMPOTENCY_KEY": key} if key else {}
    assert [ask(nova, {"endpoint": tenure.url}, body, **given)[0] for _ in range(2)] == [503, 202]
    assert tenure.asked[0] == tenure.asked[1]
    assert [headers.get("idempotency-key", "") for headers in tenure.headers] == [key, key]


def test_a_boot_without_an_answer_stops_the_next_one(nova: Nova, tenure: Tenure) -> None:
    filtered = filter_factory({}, endpoint=tenure.url)(nova)
    tenure.answers["hold"] = [None]
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    assert [send(filtered, body)[0] for _ in range(2)] == [503, 503]
    assert tenure.calls == ["POST /v1/leases"]


def test_a_service_that_refuses_one_project_for_now_is_called_for_others(nova: Nova, tenure: Tenure) -> None:
    """It answers with 503 where a project has too many requests."""
    filtered = filter_factory({}, endpoint=tenure.url)(nova)
    tenure.answers["hold"] = [(503, {"error_message": "Later."}), (201, HELD)]
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    assert [send(filtered, body)[0] for _ in range(2)] == [503, 202]


@pytest.mark.parametrize("method", ["DELETE", "PUT"])
def test_a_change_of_a_planned_server_without_an_answer_is_no_404(nova: Nova, tenure: Tenure, method: str) -> None:
    """Clients take that for the end of the server, which may be made nevertheless."""
    server: dict[str, Any] = {"id": RESERVED_ID, "name": "web", "flavor_id": "3", "flavor": {}, "lease_id": "L"}
    about = {"server_id": None, "lease_status": "PENDING", "status_reason": None, "project_id": "P", "user_id": "U"}
    dates = dict.fromkeys(("start_date", "end_date", "created_at"), "2030-01-01T11:00:00Z")
    tenure.answers["planned"] = [(200, {"planned_server": {**server, **about, **dates}}), None]
    tenure.answers["release"] = tenure.answers["change"] = [None]
    nova.status, nova.document = "404 Not Found", {"itemNotFound": {"code": 404, "message": "no such server"}}
    body = {"server": {"name": "front"}} if method == "PUT" else {}
    options = {"endpoint": tenure.url}
    status, answer = ask(nova, options, body, path=f"/servers/{RESERVED_ID}", method=method)
    assert (status, "is not known" in answer["serviceUnavailable"]["message"]) == (503, True)


@pytest.mark.parametrize(("asked", "at"), [("2.60", "2.61"), ("2.90", "2.90"), ("2.999", "2.999"), ("1.7", "1.7")])
def test_a_microversion_that_nova_does_not_know_is_not_booked(tenure: Tenure, asked: str, at: str) -> None:
    """Nova says so when it is asked for the flavor."""
    said = {"computeFault": {"code": 406, "message": f"Version {asked} is not supported by the API."}}
    versions: list[str] = []

    def nova(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        versions.append(environ["HTTP_OPENSTACK_API_VERSION"])
        is_known = environ["HTTP_OPENSTACK_API_VERSION"] in ("compute 2.61", "compute 2.90")
        body = json.dumps({"flavor": FLAVOR} if is_known else said).encode()
        start_response("200 OK" if is_known else "406 Not Acceptable", [("Content-Length", str(len(body)))])
        return [body]

    filtered = filter_factory({}, endpoint=tenure.url)(nova)
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    status, answer = send(filtered, body, HTTP_OPENSTACK_API_VERSION=f"compute {asked}")
    assert versions == [f"compute {at}"]
    if asked in ("2.60", "2.90"):
        assert (status, tenure.asked[0][2]["boot"]["microversion"]) == (202, asked)
    else:
        assert (status, answer, tenure.calls) == (406, said, [])


def planned(reservation_id: str, **changes: Any) -> dict[str, Any]:
    server: dict[str, Any] = {"id": reservation_id, "name": "web", "flavor_id": "3", "flavor": {}, "lease_id": "L"}
    about = {"server_id": None, "lease_status": "PENDING", "status_reason": None, "project_id": "P", "user_id": "U"}
    dates = dict.fromkeys(("start_date", "end_date", "created_at"), "2030-01-01T11:00:00.000000")
    return {**server, **about, **dates, **changes}


@pytest.mark.parametrize(
    ("asked", "following"),
    [("limit=3", "limit=3&marker=S2"), ("limit=3&status=RESERVED", "limit=3&status=RESERVED&marker=S2")],
)
def test_the_next_page_is_of_the_size_and_the_statuses_that_were_asked_for(
    nova: Nova, tenure: Tenure, asked: str, following: str
) -> None:
    """The rest of this page was asked of Nova, by its own names of statuses."""
    tenure.answers["planned"] = [(200, {"planned_servers": [planned(RESERVED_ID)]})]
    servers = [{"id": name, "status": "SHELVED", "metadata": {"tenure:reserved": "true"}} for name in ("S1", "S2")]
    links = [{"rel": "next", "href": "http://nova/v2.1/servers/detail?limit=2&marker=S2"}]
    nova.status, nova.document = "200 OK", {"servers": servers, "servers_links": links}
    _, answer = ask(nova, {"endpoint": tenure.url}, path="/servers/detail", method="GET", QUERY_STRING=asked)
    assert [server["id"] for server in answer["servers"]] == [RESERVED_ID, "S1", "S2"]
    assert answer["servers_links"] == [{"rel": "next", "href": f"http://nova/v2.1/servers/detail?{following}"}]


def test_a_list_goes_on_after_a_server_that_was_made_since(tenure: Tenure) -> None:
    """Nova does not know it by the id of its reservation."""
    newer, older = (RESERVED_ID.replace("9d", prefix) for prefix in ("ff", "00"))
    listed = [planned(newer, created_at="2030-01-01T12:00:00.000000"), planned(older)]
    made = planned(RESERVED_ID, server_id="S", lease_status="ACTIVE")
    tenure.answers["planned"] = [(200, {"planned_servers": listed}), (200, {"planned_server": made})]
    queries: list[str] = []

    def nova(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        queries.append(environ["QUERY_STRING"])
        is_known = "marker" not in environ["QUERY_STRING"]
        body = json.dumps({"servers": [{"id": "S"}]} if is_known else {"badRequest": {"code": 400}}).encode()
        start_response("200 OK" if is_known else "400 Bad Request", [("Content-Length", str(len(body)))])
        return [body]

    filtered = filter_factory({}, endpoint=tenure.url)(nova)
    query = f"limit=5&marker={RESERVED_ID}"
    status, answer = send(filtered, path="/servers", method="GET", QUERY_STRING=query)
    assert (status, [server["id"] for server in answer["servers"]]) == (200, [older, "S"])
    assert queries == [query, "limit=4"]


@pytest.mark.parametrize("query", ["", "limit=5"])
def test_a_list_has_the_planned_servers_before_those_of_nova(nova: Nova, tenure: Tenure, query: str) -> None:
    nova.status, nova.document = "200 OK", {"servers": [{"id": "S"}]}
    tenure.answers["planned"] = [(200, {"planned_servers": [planned(RESERVED_ID)]})]
    status, answer = ask(nova, {"endpoint": tenure.url}, path="/servers", method="GET", QUERY_STRING=query)
    assert (status, [server["id"] for server in answer["servers"]]) == (200, [RESERVED_ID, "S"])


def test_a_list_after_what_neither_knows_is_refused_by_nova(nova: Nova, tenure: Tenure) -> None:
    nova.status, nova.document = "400 Bad Request", {"badRequest": {"code": 400, "message": "no such marker"}}
    tenure.answers["planned"] = [(200, {"planned_servers": []}), (404, {"error_message": "none"})]
    query = f"marker={RESERVED_ID}"
    answer = ask(nova, {"endpoint": tenure.url}, path="/servers", method="GET", QUERY_STRING=query)
    assert answer == (400, nova.document)


def test_a_flavor_whose_name_is_a_path_of_nova_is_not_there(nova: Nova, tenure: Tenure) -> None:
    nova.status, nova.document = "200 OK", {"flavors": []}
    body = {"server": {"name": "web", "flavorRef": "detail"}, "os:scheduler_hints": HINTS}
    status, answer = ask(nova, {"endpoint": tenure.url}, body)
    assert (status, "detail" in answer["badRequest"]["message"]) == (400, True)
    assert tenure.calls == []


@pytest.mark.parametrize("is_hidden", [False, True])
def test_the_service_reads_a_flavor_whose_extra_specs_are_hidden(nova: Nova, tenure: Tenure, is_hidden: bool) -> None:
    """By the policy `os_compute_api:os-flavor-extra-specs:index`; without them, other hosts would be booked."""
    if is_hidden:
        del nova.flavor["extra_specs"]
    body = {"server": {"name": "web", "flavorRef": "3"}, "os:scheduler_hints": HINTS}
    status, _ = ask(nova, {"endpoint": tenure.url}, body)
    assert (status, "flavor" in tenure.asked[0][2]["boot"]) == (202, not is_hidden)


def test_a_server_that_nova_refuses_leaves_no_lease(nova: Nova, tenure: Tenure) -> None:
    nova.status, nova.document = "403 Forbidden", {"server": {"id": "none"}}
    assert boot(nova, tenure) == (403, nova.document)
    assert tenure.calls == ["POST /v1/leases", "DELETE /v1/leases/L"]


def test_invalid_microversion_leaves_no_lease(nova: Nova, tenure: Tenure) -> None:
    """Nova refuses the request for it."""
    nova.status, nova.document = "400 Bad Request", {}
    assert boot(nova, tenure, HTTP_X_OPENSTACK_NOVA_API_VERSION="².²") == (400, {})
    assert tenure.calls == ["POST /v1/leases", "DELETE /v1/leases/L"]


def test_a_nova_that_fails_leaves_no_lease(nova: Nova, tenure: Tenure) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    nova.before = fail
    with pytest.raises(RuntimeError):
        boot(nova, tenure)
    assert tenure.calls == ["POST /v1/leases", "DELETE /v1/leases/L"]


def test_a_confirmation_without_an_answer_is_repeated(nova: Nova, tenure: Tenure) -> None:
    tenure.answers["confirm"] = [None, (503, {}), (200, HELD)]
    assert boot(nova, tenure)[0] == 202
    assert tenure.calls[1:] == ["POST /v1/leases/L/confirm"] * 3


@pytest.mark.parametrize("said", [404, 409])
def test_a_server_that_cannot_be_reserved_is_given_up_at_once(nova: Nova, tenure: Tenure, said: int) -> None:
    tenure.answers["confirm"] = [(said, {"error_message": "It is another lease's."})]
    status, answer = boot(nova, tenure)
    assert status == 409
    assert "Server S" in answer["conflictingRequest"]["message"]
    assert "another lease's" in answer["conflictingRequest"]["message"]
    assert tenure.calls[-1] == "DELETE /v1/leases/L"
    assert "is deleted again" in answer["conflictingRequest"]["message"]
    assert nova.methods == ["POST", "GET", "DELETE"]
    assert nova.asked[1:] == [("/servers/S", b"")] * 2


def server_in_error(fault: str) -> dict[str, Any]:
    marked = {"id": "S", "status": "ERROR", "metadata": {"tenure:lease": "L", "tenure:reserved": "true"}}
    return {"server": {**marked, "fault": {"code": 500, "message": fault}}}


def test_a_server_that_finds_no_host_now_is_made_at_the_start(nova: Nova, tenure: Tenure) -> None:
    tenure.answers["confirm"] = [(409, {"error_message": "The server is in ERROR."})]
    nova.shown = server_in_error("No valid host was found.")
    status, answer = boot(nova, tenure)
    assert (status, answer["server"]["id"]) == (202, "R")
    assert tenure.calls[2:] == ["DELETE /v1/leases/L", "POST /v1/leases"]
    assert tenure.asked[-1][2]["boot"]["request"]["server"] == {"name": "web", "flavorRef": "3"}
    assert nova.methods == ["POST", "GET", "DELETE", "GET"]


def test_a_server_with_another_fault_is_refused_with_the_fault(nova: Nova, tenure: Tenure) -> None:
    tenure.answers["confirm"] = [(409, {"error_message": "The server is in ERROR."})]
    nova.shown = server_in_error("The image is broken.")
    status, answer = boot(nova, tenure)
    assert (status, "The image is broken." in answer["conflictingRequest"]["message"]) == (409, True)


@pytest.mark.parametrize("path", ["/0f1e2d/servers", "/0f1e2d/servers/", "/0f1e2d/os-volumes_boot"])
def test_a_server_undeletable_for_its_owner_is_left_to_the_service(nova: Nova, tenure: Tenure, path: str) -> None:
    tenure.answers["confirm"] = [(409, {"error_message": "It is another lease's."})]
    nova.status_of_deletion = "403 Forbidden"
    status, answer = boot(nova, tenure, path=path)
    assert (status, "is to be deleted" in answer["conflictingRequest"]["message"]) == (409, True)
    assert [path for path, _ in nova.asked[1:]] == ["/0f1e2d/servers/S"] * 2


def test_unknown_outcome_names_the_lease_to_check(nova: Nova, tenure: Tenure) -> None:
    tenure.answers["confirm"] = [None]
    status, answer = boot(nova, tenure)
    assert status == 503
    assert "lease L" in answer["serviceUnavailable"]["message"]
    assert "DELETE /v1/leases/L" not in tenure.calls


@pytest.mark.parametrize("path", ["/servers/detail", "/0f1e2d/servers/detail"])
def test_sleeping_servers_are_shown_as_reserved_unless_switched_off(nova: Nova, path: str) -> None:
    marked = {"id": "S", "status": "SHELVED_OFFLOADED", "metadata": {"tenure:reserved": "true"}}
    nova.status, nova.document = "200 OK", {"servers": [marked, {"id": "T", "status": "ACTIVE", "metadata": {}}]}
    status, answer = ask(nova, {}, path=path, method="GET")
    assert (status, [server["status"] for server in answer["servers"]]) == (200, ["RESERVED", "ACTIVE"])
    assert ask(nova, {"show_reserved": "false"}, path=path, method="GET")[1] == nova.document
    assert ask(nova, {}, path=path, method="GET", HTTP_X_TENURE_PLAIN="1")[1] == nova.document


@pytest.mark.parametrize(
    "given",
    [
        {"end_point": "x"},
        {"timeout": "0"},
        {"hold_seconds": "0"},
        {"hold_seconds": "x"},
        {"interface": "inner"},
        {"at_once": "0"},
    ],
)
def test_unknown_option_stops_the_start(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        filter_factory({}, **given)


def test_certificates_are_checked_unless_it_is_forbidden() -> None:
    assert Settings.read({}).verify is True
    assert Settings.read({"cafile": "/etc/ca.pem"}).verify == "/etc/ca.pem"
    assert Settings.read({"insecure": "true", "cafile": "/etc/ca.pem"}).verify is False
