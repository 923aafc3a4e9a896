"""Resources, their properties and their versions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Insert, Select, and_, bindparam, case, delete, insert, not_, or_, select, update
from sqlalchemy import true as sql_true
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tenure.domain.address import sort_name
from tenure.domain.capacity import Capacity
from tenure.domain.errors import InvalidParameter
from tenure.domain.lease import AllocationState
from tenure.domain.regions import ids_in
from tenure.domain.request import ResourceOrder, ResourceQuery
from tenure.domain.requirement import number_of
from tenure.domain.resource import (
    RETIRED,
    RETIRED_ID,
    DiscoveredResource,
    KnownHealth,
    PropertySetting,
    PropertyValues,
    Registration,
    Resource,
    ResourceHealth,
    scarcity,
)
from tenure.store.conditions import IS_PAST, among
from tenure.store.conflict import Overtaken
from tenure.store.feed import Feed
from tenure.store.statements import run
from tenure.store.tables import AllocationRow, AttributeRow, PropertyRow, ReservationRow, ResourceRow, TraitRow, key_of
from tenure.store.writing import change_row, count_changed

#: How many versions one statement raises: it has parameters for each of them.
_AT_ONCE = 500


_RAISE_ONE = (
    update(ResourceRow)
    .where(ResourceRow.id == bindparam("resource_id"), ResourceRow.version == bindparam("seen"))
    .values(version=ResourceRow.version + 1)
)


class ResourceStore:
    """The table of resources."""

    def __init__(self, session: Session, changed: Feed) -> None:
        self._session = session
        self._changed = changed
        #: The resources whose versions this transaction has raised, or has tried to raise.
        self.bumped: set[int] = set()

    def add(
        self,
        discovered: DiscoveredResource,
        properties: Mapping[str, str],
        *,
        now: datetime,
        registration: Registration = Registration.REGISTERED,
    ) -> Resource:
        """Add a resource; raise ``Overtaken`` if another transaction has added it in the meantime."""
        row = ResourceRow(
            resource_type=discovered.resource_type,
            region=discovered.region,
            external_id=discovered.external_id,
            name=discovered.name,
            sort_name=sort_name(discovered.name),
            capacity=dict(discovered.capacity),
            facts=dict(discovered.facts),
            properties=dict(properties),
            traits=sorted(discovered.traits),
            limits=_limits(discovered),
            reservable=registration is Registration.REGISTERED,
            registration=registration.value,
            enabled=True,
            health=ResourceHealth.WELL.value,
            scarcity=scarcity(properties, discovered.traits, discovered.capacity),
            version=1,
            created_at=now,
            updated_at=None,
        )
        self._session.add(row)
        try:
            self._session.flush()
        except IntegrityError as error:
            if _is_duplicate_resource(error):
                raise Overtaken from error
            raise
        self._changed.add_resources([row.id], frees=True)
        self._write_details([row])
        self._add_properties(discovered.resource_type, properties, now)
        return _resource(row)

    def add_many(
        self, discovered: Sequence[DiscoveredResource], properties: Sequence[Mapping[str, str]], *, now: datetime
    ) -> None:
        """Add many resources at once, reservable: a few statements for any number of resources."""
        rows = [
            ResourceRow(
                resource_type=resource.resource_type,
                region=resource.region,
                external_id=resource.external_id,
                name=resource.name,
                sort_name=sort_name(resource.name),
                capacity=dict(resource.capacity),
                facts=dict(resource.facts),
                properties=dict(own),
                traits=sorted(resource.traits),
                limits=_limits(resource),
                reservable=True,
                registration=Registration.REGISTERED.value,
                enabled=True,
                health=ResourceHealth.WELL.value,
                scarcity=scarcity(own, resource.traits, resource.capacity),
                version=1,
                created_at=now,
            )
            for resource, own in zip(discovered, properties, strict=True)
        ]
        self._session.add_all(rows)
        self._session.flush()
        self._changed.add_resources(row.id for row in rows)
        self._changed.add_resources({row.region: row.id for row in rows}.values(), frees=True)
        self._write_details(rows)
        for resource_type in {resource.resource_type for resource in discovered}:
            names = {name: "" for own in properties for name in own}
            self._add_properties(resource_type, names, now)

    def by_external_id(self, resource_type: str, external_id: str) -> Resource | None:
        row = self._session.execute(
            select(ResourceRow)
            .where(ResourceRow.resource_type == resource_type, ResourceRow.external_id == external_id)
            .execution_options(populate_existing=True)
        ).scalar_one_or_none()
        return _resource(row) if row else None

    def ids_of(self, resource_type: str, external_ids: Collection[str], *, region: str = "") -> dict[int, str]:
        """Return those resources of the type that have these ids in that region's cloud, by internal id."""
        if not external_ids:
            return {}
        rows = self._session.execute(
            select(ResourceRow.id, ResourceRow.external_id).where(
                ResourceRow.resource_type == resource_type,
                ResourceRow.external_id.in_(sorted(ids_in(region, external_ids))),
                ResourceRow.region == region,
            )
        )
        return {row.id: row.external_id for row in rows}

    def by_ids(self, ids: Iterable[int]) -> dict[int, Resource]:
        rows = self._session.execute(
            select(ResourceRow).where(ResourceRow.id.in_(sorted(set(ids)))).execution_options(populate_existing=True)
        ).scalars()
        return {row.id: _resource(row) for row in rows}

    def registered(self, resource_type: str, *, region: str | None = None) -> list[tuple[str, str, str]]:
        """Return external id, name and region of the registered resources."""
        rows = self._session.execute(
            select(ResourceRow.external_id, ResourceRow.name, ResourceRow.region)
            .where(
                ResourceRow.resource_type == resource_type,
                ResourceRow.registration == Registration.REGISTERED.value,
                _in_region(region),
            )
            .order_by(ResourceRow.id)
        )
        return [(row.external_id, row.name, row.region) for row in rows]

    def healths(self, resource_type: str, *, region: str | None = None) -> dict[str, KnownHealth]:
        """Return the known health of every registered resource of the type, by external id."""
        rows = self._session.execute(
            select(ResourceRow.external_id, ResourceRow.health, ResourceRow.health_since).where(
                ResourceRow.resource_type == resource_type,
                ResourceRow.registration == Registration.REGISTERED.value,
                _in_region(region),
            )
        )
        return {row.external_id: KnownHealth(ResourceHealth(row.health), row.health_since) for row in rows}

    def with_fact(self, resource_type: str, name: str, value: str) -> list[str]:
        """Return the external ids of the resources that have this fact."""
        rows = self._session.execute(
            select(ResourceRow.external_id)
            .where(ResourceRow.resource_type == resource_type, _has_fact(name, value))
            .order_by(ResourceRow.id)
        )
        return list(rows.scalars())

    def unheld(self, resource_type: str, *, region: str | None = None) -> list[tuple[str, str, str]]:
        """Return external id, name and region of the registered resources that are not held and exist in the cloud."""
        held = select(AllocationRow.id).where(
            AllocationRow.resource_id == ResourceRow.id, AllocationRow.state == AllocationState.HELD.value
        )
        rows = self._session.execute(
            select(ResourceRow.external_id, ResourceRow.name, ResourceRow.region)
            .where(
                ResourceRow.resource_type == resource_type,
                ResourceRow.registration == Registration.REGISTERED.value,
                ResourceRow.health != ResourceHealth.GONE.value,
                not_(held.exists()),
                _in_region(region),
            )
            .order_by(ResourceRow.id)
        )
        return [(row.external_id, row.name, row.region) for row in rows]

    def known_external_ids(self, resource_type: str, *, region: str | None = None) -> set[str]:
        return set(
            self._session.execute(
                select(ResourceRow.external_id).where(ResourceRow.resource_type == resource_type, _in_region(region))
            ).scalars()
        )

    def name_region(self, name: str) -> int:
        """Move all resources of the region without a name to this region; return their number."""
        unnamed = select(ResourceRow.id).where(ResourceRow.region == "")
        self._changed.add_resources(self._session.execute(unnamed).scalars())
        return count_changed(
            self._session,
            update(ResourceRow)
            .where(ResourceRow.region == "")
            .values(region=name, version=ResourceRow.version + 1)
            .execution_options(synchronize_session=False),
        )

    def regions(self) -> frozenset[str]:
        """Return the regions of all resources; the empty name stands for resources registered without a region."""
        served = ResourceRow.resource_type.not_like(f"{RETIRED}%")
        return frozenset(self._session.execute(select(ResourceRow.region).where(served).distinct()).scalars())

    def inventories(self) -> frozenset[str]:
        """Return the names of the inventories that have resources."""
        served = ResourceRow.resource_type.not_like(f"{RETIRED}%")
        return frozenset(self._session.execute(select(ResourceRow.resource_type).where(served).distinct()).scalars())

    def page(self, query: ResourceQuery) -> list[Resource]:
        """Return at most one resource more than ``query.limit``, so that the caller sees whether there are more.

        Raises ``InvalidParameter`` for an unknown marker.
        """
        statement = select(ResourceRow).where(ResourceRow.resource_type == query.resource_type)
        if query.name is not None:
            statement = statement.where(ResourceRow.name == query.name)
        statement = statement.where(_in_region(query.region))
        if query.reservable is not None:
            statement = statement.where(ResourceRow.reservable == query.reservable)
        statement = statement.where(*(_has_fact(name, value) for name, value in query.facts.items()))
        by_name = query.order is ResourceOrder.NAME
        if query.marker is not None:
            marker = self.marker(query.resource_type, query.marker)
            ids = ResourceRow.id < marker.id if query.descending else ResourceRow.id > marker.id
            if by_name:
                # As it is stored: a manager of the release before, which may run during an upgrade, does not fill it.
                after = select(ResourceRow.sort_name).where(ResourceRow.id == marker.id).scalar_subquery()
                names = ResourceRow.sort_name < after if query.descending else ResourceRow.sort_name > after
                statement = statement.where(or_(names, and_(ResourceRow.sort_name == after, ids)))
            else:
                statement = statement.where(ids)
        keys = [ResourceRow.sort_name, ResourceRow.id] if by_name else [ResourceRow.id]
        statement = statement.order_by(*(key.desc() if query.descending else key.asc() for key in keys))
        return [_resource(row) for row in self._session.execute(statement.limit(query.limit + 1)).scalars()]

    def marker(self, resource_type: str, external_id: str) -> Resource:
        """Return the resource after which a page begins; raise ``InvalidParameter`` if it does not exist any more."""
        resource = self.by_external_id(resource_type, external_id)
        if resource is None:
            raise InvalidParameter(
                f"marker: there is nothing of id {external_id} that a list could go on after.", field="marker"
            )
        return resource

    def set_properties(self, seen: Resource, properties: Mapping[str, str], *, now: datetime) -> None:
        """Replace the properties that the operator has set; raise ``Overtaken`` if it has changed since it was read."""
        self._compare_and_swap(
            seen, properties=dict(properties), scarcity=scarcity(properties, seen.traits, seen.capacity), updated_at=now
        )
        self._rewrite_details(seen.id)
        self._add_properties(seen.resource_type, properties, now)

    def describe(self, seen: Resource, discovered: DiscoveredResource, *, now: datetime) -> None:
        """Store the cloud's description of a resource; raise ``Overtaken`` if it has changed since it was read."""
        self._compare_and_swap(
            seen,
            name=discovered.name,
            sort_name=sort_name(discovered.name),
            capacity=dict(discovered.capacity),
            facts=dict(discovered.facts),
            traits=sorted(discovered.traits),
            limits=_limits(discovered),
            scarcity=scarcity(seen.properties, discovered.traits, discovered.capacity),
            unreviewed=True,
            updated_at=now,
        )
        self._rewrite_details(seen.id)

    def lend(self, seen: Resource, capacity: Capacity, *, now: datetime) -> None:
        """Change how much of a resource can be promised; raise ``Overtaken`` if it has changed since it was read.

        The caller has checked that what is promised fits.
        """
        self._compare_and_swap(
            seen,
            capacity=dict(capacity),
            updated_at=now,
        )

    def unreviewed(self) -> dict[int, int]:
        """Return the resources whose description has changed since their leases were checked, with versions."""
        rows = self._session.execute(
            select(ResourceRow.id, ResourceRow.version).where(ResourceRow.unreviewed.is_(True)).order_by(ResourceRow.id)
        )
        return {row.id: row.version for row in rows}

    def reviewed(self, seen: Mapping[int, int]) -> None:
        """Record that the leases of these resources were checked, except for resources that have changed since."""
        self._session.execute(
            update(ResourceRow)
            .where(ResourceRow.id.in_(sorted(seen)), ResourceRow.version == _seen_version(seen))
            .values(unreviewed=False)
            .execution_options(synchronize_session=False)
        )

    def change(
        self,
        seen: Resource,
        *,
        now: datetime,
        registration: Registration | None = None,
        enabled: bool | None = None,
        health: ResourceHealth | None = None,
        **reasons: object,
    ) -> None:
        """Change what makes a resource reservable; raise ``Overtaken`` if it has changed since it was read.

        ``reasons`` are ``disabled_reason``, ``health_reason`` and ``health_since``.
        """
        registration = seen.registration if registration is None else registration
        enabled = seen.enabled if enabled is None else enabled
        health = seen.health if health is None else health
        self._compare_and_swap(
            seen,
            registration=registration.value,
            enabled=enabled,
            health=health.value,
            reservable=registration is Registration.REGISTERED and enabled and health is ResourceHealth.WELL,
            updated_at=now,
            **reasons,
        )

    def remove(self, seen: Resource) -> None:
        """Delete a resource without allocations; raise ``Overtaken`` if it has changed since it was read."""
        self.bumped.add(seen.id)
        self._changed.add_resources([seen.id])
        self._remove_details(seen.id)
        change_row(
            self._session,
            delete(ResourceRow).where(ResourceRow.id == seen.id, ResourceRow.version == seen.version),
        )

    def _compare_and_swap(self, seen: Resource, **values: object) -> None:
        """Write these columns; raise ``Overtaken`` if the resource has changed since it was read."""
        self.bumped.add(seen.id)
        self._changed.add_resources([seen.id], frees=True)
        change_row(
            self._session,
            update(ResourceRow)
            .where(ResourceRow.id == seen.id, ResourceRow.version == seen.version)
            .values(version=ResourceRow.version + 1, **values),
        )

    def raise_versions(self, seen: Mapping[int, int], *, wait: bool = True) -> Mapping[int, int]:
        """Record that these resources can promise something else now; return their versions in this transaction.

        ``seen`` maps ids to the versions that were read before, or together with, the basis of the decision. Raises
        ``Overtaken`` if any version has changed: this is the guard that makes overbooking impossible. The rows stay
        locked until the end of the transaction. Without ``wait`` it fails, to be retried, if another transaction has
        locked one of them.
        """
        if not seen:
            return seen
        ids = sorted(seen)
        self.bumped.update(ids)
        if (len(ids) > 1 or not wait) and self._session.get_bind().dialect.name != "sqlite":
            self._lock(among(ResourceRow.id, ids), wait=wait)
        for first in range(0, len(ids), _AT_ONCE):
            self._raise_batch(ids[first : first + _AT_ONCE], seen)
        return {resource_id: version + 1 for resource_id, version in seen.items()}

    def _raise_batch(self, ids: Sequence[int], seen: Mapping[int, int]) -> None:
        if len(ids) == 1:
            [resource_id] = ids
            values = {"resource_id": resource_id, "seen": seen[resource_id]}
            if run(self._session, _RAISE_ONE, values).rowcount != 1:
                raise Overtaken
            return
        raised = count_changed(
            self._session,
            update(ResourceRow)
            .where(
                ResourceRow.id.in_(ids),
                ResourceRow.version == _seen_version({resource_id: seen[resource_id] for resource_id in ids}),
            )
            .values(version=ResourceRow.version + 1)
            .execution_options(synchronize_session=False),
        )
        if raised != len(ids):
            raise Overtaken

    def lock(self, resource_ids: Collection[int]) -> None:
        """Lock these resources: no other transaction can change what they promise until this one ends."""
        if resource_ids:
            self._lock(among(ResourceRow.id, resource_ids), wait=True)

    def lock_all(self, resource_types: Collection[str]) -> list[int]:
        """Lock all resources of these types until the transaction ends; return their ids."""
        return self._lock(ResourceRow.resource_type.in_(sorted(resource_types)), wait=True)

    def _lock(self, condition: ColumnElement[bool], *, wait: bool) -> list[int]:
        """Lock rows in order of id, which prevents deadlocks. On SQLite a transaction locks the whole file anyway."""
        rows = select(ResourceRow.id).where(condition).order_by(ResourceRow.id)
        if self._session.get_bind().dialect.name != "sqlite":
            # By another index, MariaDB would lock rows in the order of that index, and other rows on its way.
            rows = rows.with_hint(ResourceRow, "FORCE INDEX (PRIMARY)", "mysql")
            rows = rows.with_for_update(nowait=not wait, key_share=True)
        return list(self._session.execute(rows).scalars())

    def is_allocated(self, resource_id: int) -> bool:
        """Whether anything on the resource is planned, held or kept."""
        return (
            self._session.execute(
                select(AllocationRow.id)
                .where(
                    AllocationRow.resource_id == resource_id,
                    ~IS_PAST,
                )
                .limit(1)
            ).first()
            is not None
        )

    def retire(self, seen: Resource) -> None:
        """Remove a resource that is not in use; raise ``Overtaken`` if it has changed since it was read.

        Its past allocations stay in the ledger, and name it. Its external id is free for another registration.
        """
        if not self._has_history(seen.id):
            self.remove(seen)
            return
        self._compare_and_swap(
            seen,
            resource_type=f"{RETIRED}{seen.resource_type}",
            external_id=str(seen.id),
            facts={**seen.facts, RETIRED_ID: seen.external_id},
            reservable=False,
        )
        self._remove_details(seen.id)

    def requests_on(self, resource_id: int, *, now: datetime) -> list[tuple[str, Mapping[str, object]]]:
        """Return the types and parameters of the reservations with a part in the resource, now or later."""
        rows = self._session.execute(
            select(ReservationRow.resource_type, ReservationRow.parameters)
            .join(AllocationRow, AllocationRow.reservation_id == ReservationRow.id)
            .where(
                AllocationRow.resource_id == resource_id,
                AllocationRow.ends_at > now,
                ~IS_PAST,
            )
        )
        return [(row.resource_type, row.parameters) for row in rows]

    def _has_history(self, resource_id: int) -> bool:
        return (
            self._session.execute(
                select(AllocationRow.id).where(AllocationRow.resource_id == resource_id).limit(1)
            ).first()
            is not None
        )

    # --- properties

    def property_values(self, resource_type: str, *, include_private: bool) -> list[PropertyValues]:
        """Return the properties that at least one resource has, by name, with their values."""
        statement = (
            select(PropertyRow.name, PropertyRow.private, AttributeRow.value)
            .join(AttributeRow, AttributeRow.name == PropertyRow.name)
            .join(ResourceRow, ResourceRow.id == AttributeRow.resource_id)
            .where(
                PropertyRow.resource_type == resource_type,
                ResourceRow.resource_type == resource_type,
                AttributeRow.own.is_(True),
            )
            .distinct()
        )
        if not include_private:
            statement = statement.where(PropertyRow.private.is_(False))
        values: dict[tuple[str, bool], list[str]] = {}
        for name, private, value in self._session.execute(statement):
            values.setdefault((name, private), []).append(value)
        return [
            PropertyValues(name=name, private=private, values=tuple(sorted(property_values)))
            for (name, private), property_values in sorted(values.items())
        ]

    def property_names(self, resource_type: str) -> frozenset[str]:
        """Return the names of the properties that operators have given to resources of the type."""
        names = select(PropertyRow.name).where(PropertyRow.resource_type == resource_type)
        return frozenset(self._session.execute(names).scalars())

    def private_properties(self, resource_type: str) -> frozenset[str]:
        return frozenset(
            self._session.execute(
                select(PropertyRow.name).where(
                    PropertyRow.resource_type == resource_type, PropertyRow.private.is_(True)
                )
            ).scalars()
        )

    def set_property(self, resource_type: str, name: str, *, private: bool, now: datetime) -> PropertySetting | None:
        row = self._session.execute(
            select(PropertyRow).where(PropertyRow.resource_type == resource_type, PropertyRow.name == name)
        ).scalar_one_or_none()
        if row is None:
            return None
        row.private, row.updated_at = private, now
        self._session.flush()
        return PropertySetting(row.id, row.resource_type, row.name, row.private, row.created_at, row.updated_at)

    def is_number_everywhere(self, resource_type: str, name: str) -> bool:
        """Whether resources of the type have a property of that name, and all its values are numbers."""
        having = _with_property(resource_type, name)
        texts = having.where(AttributeRow.number.is_(None))
        [row] = self._session.execute(select(having.exists(), texts.exists()))
        return bool(row[0] and not row[1])

    def _write_details(self, rows: Iterable[ResourceRow]) -> None:
        """Write the attributes and traits of resources, one row each, for look-ups."""
        attributes = [attribute for row in rows for attribute in _attributes(row)]
        traits = [{"resource_id": row.id, "trait": trait} for row in rows for trait in row.traits]
        for table, values in ((AttributeRow, attributes), (TraitRow, traits)):
            if values:
                self._session.execute(insert(table), values)

    def _rewrite_details(self, resource_id: int) -> None:
        row = self._session.get_one(ResourceRow, resource_id, populate_existing=True)
        self._remove_details(resource_id)
        self._write_details([row])

    def _remove_details(self, resource_id: int) -> None:
        for table in (AttributeRow, TraitRow):
            self._session.execute(delete(table).where(table.resource_id == resource_id))

    def _add_properties(self, resource_type: str, properties: Mapping[str, str], now: datetime) -> None:
        if not properties:
            return
        known = set(
            self._session.execute(
                select(PropertyRow.name).where(
                    PropertyRow.resource_type == resource_type, PropertyRow.name.in_(list(properties))
                )
            ).scalars()
        )
        # In a fixed order, so that transactions that add the same names do not deadlock.
        unknown = [
            {"resource_type": resource_type, "name": name, "private": False, "created_at": now}
            for name in sorted(properties.keys() - known)
        ]
        if unknown:
            self._session.execute(_insert_missing(self._session.get_bind().dialect.name, unknown))


def _with_property(resource_type: str, name: str) -> Select[int]:
    """Return the selection of the resources of a type that have a property of that name; an index answers it."""
    beginning = key_of(name, "")
    # A subquery instead of a join, so that no database begins with all resources of the type.
    type_of_resource = (
        select(ResourceRow.resource_type).where(ResourceRow.id == AttributeRow.resource_id).scalar_subquery()
    )
    return select(AttributeRow.resource_id).where(
        # All keys with this name and no others: a key begins with the name's length, the name, and a blank.
        AttributeRow.key >= beginning,
        AttributeRow.key < f"{beginning[:-1]}!",
        type_of_resource == resource_type,
    )


def _insert_missing(dialect: str, properties: list[dict[str, object]]) -> Insert:
    """Return a statement that adds these properties, except those that another transaction has added since."""
    if dialect == "postgresql":
        return postgresql.insert(PropertyRow).values(properties).on_conflict_do_nothing()
    if dialect == "sqlite":
        return sqlite.insert(PropertyRow).values(properties).on_conflict_do_nothing()
    statement = mysql.insert(PropertyRow).values(properties)
    return statement.on_duplicate_key_update(name=statement.inserted.name)


def _is_duplicate_resource(error: IntegrityError) -> bool:
    """Whether the database refused a row of ``resources`` for its unique key, which two databases name."""
    text = str(error.orig)
    return "uq_resources_" in text or "UNIQUE constraint failed: resources." in text


def attributes_of(external_id: str, facts: Mapping[str, object], properties: Mapping[str, str]) -> dict[str, str]:
    """Return what the property language can query: facts and the operator's properties. Facts take precedence."""
    return {**properties, "id": external_id, **{name: _as_text(value) for name, value in facts.items()}}


def _attributes(row: ResourceRow) -> list[dict[str, object]]:
    """Return the rows of the attributes of a resource."""
    return [
        {
            "resource_id": row.id,
            "name": name,
            "value": value,
            "number": number_of(value),
            "key": key_of(name, value),
            "scarcity": row.scarcity,
            "own": name in row.properties,
        }
        for name, value in attributes_of(row.external_id, row.facts, row.properties).items()
    ]


def _has_fact(name: str, value: str) -> ColumnElement[bool]:
    """Whether a resource has this fact, or else this property; an index answers it."""
    said = select(AttributeRow.resource_id).where(
        AttributeRow.key == key_of(name, value), AttributeRow.value == value, AttributeRow.name == name
    )
    return ResourceRow.id.in_(said)


def _seen_version(seen: Mapping[int, int]) -> ColumnElement[int]:
    """Return the version of a resource that was seen, as an SQL expression."""
    return case({resource_id: seen[resource_id] for resource_id in sorted(seen)}, value=ResourceRow.id)


def _limits(discovered: DiscoveredResource) -> dict[str, dict[str, int]]:
    return {name: dict(limit) for name, limit in discovered.limits.items()}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _resource(row: ResourceRow) -> Resource:
    return Resource(
        id=row.id,
        resource_type=row.resource_type,
        region=row.region,
        external_id=row.external_id,
        name=row.name,
        capacity=Capacity(row.capacity),
        facts=row.facts,
        properties=row.properties,
        traits=frozenset(row.traits),
        limits=row.limits,
        reservable=row.reservable,
        version=row.version,
        created_at=row.created_at,
        updated_at=row.updated_at,
        registration=Registration(row.registration),
        enabled=row.enabled,
        disabled_reason=row.disabled_reason,
        health=ResourceHealth(row.health),
        health_reason=row.health_reason,
        health_since=row.health_since,
    )


def _in_region(region: str | None) -> ColumnElement[bool]:
    """Whether a resource is in that region; None means any region."""
    return sql_true() if region is None else ResourceRow.region == region
