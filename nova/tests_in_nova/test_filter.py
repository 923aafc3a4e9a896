"""The filter inside the real Nova: loaded by its host manager, asked by it, reading its database.

Run where Nova and both filters are installed: python -m pytest nova/tests_in_nova
"""

from __future__ import annotations

import logging

import pytest
import sqlalchemy
from conftest import CONF, Cloud, Scheduler
from nova import objects
from nova.db.api import api
from oslo_utils import uuidutils

from tenurenova.membership import aggregates_of

BIO, LAB = uuidutils.generate_uuid(dashed=False), uuidutils.generate_uuid(dashed=False)
MINE, OTHER = uuidutils.generate_uuid(), uuidutils.generate_uuid()
BOTH = pytest.mark.parametrize("filter_name", ["TenureFilter", "BlazarFilter"])


def server(project_id: str = BIO, extra_specs: dict[str, str] | None = None, **hints: list[str]) -> objects.RequestSpec:
    return objects.RequestSpec(
        project_id=project_id,
        instance_uuid=uuidutils.generate_uuid(),
        scheduler_hints=hints,
        flavor=objects.Flavor(extra_specs=extra_specs or {}),
        ignore_hosts=None,
        force_hosts=None,
        force_nodes=None,
        requested_destination=None,
    )


@BOTH
def test_the_host_is_the_owners_and_nobody_elses(cloud: Cloud, filter_name: str):
    cloud.reserve(MINE, BIO, ["compute-2"], friend="blazar:project")
    scheduler = Scheduler(filter_name)
    assert scheduler.hosts_for(server(BIO, reservation=[MINE])) == ["compute-2"]
    assert scheduler.hosts_for(server("friend", reservation=[MINE])) == ["compute-2"]
    assert scheduler.hosts_for(server(LAB, reservation=[MINE])) == []
    assert scheduler.hosts_for(server(BIO, reservation=[OTHER])) == []
    assert scheduler.hosts_for(server(BIO)) == []


@BOTH
def test_hosts_that_were_never_registered_are_open_but_not_to_a_hint(cloud: Cloud, filter_name: str):
    scheduler = Scheduler(filter_name)
    assert scheduler.hosts_for(server(), ["compute-1", "compute-9"]) == ["compute-9"]
    assert scheduler.hosts_for(server(reservation=[MINE]), ["compute-1", "compute-9"]) == []


@BOTH
def test_a_flavor_of_an_instance_reservation_is_left_to_other_filters(cloud: Cloud, filter_name: str):
    flavor = {"aggregate_instance_extra_specs:reservation": MINE}
    assert Scheduler(filter_name).hosts_for(server(extra_specs=flavor)) == list(Cloud.hosts)


@BOTH
def test_preemptible_servers_use_the_free_pool_where_allowed(cloud: Cloud, filter_name: str):
    cloud.reserve(MINE, BIO, ["compute-2"])
    scheduler = Scheduler(filter_name)
    preemptible = server(extra_specs={"blazar:preemptible": "True"})
    assert scheduler.hosts_for(preemptible) == []
    CONF.set_override("allow_preemptibles", True, group="blazar:physical:host")
    try:
        assert scheduler.hosts_for(preemptible) == ["compute-1", "compute-3"]
        assert scheduler.hosts_for(server()) == []
    finally:
        CONF.clear_override("allow_preemptibles", group="blazar:physical:host")


@pytest.mark.parametrize(("filter_name", "found"), [("TenureFilter", ["compute-2"]), ("BlazarFilter", [])])
def test_the_first_server_boots_before_the_scheduler_has_heard_of_the_start(
    cloud: Cloud, filter_name: str, found: list[str]
):
    scheduler = Scheduler(filter_name)
    cloud.reserve(MINE, BIO, ["compute-2"])
    assert scheduler.hosts_for(server(BIO, reservation=[MINE])) == found


@pytest.mark.parametrize(("filter_name", "found"), [("TenureFilter", []), ("BlazarFilter", ["compute-2"])])
def test_no_server_boots_after_the_end_before_the_scheduler_has_heard_of_it(
    cloud: Cloud, filter_name: str, found: list[str]
):
    cloud.reserve(MINE, BIO, ["compute-2"])
    scheduler = Scheduler(filter_name)
    cloud.take_back(MINE)
    assert scheduler.hosts_for(server(BIO, reservation=[MINE])) == found


@pytest.mark.parametrize(("filter_name", "open_to_all"), [("TenureFilter", []), ("BlazarFilter", ["compute-1"])])
def test_a_registered_host_is_closed_to_all_whatever_the_messages_said(
    cloud: Cloud, filter_name: str, open_to_all: list[str]
):
    """Two workers of Nova's API add a host each to one aggregate: neither's message has the other's host."""
    scheduler = Scheduler(filter_name)
    pool = cloud.read("freepool")
    pool.delete_host("compute-1")
    pool.delete_host("compute-2")
    first, second = cloud.read("freepool"), cloud.read("freepool")
    first.add_host("compute-1")
    second.add_host("compute-2")
    scheduler.manager.update_aggregates([first])
    scheduler.manager.update_aggregates([second])
    assert sorted(cloud.read("freepool").hosts) == list(Cloud.hosts)
    assert scheduler.hosts_for(server()) == open_to_all


@pytest.mark.parametrize(("filter_name", "found"), [("TenureFilter", 3), ("BlazarFilter", 1)])
def test_all_hosts_of_a_reservation_are_found_that_were_added_at_the_same_time(
    cloud: Cloud, filter_name: str, found: int
):
    scheduler = Scheduler(filter_name)
    cloud.make(MINE, {"availability_zone": f"blazar_{MINE}", "blazar:owner": BIO})
    copies = [cloud.read(MINE) for _ in Cloud.hosts]
    for host, copy in zip(Cloud.hosts, copies, strict=True):
        copy.add_host(host)
        scheduler.manager.update_aggregates([copy])
    assert len(scheduler.hosts_for(server(BIO, reservation=[MINE]))) == found


def test_every_pool_that_the_hint_names_is_looked_at(cloud: Cloud):
    cloud.make(OTHER, {"availability_zone": f"blazar_{MINE}", "blazar:owner": LAB}, ["compute-2"])
    cloud.make(MINE, {"availability_zone": f"blazar_{MINE}", "blazar:owner": BIO}, ["compute-2"])
    found = Scheduler("TenureFilter").hosts_for(server(BIO, reservation=[OTHER, MINE]))
    assert found == ["compute-2"]


def test_a_rebuild_stays_where_it_is_and_nothing_is_read(cloud: Cloud):
    scheduler = Scheduler("TenureFilter")
    cloud.statements.clear()
    assert scheduler.hosts_for(server(_nova_check_type=["rebuild"])) == list(Cloud.hosts)
    assert cloud.statements == []


@pytest.mark.parametrize(
    ("spec", "hosts", "statements"),
    [
        pytest.param(server(reservation=[MINE]), 3, 1, id="hint"),
        pytest.param(server(reservation=[f"{number}" for number in range(500)]), 3, 1, id="many hints"),
        pytest.param(server(), 1000, 1, id="1000 hosts"),
        pytest.param(server(), 1001, 2, id="1001 hosts"),
        pytest.param(
            server(extra_specs={"aggregate_instance_extra_specs:reservation": MINE}), 3, 0, id="nothing to know"
        ),
    ],
)
def test_it_reads_once_for_a_request(cloud: Cloud, spec: objects.RequestSpec, hosts: int, statements: int):
    scheduler = Scheduler("TenureFilter")
    cloud.statements.clear()
    scheduler.hosts_for(spec, [f"compute-{number}" for number in range(hosts)])
    assert len(cloud.statements) == statements


def test_it_asks_about_a_host_alone_too(cloud: Cloud):
    cloud.reserve(MINE, BIO, ["compute-2"])
    manager = Scheduler("TenureFilter").manager
    (loaded,) = manager.enabled_filters
    state = type("HostState", (), {"host": "compute-2", "nodename": "compute-2", "aggregates": []})()
    assert loaded.host_passes(state, server(BIO, reservation=[MINE]))
    assert not loaded.host_passes(state, server(LAB, reservation=[MINE]))


def test_it_decides_by_the_memory_of_the_scheduler_where_the_database_is_away(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
):
    cloud.reserve(MINE, BIO, ["compute-2"])
    scheduler = Scheduler("TenureFilter")
    with api.get_engine().begin() as connection:
        connection.execute(sqlalchemy.text("ALTER TABLE aggregate_hosts RENAME TO away"))
    assert scheduler.hosts_for(server(BIO, reservation=[MINE])) == ["compute-2"]
    assert scheduler.hosts_for(server(LAB, reservation=[MINE])) == []
    assert scheduler.hosts_for(server()) == []
    assert "does not answer" in caplog.text


def test_the_log_says_why_no_host_was_left(cloud: Cloud, caplog: pytest.LogCaptureFixture):
    cloud.reserve(MINE, BIO, ["compute-2"])
    scheduler = Scheduler("TenureFilter")
    caplog.set_level(logging.DEBUG)
    spec = server(LAB, reservation=[MINE])
    scheduler.hosts_for(spec)
    ours = [record for record in caplog.records if record.name == "tenurenova.filter"]
    (told,) = [record.getMessage() for record in ours if record.levelno == logging.INFO]
    assert told == (
        f"None of 3 hosts is for server {spec.instance_uuid} of project {LAB} with hint reservation={MINE!r}: "
        "2 because it is not a host of the reservation of the hint; "
        "1 because the reservation of the hint is another project's"
    )
    assert [record.getMessage() for record in ours if record.levelno == logging.DEBUG] == [
        "compute-1 does not pass: it is not a host of the reservation of the hint (freepool)",
        f"compute-2 does not pass: the reservation of the hint is another project's ({MINE})",
        "compute-3 does not pass: it is not a host of the reservation of the hint (freepool)",
    ]


def test_a_host_that_is_reserved_for_one_server_is_not_the_projects(cloud: Cloud):
    """As the host of a server that is woken: it waits in the free pool, and the aggregate has no zone."""
    scheduler = Scheduler("TenureFilter")
    web, other = server(), server()
    cloud.make(MINE, {"tenure:server": web.instance_uuid, "tenure:reservation": MINE}, ["compute-2"])
    assert scheduler.hosts_for(web) == ["compute-2"]
    assert scheduler.hosts_for(other) == []
    assert scheduler.hosts_for(server(reservation=[MINE])) == []


IRON, COPPER, LEAD, TIN = NODES = sorted(uuidutils.generate_uuid() for _ in range(4))
IRONIC = [("ironic-1", IRON), ("ironic-1", COPPER), ("ironic-1", LEAD), ("ironic-2", TIN)]


def test_nodes_of_one_service_are_told_apart(cloud: Cloud):
    """A node is free, the next one is reserved, the third one was never registered."""
    cloud.name_nodes("freepool", IRON, TIN)
    cloud.reserve(MINE, BIO, [])
    cloud.name_nodes(MINE, COPPER)
    scheduler = Scheduler("TenureFilter")
    assert scheduler.nodes_for(server(BIO, reservation=[MINE]), IRONIC) == [COPPER]
    assert scheduler.nodes_for(server(LAB, reservation=[MINE]), IRONIC) == []
    assert scheduler.nodes_for(server(BIO), IRONIC) == [LEAD]
    assert scheduler.hosts_for(server(BIO), ["compute-1"]) == []


def test_a_node_is_in_the_aggregates_of_its_service_too(cloud: Cloud):
    cloud.make(MINE, {"availability_zone": f"blazar_{MINE}", "blazar:owner": BIO}, ["ironic-2"])
    cloud.name_nodes("freepool", IRON)
    scheduler = Scheduler("TenureFilter")
    assert scheduler.nodes_for(server(BIO, reservation=[MINE]), IRONIC) == [TIN]
    assert scheduler.nodes_for(server(LAB), IRONIC) == [COPPER, LEAD]


def test_many_named_nodes_are_not_read_with_each_other(cloud: Cloud):
    """The metadata of the free pool name each of its nodes."""
    cloud.name_nodes("freepool", *NODES, *(uuidutils.generate_uuid() for _ in range(500)))
    rows = aggregates_of([*IRONIC, ("compute-1", "compute-1")])
    assert {len(found) for found in rows.values()} == {1}
    assert {known.name: dict(known.metadata) for found in rows.values() for known in found} == {"freepool": {}}
    scheduler = Scheduler("TenureFilter")
    cloud.statements.clear()
    assert scheduler.nodes_for(server(), IRONIC) == []
    assert len(cloud.statements) == 2


def test_nodes_are_kept_for_reservations_where_the_database_is_away(cloud: Cloud):
    scheduler = Scheduler("TenureFilter")
    with api.get_engine().begin() as connection:
        connection.execute(sqlalchemy.text("ALTER TABLE aggregate_hosts RENAME TO absent"))
    assert scheduler.nodes_for(server(), [*IRONIC, ("compute-9", "compute-9")]) == ["compute-9"]
    CONF.set_override("allow_preemptibles", True, group="blazar:physical:host")
    try:
        assert scheduler.nodes_for(server(extra_specs={"blazar:preemptible": "True"}), IRONIC) == []
    finally:
        CONF.clear_override("allow_preemptibles", group="blazar:physical:host")


def test_filter_of_blazar_leaves_nodes_open(cloud: Cloud):
    """It knows the aggregates of services only; the documentation says so."""
    cloud.name_nodes("freepool", IRON)
    assert Scheduler("BlazarFilter").nodes_for(server(), IRONIC) == [*(node for _, node in IRONIC)]
