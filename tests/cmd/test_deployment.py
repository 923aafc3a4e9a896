"""The parts of a deployment, as its configuration says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import certifi
import oslo_messaging
import pytest
from oslo_config import cfg
from oslo_messaging.notify import _impl_test

import tenure.cmd.api
import tenure.cmd.manager
import tenure.metrics
from tenure import deployment
from tenure.api.auth import TokenFileAuth, TokenUser, write_token_file
from tenure.cmd.process import StartFailed, show_metrics
from tenure.config import OPTIONS, new_config, read_config
from tenure.deployment import open_api, open_database, open_driver, open_filters, open_manager, open_quotas
from tenure.domain.errors import Denied, NotPermitted, Unavailable
from tenure.domain.lanes import Lane
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.pci_aliases import PciAlias
from tenure.drivers.simulated import SimulatedCloud
from tenure.enforcement.contract import EnforcementFilter
from tenure.factory import Components, Service
from tenure.metrics import PRESENT
from tenure.resources.contract import load_types
from tenure.rpc.listener import NovaListener
from tenure.services.limits.quotas import FixedLimits, Quotas
from tenure.services.notifications.outbox import Message
from tenure.tracing import traced
from tests.support.deployment import Options, write_config
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


# --- options


@dataclass(frozen=True)
class Row:
    """A value of an option, and its effect on a part of the deployment."""

    text: str
    seen: Callable[[Deployed], object]
    expected: object
    #: What else must be configured, so that the option matters.
    more: Options = field(default_factory=dict)


class Deployed:
    """What the processes make of a configuration; each part is made when it is asked for. Nothing is connected to."""

    def __init__(self, conf: cfg.ConfigOpts, folder: Path, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.conf = conf
        self.folder = folder
        self._patch = patch
        self._stack = stack

    @cached_property
    def service(self) -> Service:
        service = open_manager(self.conf)
        self._stack.callback(service.components.db.close)
        if isinstance(service.components.driver, SimulatedCloud):
            self._stack.callback(service.components.driver.close)
        return service

    @property
    def components(self) -> Components:
        return self.service.components

    @cached_property
    def cloud(self) -> Any:
        """The driver of the cloud, or of its first region."""
        regions = deployment.regions_of(self.conf)
        driver: Any = deployment._open_cloud(self.conf, regions[0]) if regions else open_driver(self.conf)
        return self._stack.enter_context(driver)

    @property
    def options(self) -> OpenStackOptions:
        """What the driver of a real cloud knows of it."""
        options: OpenStackOptions = self.cloud._options
        return options

    @property
    def filters(self) -> Mapping[str, EnforcementFilter]:
        return open_filters(self.conf)

    @property
    def pool(self) -> Any:
        """The connections to the database."""
        database = open_database(self.conf)
        self._stack.callback(database.close)
        return database.engine.pool

    @property
    def external(self) -> Any:
        """The filter that asks a service of the site."""
        return self.filters["ExternalServiceFilter"]

    @property
    def quotas(self) -> Quotas:
        return open_quotas(self.conf)

    @property
    def limits(self) -> Any:
        """Who knows how much a project may have."""
        return self.quotas.limits

    def allows(self, seconds: int, project: str = "project") -> bool:
        """Whether filters agree to a lease that lasts so long."""
        start = datetime(2030, 1, 1)  # noqa: DTZ001 - as filters are given dates
        lease = {"start_date": start, "end_date": start + timedelta(seconds=seconds)}
        try:
            for enforcement_filter in self.filters.values():
                enforcement_filter.check_create({"project_id": project}, lease)
        except (Denied, NotPermitted, Unavailable):
            return False
        return True

    @cached_property
    def listening(self) -> Mapping[str, Any]:
        """How tenure-api would listen."""
        received: dict[str, Any] = {}

        def refuse(_app: object, **options: Any) -> None:
            received.update(options)
            raise OSError("not in a test")

        self._patch.setattr(tenure.cmd.api, "listen", refuse)
        with pytest.raises(StartFailed, match="cannot listen"):
            tenure.cmd.api.serve(self.conf)
        return received

    def answer(self, app: Any, path: str, token: str = "") -> tuple[str, str]:
        """The status and the text that a WSGI application answers with."""
        environ: dict[str, Any] = {"PATH_INFO": path, "HTTP_X_AUTH_TOKEN": token}
        setup_testing_defaults(environ)
        statuses: list[str] = []
        text = b"".join(app(environ, lambda status, _headers, *_more: statuses.append(status)))
        return statuses[0], text.decode()

    def authenticates(self, token: str) -> bool:
        def greet(_environ: object, start_response: Any) -> list[bytes]:
            start_response("200 OK", [])
            return []

        return self.answer(deployment._authentication(self.conf)(greet), "/v1/leases", token)[0] == "200 OK"

    @property
    def rpc_server(self) -> Any:
        return tenure.cmd.manager._new_server(self.conf, self.service)

    @property
    def called_topic(self) -> str:
        """The topic on which the API calls managers."""
        topics: list[str] = []
        original = oslo_messaging.get_rpc_client

        def note(transport: object, target: oslo_messaging.Target, **more: Any) -> object:
            topics.append(target.topic)
            return original(transport, target, **more)

        self._patch.setattr(oslo_messaging, "get_rpc_client", note)
        open_api(self.conf)
        return topics[0]

    @property
    def publisher(self) -> str:
        """Who the notifications are from."""
        self._patch.setattr(_impl_test, "NOTIFICATIONS", [])
        self.components.sink(Message(1, "key", "lease", "lease.create", {}, datetime(2030, 1, 1), 0))  # noqa: DTZ001
        [(_context, message, _priority, _retry)] = _impl_test.NOTIFICATIONS
        return str(message["publisher_id"])

    @cached_property
    def listener(self) -> NovaListener | None:
        listener = tenure.cmd.manager._listen_to_nova(self.conf, self.service)
        if listener is not None:
            self._stack.callback(listener.stop)
        return listener

    @property
    def heard(self) -> list[tuple[str, str]]:
        """The topics of Nova that are listened to, each with its exchange."""
        assert self.listener is not None
        return [(target.topic, target.exchange) for target in self.listener._targets]

    @property
    def metrics(self) -> tuple[int, str] | None:
        """Where metrics are shown."""
        shown: list[tuple[int, str]] = []
        self._patch.setattr(tenure.metrics, "start_http_server", lambda port, host: shown.append((port, host)))
        show_metrics(self.conf)
        return next(iter(shown), None)

    @property
    def folder_of_others(self) -> Path | None:
        """The folder that drivers of types by others are given."""
        (self.folder / "laboratory.py").write_text(
            "FOLDERS = []\ndef make(settings, *, folder):\n    FOLDERS.append(folder)\n"
        )
        installed = self.folder / "laboratory-1.0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: laboratory\nVersion: 1.0\n")
        (installed / "entry_points.txt").write_text("[tenure.type_drivers]\ninstrument = laboratory:make\n")
        self._patch.syspath_prepend(self.folder)
        deployment._type_drivers(self.conf)
        found: Path | None = sys.modules.pop("laboratory").FOLDERS.pop()
        return found


SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
TOKEN = "a-token-of-the-file"
END = "-----END CERTIFICATE-----\n"
REAL: Options = {"DEFAULT": {"driver": "openstack"}}
NORTH: Options = {"DEFAULT": {"driver": "openstack", "regions": "north"}}
BOUND: Options = {"enforcement": {"enabled_filters": "MaxLeaseDurationFilter"}}
#: A port on which nothing listens.
UNREACHABLE = "http://127.0.0.1:9/v1/"
ASKED: Options = {
    "enforcement": {"enabled_filters": "ExternalServiceFilter", "external_service_base_endpoint": UNREACHABLE}
}
LIMITED: Options = {"quota": {"driver": "config", "limits": "leases:3"}}
UNIFIED: Options = {"quota": {"driver": "unified"}}
DEFAULT_LEASE: Options = {"virtual:server": {"default_lease": "true"}}
HEARD: Options = {"physical:host": {"enable_notification_monitor": "true"}}
HOST = "physical:host"


def of_options(name: str) -> Callable[[Deployed], object]:
    return lambda it: getattr(it.options, name)


def of_rules(name: str) -> Callable[[Deployed], object]:
    return lambda it: getattr(it.components.rules, name)


def of_terms(name: str) -> Callable[[Deployed], object]:
    return lambda it: getattr(it.components.default_terms, name)


def bookable(it: Deployed) -> object:
    return sorted(resource_type.name for resource_type in it.components.types.enabled)


def url_of(call: str) -> Callable[[Deployed], object]:
    return lambda it: it.external._urls.get(call)


def bound_of(lane: Lane, attribute: str) -> Callable[[Deployed], object]:
    return lambda it: getattr(it.components.bounds[lane], attribute)


#: Every option by group, with the effect of a value on the parts of a deployment.
ROWS: Mapping[str, Mapping[str, tuple[Row, ...]]] = {
    "DEFAULT": {
        "host": (Row("192.0.2.7", lambda it: it.listening["host"], "192.0.2.7"),),
        "port": (Row("4321", lambda it: it.listening["port"], 4321),),
        "cleaning_time": (Row("7", of_rules("cleaning_time"), 7 * MINUTE),),
        "driver": (
            Row("simulated", lambda it: type(it.cloud), SimulatedCloud),
            Row("openstack", lambda it: type(it.cloud), OpenStackCloud),
        ),
        "auth_strategy": (
            Row(
                "token_file",
                lambda it: isinstance(deployment._authentication(it.conf)(open_api(it.conf)), TokenFileAuth),
                True,
            ),
        ),
        "regions": (
            Row("north, south", of_rules("regions"), ("north", "south"), {"region:south": {"path": "south.db"}}),
        ),
        "state_path": (Row("{folder}/state", lambda it: it.folder_of_others == it.folder / "state", True),),
        "os_region_name": (
            Row("r1", of_options("region"), "r1", REAL),
            Row("r1", lambda it: it.components.origin.region_name, "r1"),
        ),
    },
    "api": {
        "public_url": (
            Row(
                "https://lease.test/reservation",
                lambda it: "https://lease.test/reservation/v1" in it.answer(open_api(it.conf), "/", TOKEN)[1],
                True,
            ),
        ),
        "threads": (Row("5", lambda it: it.listening["threads"], 5),),
        "token_file": (
            Row("{folder}/tokens.yaml", lambda it: (it.authenticates(TOKEN), it.authenticates("x")), (True, False)),
        ),
    },
    "cloud": {
        "request_timeout": (
            Row("7.5", of_options("request_timeout"), 7.5 * SECOND, REAL),
            Row("7.5", lambda it: it.cloud._transport.session.timeout, 7.5, REAL),
        ),
        "verb_timeout": (
            Row("20", of_options("verb_timeout"), 20 * SECOND, REAL),
            Row("20", lambda it: it.cloud.longest_call, 21 * SECOND, REAL),
        ),
        "concurrency": (Row("3", lambda it: it.cloud._transport.concurrency, 3, REAL),),
    },
    "database": {
        "connection": (
            Row(
                "sqlite:///{folder}/other.db",
                lambda it: Path(it.components.db.engine.url.database or "").name,
                "other.db",
            ),
        ),
        "max_pool_size": (Row("3", lambda it: it.pool.size(), 3),),
        "pool_timeout": (Row("2.5", lambda it: it.pool.timeout(), 2.5),),
    },
    "enforcement": {
        "enabled_filters": (Row("MaxLeaseDurationFilter", lambda it: list(it.filters), ["MaxLeaseDurationFilter"]),),
        "max_lease_duration": (Row("60", lambda it: (it.allows(60), it.allows(61)), (True, False), BOUND),),
        "max_lease_duration_exempt_project_ids": (
            Row(
                "a, b",
                lambda it: [it.allows(61, project) for project in ("a", "b", "c")],
                [True, True, False],
                {"enforcement": {**BOUND["enforcement"], "max_lease_duration": "60"}},
            ),
        ),
        "external_service_base_endpoint": (
            Row("http://site.test/v1/", url_of("check_create"), "http://site.test/v1/check-create", ASKED),
        ),
        **{
            f"external_service_{call}_endpoint": (Row("told", url_of(call), f"{UNREACHABLE}told", ASKED),)
            for call in ("check_create", "check_update", "on_end", "commit_create", "commit_update")
        },
        "external_service_token": (Row("t", lambda it: it.external._headers(None)["X-Auth-Token"], "t", ASKED),),
        "external_service_bearer_token": (
            Row("t", lambda it: it.external._headers(None)["Authorization"], "Bearer t", ASKED),
        ),
        "external_service_timeout": (Row("2.5", lambda it: it.external._connection(UNREACHABLE).timeout, 2.5, ASKED),),
        "external_service_on_failure": (
            Row("allow", lambda it: it.allows(60), True, ASKED),
            Row("refuse", lambda it: it.allows(60), False, ASKED),
        ),
        "external_service_cafile": (
            Row("{folder}/one.pem", lambda it: len(it.external._tls.get_ca_certs()), 1, ASKED),
        ),
    },
    "manager": {
        "rpc_topic": (Row("other", lambda it: (it.rpc_server._target.topic, it.called_topic), ("other", "other")),),
        "name": (Row("first", lambda it: it.rpc_server._target.server, "first"),),
        "rpc_threads": (
            Row("500", lambda it: it.rpc_server._endpoint._permits._value, 500),
            Row("12", lambda it: it.components.permits, 6),
            Row("12", lambda it: it.limits._permits._value, 3, UNIFIED),
        ),
        "enabled_types": (
            Row("virtual:volume", bookable, ["virtual:volume"]),
            Row("flavor.instance.plugin, physical.host.plugin", bookable, ["flavor:instance", "physical:host"]),
        ),
        "workers": (Row("3", lambda it: it.components.workers, 3),),
        "waiting_turn_ms": (Row("70", of_rules("turn_time"), timedelta(milliseconds=70)),),
        "minutes_before_end_lease": (Row("7", of_rules("notice_before_end"), 7 * MINUTE),),
        "max_attempts": (Row("3", of_rules("max_attempts"), 3),),
        "planning_time": (Row("7", of_rules("planning_time"), 7 * SECOND),),
        "exact_time_ms": (
            Row("2000", of_rules("exact_time"), 2 * SECOND),
            Row("0", of_rules("exact_time"), 0 * SECOND),
        ),
        "search_time_ms": (Row("2000", of_rules("search_time"), 2 * SECOND),),
        "start_patience": (Row("7", of_rules("start_patience"), 7 * MINUTE),),
        "start_patience_percent": (Row("7", of_rules("start_share"), 0.07),),
        "before_end_patience": (Row("7", of_rules("before_end_patience"), 7 * MINUTE),),
        "reconcile_interval": (Row("7", lambda it: it.components.reconcile_interval, 7 * SECOND),),
        "preemption_notice": (Row("7", of_rules("preemption_notice"), 7 * SECOND),),
        "inventory_interval": (
            Row("7", lambda it: it.components.inventory_interval, 7 * SECOND),
            Row("0", lambda it: it.components.inventory_interval, None),
        ),
    },
    "metrics": {
        "port": (Row("9464", lambda it: it.metrics, (9464, "127.0.0.1")),),
        "host": (Row("192.0.2.7", lambda it: it.metrics, (9464, "192.0.2.7"), {"metrics": {"port": "9464"}}),),
    },
    "notifications": {
        "publisher_id": (
            Row("site", lambda it: it.publisher, "site", {"oslo_messaging_notifications": {"driver": "test"}}),
        ),
    },
    "lanes": {
        f"{lane.value}_{name}": (Row("5", bound_of(lane, attribute), 5),)
        for lane in Lane
        for name, attribute in (
            ("running", "running"),
            ("running_of_project", "running_of_project"),
            ("waiting", "waiting"),
            ("waiting_of_project", "waiting_of_project"),
            ("wait", "wait_seconds"),
        )
    },
    "purge": {
        "ended_leases_days": (Row("3", lambda it: it.components.purge.ended_leases, 3 * DAY),),
        "deleted_before_start": (Row("7", lambda it: it.components.purge.unbegun_leases, 7),),
        "delivered_messages_days": (Row("3", lambda it: it.components.purge.delivered_messages, 3 * DAY),),
        "feed_hours": (Row("3", lambda it: it.components.feed_retention, 3 * HOUR),),
    },
    "nova": {
        "endpoint_type": (Row("public", of_options("interface"), "public", REAL),),
        "image_prefix": (Row("kept_", of_options("image_prefix"), "kept_", REAL),),
        "aggregate_freepool_name": (Row("pool", of_options("freepool_name"), "pool", REAL),),
        "blazar_owner": (Row("owner", of_options("owner_key"), "owner", REAL),),
        "az_aware": (Row("false", of_options("az_aware"), False, REAL),),
        "pci_aliases": (
            Row(
                '{{"name": "gpu", "resource_class": "gpu"}}',
                of_options("pci_aliases"),
                (PciAlias("gpu", "CUSTOM_GPU"),),
                REAL,
            ),
        ),
    },
    HOST: {
        "blazar_az_prefix": (Row("zone_", of_options("zone_prefix"), "zone_", REAL),),
        "before_end": (Row("notify", lambda it: it.components.types[HOST].before_end({}), "notify"),),
        "enable_notification_monitor": (Row("true", lambda it: it.listener is not None, True),),
        "notification_topics": (Row("a, b", lambda it: it.heard, [("a", "nova"), ("b", "nova")], HEARD),),
        "notification_exchange": (Row("cell", lambda it: it.heard, [("versioned_notifications", "cell")], HEARD),),
        "enable_polling_monitor": (Row("false", lambda it: it.components.health_interval, None),),
        "polling_interval": (Row("7", lambda it: it.components.health_interval, 7 * SECOND),),
        "healing_interval": (Row("7", of_rules("healing_horizon"), 7 * MINUTE),),
        "private_properties_asked_for": (Row("true", of_rules("private_asked_for"), True),),
        "replace_after": (
            Row("7", of_rules("replace_after"), 7 * MINUTE),
            Row("0", of_rules("replace_after"), timedelta(0)),
            Row("-1", of_rules("replace_after"), None),
        ),
    },
    "region:<name>": {
        "driver": (
            Row("simulated", lambda it: type(it.cloud), SimulatedCloud, NORTH),
            Row("openstack", lambda it: type(it.cloud), OpenStackCloud, {"DEFAULT": {"regions": "north"}}),
        ),
        "os_region_name": (Row("r1", of_options("region"), "r1", NORTH),),
        "auth_url": (Row("http://north.test/identity", of_options("auth_url"), "http://north.test/identity", NORTH),),
        **{
            name: (Row("norths", of_options(name), "norths", NORTH),)
            for name in ("username", "password", "user_domain_name", "project_name", "project_domain_name")
        },
        "cafile": (
            Row("/etc/ssl/north.pem", lambda it: it.cloud._transport.session.verify, "/etc/ssl/north.pem", NORTH),
        ),
        "path": (
            Row(
                "{folder}/north.db",
                lambda it: (type(it.cloud), (it.folder / "north.db").exists()),
                (SimulatedCloud, True),
                {"DEFAULT": {"regions": "north"}},
            ),
        ),
    },
    "quota": {
        "driver": (
            Row("config", lambda it: type(it.quotas.limits), FixedLimits),
            Row("unified", lambda it: type(it.limits._limits).__name__, "UnifiedLimits"),
        ),
        "limits": (
            Row("leases:3, hosts:-1", lambda it: it.quotas.of_project("a", load_types()), {"leases": 3}, LIMITED),
        ),
        "exempt_project_ids": (
            Row(
                "a, b",
                lambda it: [it.quotas.of_project(project, load_types()) for project in ("a", "b", "c")],
                [{}, {}, {"leases": 3}],
                LIMITED,
            ),
        ),
        "horizon_days": (Row("7", lambda it: it.quotas.horizon, 7 * DAY),),
        "cache_seconds": (Row("2.5", lambda it: it.limits._keep, 2.5, UNIFIED),),
        "on_failure": (
            Row("allow", lambda it: it.limits._lenient, True, UNIFIED),
            Row("deny", lambda it: it.limits._lenient, False, UNIFIED),
        ),
    },
    "virtual:server": {
        "default_lease": (
            Row("true", lambda it: it.components.default_terms is not None, True),
            Row("false", lambda it: it.components.default_terms, None),
        ),
        "default_lease_days": (Row("7", of_terms("lasts"), 7 * DAY, DEFAULT_LEASE),),
        "default_lease_spread_hours": (Row("7", of_terms("spread"), 7 * HOUR, DEFAULT_LEASE),),
        "default_leases_per_pass": (Row("7", of_terms("per_pass"), 7, DEFAULT_LEASE),),
        "default_lease_notifications": (
            Row("true", lambda it: it.listener is not None, True, DEFAULT_LEASE),
            Row("true", lambda it: it.listener, None),  # without default leases there is nothing to wake
            Row("false", lambda it: it.listener, None, DEFAULT_LEASE),
        ),
        "default_notice_hours": (Row("7", of_terms("notice"), 7 * HOUR, DEFAULT_LEASE),),
        "default_at_end": (Row("stop", of_terms("at_end"), "stop", DEFAULT_LEASE),),
        "default_lease_exempt_project_ids": (Row("a, b", of_terms("exempt"), {"a", "b"}, DEFAULT_LEASE),),
    },
    "service_auth": {
        "auth_url": (
            Row("http://other.test/identity", of_options("auth_url"), "http://other.test/identity", REAL),
            Row("http://other.test/identity", lambda it: it.components.origin.auth_url, "http://other.test/identity"),
        ),
        **{
            name: (Row("others", of_options(name), "others", REAL),)
            for name in ("username", "password", "user_domain_name", "project_name", "project_domain_name")
        },
        "cafile": (Row("/etc/ssl/site.pem", lambda it: it.cloud._transport.session.verify, "/etc/ssl/site.pem", REAL),),
        "insecure": (
            Row("true", lambda it: it.cloud._transport.session.verify, False, REAL),
            Row("false", lambda it: it.cloud._transport.session.verify, True, REAL),
        ),
    },
    "simulated": {
        "path": (Row("{folder}/else.db", lambda it: bool(it.cloud) and (it.folder / "else.db").exists(), True),)
    },
}


CASES = [
    pytest.param(group, name, row, id=f"[{group}] {name} = {row.text}")
    for group, options in ROWS.items()
    for name, rows in options.items()
    for row in rows
]


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Deployed]]:
    """Return a function that creates the parts of a deployment from these options and the required ones."""
    base: Options = {
        "DEFAULT": {"driver": "simulated", "transport_url": "fake://", "auth_strategy": "token_file"},
        "api": {"token_file": tmp_path / "tokens.yaml"},
        "database": {"connection": f"sqlite:///{tmp_path / 'tenure.db'}"},
        "service_auth": {"auth_url": "http://keystone.test/identity", "password": PASSWORD},
        "simulated": {"path": tmp_path / "cloud.db"},
    }
    monkeypatch.chdir(tmp_path)
    write_token_file(tmp_path / "tokens.yaml", [TokenUser("u", "u", "p", "p", ("member",), TOKEN)])
    certificates = Path(certifi.where()).read_text()
    (tmp_path / "one.pem").write_text(certificates[: certificates.index(END) + len(END)])
    with ExitStack() as stack:

        def deploy(*more: Options) -> Deployed:
            options: dict[str, dict[str, object]] = {}
            for given in (base, *more):
                for group, values in given.items():
                    options.setdefault(group, {}).update(values)
            conf = new_config()
            read_config(conf, [], files=[write_config(tmp_path / "tenure.conf", options)], prog="test")
            return Deployed(conf, tmp_path, monkeypatch, stack)

        yield deploy


@pytest.mark.parametrize(("group", "name", "row"), CASES)
def test_option_reaches_its_part(deployed: Callable[..., Deployed], group: str, name: str, row: Row):
    section = group.replace("<name>", "north")
    made = deployed(row.more, {section: {name: row.text.format(folder=Path.cwd())}})
    assert row.seen(made) == row.expected


def test_the_gauges_show_the_resources_of_the_manager(deployed: Callable[..., Deployed]):
    service = deployed().service
    assert PRESENT.source == service.present.amounts


def test_every_option_has_a_row():
    known = {group: {option.name for option in options} for group, options in OPTIONS.items()}
    assert {group: set(rows) for group, rows in ROWS.items()} == known


def test_rows_differ_from_the_default():
    """With the default it would not show that the option is read at all."""
    for group, options in OPTIONS.items():
        for option in options:
            assert option.type(ROWS[group][option.name][0].text) != option.default, f"[{group}] {option.name}"
