"""Regions: clouds side by side, in one ledger.

The first region is the home region: what names none is there. Its resources have the ids that its cloud gives them;
those of other regions have the region's name before that, so that ids are unique whatever clouds count from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from tenure.domain.errors import InvalidParameter

#: No longer, so that there is room for a cloud's id beside it.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,24}", re.ASCII)
#: How long the trusts of a lease may be when they are written down together.
MAX_TRUSTS = 767
_BETWEEN = ":"


def region_of(asked: str | None, regions: Collection[str], *, field: str) -> str:
    """The region that a request is about; the home region where it names none.

    Where there are no ``regions`` it is the only one, which has no name. Raises ``InvalidParameter`` for any other.
    """
    if not asked:
        return next(iter(regions), "")
    if asked not in regions:
        known = f"there are {', '.join(regions)}" if regions else "this service has no regions"
        raise InvalidParameter(f"There is no region {asked}: {known}.", field=field)
    return asked


def trusts_in(trust_id: str) -> dict[str, str]:
    """The trusts of a lease by region; what was given where there were no regions is under the empty name."""
    pairs = [one.rpartition("=") for one in trust_id.split()]
    return {name: trust for name, _, trust in pairs}


def together(trusts: Mapping[str, str]) -> str:
    """The trusts of a lease by region, as one text."""
    return " ".join(f"{name}={trust}" if name else trust for name, trust in trusts.items())


def qualified(region: str, name: str) -> str:
    """What a cloud calls something, with the region in which it does."""
    return f"{region}{_BETWEEN}{name}" if region else name


def unqualified(region: str, name: str) -> str:
    """The same without that region."""
    return name.removeprefix(f"{region}{_BETWEEN}") if region else name


def ids_in(region: str, external_ids: Collection[str]) -> frozenset[str]:
    """The ids that things may have in the ledger which the cloud of a region calls so."""
    return frozenset(external_ids) | {qualified(region, one) for one in external_ids}
