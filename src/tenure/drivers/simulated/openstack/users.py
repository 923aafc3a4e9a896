"""The requests of the cloud's users, as OpenStack's clients make them: servers, flavors, images, networks, volumes.

The driver asks for the same objects in one fixed way for each, which the services check; users' clients ask in many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tenure.drivers.simulated.openstack.cinder import shown_type, shown_volume
from tenure.drivers.simulated.openstack.flavors import Flavors
from tenure.drivers.simulated.openstack.nova import OWNER, Nova, is_set_aside
from tenure.drivers.simulated.openstack.service import (
    Answer,
    ApiRequest,
    Caller,
    Refused,
    Route,
    only_admins,
    page_from,
)
from tenure.drivers.simulated.openstack.state import State, Volume
from tenure.drivers.simulated.openstack.user_servers import PUBLIC_IMAGES, UserServers

#: The prefix of the name of a service in routes for users.
FOR_USERS: Final = "users of "
#: The names of the networks that every simulated cloud has, by whether they are external.
_NETWORKS: Final = {True: "public", False: "private"}


class Users:
    """The side of the services that users see. A user sees the objects of the project, an administrator sees all."""

    def __init__(self, state: State, nova: Nova, flavors: Flavors, servers: UserServers) -> None:
        self._state = state
        self._nova = nova
        self._flavors = flavors
        self._servers = servers

    # Nova

    def list_flavors(self, request: ApiRequest, caller: Caller) -> Answer:
        return self._flavors.list_flavors(replace(request, microversion="2.61"), caller)

    def show_flavor(self, request: ApiRequest, caller: Caller, flavor_id: str) -> Answer:
        return self._flavors.show_flavor(replace(request, microversion="2.61"), caller, flavor_id)

    def list_hypervisors(self, request: ApiRequest, caller: Caller) -> Answer:
        only_admins(caller)
        return self._nova.list_hypervisors(replace(request, microversion="2.33"), caller)

    def show_hypervisor(self, request: ApiRequest, caller: Caller, hypervisor_id: str) -> Answer:
        only_admins(caller)
        return self._nova.show_hypervisor(replace(request, microversion="2.33"), caller, hypervisor_id)

    def list_aggregates(self, request: ApiRequest, caller: Caller) -> Answer:
        only_admins(caller)
        return self._nova.list_aggregates(request, caller)

    def list_zones(self, request: ApiRequest, caller: Caller) -> Answer:
        """List the zones; those of other projects' reservations are for administrators only."""
        _, zones = self._nova.list_zones(request, caller)
        aggregates = self._state.aggregates.values()
        hidden = {
            aggregate.zone
            for aggregate in aggregates
            if is_set_aside(aggregate) and not (caller.is_admin or aggregate.metadata.get(OWNER) == caller.project_id)
        }
        names = [zone["zoneName"] for zone in zones["availabilityZoneInfo"] if zone["zoneName"] not in hidden]
        shown = [{"zoneName": name, "zoneState": {"available": True}, "hosts": None} for name in names]
        return 200, {"availabilityZoneInfo": shown}

    def list_groups(self, request: ApiRequest, caller: Caller) -> Answer:
        return self._flavors.list_groups(replace(request, microversion="2.64"), caller)

    def list_nothing(self, request: ApiRequest, caller: Caller, *_: str) -> Answer:
        """Answer with an empty list of the objects that the path names."""
        name = request.path.rpartition("/")[2].removeprefix("os-")
        return 200, {_NAMES.get(name, name): []}

    # Glance

    def list_images(self, request: ApiRequest, caller: Caller) -> Answer:
        filters = {
            name: request.params[name] for name in ("id", "name", "status", "visibility") if name in request.params
        }
        found = [image for image in self._images(caller) if filters.items() <= image.items()]
        return 200, {"images": found, "schema": "/v2/schemas/images", "first": "/v2/images"}

    def show_image(self, request: ApiRequest, caller: Caller, image_id: str) -> Answer:
        for image in self._images(caller):
            if image["id"] == image_id:
                return 200, image
        raise Refused(404, f"No image found with ID {image_id}")

    def delete_image(self, request: ApiRequest, caller: Caller, image_id: str) -> Answer:
        image = self._state.images.get(image_id)
        if image is None or not (image["owner"] == caller.project_id or caller.is_admin):
            raise Refused(404, f"No image found with ID {image_id}")
        del self._state.images[image_id]
        return 204, None

    def _images(self, caller: Caller) -> list[dict[str, Any]]:
        public: Sequence[Mapping[str, Any]] = [
            {"id": image_id, "name": name, "status": "active", "visibility": "public", "owner": None}
            for name, image_id in PUBLIC_IMAGES.items()
        ]
        own = self._state.images_of(caller.project_id)
        usual = {
            "visibility": "private",
            "disk_format": "qcow2",
            "container_format": "bare",
            "min_disk": 0,
            "min_ram": 0,
            "size": 0,
            "protected": False,
            "tags": [],
        }
        return [
            {**usual, **image, "file": f"/v2/images/{image['id']}/file", "schema": "/v2/schemas/image"}
            for image in (*public, *own)
        ]

    # Neutron

    def list_networks(self, request: ApiRequest, caller: Caller) -> Answer:
        filters = {name: request.params[name] for name in ("id", "name") if name in request.params}
        external = request.params.get("router:external", "").lower()
        networks = [self._network(network_id) for network_id in self._state.networks]
        found = [
            network
            for network in networks
            if filters.items() <= network.items() and external in ("", str(network["router:external"]).lower())
        ]
        return 200, {"networks": found}

    def show_network(self, request: ApiRequest, caller: Caller, network_id: str) -> Answer:
        if network_id not in self._state.networks:
            raise Refused(404, f"Network {network_id} could not be found.")
        return 200, {"network": self._network(network_id)}

    def list_subnets(self, request: ApiRequest, caller: Caller) -> Answer:
        network_id = request.params.get("network_id")
        shown = [
            {
                "id": subnet.id,
                "name": "",
                "network_id": subnet.network_id,
                "cidr": subnet.cidr,
                "ip_version": subnet.network.version,
                "gateway_ip": subnet.gateway,
                "allocation_pools": [{"start": first, "end": last} for first, last in subnet.pools],
                "enable_dhcp": True,
            }
            for subnet in self._state.subnets.values()
            if network_id in (None, subnet.network_id)
        ]
        return 200, {"subnets": shown}

    def list_floating_ips(self, request: ApiRequest, caller: Caller) -> Answer:
        shown = [
            {
                "id": floating_ip.id,
                "floating_ip_address": floating_ip.address,
                "floating_network_id": floating_ip.network_id,
                "fixed_ip_address": None,
                "port_id": floating_ip.port_id,
                "project_id": floating_ip.project_id,
                "description": floating_ip.description,
                "status": "ACTIVE" if floating_ip.port_id else "DOWN",
                "tags": list(floating_ip.tags),
            }
            for floating_ip in self._state.floating_ips.values()
            if caller.is_admin or floating_ip.project_id == caller.project_id
        ]
        return 200, {"floatingips": shown}

    def _network(self, network_id: str) -> dict[str, Any]:
        external = self._state.networks[network_id]
        subnets = [subnet.id for subnet in self._state.subnets.values() if subnet.network_id == network_id]
        return {
            "id": network_id,
            "name": _NETWORKS[external],
            "status": "ACTIVE",
            "admin_state_up": True,
            "router:external": external,
            "shared": True,
            "subnets": subnets,
            "tags": [],
        }

    # Cinder

    def list_volumes(self, request: ApiRequest, caller: Caller) -> Answer:
        everyone = caller.is_admin and request.params.get("all_tenants", "").lower() in {"1", "true"}
        name = request.params.get("name")
        found = [
            volume
            for volume in self._state.volumes.values()
            if (everyone or volume.project_id == caller.project_id) and name in (None, volume.name)
        ]
        return 200, {"volumes": [self._shown_volume(volume, caller) for volume in page_from(found, request)]}

    def show_volume(self, request: ApiRequest, caller: Caller, volume_id: str) -> Answer:
        volume = self._state.volumes.get(volume_id)
        if volume is None or not (volume.project_id == caller.project_id or caller.is_admin):
            raise Refused(404, f"Volume {volume_id} could not be found.")
        return 200, {"volume": self._shown_volume(volume, caller)}

    def list_volume_types(self, request: ApiRequest, caller: Caller) -> Answer:
        types = self._state.volume_types.values()
        open_to = [found for found in types if found.projects is None or caller.project_id in found.projects]
        return 200, {"volume_types": [{**shown_type(found), "extra_specs": {}} for found in open_to]}

    def list_snapshots(self, request: ApiRequest, caller: Caller) -> Answer:
        shown = [
            {
                "id": snapshot.id,
                "name": snapshot.name,
                "description": None,
                "status": snapshot.status,
                "size": volume.size if (volume := self._state.volumes.get(snapshot.volume_id)) else 0,
                "volume_id": snapshot.volume_id,
                "metadata": dict(snapshot.metadata),
            }
            for snapshot in self._state.volume_snapshots.values()
            if snapshot.project_id == caller.project_id
        ]
        return 200, {"snapshots": shown}

    def _shown_volume(self, volume: Volume, caller: Caller) -> dict[str, Any]:
        return {
            **shown_volume(volume, for_admin=caller.is_admin),
            "volume_type": volume.volume_type,
            "user_id": volume.user_id,
            "availability_zone": "nova",
            "bootable": "false",
            "encrypted": False,
            "description": None,
            "links": [],
        }

    @property
    def routes(self) -> Sequence[Route]:
        server, flavor = "/servers/([^/]+)", "/flavors/([^/]+)"
        routes: Sequence[tuple[str, str, str, Callable[..., Answer]]] = (
            (
                "compute",
                "GET",
                f"{server}/(?:os-volume_attachments|os-interface|os-security-groups)",
                self.list_nothing,
            ),
            ("compute", "GET", "/flavors(?:/detail)?", self.list_flavors),
            ("compute", "GET", flavor, self.show_flavor),
            ("compute", "GET", f"{flavor}/os-extra_specs", self._flavors.list_specs),
            ("compute", "GET", "/os-hypervisors(?:/detail)?", self.list_hypervisors),
            ("compute", "GET", "/os-hypervisors/([^/]+)", self.show_hypervisor),
            ("compute", "GET", "/os-aggregates", self.list_aggregates),
            ("compute", "GET", "/os-availability-zone(?:/detail)?", self.list_zones),
            ("compute", "GET", "/os-server-groups", self.list_groups),
            ("compute", "GET", "/os-keypairs", self.list_nothing),
            ("image", "GET", "/images", self.list_images),
            ("image", "GET", "/images/([^/]+)", self.show_image),
            ("image", "DELETE", "/images/([^/]+)", self.delete_image),
            ("network", "GET", "/networks", self.list_networks),
            ("network", "GET", "/networks/([^/]+)", self.show_network),
            ("network", "GET", "/subnets", self.list_subnets),
            ("network", "GET", "/floatingips", self.list_floating_ips),
            ("network", "GET", "/(?:ports|routers|security-groups|extensions)", self.list_nothing),
            ("block-storage", "GET", "/volumes(?:/detail)?", self.list_volumes),
            ("block-storage", "GET", "/volumes/([^/]+)", self.show_volume),
            ("block-storage", "GET", "/types", self.list_volume_types),
            ("block-storage", "GET", "/snapshots(?:/detail)?", self.list_snapshots),
        )
        return [
            ("compute", "POST", "/servers", self._servers.boot_servers),  # by the driver, as the owner of a lease
            *(
                (f"{FOR_USERS}{service}", method, path, handler)
                for service, method, path, handler in (*self._servers.routes, *routes)
            ),
        ]


#: The names of lists that differ from the end of their paths.
_NAMES: Final = {
    "volume_attachments": "volumeAttachments",
    "interface": "interfaceAttachments",
    "security-groups": "security_groups",
}
