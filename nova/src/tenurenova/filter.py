"""The filter that Nova's scheduler loads: `tenurenova.filter.TenureFilter`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import nova.conf
from nova import objects
from nova.scheduler import filters, host_manager
from nova.scheduler import utils as scheduler_utils
from oslo_db import exception as db_exception
from oslo_log import log as logging

from tenurenova import options
from tenurenova.decision import (
    BOOT_KEY,
    HINT,
    LEGACY_ZONE_PREFIX,
    Aggregate,
    Request,
    Rules,
    asks_for_aggregates,
    decide,
    live_key,
)
from tenurenova.membership import aggregates_of, is_node

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

SPEC_OF_INSTANCE_RESERVATION = "aggregate_instance_extra_specs:reservation"
SPEC_OF_PREEMPTIBLES = "blazar:preemptible"


class TenureFilter(filters.BaseHostFilter):
    """Keeps reserved hosts for the projects that reserved them, and the hosts of the free pool for reservations.

    It reads the aggregates of all hosts from Nova's API database, once per request. The scheduler also has them in
    memory, where other filters read them. But the messages that update this memory can be late, out of order, or
    lost, so it is used only while the database does not answer. It does not say which nodes of Ironic are in which
    aggregate: these are kept for reservations then.
    """

    # The result is the same for all servers of one request.
    run_filter_once_per_request = True

    def __init__(self) -> None:
        options.register(CONF)

    def filter_all(
        self, filter_obj_list: Iterable[host_manager.HostState], spec_obj: objects.RequestSpec
    ) -> list[host_manager.HostState]:
        """Return the hosts on which this server may be put."""
        hosts = list(filter_obj_list)
        if scheduler_utils.request_is_rebuild(spec_obj):
            return hosts  # a rebuild stays on its host
        return _admitting_hosts(hosts, spec_obj)

    def host_passes(self, host_state: host_manager.HostState, filter_properties: objects.RequestSpec) -> bool:
        """Whether this server may be put on this host. The scheduler calls `filter_all` with all hosts instead."""
        return bool(_admitting_hosts([host_state], filter_properties))


def _admitting_hosts(
    hosts: Sequence[host_manager.HostState], spec: objects.RequestSpec
) -> list[host_manager.HostState]:
    request = _request(spec)
    rules = options.rules(CONF)
    aggregates = _aggregates(hosts, rules) if asks_for_aggregates(request) else {}

    admitting, refusals = [], Counter[str]()
    for host in hosts:
        decision = decide(request, aggregates.get(_key(host), ()), rules)
        name = host.nodename if is_node(host.nodename) else host.host
        LOG.debug("%s %s: %s", name, "passes" if decision.passes else "does not pass", decision)
        if decision.passes:
            admitting.append(host)
        else:
            refusals[decision.why.value] += 1
    if refusals and not admitting:
        LOG.info(
            "None of %d hosts is for server %s of project %s with hint %s=%r: %s",
            len(hosts),
            spec.instance_uuid if "instance_uuid" in spec else None,
            request.project_id,
            HINT,
            ",".join(request.reservations) or None,
            "; ".join(f"{count} because {why}" for why, count in refusals.items()),
        )
    return admitting


def _request(spec: objects.RequestSpec) -> Request:
    hint = spec.get_scheduler_hint(HINT)
    extra_specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
    return Request(
        project_id=spec.project_id,
        reservations=(hint,) if isinstance(hint, str) else tuple(hint or ()),
        in_instance_reservation=SPEC_OF_INSTANCE_RESERVATION in extra_specs,
        preemptible=_is_yes(extra_specs.get(SPEC_OF_PREEMPTIBLES, "")),
        server_id=(spec.instance_uuid if "instance_uuid" in spec else None) or "",
        boot_key=live_key(spec.get_scheduler_hint(BOOT_KEY), time.time()),
    )


def _aggregates(hosts: Sequence[host_manager.HostState], rules: Rules) -> Mapping[tuple[str, str], Sequence[Aggregate]]:
    try:
        return aggregates_of(map(_key, hosts))
    except db_exception.DBError as error:
        LOG.warning("Deciding by the aggregates in memory, because Nova's API database does not answer: %r", str(error))
        # In the zone of a reservation, so that it is closed to preemptible servers, too.
        kept = [Aggregate(rules.free_pool, {"availability_zone": LEGACY_ZONE_PREFIX})]
        return {
            _key(host): [Aggregate(known.name, dict(known.metadata)) for known in host.aggregates]
            + (kept if is_node(host.nodename) else [])
            for host in hosts
        }


def _key(host: host_manager.HostState) -> tuple[str, str]:
    return host.host, host.nodename


def _is_yes(text: str) -> bool:
    return text.strip().lower() in ("1", "on", "t", "true", "y", "yes")
