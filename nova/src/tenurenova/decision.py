"""The decision whether a server may be put on a host, as far as reservations are concerned.

Pure: facts in, a decision out. `tenurenova.filter` gets the facts from Nova.

The decisions and the metadata they use are those of Blazar's filter, so that either filter works with either service.
A host is open to all servers unless one of its aggregates is a *pool*: the free pool, whose hosts wait for
reservations; the pool of the preemptible servers; or the aggregate of a reservation, which is recognized by
its availability zone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

# The scheduler hint with the id of a reservation, or several ids.
HINT = "reservation"
# A prefix that Blazar once used for the zones of reservations, whatever was configured.
LEGACY_ZONE_PREFIX = "blazar:"
# The prefix of a metadata key by which an aggregate contains a node of Ironic: its members are compute services, which
# have many nodes. The name of the node follows, which is a UUID.
NODE_PREFIX = "tenure:node:"
# A metadata key of the aggregate of a single server's reservation; its value is the id of the server.
SERVER_KEY = "tenure:server"
# A metadata key of the same aggregate while the server is booted, and a hint of that boot, with the same random value.
# It counts only until the aggregate has the id of the server, since the owner can read it in the hints. Behind an @ it
# says until when it counts at most, in seconds since 1970: Nova keeps the hints of a server as long as it lives.
BOOT_KEY = "tenure:boot"


@dataclass(frozen=True)
class Rules:
    """The names that the operator has configured; the defaults are Blazar's."""

    free_pool: str = "freepool"
    zone_prefix: str = "blazar_"
    owner_key: str = "blazar:owner"
    preemptibles_allowed: bool = False
    preemptible_pool: str = "freepool"


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of Nova that contains the host."""

    name: str
    metadata: Mapping[str, str]

    @property
    def zone(self) -> str:
        """The availability zone of the aggregate; empty if it has none."""
        return self.metadata.get("availability_zone") or ""


@dataclass(frozen=True)
class Request:
    """The facts about a server that matter for reservations: its project, flavor and hints."""

    project_id: str
    reservations: tuple[str, ...] = ()
    """The ids in the scheduler hint `reservation`."""
    in_instance_reservation: bool = False
    """Whether the flavor belongs to a reservation of instances."""
    preemptible: bool = False
    server_id: str = ""
    boot_key: str = ""
    """The value of the hint `tenure:boot`, while it counts."""


class Why(Enum):
    """The reason of a decision, in the words of the log."""

    RESERVED_FOR_IT = "it is reserved for this project"
    RESERVED_FOR_SERVER = "it is reserved for this server"
    DECIDED_BY_OTHERS = "the flavor belongs to a reservation of instances, for which other filters decide"
    OPEN_TO_PREEMPTIBLES = "it is open to preemptible servers"
    OPEN_TO_ALL = "it is in no pool"

    NOT_IN_RESERVATION = "it is not a host of the reservation of the hint"
    NOT_YOUR_RESERVATION = "the reservation of the hint is another project's"
    CLOSED_TO_PREEMPTIBLES = "preemptible servers run only on hosts whose only pool is theirs"
    KEPT_FOR_RESERVATIONS = "it is kept for reservations, and the server names none in a hint"


_PASSING = frozenset(
    {Why.RESERVED_FOR_IT, Why.RESERVED_FOR_SERVER, Why.DECIDED_BY_OTHERS, Why.OPEN_TO_PREEMPTIBLES, Why.OPEN_TO_ALL}
)


@dataclass(frozen=True)
class Decision:
    """Whether the host passes, the reason, and the aggregates that decided."""

    why: Why
    pools: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the server may be put on the host."""
        return self.why in _PASSING

    def __str__(self) -> str:
        return f"{self.why.value} ({', '.join(self.pools)})" if self.pools else self.why.value


def live_key(hint: object, now: float) -> str:
    """Return the key of a boot in a hint, if it still counts; empty otherwise."""
    key = str(hint or "")
    until = key.rpartition("@")[2]
    return key if until.isascii() and until.isdigit() and now < int(until) else ""


def asks_for_aggregates(request: Request) -> bool:
    """Whether `decide` needs the aggregates of the host at all."""
    return bool(request.reservations or request.boot_key) or not request.in_instance_reservation


def decide(request: Request, aggregates: Iterable[Aggregate], rules: Rules) -> Decision:
    """Decide whether a host that belongs to these aggregates passes."""
    aggregates = list(aggregates)
    own = [aggregate for aggregate in aggregates if _is_its_own(request, aggregate)]
    if own:
        return Decision(Why.RESERVED_FOR_SERVER, _names(own))
    pools = [aggregate for aggregate in aggregates if _is_pool(aggregate, rules)]
    if request.boot_key:
        return Decision(Why.NOT_IN_RESERVATION, _names(pools))
    if request.reservations:
        return _decide_hinted(request, pools, rules)
    if request.in_instance_reservation:
        return Decision(Why.DECIDED_BY_OTHERS)
    if rules.preemptibles_allowed and request.preemptible:
        open_to_it = len(pools) == 1 and _is_only_preemptible(pools[0], rules)
        return Decision(Why.OPEN_TO_PREEMPTIBLES if open_to_it else Why.CLOSED_TO_PREEMPTIBLES, _names(pools))
    if pools:
        return Decision(Why.KEPT_FOR_RESERVATIONS, _names(pools))
    return Decision(Why.OPEN_TO_ALL)


def _is_its_own(request: Request, aggregate: Aggregate) -> bool:
    """Whether the aggregate is that of the reservation of this server, which exists or is being booted."""
    if server_id := aggregate.metadata.get(SERVER_KEY):
        return server_id == request.server_id
    return request.boot_key != "" and aggregate.metadata.get(BOOT_KEY) == request.boot_key


def _decide_hinted(request: Request, pools: list[Aggregate], rules: Rules) -> Decision:
    named = [pool for pool in pools if pool.name in request.reservations]
    usable = [pool for pool in named if _may_use(request.project_id, pool, rules)]
    if usable:
        return Decision(Why.RESERVED_FOR_IT, _names(usable))
    if named:
        return Decision(Why.NOT_YOUR_RESERVATION, _names(named))
    return Decision(Why.NOT_IN_RESERVATION, _names(pools))


def _may_use(project_id: str, pool: Aggregate, rules: Rules) -> bool:
    """Whether a project owns the pool or was given access: then its id is a metadata key with a non-empty value."""
    return bool(pool.metadata.get(project_id)) or pool.metadata.get(rules.owner_key) == project_id


def _is_pool(aggregate: Aggregate, rules: Rules) -> bool:
    return aggregate.name in (rules.free_pool, rules.preemptible_pool) or _is_zone_of_reservation(aggregate.zone, rules)


def _is_only_preemptible(pool: Aggregate, rules: Rules) -> bool:
    """Whether the pool is that of the preemptible servers, and its zone is not that of a reservation."""
    return pool.name == rules.preemptible_pool and not _is_zone_of_reservation(pool.zone, rules)


def _is_zone_of_reservation(zone: str, rules: Rules) -> bool:
    return zone != "" and zone.startswith((rules.zone_prefix, LEGACY_ZONE_PREFIX))


def _names(pools: Iterable[Aggregate]) -> tuple[str, ...]:
    return tuple(pool.name for pool in pools)
