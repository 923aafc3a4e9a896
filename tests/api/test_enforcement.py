"""What a filter refuses, on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth
from tenure.config import new_config
from tenure.domain.errors import Denied
from tenure.enforcement.contract import EnforcementFilter, Values
from tenure.enforcement.duration import MaxLeaseDurationFilter
from tenure.services.limits.quotas import FixedLimits, Quotas
from tests.api.rig import Api, minutes, open_api, rfc3339
from tests.support.engines import rebuild

WORDS = "Lease duration of 7200 seconds must be less than or equal to the maximum lease duration of 3600 seconds."


class Grumbler(EnforcementFilter):
    """Denies leases of a certain name."""

    def check_create(self, context: Values, lease_values: Values) -> None:
        del context
        if lease_values["name"] == "unloved":
            raise Denied("Not with us.")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    conf = new_config()
    conf.set_override("max_lease_duration", 3600, group="enforcement")
    filters = {"MaxLeaseDurationFilter": MaxLeaseDurationFilter(conf), "Grumbler": Grumbler(conf)}
    with open_api(tmp_path, filters=filters) as api:
        yield api


def test_too_long_a_lease_is_forbidden_and_too_long_a_change_is_wrong(api: Api):
    body = api.lease_body(hours=2)
    refused = api.post("/v1/leases", body)
    assert refused.status_code == 403
    assert refused.json == {"error_code": 403, "error_message": WORDS, "error_name": 403}
    lease = api.book(start=1, hours=1)
    end = minutes(api.now + timedelta(hours=3))
    refused = api.put(f"/v1/leases/{lease['id']}", {"end_date": end})
    assert refused.status_code == 400
    assert refused.json == {"error_code": 400, "error_message": WORDS, "error_name": 400}


def test_from_1_1_on_the_field_is_named(api: Api):
    api = api.using(version="1.1")
    refused = api.post("/v1/leases", api.lease_body(hours=2))
    assert refused.status_code == 403
    assert refused.json == {
        "error_code": 403,
        "error_name": "Forbidden",
        "error_message": WORDS,
        "error": {"code": 403, "title": "Forbidden", "message": WORDS},
        "field": "end_date",
    }
    lease = api.book(start=1, hours=1)
    refused = api.put(f"/v1/leases/{lease['id']}", {"end_date": rfc3339(api.now + timedelta(hours=3))})
    assert refused.status_code == 400
    assert (refused.json["error_name"], refused.json["field"]) == ("InvalidParameter", "end_date")


def test_an_exceeded_quota_is_named_with_its_numbers(tmp_path: Path):
    with open_api(tmp_path) as api:
        rebuild(api.world, quotas=Quotas(FixedLimits({"leases": 0})))
        app = create_app(
            api.world.service.manager,
            api.world.service.components.types,
            lambda inner: TokenFileAuth(inner, tmp_path / "tokens.yaml"),
        )
        api = Api(api.world, app, api.database)
        words = "Quota exceeded for leases: 0 of 0 used, 1 more requested."
        refused = api.post("/v1/leases", api.lease_body())
        assert refused.status_code == 400  # final for clients
        assert refused.json == {"error_code": 400, "error_message": words, "error_name": 400}
        newer = api.using(version="1.1")
        refused = newer.post("/v1/leases", newer.lease_body())
        assert refused.status_code == 403
        assert refused.json["error_name"] == "OverQuota"
        assert refused.json["details"] == {"resource": "leases", "limit": 0, "used": 0, "requested": 1}


def test_a_denial_by_a_filter_is_final_for_clients(api: Api):
    refused = api.post("/v1/leases", api.lease_body(name="unloved"))
    assert refused.status_code == 400
    assert refused.json == {"error_code": 400, "error_message": "Not with us.", "error_name": 400}
    refused = api.using(version="1.2").post("/v1/leases", api.using(version="1.2").lease_body(name="unloved"))
    assert refused.status_code == 400
    assert (refused.json["error_name"], refused.json["error_message"]) == ("Denied", "Not with us.")
