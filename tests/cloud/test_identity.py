"""Permissions by roles of Keystone, and answers while a service that Tenure needs is unavailable."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import requests
from keystoneauth1.adapter import Adapter
from keystoneauth1.exceptions import Unauthorized
from keystoneauth1.identity import V3ApplicationCredential, V3Password
from keystoneauth1.session import Session

from testbed.processes import pid_of
from tests.support.cloud import Cloud, Undo
from tests.support.site import FREE_POOL, HOSTS, Site, answered, have_testbed, moment
from tests.support.waiting import SECONDS, patience, wait_for

#: How soon a caller learns that a service is unavailable, on an idle machine; it takes half of that at most. Without a
#: limit of ours it would take a minute at least.
SOON_SECONDS = 20

EMPTY: dict[str, Any] = {"name": "of-a-test", "start_date": "now", "reservations": []}


@dataclass
class Keystone:
    """What the administrator says to Keystone."""

    cloud: Cloud
    api: Adapter
    undo: Undo

    def make(self, kind: str, path: str | None = None, **body: object) -> dict[str, Any]:
        """Make something, which goes at the end of the test."""
        path = path or f"/{kind}s"
        made = dict(self.api.post(path, json={kind: body}).json()[kind])
        self.undo.append(lambda: self.api.delete(f"{path}/{made['id']}", raise_exc=False))
        return made

    def role(self, name: str) -> str:
        (found,) = self.api.get(f"/roles?name={name}").json()["roles"]
        return str(found["id"])

    def project(self, name: str) -> str:
        (found,) = self.api.get(f"/projects?name={name}").json()["projects"]
        return str(found["id"])

    def user(self, *roles: str, project: str) -> tuple[dict[str, Any], Session]:
        """A new user with roles in a project, and his session."""
        name = f"of-a-test-{uuid4().hex[:8]}"
        made = self.make("user", name=name, domain_id="default", password=self.cloud.openrc["OS_PASSWORD"])
        for role in roles:
            self.api.put(f"/projects/{self.project(project)}/users/{made['id']}/roles/{self.role(role)}")
        return made, self.cloud.session(name, project)


@pytest.fixture
def keystone(cloud: Cloud, admin: Session, undo: Undo) -> Keystone:
    api = Adapter(admin, service_type="identity", endpoint_override=cloud.openrc["OS_AUTH_URL"])
    return Keystone(cloud, api, undo)


def ask(site: Site, token: str | None, path: str = "/leases", version: str = "1.1") -> requests.Response:
    """What the API says to a bare token, with no client that would ask for another one."""
    headers = {"OpenStack-API-Version": f"reservation {version}"} | ({"X-Auth-Token": token} if token else {})
    return requests.get(f"{site.deployment.url()}{path}", headers=headers, timeout=patience())


def token_of(session: Session) -> str:
    token = session.get_token()
    assert token is not None
    return token


def new_token(cloud: Cloud, user: str = "demo") -> str:
    """A token that the API has not seen, so that it must ask Keystone."""
    return token_of(cloud.session(user))


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("token", [None, "gAAAAABnotatoken", "x" * 300], ids=["none", "bad", "long"])
def test_requests_without_a_valid_token_are_refused(site: Site, token: str | None, version: str):
    answer = ask(site, token, version=version)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == f'Keystone uri="{site.cloud.openrc["OS_AUTH_URL"]}"'
    document = answer.json()
    if version == "1.1":
        assert (document["error_code"], document["error_name"]) == (401, "Unauthorized")
    else:
        assert document["error"]["code"] == 401


def test_a_revoked_token_is_refused(site: Site, cloud: Cloud):
    session = cloud.session("demo")
    token = token_of(session)
    answered(session.delete(f"{cloud.openrc['OS_AUTH_URL']}/auth/tokens", headers={"X-Subject-Token": token}), 204)
    assert ask(site, token).status_code == 401


def test_a_token_is_refused_when_it_has_expired(site: Site, cloud: Cloud, undo: Undo):
    demo = cloud.session("demo")
    address = f"{cloud.openrc['OS_AUTH_URL']}/users/{demo.get_user_id()}/application_credentials"
    wanted = {"name": f"of-a-test-{uuid4().hex[:8]}", "expires_at": moment(seconds=8), "roles": [{"name": "reader"}]}
    made = answered(demo.post(address, json={"application_credential": wanted}), 201)["application_credential"]
    undo.append(lambda: demo.delete(f"{address}/{made['id']}", raise_exc=False))
    auth = V3ApplicationCredential(
        auth_url=cloud.openrc["OS_AUTH_URL"],
        application_credential_id=made["id"],
        application_credential_secret=made["secret"],
    )
    token = token_of(Session(auth))
    assert ask(site, token).status_code == 200
    wait_for("the token to expire", lambda: ask(site, token).status_code == 401, seconds=30)


def test_a_token_first_used_with_tenure_is_valid_for_nova(site: Site, cloud: Cloud):
    """They share a cache of tokens, and what Nova finds there must have a catalogue."""
    demo = cloud.session("demo")
    answered(site.api(demo).get("/leases"), 200)
    assert site.nova.boot(demo).place() in HOSTS


def test_each_role_has_its_permissions(site: Site, keystone: Keystone, demo: Session, other: Session, admin: Session):
    _, reader = keystone.user("reader", project="demo")
    _, stranger = keystone.user(keystone.make("role", name=f"auditor-{uuid4().hex[:8]}")["name"], project="demo")
    lease = site.book(demo, 0, start=moment(hours=1), seconds=7200, reservations=[])

    def outcomes(session: Session) -> dict[str, int]:
        api = site.api(session)
        body = EMPTY | {"start_date": moment(hours=1), "end_date": moment(hours=2)}
        return {
            "list": api.get("/leases").status_code,
            "show": api.get(f"/leases/{lease.id}").status_code,
            "make": api.post("/leases", json=body).status_code,
            "change": api.put(f"/leases/{lease.id}", json={"name": "another"}).status_code,
            "hosts": api.get("/os-hosts").status_code,
        }

    assert outcomes(reader) == {"list": 200, "show": 200, "make": 403, "change": 403, "hosts": 403}
    assert outcomes(stranger) == {"list": 403, "show": 403, "make": 403, "change": 403, "hosts": 403}
    assert outcomes(demo) == {"list": 200, "show": 200, "make": 201, "change": 200, "hosts": 403}
    assert outcomes(other) == {"list": 200, "show": 404, "make": 201, "change": 404, "hosts": 403}
    assert outcomes(admin) == {"list": 200, "show": 200, "make": 201, "change": 200, "hosts": 200}
    assert {lease["project_id"] for lease in answered(site.api(other).get("/leases"), 200)["leases"]} == {
        other.get_project_id()
    }
    assert site.api(reader).delete(f"/leases/{lease.id}").status_code == 403
    assert site.api(other).delete(f"/leases/{lease.id}").status_code == 404
    lease.delete()


@pytest.mark.parametrize("domain", [None, "default"], ids=["unscoped", "domain"])
def test_a_token_without_a_project_is_refused(site: Site, cloud: Cloud, keystone: Keystone, domain: str | None):
    user, _ = keystone.user("admin", project="demo")
    keystone.api.put(f"/domains/default/users/{user['id']}/roles/{keystone.role('admin')}")
    auth = V3Password(
        auth_url=cloud.openrc["OS_AUTH_URL"],
        user_id=user["id"],
        password=cloud.openrc["OS_PASSWORD"],
        unscoped=domain is None,
        domain_id=domain,
    )
    answer = ask(site, token_of(Session(auth)))
    assert answer.status_code == 403
    assert "project" in answer.json()["error_message"]


@pytest.mark.parametrize("fate", ["deleted", "without his role"])
def test_a_lease_runs_to_its_end_without_its_owner(site: Site, cloud: Cloud, keystone: Keystone, fate: str):
    site.register("compute-1")
    owner, session = keystone.user("member", project="demo")
    lease = site.book(session, on="compute-1", seconds=3600)
    lease.wait("ACTIVE")
    server = site.nova.boot(session, reservation=lease.reservation)
    assert server.place() == "compute-1"
    if fate == "deleted":
        keystone.api.delete(f"/users/{owner['id']}")
    else:
        keystone.api.delete(f"/projects/{keystone.project('demo')}/users/{owner['id']}/roles/{keystone.role('member')}")
    with pytest.raises(Unauthorized):
        cloud.session(owner["name"], "demo").get_token()
    lease = lease.seen_by(site.admin)
    lease.change(end_date=moment(seconds=1))
    lease.wait("TERMINATED")
    assert server.show() is None
    assert site.nova.members(FREE_POOL) == {"compute-1"}
    assert lease.reservation not in site.nova.aggregates()


@contextmanager
def hanging(name: str) -> Iterator[None]:
    """Have a process of the testbed, with all that it has started, take requests and answer none."""
    pid = pid_of(name)
    assert pid is not None
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(pid, signal.SIGCONT)


@contextmanager
def away(name: str) -> Iterator[None]:
    """Have a process of the testbed be dead."""
    have_testbed("stop", name)
    try:
        yield
    finally:
        have_testbed("start")


def timed(call: Callable[[], requests.Response]) -> tuple[int, float]:
    began = time.monotonic()
    status = call().status_code
    return status, time.monotonic() - began


def assert_refused_soon(call: Callable[[], requests.Response]) -> None:
    status, seconds = timed(call)
    assert status == 503
    assert seconds < patience(SOON_SECONDS)


def test_a_hanging_keystone_is_reported_as_away(site: Site, cloud: Cloud):
    token = new_token(cloud)
    with hanging("keystone"):
        assert_refused_soon(lambda: ask(site, token))
    assert ask(site, token).status_code == 200


def test_a_dead_keystone_is_reported_as_away(site: Site, cloud: Cloud):
    known, token = new_token(cloud), new_token(cloud)
    assert ask(site, known).status_code == 200
    with away("keystone"):
        assert_refused_soon(lambda: ask(site, token))
        assert ask(site, known).status_code == 200
    wait_for("Keystone to be there again", lambda: ask(site, token).status_code == 200)


def test_a_manager_that_is_away_is_reported(site: Site, cloud: Cloud):
    token = new_token(cloud)
    assert ask(site, token).status_code == 200
    (manager,) = site.deployment.managers
    manager.kill()
    try:
        assert_refused_soon(lambda: ask(site, token))
        assert site.deployment.health() == 503
    finally:
        manager.start()
    wait_for("the manager to be there again", lambda: ask(site, token).status_code == 200, seconds=2 * SECONDS)


def test_a_hanging_manager_is_reported_as_away(site: Site, cloud: Cloud):
    token = new_token(cloud)
    assert ask(site, token).status_code == 200
    (manager,) = site.deployment.managers
    assert manager.process is not None
    manager.process.send_signal(signal.SIGSTOP)
    try:
        assert_refused_soon(lambda: ask(site, token))
    finally:
        manager.process.send_signal(signal.SIGCONT)
    wait_for("the manager to go on", lambda: ask(site, token).status_code == 200)


def test_a_dead_database_is_reported_as_away(site: Site, cloud: Cloud):
    token = new_token(cloud)
    assert ask(site, token).status_code == 200
    with away("mariadb"):
        assert_refused_soon(lambda: ask(site, token))
        assert site.deployment.health() == 503
    wait_for("the database to be there again", lambda: ask(site, token).status_code == 200)
    wait_for("Keystone to work again", lambda: ask(site, new_token(cloud)).status_code == 200)
