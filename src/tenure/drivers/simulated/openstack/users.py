"""What users of the cloud ask of its services, as OpenStack's clients do: servers, flavors, images, networks, volumes.

The driver asks for the same objects in one fixed way for each, which the services check; users' clients ask in many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tenure.drivers.simulated.openstack.cinder import shown_type, shown_volume
from tenure.drivers.simulated.openstack.flavors import Flavors
from tenure.drivers.simulated.openstack.nova import Nova
from tenure.drivers.simulated.openstack.scheduler import NoValidHost, Scheduler
from tenure.drivers.simulated.openstack.servers import Servers, shown_server
from tenure.drivers.simulated.openstack.service import Answer, Asked, Caller, Refused, Route, only_admins, text, whole
from tenure.drivers.simulated.openstack.state import Server, State, Volume

#: What stands before the name of a service in routes for users.
FOR_USERS: Final = "users of "
#: The images of operating systems that everyone may boot, by name.
PUBLIC_IMAGES: Final = {
    "cirros": "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0301",
    "debian-12": "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0302",
}
#: The names of the networks that every simulated cloud has, by whether they are external.
_NETWORKS: Final = {True: "public", False: "private"}
#: How many servers one request can boot.
_MOST_AT_ONCE: Final = 100
#: The microversion from which a server has its flavor's sizes in place of its id.
_EMBEDDED: Final = (2, 47)
_INSTANT: Final = "%Y-%m-%dT%H:%M:%SZ"


class Users:
    """The side of the services that users see. A user sees the objects of the project, an administrator sees all."""

    def __init__(self, state: State, scheduler: Scheduler, nova: Nova, flavors: Flavors, servers: Servers) -> None:
        self._state = state
        self._scheduler = scheduler
        self._nova = nova
        self._flavors = flavors
        self._servers = servers

    # Nova

    def list_servers(self, asked: Asked, caller: Caller) -> Answer:
        everyone = asked.params.get("all_tenants", "").lower() in {"1", "true"}
        if everyone:
            only_admins(caller)
        wanted = {name: asked.params[name] for name in ("name", "status", "host", "project_id") if name in asked.params}
        found = [
            server
            for server in sorted(self._state.servers.values(), key=lambda server: server.created, reverse=True)
            if (everyone or server.project_id == caller.project_id) and _passes(server, wanted)
        ]
        shown = [self._shown(server, asked, caller) for server in _page(found, asked)]
        if not asked.path.endswith("/detail"):
            shown = [{name: server[name] for name in ("id", "name", "links")} for server in shown]
        return 200, {"servers": shown}

    def show_server(self, asked: Asked, caller: Caller, server_id: str) -> Answer:
        return 200, {"server": self._shown(self._server(server_id, caller), asked, caller)}

    def boot_servers(self, asked: Asked, caller: Caller) -> Answer:
        """Boot servers; those for which there is no host come to be with the status ERROR, as in Nova."""
        body = _part(asked.body, "server")
        hints = _mapping(asked.body, "os:scheduler_hints") or _mapping(asked.body, "OS-SCH-HNT:scheduler_hints")
        metadata = _mapping(body, "metadata")
        text(body.get("name"))
        for value in metadata.values():
            text(value)
        count = body.get("min_count") or 1
        whole(count, 1)
        if count > _MOST_AT_ONCE:
            raise Refused(403, f"Quota exceeded for instances: Requested {count}")
        flavor = self._flavors.find(str(body.get("flavorRef", "")).rpartition("/")[2], caller)
        image_id = str(body.get("imageRef") or "")
        if image_id and image_id not in {image["id"] for image in self._images(caller)}:
            raise Refused(400, f"Can not find requested image {image_id}")
        group_id = hints.get("group")
        if group_id is not None and group_id not in self._state.groups:
            raise Refused(400, f"Instance group {group_id} could not be found.")
        booted: list[Server] = []
        for number in range(1, count + 1):
            name = body["name"] if count == 1 else f"{body['name']}-{number}"
            made = Server(name, "", caller.project_id, dict(hints), user_id=caller.user_id, group_id=group_id)
            made.flavor = replace(flavor, projects=set())
            made.metadata.update(metadata)
            made.tags += map(str, body.get("tags") or ())
            made.image_id = image_id
            try:
                self._scheduler.place(made)
            except NoValidHost as error:
                made.status, made.fault = "ERROR", str(error)
                self._state.servers[made.id] = made
            booted.append(made)
        answer = {
            "id": booted[0].id,
            "links": [],
            "OS-DCF:diskConfig": "MANUAL",
            "adminPass": "",
            "security_groups": [],
        }
        return 202, {"server": answer}

    def delete_server(self, asked: Asked, caller: Caller, server_id: str) -> Answer:
        self._server(server_id, caller)
        return self._servers.act_on_server(replace(asked, body={"forceDelete": None}), caller, server_id)

    def act_on_server(self, asked: Asked, caller: Caller, server_id: str) -> Answer:
        if not isinstance(asked.body, dict) or len(asked.body) != 1:
            raise Refused(400, "There is no such action")
        try:
            return self._servers.act_on_server(asked, caller, server_id)
        except (AttributeError, KeyError, TypeError) as error:
            raise Refused(400, f"Invalid input: {error}") from error

    def list_flavors(self, asked: Asked, caller: Caller) -> Answer:
        return self._flavors.list_flavors(replace(asked, microversion="2.61"), caller)

    def show_flavor(self, asked: Asked, caller: Caller, flavor_id: str) -> Answer:
        return self._flavors.show_flavor(replace(asked, microversion="2.61"), caller, flavor_id)

    def list_hypervisors(self, asked: Asked, caller: Caller) -> Answer:
        only_admins(caller)
        return self._nova.list_hypervisors(replace(asked, microversion="2.33"), caller)

    def show_hypervisor(self, asked: Asked, caller: Caller, hypervisor_id: str) -> Answer:
        only_admins(caller)
        return self._nova.show_hypervisor(replace(asked, microversion="2.33"), caller, hypervisor_id)

    def list_aggregates(self, asked: Asked, caller: Caller) -> Answer:
        only_admins(caller)
        return self._nova.list_aggregates(asked, caller)

    def list_zones(self, asked: Asked, caller: Caller) -> Answer:
        _, zones = self._nova.list_zones(asked, caller)
        names = [zone["zoneName"] for zone in zones["availabilityZoneInfo"]]
        shown = [{"zoneName": name, "zoneState": {"available": True}, "hosts": None} for name in names]
        return 200, {"availabilityZoneInfo": shown}

    def list_groups(self, asked: Asked, caller: Caller) -> Answer:
        return self._flavors.list_groups(replace(asked, microversion="2.64"), caller)

    def list_nothing(self, asked: Asked, caller: Caller, *_: str) -> Answer:
        """Answer that there are none of what the path ends with."""
        name = asked.path.rpartition("/")[2].removeprefix("os-")
        return 200, {_NAMES.get(name, name): []}

    def _server(self, server_id: str, caller: Caller) -> Server:
        server = self._state.servers.get(server_id)
        if server is None or not (server.project_id == caller.project_id or caller.is_admin):
            raise Refused(404, f"Instance {server_id} could not be found.")
        return server

    def _shown(self, server: Server, asked: Asked, caller: Caller) -> dict[str, Any]:
        """Return a server as Nova shows it: administrators see its host."""
        shown = shown_server(server)
        shown |= {
            "links": [],
            "image": {"id": server.image_id, "links": []} if server.image_id else "",
            "addresses": {},
            "key_name": None,
            "accessIPv4": "",
            "accessIPv6": "",
            "config_drive": "",
            "hostId": "",
            "progress": 0,
            "OS-DCF:diskConfig": "MANUAL",
            "OS-EXT-STS:power_state": 1 if server.status == "ACTIVE" else 4,
            "OS-EXT-AZ:availability_zone": "nova" if server.host else "",
            "os-extended-volumes:volumes_attached": [],
        }
        if _version(asked) < _EMBEDDED:
            shown["flavor"] = {"id": server.flavor.id if server.flavor else "1", "links": []}
        host = shown.pop("OS-EXT-SRV-ATTR:host")
        if caller.is_admin:
            known = self._state.hosts.get(host)
            shown |= {
                "OS-EXT-SRV-ATTR:host": host or None,
                "OS-EXT-SRV-ATTR:hypervisor_hostname": known.name if known else None,
                "OS-EXT-SRV-ATTR:instance_name": f"instance-{server.id[:8]}",
            }
        if server.fault:
            fault = {"code": 500, "message": server.fault, "created": server.created.strftime(_INSTANT)}
            shown["fault"] = fault
        return shown

    # Glance

    def list_images(self, asked: Asked, caller: Caller) -> Answer:
        wanted = {name: asked.params[name] for name in ("id", "name", "status", "visibility") if name in asked.params}
        found = [image for image in self._images(caller) if wanted.items() <= image.items()]
        return 200, {"images": found, "schema": "/v2/schemas/images", "first": "/v2/images"}

    def show_image(self, asked: Asked, caller: Caller, image_id: str) -> Answer:
        for image in self._images(caller):
            if image["id"] == image_id:
                return 200, image
        raise Refused(404, f"No image found with ID {image_id}")

    def delete_image(self, asked: Asked, caller: Caller, image_id: str) -> Answer:
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
        own = [image for image in self._state.images.values() if image["owner"] == caller.project_id]
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

    def list_networks(self, asked: Asked, caller: Caller) -> Answer:
        wanted = {name: asked.params[name] for name in ("id", "name") if name in asked.params}
        external = asked.params.get("router:external", "").lower()
        networks = [self._network(network_id) for network_id in self._state.networks]
        found = [
            network
            for network in networks
            if wanted.items() <= network.items() and external in ("", str(network["router:external"]).lower())
        ]
        return 200, {"networks": found}

    def show_network(self, asked: Asked, caller: Caller, network_id: str) -> Answer:
        if network_id not in self._state.networks:
            raise Refused(404, f"Network {network_id} could not be found.")
        return 200, {"network": self._network(network_id)}

    def list_subnets(self, asked: Asked, caller: Caller) -> Answer:
        network_id = asked.params.get("network_id")
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

    def list_floating_ips(self, asked: Asked, caller: Caller) -> Answer:
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

    def list_volumes(self, asked: Asked, caller: Caller) -> Answer:
        everyone = caller.is_admin and asked.params.get("all_tenants", "").lower() in {"1", "true"}
        name = asked.params.get("name")
        found = [
            volume
            for volume in self._state.volumes.values()
            if (everyone or volume.project_id == caller.project_id) and name in (None, volume.name)
        ]
        return 200, {"volumes": [self._shown_volume(volume, caller) for volume in _page(found, asked)]}

    def show_volume(self, asked: Asked, caller: Caller, volume_id: str) -> Answer:
        volume = self._state.volumes.get(volume_id)
        if volume is None or not (volume.project_id == caller.project_id or caller.is_admin):
            raise Refused(404, f"Volume {volume_id} could not be found.")
        return 200, {"volume": self._shown_volume(volume, caller)}

    def list_volume_types(self, asked: Asked, caller: Caller) -> Answer:
        types = self._state.volume_types.values()
        open_to = [found for found in types if found.projects is None or caller.project_id in found.projects]
        return 200, {"volume_types": [{**shown_type(found), "extra_specs": {}} for found in open_to]}

    def list_snapshots(self, asked: Asked, caller: Caller) -> Answer:
        shown = [
            {
                "id": snapshot.id,
                "name": snapshot.name,
                "description": None,
                "status": snapshot.status,
                "size": self._state.volumes[snapshot.volume_id].size,
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
            ("compute", "GET", "/servers(?:/detail)?", self.list_servers),
            ("compute", "POST", "/servers", self.boot_servers),
            ("compute", "GET", server, self.show_server),
            ("compute", "DELETE", server, self.delete_server),
            ("compute", "POST", f"{server}/action", self.act_on_server),
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
        return [(f"{FOR_USERS}{service}", method, path, handler) for service, method, path, handler in routes]


#: The names of lists that differ from the end of their paths.
_NAMES: Final = {
    "volume_attachments": "volumeAttachments",
    "interface": "interfaceAttachments",
    "security-groups": "security_groups",
}


def _part(body: Any, name: str) -> dict[str, Any]:
    if not isinstance(body, dict) or not isinstance(body.get(name), dict):
        raise Refused(400, f"Invalid input: the body has no {name}")
    part: dict[str, Any] = body[name]
    return part


def _mapping(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object of a body; empty where there is none."""
    found = body.get(name) or {}
    if not isinstance(found, dict):
        raise Refused(400, f"Invalid input for field/attribute {name}: it is no object")
    return found


def _passes(server: Server, wanted: Mapping[str, str]) -> bool:
    found = {"host": server.host, "project_id": server.project_id, "status": server.status}
    return all(
        value in server.name if name == "name" else found[name].upper() == value.upper()
        for name, value in wanted.items()
    )


def _page(items: Sequence[Any], asked: Asked) -> Sequence[Any]:
    """Return the items behind the marker, as many as the request has for a limit."""
    marker, limit = asked.params.get("marker"), asked.params.get("limit", "")
    places = [place for place, item in enumerate(items, start=1) if item.id == marker]
    if marker is not None and not places:
        raise Refused(400, f"marker [{marker}] not found")
    begin = places[0] if places else 0
    return items[begin : begin + int(limit)] if limit.isdigit() else items[begin:]


def _version(asked: Asked) -> tuple[int, ...]:
    """Return the microversion of a request to Nova, 2.1 by default."""
    version = asked.microversion or "2.1"
    return tuple(int(number) for number in version.split(".")) if version[:1].isdigit() else (2, 103)
