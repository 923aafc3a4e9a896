"""Metrics for Prometheus. They cost nothing if they are not served."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LOG = logging.getLogger(__name__)

#: How many ports a process tries until one is free: this many processes of one machine can share a setting.
PORTS = 16

_FAST = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_LATE = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900, 3600)

REQUESTS = Histogram(
    "tenure_request_seconds",
    "How long requests to the API took, to the last piece of the answer, by method, route and status ('broken' for "
    "an answer that a failure has cut short, 'aborted' where the client went away before its end)",
    ("method", "route", "status"),
    buckets=_FAST,
)
OPERATIONS = Histogram(
    "tenure_operation_seconds",
    "How long the use cases took, by operation and outcome ('ok', or the name of the error); "
    "leases.create and leases.update decide about admission",
    ("operation", "outcome"),
    buckets=_FAST,
)
REFUSALS = Counter(
    "tenure_refusals_total",
    "Requests for leases that were refused, by the name of the error and the stage that nothing passed",
    ("reason", "stage"),
)
ADMISSIONS = Counter(
    "tenure_admissions_total",
    "New leases that were booked, by how room was found: 'greedy' beside all plans, 'moved' after plans of other "
    "leases made way, 'exact' by the exact search, 'waited' after a time of waiting",
    ("way",),
)
UNPROVEN = Counter(
    "tenure_exact_searches_unproven_total",
    "Requests for leases that were refused although the exact search has not proven that there is no room",
)
LANE_RUNNING = Gauge("tenure_lane_running", "Operations that run, by lane", ("lane",))
LANE_WAITING = Gauge("tenure_lane_waiting", "Operations that wait for a place, by lane", ("lane",))
LANE_REFUSALS = Counter(
    "tenure_lane_refusals_total",
    "Operations that were not begun, by lane and reason ('full': too many wait already, 'late': no place was free in "
    "time, 'gone': the caller has disconnected)",
    ("lane", "reason"),
)
LATENESS = Histogram(
    "tenure_event_lateness_seconds",
    "How long after they were due events were done, by type",
    ("event_type",),
    buckets=_LATE,
)
ATTEMPTS = Counter(
    "tenure_event_attempts_total",
    "Attempts at events, by type and outcome ('done', 'waiting' for the cloud, 'busy' cloud, 'occupied' by others, "
    "'refused', 'lost' to another worker, 'defect' of ours)",
    ("event_type", "outcome"),
)
#: The most events that ``EVENTS_READY`` counts, separately for starts and for others.
COUNTED = 1000
EVENTS_READY = Gauge(
    "tenure_events_ready",
    f"Unclaimed events that are due; more than {2 * COUNTED} are not counted",
)
EVENTS_UNATTENDED = Gauge("tenure_event_unattended_seconds", "For how long the oldest of them has been due")
UNDELIVERABLE = Gauge(
    "tenure_notifications_undeliverable", "Notifications that were given up: tenure-manage outbox list"
)
DELIVERIES = Counter("tenure_notifications_total", "Attempts to deliver a notification, by outcome", ("outcome",))
DRIVER_CALLS = Histogram(
    "tenure_driver_call_seconds",
    "How long calls to the cloud took, by service, verb and outcome",
    ("service", "verb", "outcome"),
    buckets=_FAST,
)
DRIFT_FOUND = Counter(
    "tenure_drift_found_total", "Differences found between the cloud and the ledger", ("resource_type",)
)
DRIFT_RECONCILED = Counter("tenure_drift_reconciled_total", "Differences that were reconciled", ("resource_type",))


@dataclass(frozen=True, slots=True)
class PresentAmounts:
    """What there is of a resource class in a region at present, and what leases have of it."""

    resource_type: str
    region: str
    resource_class: str
    total: int
    reserved: int
    allocated: int
    idle_reserved: int
    out_of_order: int


class PresentGauges(Collector):
    """Gauges whose values and labels are read when they are asked for; without a ``source`` they show nothing."""

    LABELS = ("resource_type", "region", "resource_class")
    _TEXTS: Mapping[str, tuple[str, str]] = MappingProxyType(
        {
            "tenure_resources": ("total", "Resources, or what they have of a class"),
            "tenure_resources_reserved": ("reserved", "The part that belongs to leases at present, started or not"),
            "tenure_resources_allocated": ("allocated", "The part of this that leases hold which have started"),
            "tenure_resources_idle_reserved": ("idle_reserved", "The part that is reserved and not allocated"),
            "tenure_resources_out_of_order": (
                "out_of_order",
                "What takes no reservations, in use or not",
            ),
        }
    )

    def __init__(self) -> None:
        self.source: Callable[[], Sequence[PresentAmounts]] = tuple

    def describe(self) -> Iterator[Metric]:
        for name, (_, text) in self._TEXTS.items():
            yield GaugeMetricFamily(name, text, labels=self.LABELS)

    def collect(self) -> Iterator[Metric]:
        amounts = self.source()
        for family in self.describe():
            field, _ = self._TEXTS[family.name]
            for sample in amounts:
                labels = {name: getattr(sample, name) for name in self.LABELS}
                family.add_sample(family.name, labels, getattr(sample, field))
            yield family


PRESENT = PresentGauges()
REGISTRY.register(PRESENT)


@contextmanager
def timed(operation: str) -> Iterator[None]:
    """Measure the duration and the outcome of a use case."""
    began, outcome = time.perf_counter(), "ok"
    try:
        yield
    except Exception as error:
        outcome = type(error).__name__
        raise
    finally:
        OPERATIONS.labels(operation, outcome).observe(time.perf_counter() - began)


def serve(port: int | None, host: str) -> int | None:
    """Serve the metrics on the first free port from ``port`` on; return that port, None if there is none.

    A process that cannot serve its metrics runs all the same, and logs that.
    """
    if port is None:
        return None
    reason: OSError | None = None
    for candidate in range(port, min(port + PORTS, 65536)):
        try:
            start_http_server(candidate, host)
        except OSError as error:
            reason = error
            continue
        LOG.info("metrics are shown on %s:%d", host, candidate)
        return candidate
    LOG.error("no metrics: none of the ports %d to %d of %s can be used: %s", port, port + PORTS - 1, host, reason)
    return None
