"""The decision alone: the rules of Blazar's filter, and our additions."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenurenova.decision import Aggregate, Request, Rules, Why, asks_for_aggregates, decide, live_key

BIO, LAB = "0b1f5a3c9d", "7c2e8d4f6a"
MINE, OTHER = "3f0c7a52-mine", "91d2b6e8-other"
FREE_POOL = Aggregate("freepool", {})


def reservation(name: str = MINE, owner: str = BIO, **extra: str) -> Aggregate:
    return Aggregate(name, {"availability_zone": f"blazar_{name}", "blazar:owner": owner, **extra})


@pytest.mark.parametrize(
    ("aggregates", "why"),
    [
        pytest.param([], Why.NOT_IN_RESERVATION, id="in no pool"),
        pytest.param([FREE_POOL], Why.NOT_IN_RESERVATION, id="in the free pool"),
        pytest.param([reservation(OTHER)], Why.NOT_IN_RESERVATION, id="in another reservation"),
        pytest.param([reservation()], Why.RESERVED_FOR_IT, id="the owner's"),
        pytest.param([FREE_POOL, reservation()], Why.RESERVED_FOR_IT, id="still in the free pool as well"),
        pytest.param([reservation(owner=LAB)], Why.NOT_YOUR_RESERVATION, id="another owner's"),
        pytest.param([reservation(owner=LAB, **{BIO: "blazar:project"})], Why.RESERVED_FOR_IT, id="let in"),
        pytest.param([reservation(owner=LAB, **{BIO: ""})], Why.NOT_YOUR_RESERVATION, id="let in with an empty value"),
        pytest.param([Aggregate(MINE, {"blazar:owner": BIO})], Why.NOT_IN_RESERVATION, id="named so, but no pool"),
        pytest.param(
            [Aggregate(MINE, {"blazar:owner": BIO, "availability_zone": f"blazar:{MINE}"})],
            Why.RESERVED_FOR_IT,
            id="a zone of the old form",
        ),
    ],
)
def test_a_hint_opens_the_hosts_of_that_reservation_to_its_projects(aggregates: list[Aggregate], why: Why) -> None:
    decision = decide(Request(BIO, (MINE,)), aggregates, Rules())
    assert decision.why is why


@pytest.mark.parametrize(
    ("aggregates", "why"),
    [
        pytest.param([], Why.OPEN_TO_ALL, id="in no aggregate"),
        pytest.param([Aggregate("ssd", {"ssd": "true"})], Why.OPEN_TO_ALL, id="in a common aggregate"),
        pytest.param([Aggregate("az1", {"availability_zone": "az1"})], Why.OPEN_TO_ALL, id="in a common zone"),
        pytest.param([FREE_POOL], Why.KEPT_FOR_RESERVATIONS, id="in the free pool"),
        pytest.param([reservation()], Why.KEPT_FOR_RESERVATIONS, id="in its own reservation"),
        pytest.param([reservation(owner=LAB)], Why.KEPT_FOR_RESERVATIONS, id="in another's reservation"),
    ],
)
def test_without_a_hint_only_hosts_in_no_pool_are_open(aggregates: list[Aggregate], why: Why) -> None:
    decision = decide(Request(BIO), aggregates, Rules())
    assert decision.why is why


def test_every_pool_named_by_a_hint_is_checked() -> None:
    aggregates = [reservation(OTHER, owner=LAB), reservation(MINE)]
    decision = decide(Request(BIO, (OTHER, MINE)), aggregates, Rules())
    assert decision.passes
    assert decision.pools == (MINE,)


def test_a_flavor_of_an_instance_reservation_passes_in_every_pool() -> None:
    request = Request(BIO, in_instance_reservation=True)
    assert decide(request, [FREE_POOL], Rules()).why is Why.DECIDED_BY_OTHERS
    assert not asks_for_aggregates(request)


def test_a_hint_counts_for_a_flavor_of_an_instance_reservation_too() -> None:
    request = Request(BIO, (MINE,), in_instance_reservation=True)
    assert decide(request, [FREE_POOL], Rules()).why is Why.NOT_IN_RESERVATION
    assert asks_for_aggregates(request)


SPOT = Rules(preemptibles_allowed=True, preemptible_pool="spot")


@pytest.mark.parametrize(
    ("rules", "aggregates", "passes"),
    [
        pytest.param(Rules(preemptibles_allowed=True), [FREE_POOL], True, id="the free pool is theirs"),
        pytest.param(Rules(), [FREE_POOL], False, id="none are allowed"),
        pytest.param(SPOT, [Aggregate("spot", {})], True, id="a pool of their own"),
        pytest.param(SPOT, [FREE_POOL], False, id="not theirs"),
        pytest.param(SPOT, [Aggregate("spot", {}), FREE_POOL], False, id="theirs and another"),
        pytest.param(SPOT, [Aggregate("spot", {}), reservation()], False, id="theirs, but reserved"),
        pytest.param(
            SPOT, [Aggregate("spot", {"availability_zone": "blazar_x"})], False, id="a reservation by its zone"
        ),
        pytest.param(SPOT, [], False, id="in no pool"),
    ],
)
def test_preemptible_servers_run_where_their_pool_is_the_only_one(
    rules: Rules, aggregates: list[Aggregate], passes: bool
) -> None:
    assert decide(Request(BIO, preemptible=True), aggregates, rules).passes is passes


def test_names_are_configurable() -> None:
    rules = Rules(free_pool="idle", zone_prefix="res-", owner_key="lab:owner", preemptible_pool="spot")
    held = Aggregate(MINE, {"availability_zone": "res-x", "lab:owner": BIO})
    assert decide(Request(BIO, (MINE,)), [held], rules).why is Why.RESERVED_FOR_IT
    assert decide(Request(BIO), [Aggregate("idle", {})], rules).why is Why.KEPT_FOR_RESERVATIONS
    assert decide(Request(BIO), [Aggregate("spot", {})], rules).why is Why.KEPT_FOR_RESERVATIONS
    assert decide(Request(BIO), [FREE_POOL], rules).why is Why.OPEN_TO_ALL


def test_the_reason_names_the_pools() -> None:
    decision = decide(Request(LAB, (MINE,)), [reservation()], Rules())
    assert str(decision) == f"the reservation of the hint is another project's ({MINE})"


def blazars_rules(request: Request, aggregates: Sequence[Aggregate], rules: Rules) -> bool:
    """What is known of Blazar's filter, written down rule by rule."""
    pools = []
    for aggregate in aggregates:
        zone = aggregate.metadata.get("availability_zone")
        if zone and zone.startswith((rules.zone_prefix, "blazar:")):
            pools.append(aggregate)
        if aggregate.name == rules.free_pool or aggregate.name == rules.preemptible_pool:
            pools.append(aggregate)
    if request.reservations:
        for pool in pools:
            if pool.name in request.reservations:
                return bool(pool.metadata.get(request.project_id)) or (
                    pool.metadata.get(rules.owner_key) == request.project_id
                )
        return False
    if request.in_instance_reservation:
        return True
    if rules.preemptibles_allowed and request.preemptible:
        return len(pools) == 1 and pools[0].name == rules.preemptible_pool
    return not pools


NAMES = st.sampled_from(["freepool", "spot", "ssd", MINE, OTHER])
PROJECTS = st.sampled_from([BIO, LAB])
ZONES = st.sampled_from(["", "az1", "blazar_", f"blazar_{MINE}", f"blazar:{OTHER}", "res-1"])
METADATA: st.SearchStrategy[Mapping[str, str]] = st.dictionaries(
    st.sampled_from(["blazar:owner", "owner", BIO, LAB, "ssd"]), st.sampled_from(["", BIO, LAB, "blazar:project"])
)


@st.composite
def aggregates_of_a_host(draw: st.DrawFn) -> list[Aggregate]:
    # Names are unique in Nova.
    return [
        Aggregate(name, {**draw(METADATA), **({"availability_zone": zone} if (zone := draw(ZONES)) else {})})
        for name in draw(st.lists(NAMES, unique=True, max_size=4))
    ]


REQUESTS = st.builds(
    Request,
    project_id=PROJECTS,
    reservations=st.just(()) | st.lists(NAMES, min_size=1, max_size=2).map(tuple),
    in_instance_reservation=st.sampled_from([False, False, True]),
    preemptible=st.booleans(),
)
RULES = st.builds(
    Rules,
    zone_prefix=st.sampled_from(["blazar_", "res-", ""]),
    owner_key=st.sampled_from(["blazar:owner", "owner"]),
    preemptibles_allowed=st.booleans(),
    preemptible_pool=st.sampled_from(["freepool", "spot"]),
)


@settings(max_examples=500)
@given(request=REQUESTS, aggregates=aggregates_of_a_host(), rules=RULES)
@example(request=Request(BIO, (MINE,)), aggregates=[reservation()], rules=Rules())
@example(request=Request(BIO, preemptible=True), aggregates=[FREE_POOL], rules=Rules(preemptibles_allowed=True))
def test_decision_equals_blazars_for_hosts_of_one_hinted_reservation(
    request: Request, aggregates: list[Aggregate], rules: Rules
) -> None:
    named = [aggregate for aggregate in aggregates if aggregate.name in request.reservations]
    ours = decide(request, aggregates, rules).passes
    if len(named) <= 1:
        assert ours is blazars_rules(request, aggregates, rules)
    else:  # Blazar's looks at the first of them, whichever that is
        assert ours is any(blazars_rules(request, [aggregate], rules) for aggregate in named)


def test_host_reserved_for_a_server_admits_only_that_server() -> None:
    place = [FREE_POOL, Aggregate(MINE, {"tenure:server": "web", "tenure:reservation": MINE})]
    assert decide(Request(BIO, server_id="web"), place, Rules()).why is Why.RESERVED_FOR_SERVER
    assert decide(Request(BIO, server_id="other"), place, Rules()).why is Why.KEPT_FOR_RESERVATIONS
    assert decide(Request(BIO), place, Rules()).why is Why.KEPT_FOR_RESERVATIONS
    assert decide(Request(BIO, server_id="web"), [FREE_POOL], Rules()).why is Why.KEPT_FOR_RESERVATIONS
    nameless = [FREE_POOL, Aggregate(MINE, {"tenure:server": ""})]
    assert decide(Request(BIO), nameless, Rules()).why is Why.KEPT_FOR_RESERVATIONS


@pytest.mark.parametrize(
    ("hint", "key"), [("k@1001", "k@1001"), ("k@1000", ""), ("k", ""), ("", ""), (None, ""), (["k@1001"], "")]
)
def test_the_key_of_a_boot_counts_for_a_while(hint: object, key: str) -> None:
    assert live_key(hint, 1000.0) == key


def test_a_server_that_is_booted_for_a_reservation_shows_its_key() -> None:
    place = [FREE_POOL, Aggregate(MINE, {"tenure:boot": "k1"})]
    assert decide(Request(BIO, boot_key="k1"), place, Rules()).why is Why.RESERVED_FOR_SERVER
    for elsewhere in ([FREE_POOL, Aggregate(MINE, {"tenure:boot": "k2"})], [FREE_POOL], []):
        assert decide(Request(BIO, boot_key="k1"), elsewhere, Rules()).why is Why.NOT_IN_RESERVATION
    made = [FREE_POOL, Aggregate(MINE, {"tenure:boot": "k1", "tenure:server": "web"})]
    assert decide(Request(BIO, server_id="web", boot_key="k1"), made, Rules()).why is Why.RESERVED_FOR_SERVER
    assert decide(Request(BIO, server_id="other", boot_key="k1"), made, Rules()).why is Why.NOT_IN_RESERVATION
    for empty in ({}, {"tenure:boot": ""}):
        assert decide(Request(BIO), [FREE_POOL, Aggregate(MINE, empty)], Rules()).why is Why.KEPT_FOR_RESERVATIONS
