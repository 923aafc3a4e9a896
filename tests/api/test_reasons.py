"""What the API shows of a lease's reasons: the owner's text to all, the details to administrators from 1.2 on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenure.drivers.contract import CloudBusy
from tests.api.rig import HOSTS, Api

FOREIGN = "0f0e0d0c-0000-4000-8000-00000000beef"
WHOLE = f"sim-host-001 is not released yet by reservation {FOREIGN}."
SHORT_REASON = "The cloud cannot carry out the request at the moment."


@pytest.fixture
def lease(api: Api, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A lease whose start the cloud keeps failing."""

    def fail(_command: object) -> None:
        raise CloudBusy(WHOLE)

    monkeypatch.setattr(api.world.cloud, "ensure_started", fail)
    made = api.using(version="1.2").book(start=0, reservations=[HOSTS])
    api.world.engine.settle()
    assert isinstance(made, dict)
    return made


def test_the_owner_sees_the_reason_and_administrators_the_details(api: Api, lease: dict[str, Any]) -> None:
    url = f"/v1/leases/{lease['id']}"
    for user, detail in ((None, None), ("admin", WHOLE)):
        caller = api.using(user, version="1.2")
        [listed] = [found for found in caller.get("/v1/leases").json["leases"] if found["id"] == lease["id"]]
        shown = caller.get(url).json["lease"]
        assert (shown["status_reason"], shown["detail"]) == (SHORT_REASON, detail)
        assert (listed["status_reason"], listed["detail"]) == (SHORT_REASON, detail)
        entries = caller.get(f"{url}/history").json["history"]
        assert (entries[-1]["reason"], entries[-1]["detail"]) == (SHORT_REASON, detail)
        assert entries[0]["detail"] is None


def test_the_answer_to_a_change_has_no_details_for_the_owner(api: Api, lease: dict[str, Any]) -> None:
    api.world.clock.advance(timedelta(hours=2))
    api.world.engine.settle()
    url = f"/v1/leases/{lease['id']}"
    assert WHOLE in api.using("admin", version="1.2").get(url).json["lease"]["detail"]
    renamed = api.using(version="1.2").put(url, {"name": "other"})
    assert renamed.status_code == 200, renamed.text
    assert renamed.json["lease"]["detail"] is None
    assert FOREIGN not in renamed.text


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_older_versions_have_no_details(api: Api, lease: dict[str, Any], version: str) -> None:
    admin = api.using("admin", version=version)
    url = f"/v1/leases/{lease['id']}"
    assert "detail" not in admin.get(url).json["lease"]
    assert FOREIGN not in admin.get(url).text
    if version == "1.1":
        assert all("detail" not in entry for entry in admin.get(f"{url}/history").json["history"])
