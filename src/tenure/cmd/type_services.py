"""Which resource types need services that the cloud does not have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tenure.drivers.contract import CloudDriver, CloudError, drivers_by_region
from tenure.resources.contract import ResourceType


@dataclass(frozen=True, slots=True)
class Unserved:
    """A resource type of which nothing can be handed over, since services are missing."""

    resource_type: str
    #: The missing services, with Keystone's names of their types.
    services: tuple[str, ...]
    #: The regions in which they are missing; empty if they are missing in the whole cloud.
    regions: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"region {', '.join(self.regions)}" if self.regions else "the cloud"
        return f"{self.resource_type} needs {', '.join(self.services)}, which {where} does not have"


@dataclass(frozen=True, slots=True)
class Findings:
    """The types that lack services, and the errors of clouds that could not be asked."""

    unserved: tuple[Unserved, ...]
    errors: tuple[CloudError, ...]


def find_unserved(types: Iterable[ResourceType], driver: CloudDriver) -> Findings:
    """Ask each region for the services of these types. A region that does not answer is not asked again."""
    unserved: list[Unserved] = []
    errors: dict[str | None, CloudError] = {}
    for resource_type in types:
        missing: dict[str | None, set[str]] = {}
        regions = drivers_by_region(driver, resource_type.name)
        for region, cloud in regions.items():
            if region in errors:
                continue
            try:
                missing[region] = set(cloud.missing_services(resource_type.name))
            except CloudError as error:
                errors[region] = error
        lacking = [region for region, services in missing.items() if services]
        if lacking:
            services = tuple(sorted(set().union(*missing.values())))
            partly = len(lacking) < len(regions)
            unserved.append(Unserved(resource_type.name, services, tuple(filter(None, lacking)) if partly else ()))
    return Findings(tuple(unserved), tuple(errors.values()))
