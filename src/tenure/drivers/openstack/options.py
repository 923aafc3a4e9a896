"""What an operator says about his cloud."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class OpenStackOptions:
    """How to reach a cloud, and under which names things are kept there.

    The defaults of names are those of Blazar. The account must be an administrator: it lists hypervisors and the
    servers of all projects, manages aggregates, flavors and the floating IPs of others, and writes to Placement.
    """

    #: Keystone's address, with or without ``/v3``.
    auth_url: str = "http://127.0.0.1:5000/v3"
    username: str = "tenure"
    password: str = field(default="", repr=False)
    user_domain_name: str = "Default"
    project_name: str = "service"
    project_domain_name: str = "Default"
    #: The region that is managed; None where the catalogue has only one.
    region: str | None = None
    #: Which endpoints of the catalogue are used: ``public``, ``internal`` or ``admin``.
    interface: str = "internal"
    #: A file with the certificates of authorities, None for those of the system.
    cafile: str | None = None
    #: Whether certificates are not checked at all.
    insecure: bool = False
    #: The aggregate of the hosts that are set aside and free. The operator creates it.
    freepool_name: str = "freepool"
    #: Under which name an aggregate says whose it is.
    owner_key: str = "blazar:owner"
    #: What the names of the zones of reservations begin with.
    zone_prefix: str = "blazar_"
    #: What the names of images begin with that are made before the end.
    image_prefix: str = "reserved_"
    #: Whether a host's zone is one of its facts.
    az_aware: bool = True
    #: How long one HTTP call may wait for a byte.
    request_timeout: timedelta = timedelta(seconds=15)
    #: How long a verb may take, whatever it is made of.
    verb_timeout: timedelta = timedelta(seconds=30)
    #: How many HTTP calls are made side by side.
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
