"""Servers that are booted for a lease: requests with hints to the real Nova, and a stand-in for Tenure that fails."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session

from tests.support.cloud import OPENRC
from tests.support.site import Lease, Server, Site, answered, moment, name_in_catalogue
from tests.support.waiting import patience

COMPUTE = "2.90"
NAME = "by-hint"
#: How long the start of a server takes at most, and an answer that has to wait for others.
NOVA_SECONDS = 120
#: The header of those who want Nova's answer without our filter.
_PLAIN = {"X-Tenure-Plain": "true"}


def compute(site: Site, by: Session, version: str = COMPUTE) -> Adapter:
    """Return Nova as the account sees it, through our filter."""
    return site.cloud.service(by, "compute", version)


def boot(
    site: Site, by: Session, lease: Mapping[str, str] | str | None, version: str = COMPUTE, /, **more: object
) -> requests.Response:
    """Return the answer of Nova to a request to boot a server with hints for a lease; without a lease, with none."""
    body: dict[str, object] = {
        "server": {
            "name": NAME,
            "imageRef": site.nova.image,
            "flavorRef": site.nova.flavor("m1.tiny"),
            "networks": "none",
            **more,
        }
    }
    if lease is not None:
        text = lease if isinstance(lease, str) else json.dumps(lease)
        body["os:scheduler_hints"] = {"reserved": "True", "lease_params": text}
    return compute(site, by, version).post("/servers", json=body, raise_exc=False)


def later() -> dict[str, str]:
    """Return the parameters of a lease that starts in half an hour, and lasts as long."""
    return {"start": moment(seconds=1800), "end": moment(seconds=3600)}


def statuses(site: Site, by: Session) -> dict[str, str]:
    """Return the statuses of the servers that the account is shown in a list, by id."""
    servers = answered(compute(site, by).get("/servers/detail", raise_exc=False), 200)["servers"]
    return {server["id"]: server["status"] for server in servers}


def lease_of_planned(site: Site, by: Session, reservation_id: str) -> Lease:
    """Return the lease whose server is made, or was made, for the reservation."""
    api = site.api(by, "1.4")
    planned = answered(api.get(f"/planned-servers/{reservation_id}"), 200)["planned_server"]
    return Lease(api, planned["lease_id"], reservation_id)


def start_soon(lease: Lease) -> dict[str, Any]:
    """Move the start of the lease to a moment from now, and return the lease when it is ACTIVE."""
    lease.change(start_date=moment(seconds=patience(3)))
    return lease.wait("ACTIVE", seconds=NOVA_SECONDS)


def made_for(site: Site, reservation_id: str) -> list[Server]:
    """Return the servers that Nova itself has for a reservation, by their metadata."""
    found = answered(site.nova.api.get("/servers/detail?all_tenants=1", headers=_PLAIN), 200)["servers"]
    return [
        Server(site.nova, server["id"])
        for server in found
        if server["metadata"].get("tenure:reservation") == reservation_id
    ]


def plain_status(server: Server) -> str:
    """Return its status as Nova itself has it."""
    answer = server.nova.api.get(f"/servers/{server.id}", headers=_PLAIN, raise_exc=False)
    return str(answered(answer, 200)["server"]["status"])


def kill_nova_api() -> None:
    """Kill all processes that serve Nova's API, at once; their master starts new ones."""
    master = (OPENRC.parent / "state/pid/nova-api").read_text().split()[0]
    for child in Path(f"/proc/{master}/task/{master}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


class StandIn(ThreadingHTTPServer):
    """A server in place of the reservation service: it passes requests on, but for what it is told otherwise.

    A confirmation is passed on only after ``before_confirmation``. Without that it is refused, or has no answer at all.
    """

    def __init__(self, endpoint: str, hold_seconds: int) -> None:
        self.endpoint = endpoint.removesuffix("/v1")
        #: How long leases are held, whatever is asked for.
        self.hold_seconds = hold_seconds
        #: The body of the confirmation, once it has come.
        self.confirmation: dict[str, Any] = {}
        self.confirmation_came = threading.Event()
        self.is_over = threading.Event()
        #: Whether a confirmation is refused; otherwise it has no answer.
        self.refuses = False
        self.before_confirmation: Callable[[], object] | None = None
        #: Called when the service has booked a lease, before its answer is passed on.
        self.after_booking: Callable[[], object] = lambda: None
        super().__init__(("127.0.0.1", 0), _Forwarded)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected."""


class _Forwarded(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("/confirm"):
            held = {"hold_for": self.server.hold_seconds} if "hold_for" in body else {}
            answer = self._ask({**body, **held})
            self.server.after_booking()
            self._answer(answer.status_code, answer.content)
            return
        self.server.confirmation = body
        self.server.confirmation_came.set()
        if self.server.before_confirmation is not None:
            self.server.before_confirmation()
            self._forward(body)
        elif self.server.refuses:
            self._answer(409, b'{"error_message": "It is said so."}')
        else:
            self.server.is_over.wait(NOVA_SECONDS)

    def do_PUT(self) -> None:
        self._forward(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self) -> None:
        self._forward(None)

    def do_DELETE(self) -> None:
        self._forward(None)

    def _forward(self, body: dict[str, Any] | None) -> None:
        answer = self._ask(body)
        self._answer(answer.status_code, answer.content)

    def _ask(self, body: dict[str, Any] | None) -> requests.Response:
        headers = {name: self.headers[name] for name in ("X-Auth-Token", "OpenStack-API-Version")}
        url = self.server.endpoint + self.path
        return requests.request(self.command, url, json=body, headers=headers, timeout=NOVA_SECONDS)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def stand_in(site: Site, *, hold_seconds: int) -> Iterator[StandIn]:
    """Have the catalogue name a stand-in for the reservation service, until the end of the block.

    Accounts that log in meanwhile have it in their catalogue also afterwards, when nobody listens there.
    """
    with StandIn(site.deployment.url(), hold_seconds) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        name_in_catalogue(f"http://127.0.0.1:{service.server_port}/v1")
        try:
            yield service
        finally:
            service.is_over.set()
            name_in_catalogue(site.deployment.url())
            service.shutdown()
