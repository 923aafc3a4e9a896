"""Limits and usage of a project, on the wire."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import Unavailable
from tenure.services.limits.quotas import FixedLimits, Quotas
from tests.api.rig import Api, api_over, open_api, rfc3339
from tests.support.engines import rebuild


class Away:
    """Limits that are unavailable at present."""

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        raise Unavailable("Keystone is away.")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.2")


def limited(api: Api, tmp_path: Path, quotas: Quotas) -> Api:
    rebuild(api.world, quotas=quotas)
    folder = tmp_path / "limited"
    folder.mkdir()
    return api_over(api.world, folder).using(version="1.2")


def shown(api: Api, query: str = "") -> dict[str, tuple[int, int]]:
    answer = api.get(f"/v1/limits{query}")
    assert answer.status_code == 200, answer.text
    return {limit["name"]: (limit["limit"], limit["used"]) for limit in answer.json["limits"]}


def test_a_project_sees_its_limits_and_its_usage(api: Api, tmp_path: Path):
    quotas = Quotas(FixedLimits({"leases": 3, "hours_of_hosts": 8}), horizon=timedelta(days=1))
    api = limited(api, tmp_path, quotas)
    api.book(start=1, hours=2)
    api.book(start=2, hours=2)
    answer = api.get("/v1/limits")
    assert answer.json["project_id"] == "demo-project"
    assert answer.json["hours_until"] == rfc3339(api.now + timedelta(days=1))
    found = shown(api)
    assert (found["leases"], found["hosts"], found["hours_of_hosts"]) == ((3, 2), (-1, 2), (8, 4))
    assert found["floating_ips"] == (-1, 0)
    assert shown(api.using(user="other"))["leases"] == (3, 0)


def test_only_administrators_see_the_limits_of_other_projects(api: Api, tmp_path: Path):
    api = limited(api, tmp_path, Quotas(FixedLimits({"leases": 3})))
    api.book(start=1)
    assert shown(api.using(user="admin"), "?project_id=demo-project")["leases"] == (3, 1)
    assert shown(api.using(user="admin"), "?project_id=other-project")["leases"] == (3, 0)
    assert shown(api.using(user="reader"), "?project_id=demo-project")["leases"] == (3, 1)
    assert api.using(user="other").get("/v1/limits?project_id=demo-project").status_code == 403
    assert api.using(user="nobody").get("/v1/limits").status_code == 403


def test_without_quotas_nothing_is_limited(api: Api):
    api.book(start=1)
    assert shown(api)["leases"] == (-1, 1)


def test_limits_are_unavailable_while_keystone_is_away(api: Api, tmp_path: Path):
    refused = limited(api, tmp_path, Quotas(Away())).get("/v1/limits")
    assert (refused.status_code, refused.json["error_message"]) == (503, "Keystone is away.")


@pytest.mark.parametrize("version", [None, "1.1"])
def test_limits_came_with_1_2(api: Api, version: str | None):
    assert api.using(version=version).get("/v1/limits").status_code == 404
