"""The one place that wires everything; processes and tests use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from stevedore import ExtensionManager

from tenure.clock import Clock, SystemClock
from tenure.domain.errors import Unavailable
from tenure.domain.request import PartHealth
from tenure.drivers.contract import CloudDriver
from tenure.drivers.regions import RegionDriver
from tenure.drivers.types import TypeDriver, TypeRouter
from tenure.enforcement.contract import EnforcementFilter
from tenure.engine.at_once import ANSWER_SECONDS, AtOnce
from tenure.engine.clock_watch import ClockWatch
from tenure.engine.default_leases import DefaultLeases, DefaultTerms
from tenure.engine.delivery import Delivery, Sink, log_message
from tenure.engine.health import HealthCheck
from tenure.engine.loop import Engine, Periodic
from tenure.engine.performer import Checkpoint, Performer
from tenure.engine.preemption import Preemption
from tenure.engine.refresh import Refresh
from tenure.engine.repair import DriftTally, Repair
from tenure.engine.workers import Workers
from tenure.metrics import DRIFT_FOUND, DRIFT_MENDED
from tenure.resources.contract import ResourceType, ResourceTypes
from tenure.services.context import Authorize, Rules
from tenure.services.default_leases import DefaultLeaseBook
from tenure.services.enforcement import Enforcement, Origin, tell_filter
from tenure.services.events import EventService
from tenure.services.healing import Healer, HealingService
from tenure.services.inventory import InventoryService
from tenure.services.leases import LeaseService
from tenure.services.limits import LimitService
from tenure.services.manager import Manager, metered
from tenure.services.outbox import OutboxService
from tenure.services.preemption import PreemptionService
from tenure.services.quotas import Quotas
from tenure.services.resources import ResourceService
from tenure.store import schema
from tenure.store.database import Database

#: Filters that are asked, by name, in this order.
Filters = Mapping[str, EnforcementFilter]


def load_types(settings: Mapping[str, Mapping[str, object]] = MappingProxyType({})) -> ResourceTypes:
    """The resource types that are installed, ours and others', by their entry points.

    ``settings`` are what their constructors are given, by the names of the entry points.
    """
    extensions: ExtensionManager[ResourceType] = ExtensionManager("tenure.resource_types", invoke_on_load=False)
    found = sorted(extensions, key=lambda extension: extension.name)
    return ResourceTypes(tuple(extension.plugin(**settings.get(extension.name, {})) for extension in found))


def load_filters() -> Mapping[str, type[EnforcementFilter]]:
    """The filters that are installed, ours and others', by the names of their entry points; none is enabled by that."""
    extensions: ExtensionManager[EnforcementFilter] = ExtensionManager(
        "tenure.enforcement_filters", invoke_on_load=False
    )
    return {extension.name: extension.plugin for extension in extensions}


class MakeTypeDriver(Protocol):
    """What an entry point of ``tenure.type_drivers`` names: it makes the driver of the inventory it is called after.

    An attribute ``SETTINGS``, where there is one, maps the names of what it can be told to what they are about; without
    being told it must do, too. What it keeps in files it keeps in ``folder``, in memory where there is none.
    """

    def __call__(self, settings: Mapping[str, str], *, folder: Path | None) -> TypeDriver: ...


def type_drivers() -> Mapping[str, MakeTypeDriver]:
    """What makes the drivers of types by others, by inventory."""
    return {one.name: one.load() for one in sorted(entry_points(group="tenure.type_drivers"), key=lambda one: one.name)}


def open_type_drivers(
    folder: Path | None, settings: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> Mapping[str, TypeDriver]:
    """The drivers of types by others, by inventory; ``settings`` are what an operator has told them."""
    return {name: make(settings.get(name, {}), folder=folder) for name, make in type_drivers().items()}


#: How soon a cloud that is not asked at intervals is asked again where it did not answer.
ASKED_AGAIN = timedelta(minutes=1)
#: How often it is looked whether the clock of the database was set back.
CLOCK_INTERVAL = timedelta(seconds=10)
#: How often it is looked for servers that are in the way of what starts soon.
PREEMPTION_INTERVAL = timedelta(seconds=5)
#: How often it is looked for servers that were booted without a lease, where they get one.
DEFAULT_LEASES_INTERVAL = timedelta(minutes=1)
#: How long something may be due before the engine, or what delivers notifications, is called unwell.
UNATTENDED = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a process is given to work with."""

    db: Database
    driver: CloudDriver
    types: ResourceTypes
    authorize: Authorize
    clock: Clock = field(default_factory=SystemClock)
    rules: Rules = field(default_factory=Rules)
    #: Who has a say about which leases may be, by name, in the order in which they are asked.
    filters: Filters = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    #: How much projects may have booked.
    quotas: Quotas = field(default_factory=Quotas)
    sink: Sink = log_message
    checkpoint: Checkpoint = lambda _point: None
    #: The drivers that types bring for inventories of their own; all else is the driver's.
    type_drivers: Mapping[str, TypeDriver] = field(default_factory=dict)
    #: How many events of each lane are carried out side by side; 0 for one after the other, in the thread that asks.
    workers: int = 0
    #: How many requests may wait for the cloud at a time: fewer than there are threads that serve requests.
    places: int = 8
    #: For how many seconds a request waits for what the cloud has to do for a lease, and is judged again by filters.
    answer_seconds: float = ANSWER_SECONDS
    #: How often the cloud is compared with the ledger.
    repair_interval: timedelta = timedelta(minutes=1)
    #: How often the cloud is asked what its resources have; None for never.
    inventory_interval: timedelta | None = timedelta(minutes=10)
    #: How often the cloud is asked for the health of resources; None for only when a notification gives reason to.
    health_interval: timedelta | None = timedelta(minutes=1)
    #: What the leases of servers are like that were booted without one; None where these get none.
    default_terms: DefaultTerms | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """A manager with its engine, wired."""

    manager: Manager
    engine: Engine
    events: EventService
    outbox: OutboxService
    repair: Repair
    clock_watch: ClockWatch
    healing: HealingService
    health_check: HealthCheck
    refresh: Refresh
    parts: Parts


def build(parts: Parts) -> Service:
    """Wire a manager and its engine."""
    driver = _routed(parts)
    events = EventService(parts.db, parts.types, parts.rules)
    outbox = OutboxService(parts.db, parts.rules)
    wake, look = _Relay(), _Relay()
    inventories = {kind.inventory for kind in parts.types}
    tally = DriftTally(
        on_found=lambda inventory: DRIFT_FOUND.labels(inventory).inc(),
        on_mended=lambda inventory: DRIFT_MENDED.labels(inventory).inc(),
    )
    performer = Performer(
        events,
        driver,
        parts.clock,
        wake=wake,
        mended=lambda resource_type: tally.count_mended(parts.types[resource_type].inventory),
        checkpoint=parts.checkpoint,
    )
    repair = Repair(events, driver, inventories, tally=tally, wake=wake)
    healing = HealingService(parts.db, parts.types, parts.rules, wake, look)
    listed = {kind.stock.name for kind in parts.types if kind.stock is not None and kind.stock.is_listed}
    health_check = HealthCheck(healing, driver, inventories)
    refresh = Refresh(InventoryService(parts.db, parts.clock), healing, driver, listed)
    health = Periodic(
        "health",
        health_check.run_if_asked if parts.health_interval is None else health_check.run,
        parts.health_interval or ASKED_AGAIN,
    )
    clock_watch = ClockWatch(events, outbox)
    periodic = [
        Periodic("repair", repair.run, parts.repair_interval),
        Periodic("clock", clock_watch.run, CLOCK_INTERVAL),
        health,
    ]
    if parts.rules.preemption_notice:
        preemption = Preemption(PreemptionService(parts.db, events, parts.rules), driver)
        periodic.append(Periodic("preemption", preemption.run, PREEMPTION_INTERVAL))
    if parts.inventory_interval is not None:
        periodic.append(Periodic("refresh", refresh.run, parts.inventory_interval))
    workers = Workers(parts.workers, wake)
    parts.db.listeners = {name: frozenset(one.listens_to) for name, one in parts.filters.items() if one.listens_to}
    channels = [
        Delivery(outbox, parts.clock, partial(tell_filter, parts.filters[name], parts.origin), channel=name)
        for name in parts.db.listeners
    ]
    letters = Delivery(outbox, parts.clock, parts.sink)
    engine = Engine(events, performer, letters, periodic, parts.clock, workers, channels)
    wake.target = engine.wake

    def look_soon() -> None:
        health_check.ask()
        health.wake.set()

    look.target = look_soon
    effects = AtOnce(
        events,
        performer,
        driver,
        workers,
        wake,
        places=parts.places,
        answer_seconds=parts.answer_seconds,
    )
    enforcement = Enforcement(
        parts.db,
        parts.clock,
        parts.types,
        parts.quotas,
        parts.filters,
        parts.origin,
        effects.places,
        timedelta(seconds=parts.answer_seconds),
    )
    manager = Manager(
        leases=LeaseService(parts.db, parts.clock, parts.types, parts.authorize, parts.rules, effects, enforcement),
        resources=ResourceService(
            parts.db,
            parts.clock,
            parts.types,
            parts.authorize,
            effects,
            Healer(parts.types, parts.rules),
            parts.rules.regions,
        ),
        limits=LimitService(parts.db, parts.clock, parts.types, parts.authorize, parts.quotas),
        health=lambda: _health(parts, engine, events, outbox),
    )
    if parts.default_terms is not None:
        defaults = DefaultLeases(manager.leases, DefaultLeaseBook(parts.db), driver, parts.clock, parts.default_terms)
        engine.add(Periodic("default leases", defaults.run, DEFAULT_LEASES_INTERVAL))
    return Service(metered(manager), engine, events, outbox, repair, clock_watch, healing, health_check, refresh, parts)


def _routed(parts: Parts) -> CloudDriver:
    """The driver of everything: the cloud's, unless types have drivers of their own."""
    home = next(iter(parts.rules.regions), "")
    own = {
        name: RegionDriver(home, parts.type_drivers[kind.inventory], home=True)
        for kind in parts.types
        if kind.inventory in parts.type_drivers
        for name in (kind.name, kind.inventory)
    }
    return TypeRouter(parts.driver, own) if own else parts.driver


class _Relay:
    """What wakes somebody up, for those who are made before him."""

    target: Callable[[], None] = staticmethod(lambda: None)

    def __call__(self) -> None:
        self.target()


def _health(parts: Parts, engine: Engine, events: EventService, outbox: OutboxService) -> tuple[PartHealth, ...]:
    """Each part by name, and what ails it."""
    try:
        found, wanted = schema.current(parts.db), schema.head()
        behind = None if found == wanted else f"the schema is at {found}, this release needs {wanted}"
        database = PartHealth("database", behind is None, behind)
    except Exception as error:  # noqa: BLE001  # whatever ails it is the answer
        database = PartHealth("database", False, str(error) if isinstance(error, Unavailable) else type(error).__name__)
    running = engine.is_alive or not parts.workers
    ailment = None if running else "it does not run"
    if not database.well:
        return database, PartHealth("engine", running, ailment)
    late = events.unattended()
    if running and late > UNATTENDED:
        ailment = f"nobody has taken up what has been due for {late.total_seconds():.0f} seconds"
    loop = PartHealth("engine", ailment is None, ailment)
    return database, loop, _letters(outbox)


def _letters(outbox: OutboxService) -> PartHealth:
    ailments = []
    if lost := outbox.count_undeliverable():
        ailments.append(f"{lost} could not be delivered")
    if (late := outbox.overdue()) > UNATTENDED:
        ailments.append(f"the oldest has been waiting for {late.total_seconds():.0f} seconds")
    return PartHealth("notifications", not ailments, "; ".join(ailments) or None)
