"""The aggregates of hosts, as Nova's API database has them now.

Nova's own objects are not suited. `AggregateList.get_by_metadata` returns aggregates that lack all metadata except the
requested key. `get_by_host` needs a query per host, and loads all other members as well. `get_all` takes seconds if a
service keeps an aggregate for each future lease.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy
from nova import context
from nova.db.api import api, models

from tenurenova.decision import Aggregate

# The number of hosts in one statement; a cloud with more candidates needs several.
BATCH = 1000


def aggregates_of(hosts: Iterable[str]) -> Mapping[str, Sequence[Aggregate]]:
    """Return the aggregates of each of these hosts. A host without aggregates is not among the keys.

    It runs one statement per thousand hosts, in a transaction of its own, on the primary database and not on a
    replica. Raises oslo_db's DBError if the database does not answer.
    """
    names = sorted(set(hosts))
    reading = context.get_admin_context()
    members: dict[str, set[int]] = defaultdict(set)
    titles: dict[int, str] = {}
    metadata: dict[int, dict[str, str]] = defaultdict(dict)
    with api.context_manager.reader.using(reading):
        for first in range(0, len(names), BATCH):
            for host, aggregate, title, key, value in reading.session.execute(
                _memberships(names[first : first + BATCH])
            ):
                members[host].add(aggregate)
                titles[aggregate] = title
                if key is not None:  # None: the aggregate has no metadata
                    metadata[aggregate][key] = value
    known = {aggregate: Aggregate(title, metadata[aggregate]) for aggregate, title in titles.items()}
    return {host: [known[aggregate] for aggregate in sorted(ids)] for host, ids in members.items()}


def _memberships(hosts: Sequence[str]) -> sqlalchemy.Executable:
    return (
        sqlalchemy.select(
            models.AggregateHost.host,
            models.Aggregate.id,
            models.Aggregate.name,
            models.AggregateMetadata.key,
            models.AggregateMetadata.value,
        )
        .join(models.Aggregate, models.Aggregate.id == models.AggregateHost.aggregate_id)
        .outerjoin(models.AggregateMetadata, models.AggregateMetadata.aggregate_id == models.Aggregate.id)
        .where(models.AggregateHost.host.in_(hosts))
    )
