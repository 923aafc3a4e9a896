"""Requests of the driver of OpenStack clouds: logins, limits, errors, and reports of calls."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.domain.actor import Actor
from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound, CloudRefused, ResourceRef
from tenure.drivers.openstack import requests
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import connect
from tenure.drivers.openstack.options import OpenStackOptions
from tests.drivers.rigs import HOST, command_for, options_of, ref, registered
from tests.support.openstack import PASSWORD, POOL, FakeOpenStack, Seen
from tests.support.waiting import patience


def logins(cloud: FakeOpenStack) -> int:
    return sum(seen.path == "/v3/auth/tokens" for seen in cloud.seen)


class TestLogin:
    def test_is_done_once_for_everything(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        hosts = registered(driver, cloud, 3)
        driver.ensure_started(command_for(*hosts))
        driver.discover(HOST)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(driver.check, [HOST] * 8))
        assert logins(cloud) == 1

    def test_is_done_again_when_the_token_is_not_taken_any_more(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        driver.check(HOST)
        cloud.tokens.clear()
        assert len(driver.check(HOST)) == 6
        assert logins(cloud) == 2

    def test_that_fails_is_worth_another_try(self, cloud: FakeOpenStack):
        wrong = options_of(cloud, password="wrong-word")
        with connect(wrong) as driver, pytest.raises(CloudBusy, match="Keystone") as caught:
            driver.check(HOST)
        assert "wrong-word" not in str(caught.value)

    def test_is_not_tried_for_ever(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        driver.check(HOST)
        cloud.instead = lambda seen: (401, None) if seen.service == "compute" else None
        with pytest.raises(CloudBusy, match="401"):
            driver.check(HOST)
        assert logins(cloud) == 2


class TestErrors:
    @pytest.mark.parametrize("status", [401, 406, 408, 409, 413, 429, 500, 502, 503, 504, 302])
    def test_that_may_pass_are_worth_another_try(self, cloud: FakeOpenStack, driver: OpenStackCloud, status: int):
        driver.held(HOST)
        cloud.instead = lambda seen: (status, b"<html>nginx</html>")
        with pytest.raises(CloudBusy, match=str(status)):
            driver.held(HOST)

    @pytest.mark.parametrize(("status", "kind"), [(400, CloudRefused), (403, CloudRefused), (404, CloudNotFound)])
    def test_that_stay_are_refusals(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, status: int, kind: type[CloudRefused]
    ):
        driver.held(HOST)
        cloud.instead = lambda seen: (status, {"forbidden": {"code": status, "message": "Policy does not allow it."}})
        with pytest.raises(kind, match="Nova: Policy does not allow it"):
            driver.held(HOST)

    def test_an_answer_that_is_no_json_is_worth_another_try(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        driver.held(HOST)
        cloud.instead = lambda seen: (200, b"<html>welcome</html>")
        with pytest.raises(CloudBusy, match="no JSON"):
            driver.held(HOST)

    @pytest.mark.parametrize("status", [200, 409, 500])
    def test_an_answer_that_is_nested_too_deep_is_no_json(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, status: int
    ):
        driver.held(HOST)
        cloud.instead = lambda seen: (status, b"[" * 200_000)
        with pytest.raises(CloudError, match=r"no JSON|no reason is given"):
            driver.held(HOST)

    def test_a_cloud_that_is_not_there_is_worth_another_try(self, cloud: FakeOpenStack):
        unreachable = OpenStackOptions(auth_url="http://127.0.0.1:1/v3", password=PASSWORD)
        with connect(unreachable) as driver, pytest.raises(CloudBusy, match="Keystone cannot be reached"):
            driver.check(HOST)

    def test_a_keystone_that_hangs_is_called_by_its_name(self, cloud: FakeOpenStack):
        options = options_of(cloud, request_timeout=timedelta(seconds=0.3))
        with (
            connect(options) as driver,
            cloud.hanging(),
            pytest.raises(CloudBusy, match="Keystone did not answer in time"),
        ):
            driver.held(HOST)

    def test_a_catalogue_without_the_service_is_named(self, cloud: FakeOpenStack):
        wrong = options_of(cloud, region="elsewhere")
        with connect(wrong) as driver, pytest.raises(CloudBusy, match="catalogue"):
            driver.check(HOST)

    def test_the_region_name_of_the_cloud_is_not_used_for_resources(self, cloud: FakeOpenStack):
        """Without configured regions, requests and resources are in the region without a name."""
        with connect(options_of(cloud, region="r1")) as driver:
            assert {host.region for host in driver.discover(HOST)} == {""}

    def test_have_no_secret_in_them(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        driver.held(HOST)
        cloud.instead = lambda seen: (500, {"computeFault": {"message": "x" * 5000}})
        with pytest.raises(CloudBusy) as caught:
            driver.delegate(Actor("u", "p", frozenset({"member"}), token="token-of-a-caller"))
        text = repr(caught.value) + repr(driver._options)
        assert len(str(caught.value)) < 400
        assert PASSWORD not in text
        assert "token-of-a-caller" not in text
        assert not any(token in text for token in cloud.tokens)

    def test_have_no_token_of_a_call_in_them(self):
        assert "token-of-a-caller" not in repr(
            requests.Request("compute", "GET", "/servers", token="token-of-a-caller")
        )


class TestLimits:
    def test_a_call_that_hangs_is_given_up(self, cloud: FakeOpenStack):
        with connect(options_of(cloud, request_timeout=timedelta(seconds=patience(0.3)))) as driver:
            driver.held(HOST)
            with cloud.hanging(), pytest.raises(CloudBusy, match="in time"):
                driver.held(HOST)

    def test_a_verb_of_many_calls_ends_in_time(self, cloud: FakeOpenStack, monkeypatch: pytest.MonkeyPatch):
        """By a clock on which each call takes four seconds."""
        hosts = [ref(cloud, number) for number in range(1, 5)]
        with connect(options_of(cloud)) as helper:
            for host in hosts:
                helper.ensure_registered(HOST, host)
        calls = 0

        def count(_seen: Seen) -> None:
            nonlocal calls
            calls += 1

        cloud.observe = count
        monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: 4.0 * calls))
        options = options_of(cloud, verb_timeout=timedelta(seconds=60), concurrency=1)
        with connect(options) as driver:
            with pytest.raises(CloudBusy, match="too long"):
                driver.ensure_started(command_for(*hosts))
            assert 60 <= 4 * calls < driver.longest_call.total_seconds()
            # What was done is done: each further call gets further, and no call does all of it.
            attempts = 1
            while True:
                attempts += 1
                try:
                    driver.ensure_started(command_for(*hosts))
                except CloudBusy:
                    assert attempts < 10
                else:
                    break
        group = cloud.aggregate("r-1")
        assert group is not None
        assert len(group.hosts) == 4
        assert attempts > 1

    @pytest.mark.slow
    def test_a_trickling_answer_ends_in_time(self, cloud: FakeOpenStack):
        options = options_of(cloud, verb_timeout=timedelta(seconds=patience(0.5)))
        with connect(options) as driver:
            driver.held(HOST)
            with cloud.trickling(), pytest.raises(CloudBusy, match="too long"):  # the socket's limit is never reached
                driver.held(HOST)

    def test_concurrent_calls_are_limited(self, cloud: FakeOpenStack):
        at_once, most, lock, crowded = 0, 0, threading.Lock(), threading.Event()

        def count(seen: Seen) -> None:
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
                if at_once == 3:
                    crowded.set()
            assert crowded.wait(patience())
            time.sleep(0.02)  # for a fourth to come, if there is one
            with lock:
                at_once -= 1

        with connect(options_of(cloud, concurrency=3)) as driver:
            hosts = registered(driver, cloud, 6)
            cloud.observe = count
            with ThreadPoolExecutor(6) as threads:
                for number, host in enumerate(hosts):
                    threads.submit(driver.ensure_started, command_for(host, reservation_id=f"r-{number}"))
        assert most == 3
        assert all(cloud.aggregate(f"r-{number}") for number in range(6))

    @pytest.mark.slow
    def test_a_verb_of_many_calls_lets_others_in_between(self, cloud: FakeOpenStack):
        for number in range(30):
            cloud.add_host(f"more-{number}.lab")
        with connect(options_of(cloud, concurrency=2)) as driver:
            hosts = [ref(cloud, number) for number in range(1, 37)]
            pool = cloud.aggregate(POOL)
            assert pool is not None
            pool.hosts += cloud.hosts
            driver.check(HOST)
            cloud.latency = 0.02
            cloud.seen.clear()
            begun, go_on = threading.Event(), threading.Event()

            def adds(seen: Seen) -> bool:
                return "add_host" in (seen.body or {})

            def hold(seen: Seen) -> None:
                if adds(seen):
                    begun.set()
                    assert go_on.wait(patience())

            cloud.observe = hold
            with ThreadPoolExecutor(1) as threads:
                started = threads.submit(driver.ensure_started, command_for(*hosts))
                assert begun.wait(patience())
                go_on.set()
                driver.check(HOST)
                added = sum(map(adds, list(cloud.seen)))
                started.result(patience())
        assert added < 30  # of 36


class TestReports:
    def test_each_call_is_reported(self, cloud: FakeOpenStack):
        calls: list[tuple[str, str, str, float]] = []
        began = time.monotonic()
        with connect(options_of(cloud), on_call=lambda *call: calls.append(call)) as driver:
            driver.look_up(HOST, "node-1.lab")
            with pytest.raises(CloudNotFound):
                driver.look_up(HOST, "7777")
        assert {call[:3] for call in calls} == {
            ("identity", "look_up", "201"),
            ("compute", "look_up", "200"),
            ("compute", "look_up", "404"),
            ("placement", "look_up", "200"),
        }
        durations = [seconds for *_, seconds in calls]
        assert min(durations) > 0
        assert max(durations) < time.monotonic() - began  # side by side, so that their sum may be more

    @pytest.mark.slow
    def test_calls_that_come_to_nothing_are_reported(self, cloud: FakeOpenStack):
        calls: list[str] = []
        with connect(
            options_of(cloud, request_timeout=timedelta(seconds=patience(0.3))),
            on_call=lambda service, verb, outcome, seconds: calls.append(outcome),
        ) as driver:
            driver.check(HOST)
            with cloud.hanging(), pytest.raises(CloudBusy):
                driver.check(HOST)
        assert calls == ["201", "200", "200", "timeout"]

    @pytest.mark.parametrize("first", [True, False], ids=["first", "again"])
    def test_a_login_that_fails_is_keystones(self, cloud: FakeOpenStack, first: bool):
        calls: list[tuple[str, str]] = []
        with connect(
            options_of(cloud), on_call=lambda service, verb, outcome, seconds: calls.append((service, outcome))
        ) as driver:
            if not first:
                driver.held(HOST)
                cloud.tokens.clear()
            calls.clear()
            cloud.instead = lambda seen: (503, b"") if seen.path == "/v3/auth/tokens" else None
            with pytest.raises(CloudBusy, match="Keystone"):
                driver.held(HOST)
        refused = [] if first else [("compute", "401")]
        assert calls == [*refused, ("identity", "503")]

    def test_a_login_without_an_answer_is_keystones(self, cloud: FakeOpenStack):
        calls: list[tuple[str, str]] = []
        with (
            connect(
                options_of(cloud, request_timeout=timedelta(seconds=0.2)),
                on_call=lambda service, verb, outcome, seconds: calls.append((service, outcome)),
            ) as driver,
            cloud.hanging(),
            pytest.raises(CloudBusy),
        ):
            driver.held(HOST)
        assert calls == [("identity", "timeout")]

    def test_the_id_of_the_request_is_passed_on(self, cloud: FakeOpenStack):
        ids: list[str | None] = ["req-1", None]
        with connect(options_of(cloud), request_id=lambda: ids[0]) as driver:
            hosts = [ref(cloud, number) for number in range(1, 4)]
            for host in hosts:
                driver.ensure_registered(HOST, host)
            assert {seen.headers.get("x-openstack-request-id") for seen in own(cloud)} == {"req-1"}
            cloud.seen.clear()
            ids.pop(0)
            driver.ensure_started(command_for(*hosts))
        assert {seen.headers.get("x-openstack-request-id") for seen in own(cloud)} == {None}


def own(cloud: FakeOpenStack) -> list[Seen]:
    return [seen for seen in cloud.seen if seen.path != "/v3/auth/tokens"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_timeout": timedelta(0)},
        {"verb_timeout": timedelta(seconds=-1)},
        {"concurrency": 0},
        {"freepool_name": ""},
        {"owner_key": ""},
        {"zone_prefix": ""},
    ],
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError):
        OpenStackOptions(**wrong)


@pytest.mark.parametrize("path", ["", "/v2.1", "/v2.1/", "/v2/0123", "/v2.1/0123", "/compute/v2.1"])
def test_catalogues_may_name_nova_in_many_ways(cloud: FakeOpenStack, path: str):
    cloud.compute_url = f"{cloud.url}/compute{path.removeprefix('/compute')}"
    with connect(options_of(cloud)) as driver:
        assert len(driver.check(HOST)) == 6


def test_a_new_token_brings_a_new_catalogue(cloud: FakeOpenStack, driver: OpenStackCloud):
    """Nova moves: its old address is used as long as the token is valid, which came with it."""
    assert len(driver.check(HOST)) == 6
    cloud.compute_url = f"{cloud.url}/nowhere"
    assert len(driver.check(HOST)) == 6
    cloud.tokens.clear()
    with pytest.raises(CloudError):
        driver.check(HOST)
    assert cloud.seen[-1].service == "nowhere"


def test_a_reference_is_no_way_to_another_address(cloud: FakeOpenStack, driver: OpenStackCloud):
    for reference in ("..", ".", "a/b", "../../os-aggregates?x=", "a?b", "a#b", "a%2fb", "ä b", "\n"):
        with pytest.raises(CloudNotFound):
            driver.look_up(HOST, reference)
    assert all("aggregates" not in seen.path for seen in cloud.seen)
    driver.ensure_unregistered(HOST, ResourceRef("../1", "x"))
