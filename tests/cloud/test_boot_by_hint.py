"""Servers that are booted for a lease, by hints to the real Nova, with our filter before its API."""

from __future__ import annotations

import json
from typing import Any

from keystoneauth1.session import Session

from tests.support.cloud import Cloud
from tests.support.site import Server, Site, moment

COMPUTE = "2.90"


def boot(site: Site, by: Session, lease: dict[str, str] | str | None) -> Any:
    """The answer of Nova to a request to boot a server, with hints for a lease."""
    body: dict[str, object] = {
        "server": {
            "name": "by-hint",
            "imageRef": site.nova._image,
            "flavorRef": site.nova.flavor("m1.tiny"),
            "networks": "none",
        }
    }
    if lease is not None:
        text = lease if isinstance(lease, str) else json.dumps(lease)
        body["os:scheduler_hints"] = {"reserved": "True", "lease_params": text}
    answer = site.cloud.service(by, "compute", COMPUTE).post("/servers", json=body, raise_exc=False)
    if answer.status_code == 202:
        site.nova.booted.append(Server(site.nova, answer.json()["server"]["id"]))
    return answer


def servers_of(site: Site, by: Session) -> set[str]:
    return {one["id"] for one in site.cloud.service(by, "compute", COMPUTE).get("/servers").json()["servers"]}


def test_a_tenure_that_is_down_is_noticed_by_those_only_who_ask_for_a_lease(site: Site, cloud: Cloud):
    owner = cloud.session("demo")
    (api,) = site.deployment.apis
    api.stop()
    try:
        lease = {"start": "now", "end": moment(seconds=3600)}
        before = servers_of(site, owner)
        refused = boot(site, owner, lease)
        assert (refused.status_code, "serviceUnavailable" in refused.json()) == (503, True)
        wrong = boot(site, owner, "{")
        assert (wrong.status_code, "lease_params" in wrong.json()["badRequest"]["message"]) == (400, True)
        assert servers_of(site, owner) == before
        assert boot(site, owner, None).status_code == 202
        assert not site.nova.booted[-1].place().startswith("No valid host")
        assert site.cloud.service(owner, "compute", COMPUTE).get("/servers/detail").status_code == 200
    finally:
        api.start()
        site.deployment.wait_until_well()
