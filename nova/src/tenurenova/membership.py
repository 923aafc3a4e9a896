"""Of which aggregates hosts are members, as Nova's API database has it now.

Nova's own objects are not used for this. `AggregateList.get_by_metadata` returns aggregates with nothing in their
metadata but the key that was asked for; `get_by_host` is a query for each host that loads all other members as well;
`get_all` takes seconds where a service keeps an aggregate for each lease to come.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy
from nova import context
from nova.db.api import api, models

from tenurenova.decision import Aggregate

# Of a cloud with more candidates than this, as many are asked for in one statement.
BATCH = 1000


def aggregates_of(hosts: Iterable[str]) -> Mapping[str, Sequence[Aggregate]]:
    """The aggregates of each of these hosts; one that is in none is not among the keys.

    One statement for a thousand hosts, in a transaction of its own, on the server that is written to and not on a
    replica. Raises oslo_db's DBError where the database does not answer.
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
                if key is not None:  # it has metadata
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
