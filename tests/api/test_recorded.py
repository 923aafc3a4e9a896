"""Exchanges that were recorded with Blazar 18 on a real cloud, asked of us in process."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tests.api.rig import open_api
from tests.support.recorded import (
    ADDRESSES,
    DIFFERENCES,
    FLAVOR,
    HOSTS,
    NETWORK,
    NULLS,
    PAGE,
    RECORDED,
    RECORDED_AT,
    TEXTS,
    Answer,
    Replay,
    read_exchanges,
)

#: What the cloud of the recording calls what the simulated one has under another name.
CALLED = {NETWORK: PUBLIC_NETWORK, ADDRESSES: "203.0.113.", FLAVOR: "1"}


def test_every_recorded_exchange_is_replayed() -> None:
    assert [exchange.number for exchange in read_exchanges()] == list(range(RECORDED))


def test_every_difference_is_documented_with_its_reason() -> None:
    page = PAGE.read_text()
    explanations = {*(difference.explanation for difference in DIFFERENCES.values()), *NULLS.values(), *TEXTS.values()}
    assert sorted(words for words in explanations if words not in page) == []


@pytest.mark.slow
def test_the_answers_are_those_of_blazar(tmp_path: Path) -> None:
    with open_api(tmp_path, hosts=0) as api:

        def ask(who: str, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
            token = {"X-Auth-Token": "not a token of anybody"} if who == "bad token" else {}
            result = api.using(who).call(method, path, raw=body, headers={**token, **headers})
            return Answer.of(result.status_code, result.headers, result.text)

        api.world.clock.set(RECORDED_AT - timedelta(hours=2))
        for name in HOSTS:
            facts = {"vcpus": 8, "memory_mb": 32768 if name == "compute-3" else 16384, "local_gb": 200}
            api.world.cloud.world.add_host(name, facts={**facts, "hypervisor_type": "fake"}, traits=())
        replay = Replay(ask, timedelta(), dict(CALLED))
        replay.register_hosts()
        api.using("admin", "1.1").book(start=0.01)
        api.world.pass_until(RECORDED_AT)
        replay.run()
    assert not replay.failures, "\n".join(replay.failures)
