"""The components of a deployment with a real cloud, created from its configuration.

They are apart from ``factory.py`` because they need libraries that a standalone service does not have.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keystoneauth1.exceptions import ClientException
from oslo_config import cfg
from oslo_config.cfg import ConfigOpts, Error
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from tenure.api.app import Authenticate, create_app
from tenure.api.auth import TokenFileAuth
from tenure.api.keystone import KeystoneAuth
from tenure.api.policies import Policies, PolicyFileError
from tenure.clock import Clock, SystemClock
from tenure.config import REGION
from tenure.domain.errors import Unavailable
from tenure.domain.lanes import Bounds, Lane
from tenure.domain.regions import MAX_TRUSTS, NAME
from tenure.drivers.cloud import SingleCloud
from tenure.drivers.openstack.http import connect
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.pci_aliases import read_aliases
from tenure.drivers.router import Router
from tenure.drivers.simulated import SimulatedCloud
from tenure.drivers.type_driver import TypeDriver
from tenure.enforcement.contract import EnforcementFilter
from tenure.enforcement.unified_limits import UnifiedLimits
from tenure.engine.default_leases import DefaultTerms
from tenure.factory import Components, Service, build, load_filters, open_type_drivers, type_drivers
from tenure.metrics import COUNTED, DRIVER_CALLS, EVENTS_READY, EVENTS_UNATTENDED, PRESENT, UNDELIVERABLE
from tenure.resources.contract import ResourceTypes, load_types
from tenure.resources.named import only_named
from tenure.rpc.bus import Misconfigured
from tenure.rpc.client import RpcClient, remote_manager
from tenure.rpc.notifier import NotificationSink
from tenure.services.context import Rules
from tenure.services.enforcement.filters import Origin
from tenure.services.execution.performer import Checkpoint
from tenure.services.execution.service import EventService
from tenure.services.limits.quotas import FixedLimits, Quotas, RememberedLimits, names_of
from tenure.services.notifications.outbox import OutboxService
from tenure.services.planning.index import AvailabilityIndex
from tenure.services.planning.planning import Planning
from tenure.services.resources.healing import HealingService
from tenure.services.upkeep.purge import PurgeTerms
from tenure.store.database import Database
from tenure.tracing import id_for_services

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


#: The databases for a deployment. SQLite is for trials, with a single manager on one machine.
_BACKENDS = frozenset({"mariadb", "mysql", "postgresql", "sqlite"})

#: The length of a region's trust in the stored text besides the region's name, in characters: its id and separators.
_TRUST = 34


class ConfigurationError(Exception):
    """The operator's configuration cannot work; the text names the option."""


def open_manager(conf: ConfigOpts, *, checkpoint: Checkpoint = lambda _point: None) -> Service:
    """Return a manager with its engine, as configured. Raises ``ConfigurationError``."""
    clock = SystemClock()
    hosts = conf["physical:host"]
    types = open_types(conf)
    service = build(
        Components(
            db=open_database(conf),
            driver=open_driver(conf),
            type_drivers=_type_drivers(conf),
            types=types,
            authorize=_policies(conf).authorize,
            clock=clock,
            rules=_rules(conf),
            default_terms=_default_terms(conf, types),
            filters=open_filters(conf),
            quotas=open_quotas(conf),
            origin=Origin(conf.service_auth.auth_url, conf.os_region_name),
            sink=_open_sink(conf, clock),
            checkpoint=checkpoint,
            workers=conf.manager.workers,
            permits=conf.manager.rpc_threads // 2,
            bounds=bounds_of(conf),
            reconcile_interval=timedelta(seconds=conf.manager.reconcile_interval),
            inventory_interval=timedelta(seconds=conf.manager.inventory_interval) or None,
            purge=_purge_terms(conf),
            feed_retention=timedelta(hours=conf.purge.feed_hours),
            health_interval=timedelta(seconds=hosts.polling_interval) if hosts.enable_polling_monitor else None,
        )
    )
    watch_queues(service.events, service.outbox)
    PRESENT.source = service.present.amounts
    return service


def bounds_of(conf: ConfigOpts) -> Mapping[Lane, Bounds]:
    """Return how many operations of each lane run and wait."""
    return {
        lane: Bounds(
            running=conf.lanes[f"{lane.value}_running"],
            running_of_project=conf.lanes[f"{lane.value}_running_of_project"],
            waiting=conf.lanes[f"{lane.value}_waiting"],
            waiting_of_project=conf.lanes[f"{lane.value}_waiting_of_project"],
            wait_seconds=conf.lanes[f"{lane.value}_wait"],
        )
        for lane in Lane
    }


def _purge_terms(conf: ConfigOpts) -> PurgeTerms:
    options = conf.purge
    return PurgeTerms(
        ended_leases=timedelta(days=options.ended_leases_days) or None,
        delivered_messages=timedelta(days=options.delivered_messages_days) or None,
        unbegun_leases=options.deleted_before_start or None,
    )


def open_api(conf: ConfigOpts, *, requests_of_project: int | None = None) -> WSGIApplication:
    """Return the API, which calls managers by RPC. It connects to nothing before the first request.

    ``requests_of_project`` is how many requests of a project it serves at a time, None for any number.
    Raises ``ConfigurationError``.
    """
    try:
        manager = remote_manager(RpcClient(conf, topic=conf.manager.rpc_topic))
    except Misconfigured as error:
        raise ConfigurationError(str(error)) from None
    return create_app(
        manager,
        open_types(conf),
        _authentication(conf),
        public_url=conf.api.public_url,
        requests_of_project=requests_of_project,
    )


def open_database(conf: ConfigOpts) -> Database:
    """Return the configured database. Raises ``ConfigurationError`` for an invalid option."""
    connection = conf.database.connection
    if not connection:
        raise ConfigurationError("[database] connection is not set")
    _refuse_url(connection)
    try:
        return Database(
            connection,
            pool_size=conf.database.max_pool_size,
            pool_wait_seconds=conf.database.pool_timeout,
        )
    except (ArgumentError, ImportError) as error:
        raise ConfigurationError(f"[database] connection cannot be used: {error}") from None


def _refuse_url(connection: str) -> None:
    """Raise ``ConfigurationError`` for a URL that Tenure cannot use; the text contains no password."""
    try:
        url = make_url(connection)
    except (ArgumentError, ValueError):
        raise ConfigurationError("[database] connection is no URL; in a password, write @ : / as %40 %3A %2F") from None
    backend = url.get_backend_name()
    if backend not in _BACKENDS:
        raise ConfigurationError(f"[database] connection: Tenure cannot use {backend}, only PostgreSQL and MariaDB")
    if not url.database:
        raise ConfigurationError("[database] connection names a server and no database")
    if "@" in (url.host or ""):
        raise ConfigurationError("[database] connection has more than one @; in a password, write it as %40")


def open_healing(conf: ConfigOpts, db: Database) -> HealingService:
    """Return the service that heals leases when their resources change, as configured."""
    types, rules = open_types(conf), _rules(conf)
    planning = Planning(db, types, rules, AvailabilityIndex(db, SystemClock()))
    return HealingService(db, types, rules, planning)


def open_filters(conf: ConfigOpts) -> dict[str, EnforcementFilter]:
    """Return the enabled enforcement filters, by name, in the configured order. Raises ``ConfigurationError``."""
    installed = load_filters()
    filters: dict[str, EnforcementFilter] = {}
    for name in conf.enforcement.enabled_filters:
        if name not in installed:
            raise ConfigurationError(
                f"[enforcement] enabled_filters: there is no filter {name!r}, only {', '.join(sorted(installed))}"
            )
        try:
            filters[name] = installed[name](conf)
        except (ValueError, Error) as error:
            raise ConfigurationError(f"[enforcement] {name}: {error}") from None
    return filters


def open_quotas(conf: ConfigOpts) -> Quotas:
    """Return the limits of projects, as configured. Raises ``ConfigurationError``."""
    options = conf.quota
    horizon = timedelta(days=options.horizon_days)
    if options.driver == "none":
        return Quotas(horizon=horizon)
    if options.driver == "unified":
        try:
            asked = UnifiedLimits(conf)
        except (ClientException, Error) as error:
            raise ConfigurationError(f"[oslo_limit] {error}") from None
        keep = timedelta(seconds=options.cache_seconds)
        permits = max(1, conf.manager.rpc_threads // 4)
        remembered = RememberedLimits(asked, keep, lenient=options.on_failure == "allow", permits=permits)
        return Quotas(remembered, horizon)
    known = names_of(open_types(conf))
    unknown = sorted(options.limits.keys() - set(known))
    if unknown:
        raise ConfigurationError(f"[quota] limits: there is no {unknown[0]!r}, only {', '.join(known)}")
    return Quotas(FixedLimits(options.limits, options.exempt_project_ids), horizon)


def open_driver(conf: ConfigOpts) -> SingleCloud | Router:
    """Return the driver of the configured cloud, or a driver for several regions.

    Raises ``ConfigurationError``.
    """
    regions = regions_of(conf)
    if not regions:
        return _open_cloud(conf, None)
    paths = [
        _option_of(conf, name, "path", conf.simulated.path) for name in regions if _driver_of(conf, name) == "simulated"
    ]
    if len(set(paths)) != len(paths):
        raise ConfigurationError("two simulated regions have the same [region:...] path")
    return Router({name: _open_cloud(conf, name) for name in regions}, workers=conf.manager.workers)


def regions_of(conf: ConfigOpts) -> tuple[str, ...]:
    """Return the names of the regions, the home region first, and register the options of each region."""
    regions = tuple(conf.regions)
    for name in regions:
        if not NAME.fullmatch(name):
            raise ConfigurationError(
                f"regions: {name!r} is no name of a region: letters, digits, '_', '.' and '-', at most 24 of them"
            )
        conf.register_opts(REGION, group=f"region:{name}")
    if len(set(regions)) != len(regions):
        raise ConfigurationError("regions: one is named twice")
    if sum(len(name) + _TRUST for name in regions) > MAX_TRUSTS:
        raise ConfigurationError("regions: there are too many for the trusts that a lease may have in each of them")
    return regions


def _option_of(conf: ConfigOpts, region: str | None, option: str, default: Any) -> Any:
    """Return a region's own option, or else the general option."""
    said = conf[f"region:{region}"][option] if region else None
    return default if said is None else said


def _driver_of(conf: ConfigOpts, region: str | None) -> str:
    return str(_option_of(conf, region, "driver", conf.driver))


def _open_cloud(conf: ConfigOpts, region: str | None) -> SingleCloud:
    driver = _driver_of(conf, region)
    if driver == "simulated":
        path = _option_of(conf, region, "path", conf.simulated.path)
        try:
            return SimulatedCloud(path)
        except (sqlite3.Error, ValueError) as error:
            raise ConfigurationError(f"[simulated] path {path} cannot be used: {error}") from None
    if driver == "openstack":
        return connect(_cloud_options(conf, region), on_call=_count_call, request_id=id_for_services)
    raise ConfigurationError(f"driver: there is no driver {driver!r}")


def _type_drivers(conf: ConfigOpts) -> Mapping[str, TypeDriver]:
    """Return the drivers of third-party types. Each gets the options of the configuration group with its name."""
    settings: dict[str, dict[str, str]] = {}
    for name, make in type_drivers().items():
        known: Mapping[str, str] = getattr(make, "SETTINGS", {})
        conf.register_opts([cfg.StrOpt(setting, help=text) for setting, text in known.items()], group=name)
        given = {setting: conf[name][setting] for setting in known}
        settings[name] = {setting: value for setting, value in given.items() if value is not None}
    folder = Path(conf.state_path) if conf.state_path else None
    return open_type_drivers(folder, settings)


def _cloud_options(conf: ConfigOpts, region: str | None) -> OpenStackOptions:
    names = ("auth_url", "username", "password", "user_domain_name", "project_name", "project_domain_name", "cafile")
    account = SimpleNamespace(**{name: _option_of(conf, region, name, conf.service_auth[name]) for name in names})
    for name in ("auth_url", "password"):
        if not getattr(account, name):
            raise ConfigurationError(f"[service_auth] {name} is not set")
    try:
        return OpenStackOptions(
            auth_url=account.auth_url,
            username=account.username,
            password=account.password,
            user_domain_name=account.user_domain_name,
            project_name=account.project_name,
            project_domain_name=account.project_domain_name,
            region=_option_of(conf, region, "os_region_name", region or conf.os_region_name),
            interface=conf.nova.endpoint_type,
            cafile=account.cafile,
            insecure=conf.service_auth.insecure,
            freepool_name=conf.nova.aggregate_freepool_name,
            owner_key=conf.nova.blazar_owner,
            zone_prefix=conf["physical:host"].blazar_az_prefix,
            image_prefix=conf.nova.image_prefix,
            az_aware=conf.nova.az_aware,
            pci_aliases=read_aliases(conf.nova.pci_aliases),
            request_timeout=timedelta(seconds=conf.cloud.request_timeout),
            verb_timeout=timedelta(seconds=conf.cloud.verb_timeout),
            concurrency=conf.cloud.concurrency,
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _count_call(service: str, verb: str, outcome: str, seconds: float) -> None:
    DRIVER_CALLS.labels(service, verb, outcome).observe(seconds)


def _authentication(conf: ConfigOpts) -> Authenticate:
    if conf.auth_strategy == "keystone":
        return lambda app: KeystoneAuth(app, conf)
    if not conf.api.token_file:
        raise ConfigurationError("auth_strategy is token_file, and [api] token_file is not set")
    tokens = conf.api.token_file
    return lambda app: TokenFileAuth(app, tokens)


def _open_sink(conf: ConfigOpts, clock: Clock) -> NotificationSink:
    try:
        return NotificationSink(conf, publisher_id=conf.notifications.publisher_id, clock=clock)
    except Misconfigured as error:
        raise ConfigurationError(str(error)) from None


def watch_queues(events: EventService, outbox: OutboxService) -> None:
    """Show in the metrics what waits; a value that cannot be read right now is NaN."""

    def or_nan(read: Callable[[], float]) -> Callable[[], float]:
        def read_or_nan() -> float:
            try:
                return read()
            except Unavailable:
                return math.nan

        return read_or_nan

    EVENTS_READY.set_function(
        or_nan(lambda: sum(len(events.ready(COUNTED, starts=starts)) for starts in (True, False)))
    )
    EVENTS_UNATTENDED.set_function(or_nan(lambda: events.unattended().total_seconds()))
    UNDELIVERABLE.set_function(or_nan(outbox.count_undeliverable))


def open_types(conf: ConfigOpts) -> ResourceTypes:
    """Return the installed resource types; only those that the configuration names can be booked.

    Raises ``ConfigurationError``.
    """
    installed = load_types({"host": {"default_before_end": conf["physical:host"].before_end}})
    try:
        return only_named(installed, conf.manager.enabled_types)
    except ValueError as error:
        raise ConfigurationError(f"[manager] enabled_types: {error}") from None


def _default_terms(conf: ConfigOpts, types: ResourceTypes) -> DefaultTerms | None:
    resource_type = "virtual:server"
    server = conf[resource_type]
    if not server.default_lease:
        return None
    if resource_type not in {bookable.name for bookable in types.enabled}:
        raise ConfigurationError(
            f"[{resource_type}] default_lease is true, and [manager] enabled_types does not name {resource_type}"
        )
    return DefaultTerms(
        resource_type,
        lasts=timedelta(days=server.default_lease_days),
        spread=timedelta(hours=server.default_lease_spread_hours),
        notice=timedelta(hours=server.default_notice_hours),
        at_end=server.default_at_end,
        exempt=frozenset(server.default_lease_exempt_project_ids),
        per_pass=server.default_leases_per_pass,
    )


def _policies(conf: ConfigOpts) -> Policies:
    try:
        return Policies(conf)
    except PolicyFileError as error:
        raise ConfigurationError(str(error)) from None


def _rules(conf: ConfigOpts) -> Rules:
    replace_after = conf["physical:host"].replace_after
    return Rules(
        regions=regions_of(conf),
        cleaning_time=timedelta(minutes=conf.cleaning_time),
        notice_before_end=timedelta(minutes=conf.manager.minutes_before_end_lease),
        max_attempts=conf.manager.max_attempts,
        planning_time=timedelta(seconds=conf.manager.planning_time),
        exact_time=timedelta(milliseconds=conf.manager.exact_time_ms),
        search_time=timedelta(milliseconds=conf.manager.search_time_ms),
        turn_time=timedelta(milliseconds=conf.manager.waiting_turn_ms),
        start_patience=timedelta(minutes=conf.manager.start_patience),
        start_share=conf.manager.start_patience_percent / 100,
        before_end_patience=timedelta(minutes=conf.manager.before_end_patience),
        preemption_notice=timedelta(seconds=conf.manager.preemption_notice),
        healing_horizon=timedelta(minutes=conf["physical:host"].healing_interval),
        replace_after=timedelta(minutes=replace_after) if replace_after >= 0 else None,
        private_asked_for=conf["physical:host"].private_properties_asked_for,
    )
