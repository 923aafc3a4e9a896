"""Quotas by the unified limits of a real Keystone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session

from tenure.resources.contract import load_types
from tenure.services.limits.quotas import names_of
from tests.support.cloud import Cloud, Undo
from tests.support.site import Site, answered, moment, open_site


@pytest.fixture(scope="module")
def limited(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tenure which asks Keystone at each request."""
    options = {"quota": {"driver": "unified", "cache_seconds": 0}}
    with open_site(tmp_path_factory.mktemp("limits"), cloud, options=options) as site:
        yield site


@pytest.fixture
def keystone(cloud: Cloud, admin: Session) -> Adapter:
    return cloud.service(admin, "identity")


@pytest.fixture
def scope(cloud: Cloud, keystone: Adapter) -> dict[str, str]:
    """What limits of the service are registered for."""
    [service] = keystone.get("/v3/services?type=reservation").json()["services"]
    return {"service_id": service["id"], "region_id": cloud.openrc["OS_REGION_NAME"]}


def register(keystone: Adapter, scope: dict[str, str], undo: Undo, defaults: dict[str, int]) -> None:
    body = [{**scope, "resource_name": name, "default_limit": limit} for name, limit in defaults.items()]
    made = keystone.post("/v3/registered_limits", json={"registered_limits": body}).json()["registered_limits"]
    undo.extend(partial(keystone.delete, f"/v3/registered_limits/{limit['id']}") for limit in made)


def try_to_book(site: Site, by: Session, *, hours: int = 1) -> Any:
    """Ask for a host for an hour, so many hours from now."""
    asked = {"resource_type": "physical:host", "min": 1, "max": 1}
    times = {"start_date": moment(seconds=3600 * hours), "end_date": moment(seconds=3600 * (hours + 1))}
    return site.api(by).post("/leases", json={"name": "of-a-test", **times, "reservations": [asked]})


def test_a_project_books_up_to_its_limit_and_beyond_when_it_is_raised(
    limited: Site, keystone: Adapter, scope: dict[str, str], demo: Session, other: Session, undo: Undo
):
    undo.append(limited.clear)
    limited.register("compute-1", "compute-2")
    refused = answered(try_to_book(limited, demo), 403)
    assert "0 of 0 used" in refused["error_message"]  # nothing is registered yet

    register(keystone, scope, undo, {**dict.fromkeys(names_of(load_types()), -1), "leases": 1})
    answered(try_to_book(limited, demo), 201)
    refused = answered(try_to_book(limited, demo), 403)
    assert (refused["error_name"], refused["details"]) == (
        "OverQuota",
        {"resource": "leases", "limit": 1, "used": 1, "requested": 1},
    )

    mine = {**scope, "project_id": demo.get_project_id(), "resource_name": "leases", "resource_limit": 2}
    [raised] = keystone.post("/v3/limits", json={"limits": [mine]}).json()["limits"]
    undo.append(lambda: keystone.delete(f"/v3/limits/{raised['id']}"))
    answered(try_to_book(limited, demo), 201)
    refused = answered(try_to_book(limited, demo, hours=3), 403)
    assert refused["details"]["limit"] == 2
    shown = answered(limited.api(demo, "1.2").get("/limits"), 200)["limits"]
    assert {"name": "leases", "limit": 2, "used": 2} in shown
