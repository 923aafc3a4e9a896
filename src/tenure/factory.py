"""The only place that wires all components together; processes and tests use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from stevedore import ExtensionManager

from tenure.clock import Clock, SystemClock
from tenure.domain.errors import Unavailable
from tenure.domain.lanes import USUAL, Bounds, Lane
from tenure.domain.request import ComponentHealth
from tenure.drivers.cloud import SingleCloud
from tenure.drivers.contract import CloudDriver
from tenure.drivers.openstack.type_driver import is_in_openstack
from tenure.drivers.router import Router
from tenure.drivers.type_driver import TypeDriver, installed_type_drivers
from tenure.enforcement.contract import EnforcementFilter
from tenure.engine.clock_watch import ClockWatch
from tenure.engine.default_leases import DefaultLeases, DefaultTerms
from tenure.engine.delivery import Delivery, Sink, log_message
from tenure.engine.health import HealthCheck
from tenure.engine.loop import Engine, Periodic
from tenure.engine.preemption import Preemption
from tenure.engine.reconciler import Reconciler, ReconciliationTally
from tenure.engine.refresh import Refresh
from tenure.metrics import ADMISSIONS, DRIFT_FOUND, DRIFT_RECONCILED
from tenure.planning import cp_sat
from tenure.planning.backtracking import BacktrackingSolver
from tenure.planning.cp_sat import CpSatSolver
from tenure.planning.exact import Solver
from tenure.resources.contract import ResourceTypes
from tenure.services.booking.admission import Admission
from tenure.services.booking.context import BookingContext
from tenure.services.booking.new_leases import NewLeases
from tenure.services.cloud import CloudCalls
from tenure.services.context import Authorize, Context, Rules
from tenure.services.enforcement.filters import Enforcement, Origin, deliver_to_filter
from tenure.services.execution.at_once import ANSWER_SECONDS, POLL, AtOnce
from tenure.services.execution.performer import Checkpoint, Performer
from tenure.services.execution.preemption import PreemptionService
from tenure.services.execution.service import EventService
from tenure.services.execution.workers import Workers
from tenure.services.identities import Identities
from tenure.services.lanes import Lanes
from tenure.services.leases.access import LeaseAccess
from tenure.services.leases.default_leases import DefaultLeaseBook
from tenure.services.leases.intake import Intake
from tenure.services.leases.trusts import IdleTrusts
from tenure.services.limits.headroom import Headrooms
from tenure.services.limits.quotas import Quotas
from tenure.services.limits.service import LimitService
from tenure.services.manager import Manager, in_lanes, metered
from tenure.services.notifications.outbox import OutboxService
from tenure.services.planning.feed import FeedService
from tenure.services.planning.index import AvailabilityIndex
from tenure.services.planning.planning import Planning
from tenure.services.requests.dry_runs import DryRunService
from tenure.services.requests.leases import LeaseService
from tenure.services.resources.healing import Healer, HealingService
from tenure.services.resources.in_use import InventoriesInUse
from tenure.services.resources.inventory import InventoryService
from tenure.services.resources.reconciliation import ReconciliationService
from tenure.services.resources.service import ResourceService
from tenure.services.search.alternatives import AlternativeService
from tenure.services.search.attempts import AttemptFactory
from tenure.services.search.flexible import FlexibleBooker
from tenure.services.search.look_ahead import LookAhead
from tenure.services.search.offers import OfferService
from tenure.services.search.periods import PeriodSearch
from tenure.services.search.present import PresentService
from tenure.services.search.service import AvailabilityService
from tenure.services.upkeep.purge import PurgeService, PurgeTerms
from tenure.services.usage.service import UsageService
from tenure.services.waiting.waiting_list import WaitingList
from tenure.store import schema
from tenure.store.database import Database
from tenure.store.feed import RETENTION

#: Enforcement filters by name, in the order of their calls.
Filters = Mapping[str, EnforcementFilter]


def load_filters() -> Mapping[str, type[EnforcementFilter]]:
    """Return the installed enforcement filters, ours and third-party ones, by entry point name. None is enabled yet."""
    extensions: ExtensionManager[EnforcementFilter] = ExtensionManager(
        "tenure.enforcement_filters", invoke_on_load=False
    )
    return {extension.name: extension.plugin for extension in extensions}


class MakeTypeDriver(Protocol):
    """What an entry point of a ``TypeDriver`` loads: its class, or a function that returns one."""

    def __call__(self, settings: Mapping[str, str], *, folder: Path | None) -> TypeDriver: ...


def type_drivers() -> Mapping[str, MakeTypeDriver]:
    """Return the factories of type drivers that belong to no cloud, by resource type or inventory."""
    return {name: loaded for name, loaded in installed_type_drivers().items() if not is_in_openstack(loaded)}


def open_type_drivers(
    folder: Path | None, settings: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> Mapping[str, TypeDriver]:
    """Return the type drivers that belong to no cloud; ``settings`` are the operator's."""
    return {name: make(settings.get(name, {}), folder=folder) for name, make in type_drivers().items()}


#: How soon a cloud that did not answer is asked again, if it is not polled at intervals.
ASKED_AGAIN = timedelta(minutes=1)
#: How often to check whether the clock of the database was set back.
CLOCK_INTERVAL = timedelta(seconds=10)
#: How often the index of availability follows the ledger at least; each search follows it, too.
INDEX_INTERVAL = timedelta(seconds=5)
#: How often old entries of the feed are deleted.
FEED_INTERVAL = timedelta(minutes=5)
#: How often ended leases and delivered messages are purged, as far as the operator wants it.
PURGE_INTERVAL = timedelta(minutes=5)
#: How often to look for servers that are in the way of leases that start soon.
PREEMPTION_INTERVAL = timedelta(seconds=5)
#: How often to look for servers that were booted without a lease, if they get default leases.
DEFAULT_LEASES_INTERVAL = timedelta(minutes=1)
#: How long something may be overdue before the engine, or the delivery of notifications, is reported as unwell.
UNATTENDED = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Components:
    """The components from which a manager is built."""

    db: Database
    driver: SingleCloud | Router
    types: ResourceTypes
    authorize: Authorize
    clock: Clock = field(default_factory=SystemClock)
    rules: Rules = field(default_factory=Rules)
    #: Enforcement filters by name, in the order of their calls.
    filters: Filters = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    #: The limits of projects.
    quotas: Quotas = field(default_factory=Quotas)
    sink: Sink = log_message
    checkpoint: Checkpoint = lambda _point: None
    #: Drivers that types bring along, by the name of the type or of its inventory; ``driver`` has all other types.
    type_drivers: Mapping[str, TypeDriver] = field(default_factory=dict)
    #: How many events of each lane are carried out concurrently; 0 for one after the other, in the calling thread.
    workers: int = 0
    #: How many requests may wait for the cloud at a time: fewer than the threads that serve requests.
    permits: int = 8
    #: How long a request waits for the cloud's work on a lease, and for repeated checks of filters, in seconds.
    answer_seconds: float = ANSWER_SECONDS
    #: The interval between comparisons of the cloud with the ledger.
    reconcile_interval: timedelta = timedelta(minutes=1)
    #: The interval between updates of the resources from the cloud; None for never.
    inventory_interval: timedelta | None = timedelta(minutes=10)
    #: The interval between checks of the resources' health; None to check only after a notification.
    health_interval: timedelta | None = timedelta(minutes=1)
    #: How many operations run and wait at a time.
    bounds: Mapping[Lane, Bounds] = field(default_factory=lambda: USUAL)
    #: What is purged from time to time, and how long the feed of the ledger is kept.
    purge: PurgeTerms = field(default_factory=PurgeTerms)
    feed_retention: timedelta = RETENTION
    #: Further components of the service in the health check: what is wrong with each, or None, by name.
    ailments: Callable[[], Mapping[str, str | None]] = dict
    #: The terms of leases for servers that were booted without one; None if they get none.
    default_terms: DefaultTerms | None = None


@dataclass(frozen=True, slots=True)
class DefaultLeasePasses:
    """The passes over servers for default leases: of new and deleted ones, which can be woken, and of all."""

    changed: Periodic
    existing: DefaultLeases


@dataclass(frozen=True, slots=True)
class Service:
    """A manager with its engine, fully wired. ``driver`` has all resource types."""

    manager: Manager
    engine: Engine
    events: EventService
    reconciliation: ReconciliationService
    outbox: OutboxService
    reconciler: Reconciler
    clock_watch: ClockWatch
    healing: HealingService
    health_check: HealthCheck
    refresh: Refresh
    present: PresentService
    waiting_list: WaitingList
    purge: PurgeService
    driver: CloudDriver
    components: Components
    #: None if servers get no default leases.
    default_leases: DefaultLeasePasses | None = None


def build(components: Components) -> Service:
    """Wire a manager with its engine."""
    driver = _routed(components)
    index = AvailabilityIndex(components.db, components.clock)
    planning = Planning(components.db, components.types, components.rules, index, _solver(components.rules))
    reconciliation = ReconciliationService(components.db, components.types)
    outbox = OutboxService(components.db, components.rules)
    wake, look, freed = _Relay(), _Relay(), _Relay()
    inventories = InventoriesInUse(components.db, components.types)
    tally = ReconciliationTally(
        on_found=lambda inventory: DRIFT_FOUND.labels(inventory).inc(),
        on_reconciled=lambda inventory: DRIFT_RECONCILED.labels(inventory).inc(),
    )
    events = EventService(
        components.db,
        components.types,
        components.rules,
        planning,
        on_reconciled=lambda resource_type: tally.count_reconciled(components.types[resource_type].inventory),
    )
    performer = Performer(events, driver, components.clock, wake=wake, checkpoint=components.checkpoint)
    reconciler = Reconciler(reconciliation, IdleTrusts(components.db), driver, inventories, tally=tally, wake=wake)
    healing = HealingService(components.db, components.types, components.rules, planning, wake, look)
    listed = {
        resource_type.own_inventory.name
        for resource_type in components.types
        if resource_type.own_inventory is not None and resource_type.own_inventory.is_listed
    }
    health_check = HealthCheck(healing, driver, inventories)
    refresh = Refresh(InventoryService(components.db, components.clock), healing, driver, inventories, listed)
    health = Periodic(
        "health",
        health_check.run_if_asked if components.health_interval is None else health_check.run,
        components.health_interval or ASKED_AGAIN,
    )
    clock_watch = ClockWatch(events, outbox)
    purge = PurgeService(components.db, components.purge)
    present = PresentService(components.clock, index, {resource_type.inventory for resource_type in components.types})
    periodic = [
        Periodic("availability", index.refresh, INDEX_INTERVAL),
        Periodic("feed", FeedService(components.db, components.feed_retention).prune, FEED_INTERVAL),
        Periodic("purge", purge.run, PURGE_INTERVAL),
        Periodic("reconciliation", reconciler.run, components.reconcile_interval),
        Periodic("clock", clock_watch.run, CLOCK_INTERVAL),
        health,
    ]
    if components.rules.preemption_notice:
        preemption = Preemption(PreemptionService(components.db, components.rules), driver)
        periodic.append(Periodic("preemption", preemption.run, PREEMPTION_INTERVAL))
    if components.inventory_interval is not None:
        periodic.append(Periodic("refresh", refresh.run, components.inventory_interval))
    workers = Workers(components.workers, freed)
    components.db.listeners = {
        name: frozenset(enforcement_filter.listens_to)
        for name, enforcement_filter in components.filters.items()
        if enforcement_filter.listens_to
    }
    channels = [
        Delivery(
            outbox,
            components.clock,
            partial(deliver_to_filter, components.filters[name], components.origin),
            channel=name,
        )
        for name in components.db.listeners
    ]
    messages = Delivery(outbox, components.clock, components.sink)

    def look_soon() -> None:
        health_check.ask()
        health.wake.set()

    look.target = look_soon
    permits = threading.Semaphore(components.permits)
    cloud = CloudCalls(driver, permits)
    at_once = AtOnce(
        events,
        reconciliation,
        performer,
        driver,
        workers,
        wake,
        permits=permits,
        answer_seconds=components.answer_seconds,
    )
    enforcement = Enforcement(
        components.db, components.filters, components.origin, permits, timedelta(seconds=components.answer_seconds)
    )
    context = Context(components.db, components.clock, components.types, components.authorize, components.rules)
    identities = Identities(components.db, cloud)
    intake = Intake(components.db, components.types, components.rules, cloud)
    headrooms = Headrooms(components.db, components.clock, components.types, components.quotas)
    lanes = Lanes(components.bounds, search_seconds=components.rules.planning_time.total_seconds())
    access = LeaseAccess(components.authorize)
    booking = BookingContext(components.db, components.types, components.rules, access, planning, headrooms)
    admission = Admission(
        components.db,
        components.clock,
        components.types,
        components.quotas,
        planning,
        enforcement,
        lanes,
        on_admitted=lambda way: ADMISSIONS.labels(way.value).inc(),
    )
    new_leases = NewLeases(booking, components.clock, intake)
    look_ahead = LookAhead(index, components.types, components.rules)
    attempt_factory = AttemptFactory(components.authorize, intake, new_leases, admission, components.rules)
    periods = PeriodSearch(components.clock, components.rules, index, attempt_factory, headrooms)
    flexible = FlexibleBooker(components.clock, attempt_factory, periods, new_leases)
    waiting_list = WaitingList(context, admission, flexible, periods, lanes)

    def serve() -> None:
        if waiting_list.run():
            wake()

    waiting = Periodic("waiting list", serve, POLL)
    periodic.append(waiting)
    engine = Engine(
        events, performer, messages, periodic, components.clock, workers, channels, serve=waiting_list.serve_fully
    )
    freed.target = engine.begin_more

    def wake_all() -> None:
        engine.wake()
        waiting.wake.set()

    wake.target = wake_all
    manager = Manager(
        leases=LeaseService(
            context,
            booking,
            cloud,
            at_once,
            intake,
            new_leases,
            admission,
            flexible,
            look_ahead,
            waiting_list,
            lanes,
            identities,
        ),
        dry_runs=DryRunService(context, booking, intake, new_leases, admission, flexible),
        resources=ResourceService(context, cloud, Healer(components.types, components.rules, planning), wake),
        limits=LimitService(context, components.quotas, identities),
        usage=UsageService(context, identities),
        availability=AvailabilityService(context, index),
        offers=OfferService(
            context,
            index,
            attempt_factory,
            periods,
            headrooms,
        ),
        alternatives=AlternativeService(
            context,
            index,
            look_ahead,
            attempt_factory,
            periods,
            headrooms,
            booking,
            intake,
        ),
        health=lambda: _health(components, engine, events, outbox),
    )
    default_leases = _default_leases(components, driver, manager.leases)
    if default_leases is not None:
        engine.add(default_leases.changed)
        engine.add(Periodic("default leases", default_leases.existing.run, DEFAULT_LEASES_INTERVAL))
    return Service(
        metered(in_lanes(manager, lanes)),
        engine,
        events,
        reconciliation,
        outbox,
        reconciler,
        clock_watch,
        healing,
        health_check,
        refresh,
        present,
        waiting_list,
        purge,
        driver,
        components,
        default_leases,
    )


def _default_leases(components: Components, driver: CloudDriver, leases: LeaseService) -> DefaultLeasePasses | None:
    """Return the passes that give default leases; None if the operator wants none."""
    terms, book = components.default_terms, DefaultLeaseBook(components.db)
    if terms is None:
        return None
    changed = DefaultLeases(leases, book, driver, components.clock, terms)
    existing = DefaultLeases(leases, book, driver, components.clock, terms, existing=True)
    return DefaultLeasePasses(Periodic("default leases of new servers", changed.run, DEFAULT_LEASES_INTERVAL), existing)


def _solver(rules: Rules) -> Solver | None:
    """Return the solver of the exact search; None if the operator wants none."""
    if not rules.exact_time:
        return None
    return CpSatSolver() if cp_sat.is_installed() else BacktrackingSolver()


def _routed(components: Components) -> CloudDriver:
    """Return the driver for all types: the cloud's, or a router to the types' own drivers as well."""
    drivers = components.type_drivers
    own = {
        resource_type.inventory: drivers[resource_type.inventory]
        for resource_type in components.types
        if resource_type.inventory in drivers
    }
    for resource_type in components.types:
        driver = drivers.get(resource_type.name, drivers.get(resource_type.inventory))
        own |= {resource_type.name: driver} if driver is not None else {}
    if not own:
        return components.driver
    router = components.driver if isinstance(components.driver, Router) else Router({"": components.driver})
    return router.beside(own)


class _Relay:
    """A wake-up call whose receiver is set later, for components that are created before it."""

    target: Callable[[], None] = staticmethod(lambda: None)

    def __call__(self) -> None:
        self.target()


def _health(
    components: Components, engine: Engine, events: EventService, outbox: OutboxService
) -> tuple[ComponentHealth, ...]:
    """Return the health of each part, with the reason if it is not well."""
    try:
        current, expected = schema.current(components.db), schema.head()
        behind = None if current == expected else f"the schema is at {current}, this release needs {expected}"
        ailing = behind or components.db.writability.ailment()
        database = ComponentHealth("database", ailing is None, ailing)
    except Exception as error:  # noqa: BLE001  # any error is the answer
        reason = str(error) if isinstance(error, Unavailable) else type(error).__name__
        database = ComponentHealth("database", False, components.db.writability.known_ailment() or reason)
    running = engine.is_alive or not components.workers
    ailment = None if running else "it does not run"
    further = [ComponentHealth(name, reason is None, reason) for name, reason in components.ailments().items()]
    if not database.well:
        return database, ComponentHealth("engine", running, ailment), *further
    late = events.unattended()
    if running and late > UNATTENDED:
        ailment = f"no manager has claimed an event that has been due for {late.total_seconds():.0f} seconds"
    loop = ComponentHealth("engine", ailment is None, ailment)
    return database, loop, *further, _messages(outbox)


def _messages(outbox: OutboxService) -> ComponentHealth:
    ailments = []
    if lost := outbox.count_undeliverable():
        ailments.append(f"{lost} could not be delivered")
    if (late := outbox.overdue()) > UNATTENDED:
        ailments.append(f"the oldest has been waiting for {late.total_seconds():.0f} seconds")
    return ComponentHealth("notifications", not ailments, "; ".join(ailments) or None)
