"""The aggregates of hosts, as Nova's API database has them now.

Nova's own objects are not suited. `AggregateList.get_by_metadata` returns aggregates that lack all metadata except the
requested key. `get_by_host` needs a query per host, and loads all other members as well. `get_all` takes seconds if a
service keeps an aggregate for each future lease.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy
from nova import context
from nova.db.api import api, models
from sqlalchemy import orm

from tenurenova.decision import NODE_PREFIX, Aggregate

# The number of hosts in one statement; a cloud with more candidates needs several.
BATCH = 1000
# Nova names nodes of Ironic by their UUIDs, and no other hypervisor.
_NODE_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_node(name: str) -> bool:
    """Whether this is the name of a node of Ironic."""
    return _NODE_NAME.fullmatch(name) is not None


def aggregates_of(hosts: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Sequence[Aggregate]]:
    """Return the aggregates of each of these hosts, by the names of its compute service and of its hypervisor.

    A node of Ironic is in the aggregates of its service, and in those that name the node in their metadata.

    It runs one statement per thousand services, and one per thousand nodes, in a transaction of its own, on the primary
    database and not on a replica. Raises oslo_db's DBError if the database does not answer.
    """
    hosts = set(hosts)
    services = sorted({service for service, _ in hosts})
    nodes = sorted({f"{NODE_PREFIX}{name}" for _, name in hosts if is_node(name)})
    reading = context.get_admin_context()
    members: dict[str, set[int]] = defaultdict(set)
    titles: dict[int, str] = {}
    metadata: dict[int, dict[str, str]] = defaultdict(dict)
    with api.context_manager.reader.using(reading):
        for statement in (*_each_batch(_of_services, services), *_each_batch(_of_nodes, nodes)):
            for member, aggregate, title, key, value in reading.session.execute(statement):
                members[member].add(aggregate)
                titles[aggregate] = title
                if key is not None:  # None: the aggregate has no metadata
                    metadata[aggregate][key] = value
    known = {aggregate: Aggregate(title, metadata[aggregate]) for aggregate, title in titles.items()}
    return {
        (service, name): [known[found] for found in sorted(members[service] | members[f"{NODE_PREFIX}{name}"])]
        for service, name in hosts
    }


def _each_batch(
    statement: Callable[[Sequence[str]], sqlalchemy.Executable], names: Sequence[str]
) -> Iterator[sqlalchemy.Executable]:
    return (statement(names[first : first + BATCH]) for first in range(0, len(names), BATCH))


def _of_services(services: Sequence[str]) -> sqlalchemy.Executable:
    member = models.AggregateHost
    return _memberships(member, member.host).where(member.host.in_(services))


def _of_nodes(nodes: Sequence[str]) -> sqlalchemy.Executable:
    member = orm.aliased(models.AggregateMetadata)
    return _memberships(member, member.key).where(member.key.in_(nodes))


def _memberships(member: Any, name: Any) -> sqlalchemy.Select[Any]:
    """Select the aggregates of members, each with its metadata.

    The metadata that name nodes are left out: each row of a member comes with all metadata of its aggregate.
    """
    found = models.AggregateMetadata
    return (
        sqlalchemy.select(name, models.Aggregate.id, models.Aggregate.name, found.key, found.value)
        .join_from(member, models.Aggregate, models.Aggregate.id == member.aggregate_id)
        .outerjoin(
            found,
            sqlalchemy.and_(found.aggregate_id == models.Aggregate.id, found.key.not_like(f"{NODE_PREFIX}%")),
        )
    )
