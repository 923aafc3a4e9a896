"""Nova as its scheduler sees it, without its services: its configuration, its API database, its host manager."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import nova.conf
import pytest
from nova import config, context, objects
from nova.db.api import api, models
from nova.scheduler import host_manager
from oslo_utils import uuidutils
from sqlalchemy import event

BLAZAR = "blazarnova.scheduler.filters.blazar_filter.BlazarFilter"
TENURE = "tenurenova.filter.TenureFilter"

CONF = nova.conf.CONF

objects.register_all()


@pytest.fixture(scope="session", autouse=True)
def configured(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("nova")
    file = folder / "nova.conf"
    file.write_text(
        "[DEFAULT]\ntransport_url = fake:/\n"
        f"[api_database]\nconnection = sqlite:///{folder}/api.db\n"
        "[filter_scheduler]\ntrack_instance_changes = false\n"
        f"available_filters = {TENURE}\navailable_filters = {BLAZAR}\n"
    )
    config.parse_args(["nova-scheduler"], default_config_files=[str(file)])


class Cloud:
    """What the API database says, and schedulers that have heard of it or not."""

    hosts = ("compute-1", "compute-2", "compute-3")

    def __init__(self) -> None:
        self.statements: list[str] = []
        self._aggregates: dict[str, objects.Aggregate] = {}
        self.make("freepool", {}, self.hosts)

    def make(self, name: str, metadata: dict[str, str], hosts: Sequence[str] = ()) -> objects.Aggregate:
        """Put an aggregate into the database; what Nova's API would then tell its schedulers of it."""
        aggregate = objects.Aggregate(context.get_admin_context(), name=name, metadata=metadata)
        aggregate.create()
        for host in hosts:
            aggregate.add_host(host)
        self._aggregates[name] = aggregate
        return self.read(name)

    def name_nodes(self, name: str, *nodes: str) -> None:
        """Have these nodes of Ironic in the aggregate."""
        self.read(name).update_metadata({f"tenure:node:{node}": "true" for node in nodes})

    def reserve(self, name: str, project_id: str, hosts: Sequence[str], **metadata: str) -> None:
        self.make(name, {"availability_zone": f"blazar_{name}", "blazar:owner": project_id, **metadata}, hosts)
        for host in hosts:
            self.read("freepool").delete_host(host)

    def take_back(self, name: str) -> None:
        aggregate = self.read(name)
        for host in list(aggregate.hosts):
            self.read("freepool").add_host(host)
            aggregate.delete_host(host)
        aggregate.destroy()

    def read(self, name: str) -> objects.Aggregate:
        return objects.Aggregate.get_by_id(context.get_admin_context(), self._aggregates[name].id)


class Scheduler:
    """The part of nova-scheduler that filters, with a memory that began when it was made."""

    def __init__(self, filter_name: str) -> None:
        CONF.set_override("enabled_filters", [filter_name], group="filter_scheduler")
        self.manager = host_manager.HostManager()

    def hosts_for(self, spec: objects.RequestSpec, hosts: Sequence[str] = Cloud.hosts) -> list[str]:
        return self.nodes_for(spec, [(host, host) for host in hosts])

    def nodes_for(self, spec: objects.RequestSpec, nodes: Sequence[tuple[str, str]]) -> list[str]:
        """Which hypervisors are left of these, each with its compute service before it."""
        states = []
        for host, node in nodes:
            state = host_manager.HostState(host, node, uuidutils.generate_uuid())
            state.aggregates = self.manager._get_aggregates_info(host)
            states.append(state)
        return [state.nodename for state in self.manager.get_filtered_hosts(states, spec)]


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    engine = api.get_engine()
    models.BASE.metadata.drop_all(engine)
    models.BASE.metadata.create_all(engine)
    made = Cloud()

    def heard(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement != "BEGIN":
            made.statements.append(statement)

    event.listen(engine, "before_cursor_execute", heard)
    yield made
    event.remove(engine, "before_cursor_execute", heard)
