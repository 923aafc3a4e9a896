"""The API calls of the fake cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from tenureclient.testing import documents
from tenureclient.testing.calls import Call, Outcome, one_page
from tenureclient.testing.cloud import FakeCloud
from tenureclient.testing.inventory_routes import InventoryRoutes
from tenureclient.testing.stock import FakeLease, Refusal
from tenureclient.wire import JsonObject, JsonValue, Version, read_moment, rfc3339


class Routes:
    """Answers API calls from a fake cloud."""

    def __init__(self, cloud: FakeCloud, page_size: int) -> None:
        self._cloud = cloud
        self._page_size = page_size
        self.inventory = InventoryRoutes(cloud, page_size)

    def answer(self, call: Call, *, readable: bool) -> Outcome:
        """Return status and body."""
        self._cloud.settle()
        try:
            if not readable:
                raise Refusal(400, "InvalidParameter", "The body is not JSON")
            return self._dispatch(call)
        except Refusal as refusal:
            return documents.error_document(refusal, call.version)

    def _dispatch(self, call: Call) -> Outcome:
        newer = call.version is not Version.V1_0
        match (call.method, *call.parts):
            case ("GET", "v1", "leases"):
                return 200, self._list_leases(call)
            case ("POST", "v1", "leases"):
                return 201, self._create_lease(call)
            case ("GET", "v1", "leases", lease_id):
                return 200, self._lease(self._cloud.lease(lease_id), call)
            case ("PUT", "v1", "leases", lease_id):
                return 200, self._update_lease(self._cloud.lease(lease_id), call)
            case ("DELETE", "v1", "leases", lease_id):
                if not (newer and lease_id in self._cloud.deleted):
                    self._cloud.delete(lease_id)
                return 204, None
            case ("POST", "v1", "leases", lease_id, "confirm") if call.version is Version.V1_2:
                return 200, self._confirm_lease(self._cloud.lease(lease_id), call)
            case ("GET", "v1", "leases", lease_id, "history") if newer:
                return 200, self._history(self._cloud.lease(lease_id), call)
            case ("GET", "v1", "leases", lease_id, "hosts") if newer:
                return 200, self._lease_hosts(self._cloud.lease(lease_id))
            case ("GET", "v1", "leases", lease_id, "floatingips") if newer:
                return 200, self._lease_floatingips(self._cloud.lease(lease_id))
            case ("GET", "v1", "leases", lease_id, "volume_pools") if call.version is Version.V1_2:
                return 200, self._lease_volume_pools(self._cloud.lease(lease_id))
            case ("POST", "v1", "leases", lease_id, "reservations") if newer:
                return 201, self._add_reservation(self._cloud.lease(lease_id), call)
            case ("DELETE", "v1", "leases", lease_id, "reservations", reservation_id) if newer:
                self._cloud.drop(self._cloud.lease(lease_id), reservation_id)
                return 204, None
            case (_, "v1", "os-hosts", *_):
                return self.inventory.hosts(call)
            case (_, "v1", "floatingips", *_):
                return self.inventory.floatingips(call)
            case (_, "v1", "volume-pools", *_) if call.version is Version.V1_2:
                return self.inventory.volume_pools(call)
        raise Refusal(404, "NotFound", "The requested URL was not found on the server.")

    # Leases

    def _lease(self, lease: FakeLease, call: Call) -> JsonObject:
        return {"lease": self._document(lease, call)}

    def _document(self, lease: FakeLease, call: Call) -> JsonObject:
        return documents.lease_document(lease, call.version, self._cloud.flavors)

    def _history(self, lease: FakeLease, call: Call) -> JsonObject:
        entries: list[dict[str, JsonValue]] = [
            {**entry, "id": str(index), "detail": None} for index, entry in enumerate(lease.history, 1)
        ]
        older = call.version is Version.V1_1
        return one_page(
            call,
            self._page_size,
            "history",
            entries,
            lambda entry: str(entry["id"]),
            lambda entry: {
                name: value for name, value in entry.items() if not (older and name in {"id", "detail"})
            },
        )

    def _list_leases(self, call: Call) -> JsonObject:
        leases = list(self._cloud.leases.values())
        if call.version is Version.V1_0:
            return {"leases": [self._document(lease, call) for lease in leases]}
        texts: Mapping[str, Callable[[FakeLease], str]] = {
            "name": lambda lease: lease.name,
            "status": lambda lease: lease.status,
            "user_id": lambda _: "fake-user",
            "project_id": lambda _: "fake-project",
        }
        for key, text in texts.items():
            leases = [lease for lease in leases if call.query.get(key) in (None, text(lease))]
        if before := call.query.get("starts_before"):
            leases = [lease for lease in leases if lease.start < read_moment(before)]
        if after := call.query.get("ends_after"):
            leases = [lease for lease in leases if lease.end > read_moment(after)]
        orders: Mapping[str, Callable[[FakeLease], str]] = {
            "created_at": lambda lease: rfc3339(lease.created_at),
            "name": lambda lease: lease.name,
            "start_date": lambda lease: rfc3339(lease.start),
            "end_date": lambda lease: rfc3339(lease.end),
        }
        leases.sort(key=orders[call.query.get("sort_key", "created_at")])
        if call.query.get("sort_dir") == "desc":
            leases.reverse()
        return one_page(
            call,
            self._page_size,
            "leases",
            leases,
            lambda lease: lease.id,
            lambda lease: self._document(lease, call),
        )

    def _create_lease(self, call: Call) -> JsonObject:
        documents.check_lease_fields(call.fields, call.version, new=frozenset(["hold_for"]))
        for name in ("name", "start_date", "end_date"):
            if not isinstance(call.fields.get(name), str):
                raise Refusal(400, "MissingParameter", f"Missing parameter {name}", field=name)
        start, end, before_end = self._dates(call)
        wanted = call.fields.get("reservations")
        reservations = [
            documents.read_reservation(document, f"reservations[{index}]", call.version)
            for index, document in enumerate(wanted if isinstance(wanted, list) else [])
        ]
        lease = self._cloud.book(
            str(call.fields["name"]),
            start or self._cloud.now,
            end or self._cloud.now,
            before_end,
            reservations,
            documents.read_events(call.fields, call.version),
            documents.read_hold(call.fields, call.version),
        )
        return self._lease(lease, call)

    def _confirm_lease(self, lease: FakeLease, call: Call) -> JsonObject:
        documents.check_fields(call.fields, frozenset(["reservations"]), call.version)
        self._cloud.confirm(lease, _parameters(lease, call))
        return self._lease(lease, call)

    def _update_lease(self, lease: FakeLease, call: Call) -> JsonObject:
        documents.check_lease_fields(call.fields, call.version)
        start, end, before_end = self._dates(call)
        name = call.fields.get("name")
        self._cloud.change(
            lease,
            name=None if name is None else str(name),
            start=start,
            end=end,
            before_end=before_end,
            parameters=_parameters(lease, call),
            own_events=documents.read_events(call.fields, call.version),
        )
        return self._lease(lease, call)

    def _dates(self, call: Call) -> tuple[datetime | None, datetime | None, datetime | None]:
        start, end, before_end = (
            documents.read_date(call.fields, name, call.version, self._cloud.now)
            for name in ("start_date", "end_date", "before_end_date")
        )
        return start, end, before_end

    def _lease_hosts(self, lease: FakeLease) -> JsonObject:
        return {
            "hosts": [
                documents.lease_host_document(lease, reservation, self._cloud.host(host_id))
                for reservation in lease.reservations
                if reservation.resource_type == "physical:host"
                for host_id in reservation.host_ids
            ]
        }

    def _lease_floatingips(self, lease: FakeLease) -> JsonObject:
        return {
            "floatingips": [
                documents.lease_floatingip_document(lease, reservation, self._cloud.floatingip(floatingip_id))
                for reservation in lease.reservations
                for floatingip_id in reservation.floatingip_ids
            ]
        }

    def _lease_volume_pools(self, lease: FakeLease) -> JsonObject:
        return {
            "volume_pools": [
                documents.lease_volume_pool_document(
                    lease, reservation, self._cloud.pool(reservation.pool_id)
                )
                for reservation in lease.reservations
                if reservation.pool_id is not None
            ]
        }

    def _add_reservation(self, lease: FakeLease, call: Call) -> JsonObject:
        try:
            self._cloud.add(lease, documents.read_reservation(call.body, "reservation", call.version))
        except Refusal as refusal:
            # The body is the reservation itself: field names need no prefix.
            refusal.field = refusal.field and refusal.field.rpartition(".")[2]
            raise
        return self._lease(lease, call)


def _parameters(lease: FakeLease, call: Call) -> dict[str, Mapping[str, JsonValue]]:
    """Return the parameters that a call gives for reservations of the lease, by reservation id."""
    wanted = call.fields.get("reservations")
    parameters: dict[str, Mapping[str, JsonValue]] = {}
    for index, document in enumerate(wanted if isinstance(wanted, list) else []):
        change = dict(document) if isinstance(document, Mapping) else {}
        reservation_id = str(change.pop("id", ""))
        if reservation_id not in [reservation.id for reservation in lease.reservations]:
            raise Refusal(
                400,
                "InvalidParameter",
                f"Please enter valid reservation IDs. Invalid reservation IDs are: {reservation_id}",
                field=f"reservations[{index}].id",
            )
        parameters[reservation_id] = change
    return parameters
