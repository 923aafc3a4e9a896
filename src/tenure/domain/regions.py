"""Regions: several clouds in one ledger.

The first region is the home region: requests that name no region mean it. Resources of the home region have the ids of
their cloud. Ids of other regions are prefixed with the region's name, so that they are unique in the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from tenure.domain.errors import InvalidParameter

#: Region names; the length limit leaves room for a cloud's id beside the name.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,24}", re.ASCII)
#: The maximum length of the stored trusts of a lease, in characters.
MAX_TRUSTS = 767
_BETWEEN = ":"


def region_of(region: str | None, regions: Collection[str], *, field: str) -> str:
    """Return the region of a request; the home region if it names none.

    Without ``regions`` there is a single region, which has no name. Raises ``InvalidParameter`` for an unknown region.
    """
    if not region:
        return next(iter(regions), "")
    if region not in regions:
        known = f"there are {', '.join(regions)}" if regions else "this service has no regions"
        raise InvalidParameter(f"There is no region {region}: {known}.", field=field)
    return region


def trusts_in(trust_id: str) -> dict[str, str]:
    """Return the trusts of a lease by region. A trust from a time without regions has the empty name."""
    pairs = [pair.rpartition("=") for pair in trust_id.split()]
    return {name: trust for name, _, trust in pairs}


def together(trusts: Mapping[str, str]) -> str:
    """Join the trusts of a lease by region into one text."""
    return " ".join(f"{name}={trust}" if name else trust for name, trust in trusts.items())


def qualified(region: str, name: str) -> str:
    """Return a cloud's name for something, prefixed with the region."""
    return f"{region}{_BETWEEN}{name}" if region else name


def unqualified(region: str, name: str) -> str:
    """Return the name without the region prefix."""
    return name.removeprefix(f"{region}{_BETWEEN}") if region else name


def ids_in(region: str, external_ids: Collection[str]) -> frozenset[str]:
    """Return the possible ids in the ledger for these ids in a region's cloud."""
    return frozenset(external_ids) | {qualified(region, external_id) for external_id in external_ids}
