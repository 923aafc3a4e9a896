"""What a server takes of which provider of its host, as Placement allocates it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from tenure.domain.capacity import Capacity
from tenure.domain.footprint import Footprint, Group
from tenure.drivers.simulated.openstack.state import Provider

#: How much of a provider's class is left.
Left = Callable[[Provider, str], int]


def allotted(footprint: Footprint, providers: Sequence[Provider], left: Left) -> dict[str, dict[str, int]] | None:
    """Return what each of these providers, by its uuid, gives to a server; None if they cannot give all of it.

    Each group is from one provider, and each class of the rest; of several choices, the first providers give.
    """
    common = footprint.common
    apart = [Group(Capacity({resource_class: amount})) for resource_class, amount in common.amounts.items()]
    groups = [*apart, *footprint.groups]
    for chosen in _choices(groups, providers, left, Counter()):
        traits = {trait for provider in chosen[: len(apart)] for trait in provider.traits}
        if common.required <= traits and not common.forbidden & traits:
            return _summed(groups, chosen)
    return None


def _choices(
    groups: Sequence[Group], providers: Sequence[Provider], left: Left, taken: Mapping[tuple[str, str], int]
) -> Iterator[tuple[Provider, ...]]:
    """Yield the providers that can give to each of the groups, beside what is ``taken`` of them."""
    if not groups:
        yield ()
        return
    group, *others = groups
    for provider in providers:
        if _gives(provider, group, lambda of, name: left(of, name) - taken[of.uuid, name]):
            more = Counter({(provider.uuid, name): amount for name, amount in group.amounts.items()})
            for rest in _choices(others, providers, left, more + Counter(taken)):
                yield provider, *rest


def _gives(provider: Provider, group: Group, left: Left) -> bool:
    if not group.required.issubset(provider.traits) or not group.forbidden.isdisjoint(provider.traits):
        return False
    for resource_class, amount in group.amounts.items():
        limits = provider.inventories.get(resource_class)
        if limits is None or left(provider, resource_class) < amount:
            return False
        if not limits["min_unit"] <= amount <= limits["max_unit"] or amount % limits["step_size"]:
            return False
    return True


def _summed(groups: Sequence[Group], chosen: Sequence[Provider]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for group, provider in zip(groups, chosen, strict=True):
        found.setdefault(provider.uuid, Counter()).update(group.amounts)
    return {uuid: dict(amounts) for uuid, amounts in found.items() if amounts}
