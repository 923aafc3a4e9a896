"""What is in the cloud: accounts, the catalogue, an image, flavors and an external network."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.apis import Account
from testbed.places import API_PORTS, HOST, KEYSTONE, PASSWORD

IDENTITY = f"{KEYSTONE}/v3"
INTERFACES = ("public", "internal", "admin")

#: Name, type and path of every service but Keystone; the name is that of its account as well.
SERVICES = (
    ("placement", "placement", "placement", ""),
    ("glance", "image", "glance", ""),
    ("neutron", "network", "neutron", ""),
    ("nova", "compute", "nova-api", "/v2.1"),
    ("cinder", "block-storage", "cinder-api", "/v3"),
)
#: The account that a reservation service acts as.
RESERVATION_ACCOUNT = "tenure"
#: Those who are no administrators, each in a project of its own.
USERS = ("demo", "other")

FLAVORS = {"m1.tiny": (1, 512, 1), "m1.small": (1, 1024, 10), "m1.medium": (2, 4096, 20)}

#: The aggregate of the hosts that can be reserved, as an operator makes it for Blazar.
FREE_POOL = "freepool"

#: Addresses below the pool can be registered as reservable floating IPs.
EXTERNAL_NETWORK = "public"
EXTERNAL_CIDR = "172.24.4.0/24"
EXTERNAL_GATEWAY = "172.24.4.1"
EXTERNAL_POOL = {"start": "172.24.4.100", "end": "172.24.4.200"}


def ensure_accounts(admin: Account) -> None:
    """Have the services' accounts and catalogue entries, and the users."""
    for name, kind, process, path in SERVICES:
        _ensure_account(admin, name, "service", ("admin", "service"))
        ensure_endpoint(admin, kind, name, f"http://{HOST}:{API_PORTS[process]}{path}")
    _ensure_account(admin, RESERVATION_ACCOUNT, "service", ("admin", "service"))
    for name in USERS:
        _ensure_account(admin, name, name, ("member", "reader"))


def _ensure_account(admin: Account, name: str, project_name: str, role_names: Sequence[str]) -> None:
    domain = {"domain_id": "default"}
    project = admin.ensure(f"{IDENTITY}/projects", "project", {"name": project_name, **domain})
    user = admin.ensure(f"{IDENTITY}/users", "user", {"name": name, **domain}, password=PASSWORD)
    for role_name in role_names:
        role = admin.ensure(f"{IDENTITY}/roles", "role", {"name": role_name})
        assigned = {"role": {"id": role["id"]}, "user": {"id": user["id"]}}
        scope = {"project": {"id": project["id"]}}
        if not admin.find(f"{IDENTITY}/role_assignments", "role_assignment", {**assigned, "scope": scope}):
            admin.send("PUT", f"{IDENTITY}/projects/{project['id']}/users/{user['id']}/roles/{role['id']}")


def ensure_endpoint(admin: Account, kind: str, name: str, url: str) -> None:
    """Have the catalogue name ``url`` for the service of this type and name."""
    service = admin.ensure(f"{IDENTITY}/services", "service", {"type": kind, "name": name})
    for interface in INTERFACES:
        match = {"service_id": service["id"], "interface": interface}
        entry = admin.ensure(f"{IDENTITY}/endpoints", "endpoint", match, region_id="RegionOne", url=url)
        if entry["url"] != url:
            admin.send("PATCH", f"{IDENTITY}/endpoints/{entry['id']}", {"endpoint": {"url": url}})


def remove_endpoints(admin: Account, kind: str, *, but: str | None = None) -> None:
    """Have no service of this type in the catalogue, but for one of that name."""
    for service in admin.get(f"{IDENTITY}/services?type={kind}")["services"]:
        if service["name"] != but:
            admin.send("DELETE", f"{IDENTITY}/services/{service['id']}")


def ensure_resources(admin: Account) -> None:
    """Have an image, flavors, a network to take floating IPs from, and the pool of free hosts."""
    _ensure_image(admin)
    compute = admin.catalogue["compute"]
    known = {flavor["name"] for flavor in admin.get(f"{compute}/flavors")["flavors"]}
    for name, (vcpus, ram, disk) in FLAVORS.items():
        if name not in known:
            flavor = {"name": name, "vcpus": vcpus, "ram": ram, "disk": disk}
            admin.send("POST", f"{compute}/flavors", {"flavor": flavor})
    if all(one["name"] != FREE_POOL for one in admin.get(f"{compute}/os-aggregates")["aggregates"]):
        admin.send("POST", f"{compute}/os-aggregates", {"aggregate": {"name": FREE_POOL}})
    _ensure_external_network(admin)


def _ensure_image(admin: Account) -> None:
    image = f"{admin.catalogue['image']}/v2/images"
    if any(found["status"] == "active" for found in admin.get(f"{image}?name=tiny")["images"]):
        return
    description = {"name": "tiny", "disk_format": "raw", "container_format": "bare", "visibility": "public"}
    made = admin.send("POST", image, description).body
    admin.send("PUT", f"{image}/{made['id']}/file", b"\0" * 1024, content_type="application/octet-stream")


def _ensure_external_network(admin: Account) -> None:
    """In the service project: it is not an own network of those who boot servers."""
    network = f"{admin.catalogue['network']}/v2.0"
    project = admin.ensure(f"{IDENTITY}/projects", "project", {"name": "service", "domain_id": "default"})
    owner = {"project_id": project["id"]}
    external = {
        "router:external": True,
        "provider:network_type": "flat",
        "provider:physical_network": "public",
    }
    made = admin.ensure(f"{network}/networks", "network", {"name": EXTERNAL_NETWORK}, **owner, **external)
    admin.ensure(
        f"{network}/subnets",
        "subnet",
        {"name": EXTERNAL_NETWORK, "network_id": made["id"]},
        **owner,
        ip_version=4,
        enable_dhcp=False,
        cidr=EXTERNAL_CIDR,
        gateway_ip=EXTERNAL_GATEWAY,
        allocation_pools=[EXTERNAL_POOL],
    )
