"""Exchanges that were recorded with Blazar 18 on a cloud like this one, asked of Tenure through Keystone and HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.cloud import Cloud
from tests.support.recorded import FLAVOR, NETWORK, RECORDED_AT, Answer, Replay
from tests.support.site import Site, open_site


@pytest.fixture
def fresh(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tenure on a database of its own, as the recording begins with the first host and with no properties."""
    with open_site(tmp_path_factory.mktemp("wire"), cloud) as site:
        yield site


def test_the_answers_are_those_of_blazar(fresh: Site):
    sessions = {who: fresh.cloud.session(who) for who in ("admin", "demo", "other")}
    root = fresh.deployment.url().removesuffix("/v1")

    def ask(who: str, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        more: dict[str, Any] = {"X-Auth-Token": "not a token of anybody"} if who == "bad token" else {}
        answer = sessions.get(who, fresh.nova.admin).request(
            root + path,
            method,
            data=body,
            headers={"Accept": "application/json", **more, **headers},
            authenticated=who in sessions,
            raise_exc=False,
            redirect=False,
        )
        return Answer.of(answer.status_code, answer.headers, answer.text)

    (network,) = fresh.cloud.service(sessions["admin"], "network").get("/v2.0/networks?name=public").json()["networks"]
    called = {NETWORK: network["id"], FLAVOR: fresh.nova.flavor("m1.small")}
    replay = Replay(ask, datetime.now(UTC) - RECORDED_AT, called)
    replay.register_hosts()
    fresh.book(sessions["admin"], seconds=5).wait("TERMINATED")
    replay.run()
    assert not replay.failures, "\n".join(replay.failures)
