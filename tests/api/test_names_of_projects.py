"""Projects and users in queries: by id or by name, and an error for what does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tenure.drivers.simulated import Fault, FaultKind
from tests.api.rig import USERS, Api, open_api, rfc3339
from tests.support.world import NOW


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.3")


@pytest.fixture
def admin(api: Api) -> Api:
    return api.using("admin")


def usage_query(**more: str) -> str:
    return urlencode({"start_date": rfc3339(NOW), "end_date": rfc3339(NOW + timedelta(hours=9)), **more})


def read(api: Api, path: str) -> Any:
    answer = api.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json


def names(api: Api, query: str) -> list[str]:
    return [lease["name"] for lease in read(api, f"/v1/leases?{query}")["leases"]]


def test_project_is_named_by_id_or_by_name(api: Api, admin: Api) -> None:
    api.book(name="own")
    api.using("other").book(name="foreign")
    for given in ("demo-project", "demo"):
        shown = read(admin, f"/v1/limits?project_id={given}")
        assert shown["project_id"] == "demo-project"
        assert {limit["name"]: limit["used"] for limit in shown["limits"]}["leases"] == 1
        rows = read(admin, f"/v1/usage?{usage_query(project_id=given)}")["usage"]
        assert [row["project_id"] for row in rows] == ["demo-project"]
        assert names(admin, f"project_id={given}") == ["own"]


def test_user_is_named_by_id_or_by_name(api: Api, admin: Api) -> None:
    api.book(name="own")
    api.using("other").book(name="foreign")
    for given in ("other-user", "other"):
        assert names(admin, f"user_id={given}") == ["foreign"]
    assert names(admin, "user_id=nobody") == []


def test_own_project_and_user_may_be_named(api: Api) -> None:
    api.book(name="own")
    assert read(api, "/v1/limits?project_id=demo")["project_id"] == "demo-project"
    assert names(api, "project_id=demo&user_id=demo") == ["own"]
    assert names(api.using("reader"), "user_id=demo") == ["own"]
    assert names(api.using("reader"), "user_id=reader") == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/limits?project_id=no-such", "project_id"),
        (f"/v1/usage?{usage_query(project_id='no-such')}", "project_id"),
        (f"/v1/usage?{usage_query(project_id='no-such', format='csv')}", "project_id"),
        ("/v1/leases?project_id=no-such", "project_id"),
        ("/v1/leases?user_id=no-such", "user_id"),
        ("/v1/leases?user_id=..", "user_id"),
        ("/v1/leases?user_id=a/b%3Fc", "user_id"),
    ],
)
def test_unknown_project_or_user_is_an_error(admin: Api, path: str, field: str) -> None:
    refused = admin.get(path)
    assert refused.status_code == 400, refused.text
    assert refused.json["field"] == field
    what = field.removesuffix("_id")
    assert f"No {what} has the id or the name" in refused.json["error_message"]


def test_project_or_user_that_is_gone_is_known_by_its_leases(api: Api, admin: Api) -> None:
    api.book(name="own")
    api.world.cloud.openstack.accounts = ()
    assert names(admin, "project_id=demo-project&user_id=demo-user") == ["own"]
    assert read(admin, "/v1/limits?project_id=demo-project")["project_id"] == "demo-project"
    assert admin.get("/v1/leases?project_id=demo").status_code == 400


def test_members_are_not_told_which_projects_and_users_exist(api: Api) -> None:
    api.using("other").book(name="foreign")
    for path in ("/v1/limits?", f"/v1/usage?{usage_query()}&", "/v1/leases?"):
        texts = set()
        for project in ("other", "other-project", "no-such"):
            refused = api.get(f"{path}project_id={project}")
            assert refused.status_code == 403, refused.text
            texts.add(refused.json["error_message"])
        assert len(texts) == 1
    for user in ("other", "other-user", "admin", "no-such"):
        refused = api.get(f"/v1/leases?user_id={user}")
        assert refused.status_code == 400, refused.text
        assert refused.json["error_message"] == f"No user with leases in your project has the id or the name '{user}'."


def test_name_of_several_projects_is_refused_with_their_ids(api: Api, admin: Api) -> None:
    twins = [replace(USERS["other"], project_id=f"twin-{number}", project_name="twin") for number in (1, 2)]
    api.world.cloud.openstack.accounts = [*USERS.values(), *twins]
    refused = admin.get("/v1/limits?project_id=twin")
    assert refused.status_code == 400, refused.text
    assert "twin-1, twin-2" in refused.json["error_message"]
    assert read(admin, "/v1/limits?project_id=twin-1")["project_id"] == "twin-1"


def test_list_needs_the_cloud_for_names_only(api: Api, admin: Api) -> None:
    api.book(name="own")
    api.world.cloud.inject(Fault(FaultKind.BUSY, "identify", count=None))
    assert names(admin, "project_id=demo-project&user_id=demo-user") == ["own"]
    assert names(api, "project_id=demo&user_id=demo") == ["own"]
    assert admin.get("/v1/leases?project_id=other").status_code == 503
