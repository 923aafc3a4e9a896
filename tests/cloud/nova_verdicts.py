"""What Nova's own filters say of the cases in ``tests/data/extra_specs.jsonl``; runs with the Python of the cloud.

For each case one line of JSON: ``true`` or ``false``, or the name of the exception that a filter raised.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from nova.objects import register_all
from nova.objects.aggregate import Aggregate
from nova.objects.flavor import Flavor
from nova.objects.request_spec import RequestSpec
from nova.scheduler.filters.aggregate_instance_extra_specs import AggregateInstanceExtraSpecsFilter
from nova.scheduler.filters.compute_capabilities_filter import ComputeCapabilitiesFilter
from nova.scheduler.host_manager import HostState


def host_state(host: dict[str, Any]) -> Any:
    """Return a host as Nova's scheduler has it."""
    state = HostState("compute-1", host["attributes"].get("nodename", "node-1"), None)
    state.stats = {}
    for name, value in host["attributes"].items():
        text = name == "cpu_info" and not isinstance(value, str)
        setattr(state, name, json.dumps(value, sort_keys=True) if text else value)
    state.aggregates = [Aggregate(metadata=metadata) for metadata in host["aggregates"]]
    return state


def verdict(host: dict[str, Any], specs: dict[str, str]) -> bool | str:
    """Say whether the host passes both filters; the one of aggregates only if no name is without a scope.

    That filter looks for such names in aggregates; Tenure reads them as the other one does.
    """
    spec = RequestSpec(flavor=Flavor(extra_specs=specs))
    filters: list[Any] = [ComputeCapabilitiesFilter()]
    if all(":" in name for name in specs):
        filters.append(AggregateInstanceExtraSpecsFilter())
    try:
        return all(found.host_passes(host_state(host), spec) for found in filters)
    except (ValueError, IndexError) as error:
        return type(error).__name__


def main(path: str) -> None:
    register_all()
    hosts: dict[str, dict[str, Any]] = {}
    for line in Path(path).read_text().splitlines():
        record = json.loads(line)
        if "specs" in record:
            print(json.dumps(verdict(hosts[record["host"]], record["specs"])))
        else:
            hosts[record["host"]] = record


main(sys.argv[1])
