"""The parts of a deployment, as its configuration says."""

from __future__ import annotations

from pathlib import Path

from tenure.config import new_config, read_config
from tenure.deployment import open_driver
from tenure.drivers.openstack import OpenStackCloud
from tenure.tracing import traced
from tests.support.openstack import PASSWORD, FakeOpenStack

OURS = "req-00000000-0000-4000-8000-000000000001"
THEIRS = "req-00000000-0000-4000-8000-000000000002"


def test_services_get_the_id_that_the_caller_gave_else_ours(tmp_path: Path):
    file = tmp_path / "tenure.conf"
    with FakeOpenStack() as cloud:
        file.write_text(f"[service_auth]\nauth_url = {cloud.url}/identity\npassword = {PASSWORD}\n")
        conf = new_config()
        read_config(conf, [], files=[file], prog="test")
        driver = open_driver(conf)
        assert isinstance(driver, OpenStackCloud)

        def sent() -> set[str | None]:
            cloud.seen.clear()
            driver.look_up("physical:host", "node-1.lab")
            called = [seen for seen in cloud.seen if seen.service in {"compute", "placement"}]
            assert {seen.service for seen in called} == {"compute", "placement"}
            return {seen.headers.get("x-openstack-request-id") for seen in called}

        with driver:
            with traced(OURS, THEIRS):
                assert sent() == {THEIRS}
            with traced(OURS):
                assert sent() == {OURS}
            assert sent() == {None}
