"""The operator's settings for an OpenStack cloud."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from tenure.drivers.openstack.pci_aliases import PciAlias


@dataclass(frozen=True, slots=True)
class OpenStackOptions:
    """How to reach a cloud, and the names of objects there.

    The default names are those of Blazar. The account must be an administrator: it lists hypervisors and the servers of
    all projects, manages aggregates, flavors and floating IPs of other projects, and writes to Placement.
    """

    #: Keystone's address, with or without ``/v3``.
    auth_url: str = "http://127.0.0.1:5000/v3"
    username: str = "tenure"
    password: str = field(default="", repr=False)
    user_domain_name: str = "Default"
    project_name: str = "service"
    project_domain_name: str = "Default"
    #: The managed region; None if the catalogue has only one.
    region: str | None = None
    #: The interface of the endpoints: ``public``, ``internal`` or ``admin``.
    interface: str = "internal"
    #: A file with CA certificates; None for those of the system.
    cafile: str | None = None
    #: Whether to accept any certificate.
    insecure: bool = False
    #: The aggregate of free hosts. The operator creates it.
    freepool_name: str = "freepool"
    #: The metadata key for the owner of an aggregate.
    owner_key: str = "blazar:owner"
    #: The prefix of the names of reservations' zones.
    zone_prefix: str = "blazar_"
    #: The prefix of the names of images made before the end.
    image_prefix: str = "reserved_"
    #: Whether a host's zone is one of its properties.
    az_aware: bool = True
    #: The aliases by which flavors ask for PCI devices, as in Nova's configuration.
    pci_aliases: tuple[PciAlias, ...] = ()
    #: The timeout of one HTTP call without any data.
    request_timeout: timedelta = timedelta(seconds=15)
    #: The timeout of a driver call as a whole.
    verb_timeout: timedelta = timedelta(seconds=30)
    #: The maximum number of concurrent HTTP calls.
    concurrency: int = 8

    def __post_init__(self) -> None:
        if self.request_timeout <= timedelta(0) or self.verb_timeout <= timedelta(0):
            raise ValueError("a time-out must be longer than nothing")
        if self.concurrency < 1:
            raise ValueError("at least one call must be possible at a time")
        if not (self.freepool_name and self.owner_key and self.zone_prefix):
            raise ValueError("the pool, the key of the owner and the prefix of zones need names")

    @property
    def identity_url(self) -> str:
        """Keystone's address with its version."""
        base = self.auth_url.rstrip("/")
        return base if base.endswith("/v3") else f"{base}/v3"
