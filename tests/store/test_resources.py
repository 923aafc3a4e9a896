"""Resources, their properties, and the versions that guard their promises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import InvalidParameter
from tenure.domain.request import ResourceOrder, ResourceQuery
from tenure.domain.resource import DiscoveredResource, Resource
from tenure.store.conflict import Overtaken
from tenure.store.database import Database, Transaction
from tests.store.rows import HELD, HOUR, RELEASED, add_hosts, add_lease, close, execute
from tests.support.snapshots import snapshot_of
from tests.support.waiting import patience
from tests.support.world import HOST, NOW


def found(external_id: str = "1", name: str = "host", **facts: object) -> DiscoveredResource:
    return DiscoveredResource(
        HOST, external_id, name, Capacity({WHOLE: 1, "VCPU": 64}), facts, frozenset({"CUSTOM_B", "A"}), "north"
    )


def add(db: Database, discovered: DiscoveredResource, properties: Mapping[str, str] | None = None) -> Resource:
    return db.write(lambda tx: tx.resources.add(discovered, properties or {}, now=NOW))


def get(db: Database, external_id: str = "1") -> Resource:
    with db.read() as tx:
        resource = tx.resources.by_external_id(HOST, external_id)
    assert resource is not None
    return resource


def page(db: Database, **query) -> list[str]:
    query = {"limit": 100, **query}
    with db.read() as tx:
        return [resource.name for resource in tx.resources.page(ResourceQuery(HOST, **query))]


def walk(db: Database, limit: int, order: ResourceOrder, descending: bool) -> list[str]:
    """Return the ids of all hosts, read in pages."""
    walked: list[str] = []
    marker = None
    while True:
        with db.read() as tx:
            page = tx.resources.page(ResourceQuery(HOST, limit, marker, order, descending))
        found_ids = [resource.external_id for resource in page]
        walked += found_ids[:limit]
        assert len(set(walked)) == len(walked)
        if len(found_ids) <= limit:
            return walked
        marker = walked[-1]


def test_resource_is_stored_as_discovered(db: Database):
    resource = add(db, found("ä/1", vcpus=64, ratio=1.5, tags=["a", None]), {"gpu": "a100", "rack": ""})
    assert get(db, "ä/1") == resource
    assert (resource.region, resource.traits, resource.version) == ("north", frozenset({"CUSTOM_B", "A"}), 1)
    assert resource.capacity == Capacity({WHOLE: 1, "VCPU": 64})
    assert resource.facts == {"vcpus": 64, "ratio": 1.5, "tags": ["a", None]}
    assert resource.properties == {"gpu": "a100", "rack": ""}
    with db.read() as tx:
        assert tx.resources.by_external_id("something:else", "ä/1") is None
        assert tx.resources.known_external_ids(HOST) == {"ä/1"}
        assert tx.resources.by_ids([resource.id, 4711]) == {resource.id: resource}
        assert tx.resources.known_external_ids(HOST) == {resource.external_id}


def test_add_many_equals_single_adds(db: Database):
    single = add(db, found("1", "one", vcpus=1), {"gpu": "a"})
    db.write(lambda tx: tx.resources.add_many([found("2", "one", vcpus=1)], [{"gpu": "a"}], now=NOW))
    member = get(db, "2")
    for name in ("name", "capacity", "facts", "properties", "traits", "region", "reservable", "version", "created_at"):
        assert getattr(member, name) == getattr(single, name), name
    with db.read() as tx:
        assert [host_property.values for host_property in tx.resources.property_values(HOST, include_private=True)] == [
            ("a",)
        ]


def test_new_properties_replace_the_old_and_raise_the_version(db: Database):
    resource = add(db, found(vcpus=64), {"gpu": "a", "rack": "7"})
    db.write(lambda tx: tx.resources.set_properties(resource, {"gpu": "b", "vcpus": "1"}, now=NOW + HOUR))
    changed = get(db)
    assert (changed.properties, changed.version) == ({"gpu": "b", "vcpus": "1"}, 2)
    assert (changed.facts, changed.updated_at) == ({"vcpus": 64}, NOW + HOUR)
    with db.read() as tx:
        values = {
            host_property.name: host_property.values
            for host_property in tx.resources.property_values(HOST, include_private=True)
        }
        assert values == {"gpu": ("b",), "vcpus": ("64",)}
        assert snapshot_of(tx, NOW).catalogue.names_of(HOST) == {"gpu", "vcpus", "id"}

    def change_again(tx: Transaction) -> None:
        with pytest.raises(Overtaken), tx.session.begin_nested():
            tx.resources.set_properties(resource, {"gpu": "c"}, now=NOW)

    db.write(change_again)
    assert get(db) == changed


def test_disabling_raises_the_version(db: Database):
    resource = add(db, found())
    db.write(lambda tx: close(tx, resource.id))
    assert (get(db).reservable, get(db).version) == (False, 2)


def test_remove_needs_the_version_that_was_read(db: Database):
    resource = add(db, found(), {"gpu": "a"})
    db.write(lambda tx: tx.resources.raise_versions({resource.id: 1}))

    def remove_old(tx: Transaction) -> None:
        with pytest.raises(Overtaken), tx.session.begin_nested():
            tx.resources.remove(resource)

    db.write(remove_old)
    with db.read() as tx:
        assert [host_property.values for host_property in tx.resources.property_values(HOST, include_private=True)] == [
            ("a",)
        ]
    db.write(lambda tx: tx.resources.remove(get(db)))
    with db.read() as tx:
        assert tx.resources.known_external_ids(HOST) == set()
        assert tx.resources.property_values(HOST, include_private=True) == []


def test_retired_resource_keeps_its_history(db: Database):
    host, fresh = add_hosts(db, 2, [{"gpu": "a"}])
    lease = add_lease(db, host, state=RELEASED)
    db.write(lambda tx: tx.resources.retire(get(db, "1")))
    db.write(lambda tx: tx.resources.retire(get(db, "2")))
    with db.read() as tx:
        assert tx.resources.known_external_ids(HOST) == set()
        assert tx.resources.property_values(HOST, include_private=True) == []
        assert set(tx.resources.by_ids([host, fresh])) == {host}
        assert [
            allocation.resource_id for allocation in tx.allocations.of_reservations([lease.reservations[0].id])
        ] == [host]
    [again] = add_hosts(db, 1)  # the machine comes back under its old name
    assert again not in {host}


@pytest.mark.parametrize("served", [False, True])
def test_retire_needs_the_version_that_was_read(db: Database, served: bool):
    [host] = add_hosts(db, 1, [{"gpu": "a"}])
    if served:
        add_lease(db, host, state=RELEASED)
    resource = get(db)
    db.write(lambda tx: tx.resources.raise_versions({host: 1}))

    def retire_old(tx: Transaction) -> None:
        with pytest.raises(Overtaken), tx.session.begin_nested():
            tx.resources.retire(resource)

    db.write(retire_old)
    assert get(db).version == 2
    with db.read() as tx:
        assert [host_property.values for host_property in tx.resources.property_values(HOST, include_private=True)] == [
            ("a",)
        ]


def test_is_allocated(db: Database):
    planned, held, released, free = add_hosts(db, 4)
    add_lease(db, planned)
    add_lease(db, held, state=HELD)
    add_lease(db, released, state=RELEASED)
    with db.read() as tx:
        assert [tx.resources.is_allocated(resource_id) for resource_id in (planned, held, released, free)] == [
            True,
            True,
            False,
            False,
        ]


def test_requests_on_a_resource(db: Database):
    host, other = add_hosts(db, 2)
    asks = {"min": 1, "resource_properties": '["==", "$gpu", "a"]'}
    add_lease(db, host, start=1, end=2, parameters=asks)
    add_lease(db, host, start=3, end=4, state=RELEASED, parameters={"min": 2})
    add_lease(db, other, parameters={"min": 3})
    with db.read() as tx:
        assert tx.resources.requests_on(host, now=NOW) == [(HOST, asks)]
        assert tx.resources.requests_on(host, now=NOW + 2 * HOUR) == []


def before_properties_are_written(tx: Transaction, work: Callable[[], object]) -> None:
    """Do ``work`` once, between the look for properties and their writing."""
    waiting = [work]

    def before(_connection, _cursor, statement: str, *_rest: object) -> None:
        if waiting and statement.lstrip().startswith("INSERT INTO properties"):
            waiting.pop()()

    event.listen(tx.session.connection(), "before_cursor_execute", before)


class TestTwoAtOnce:
    """On SQLite the transactions run one after the other."""

    @staticmethod
    def run_both(db: Database, *works: Callable[[Transaction], object]) -> list[int]:
        """Both look before either writes; how often each was tried."""
        meeting = threading.Barrier(2)
        attempts = [0, 0]

        def met(number: int) -> Callable[[Transaction], None]:
            def work(tx: Transaction) -> None:
                attempts[number] += 1
                if db.dialect != "sqlite" and attempts[number] == 1:
                    before_properties_are_written(tx, lambda: meeting.wait(patience()))
                works[number](tx)

            return work

        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(db.write, met(number)) for number in (0, 1)]:
                future.result(patience())
        return attempts

    def test_concurrent_hosts_can_add_the_same_properties(self, db: Database):
        names = [f"name-{number}" for number in range(20)]
        first, second = dict.fromkeys(names, "a"), dict.fromkeys(reversed(names), "b")

        def bring(external_id: str, own: Mapping[str, str]) -> Callable[[Transaction], object]:
            return lambda tx: tx.resources.add(found(external_id), own, now=NOW)

        assert self.run_both(db, bring("1", first), bring("2", second)) == [1, 1]
        with db.read() as tx:
            every = tx.resources.property_values(HOST, include_private=True)
        assert {host_property.name: host_property.values for host_property in every} == dict.fromkeys(names, ("a", "b"))
        assert not any(host_property.private for host_property in every)

    def test_property_made_private_meanwhile_stays_private(self, db: Database):
        def hide() -> None:
            add(db, found("1"), {"cost": "7"})
            db.write(lambda tx: tx.resources.set_property(HOST, "cost", private=True, now=NOW + HOUR))

        def work(tx: Transaction) -> None:
            if db.dialect != "sqlite":
                before_properties_are_written(tx, hide)
            tx.resources.add(found("2"), {"cost": "8", "new": "1"}, now=NOW)

        if db.dialect == "sqlite":
            hide()
        db.write(work)
        with db.read() as tx:
            assert tx.resources.private_properties(HOST) == {"cost"}
            assert [
                host_property.name for host_property in tx.resources.property_values(HOST, include_private=True)
            ] == ["cost", "new"]

    def test_concurrent_changes_can_add_the_same_property(self, db: Database):
        add_hosts(db, 2)

        def bring(external_id: str) -> Callable[[Transaction], object]:
            seen = get(db, external_id)
            return lambda tx: tx.resources.set_properties(seen, {"gpu": external_id}, now=NOW)

        assert self.run_both(db, bring("1"), bring("2")) == [1, 1]
        with db.read() as tx:
            [gpu] = tx.resources.property_values(HOST, include_private=True)
        assert (gpu.name, gpu.values) == ("gpu", ("1", "2"))


def test_resource_added_concurrently_raises_overtaken(db: Database):
    add(db, found("1"))

    def add_again(tx: Transaction) -> None:
        with pytest.raises(Overtaken), tx.session.begin_nested():
            tx.resources.add(found("1", "other"), {}, now=NOW)

    db.write(add_again)
    assert get(db).name == "host"


def test_other_integrity_errors_are_raised(db: Database):
    nameless: Any = None

    def add_nameless(tx: Transaction) -> None:
        with pytest.raises(DBAPIError), tx.session.begin_nested():
            tx.resources.add(found("1", nameless), {}, now=NOW)

    db.write(add_nameless)
    with db.read() as tx:
        assert tx.resources.known_external_ids(HOST) == set()


class TestProperties:
    def test_private_properties_are_listed_on_request_only(self, db: Database):
        add_hosts(db, 3, [{"gpu": "b", "cost": "7"}, {"gpu": "a"}, {"gpu": "b"}])
        assert db.write(lambda tx: tx.resources.set_property(HOST, "nothing", private=True, now=NOW)) is None
        setting = db.write(lambda tx: tx.resources.set_property(HOST, "cost", private=True, now=NOW + HOUR))
        assert setting is not None
        assert (setting.name, setting.private, setting.created_at, setting.updated_at) == (
            "cost",
            True,
            NOW,
            NOW + HOUR,
        )
        with db.read() as tx:
            shown = tx.resources.property_values(HOST, include_private=False)
            every = tx.resources.property_values(HOST, include_private=True)
            assert [(host_property.name, host_property.private, host_property.values) for host_property in shown] == [
                ("gpu", False, ("a", "b"))
            ]
            assert [(host_property.name, host_property.private, host_property.values) for host_property in every] == [
                ("cost", True, ("7",)),
                ("gpu", False, ("a", "b")),
            ]
            assert tx.resources.private_properties(HOST) == {"cost"}
            assert tx.resources.private_properties("something:else") == frozenset()

    def test_unused_property_stays_private(self, db: Database):
        resource = add(db, found(), {"cost": "7"})
        db.write(lambda tx: tx.resources.set_property(HOST, "cost", private=True, now=NOW))
        db.write(lambda tx: tx.resources.set_properties(resource, {}, now=NOW))
        db.write(lambda tx: tx.resources.set_properties(get(db), {"cost": "8"}, now=NOW))
        with db.read() as tx:
            assert tx.resources.property_values(HOST, include_private=False) == []

    def test_facts_are_not_listed_as_properties(self, db: Database):
        add(db, found(vcpus=64))
        with db.read() as tx:
            assert tx.resources.property_values(HOST, include_private=True) == []
            assert snapshot_of(tx, NOW).catalogue.names_of(HOST) == {"vcpus", "id"}


class TestPages:
    NAMES = ("b", "a", "B", "a", "c", "a")

    @pytest.fixture(autouse=True)
    def hosts(self, db: Database) -> None:
        every = [found(str(number), name) for number, name in enumerate(self.NAMES)]
        db.write(lambda tx: tx.resources.add_many(every, [{}] * len(every), now=NOW))
        add_hosts(db, 2, resource_type="something:else", first=100)

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("order", list(ResourceOrder))
    def test_pages_have_no_gaps_and_no_repetitions(self, db: Database, order: ResourceOrder, descending: bool):
        names = enumerate(self.NAMES)
        key = (lambda row: (row[1], row[0])) if order is ResourceOrder.NAME else (lambda row: (row[0], row[1]))
        expected = [str(number) for number, _ in sorted(names, key=key, reverse=descending)]
        for limit in (1, 2, 100):
            assert walk(db, limit, order, descending) == expected

    @pytest.mark.parametrize("descending", [False, True])
    def test_what_the_release_before_has_added_during_an_upgrade_is_listed(self, db: Database, descending: bool):
        execute(db, "UPDATE resources SET sort_name = '' WHERE external_id IN ('2', '4')")
        assert sorted(walk(db, 1, ResourceOrder.NAME, descending)) == [str(each) for each in range(len(self.NAMES))]

    def test_filters(self, db: Database):
        execute(db, "UPDATE resources SET reservable = :no WHERE name = 'b'", no=False)
        assert page(db, name="a") == ["a"] * 3
        assert page(db, reservable=False) == ["b"]
        assert page(db, name="b", reservable=True) == []

    def test_filter_by_facts(self, db: Database):
        add(db, found("x", "x", network="n1", subnet="s1"))
        add(db, found("y", "y", network="n1", subnet="s2"))
        assert page(db, facts={"network": "n1"}) == ["x", "y"]
        assert page(db, facts={"network": "n1", "subnet": "s2"}) == ["y"]
        assert page(db, facts={"network": "N1"}) == page(db, facts={"net": "n1"}) == []

    def test_unknown_marker_is_refused(self, db: Database):
        others: tuple[dict[str, Any], ...] = ({"order": ResourceOrder.NAME}, {"descending": True}, {"name": "a"})
        for asked in ({}, *others):
            with pytest.raises(InvalidParameter) as refused:
                page(db, marker="4711", **asked)
            assert (refused.value.field, refused.value.message) == (
                "marker",
                "marker: there is nothing of id 4711 that a list could go on after.",
            )
