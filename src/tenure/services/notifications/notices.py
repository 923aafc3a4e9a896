"""The payload of the ``lease.*`` notifications, under Blazar's names."""

from __future__ import annotations

from datetime import datetime

from tenure.domain.lease import Event, Lease, Reservation


def notification_payload(lease: Lease) -> dict[str, object]:
    """Return the whole lease as JSON values."""
    return {
        "lease_id": lease.id,
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        "trust_id": "",  # a field of Blazar that its consumers read; always empty
        "start_date": _moment(lease.starts_at),
        "end_date": _moment(lease.ends_at),
        "status": lease.status.value,
        "status_reason": lease.status_reason,
        "degraded": lease.degraded,
        "created_at": _stamp(lease.created_at),
        "updated_at": _stamp(lease.updated_at),
        "reservations": [_reservation(reservation) for reservation in lease.reservations],
        "events": [_event(event) for event in lease.events if not event.event_type.is_internal],
    }


def _reservation(reservation: Reservation) -> dict[str, object]:
    return {
        **reservation.parameters,
        **reservation.effects,
        "id": reservation.id,
        "lease_id": reservation.lease_id,
        "resource_id": reservation.id,
        "resource_type": reservation.resource_type,
        "status": reservation.status.value,
        "missing_resources": reservation.missing_resources,
        "resources_changed": reservation.resources_changed,
        "created_at": _stamp(reservation.created_at),
        "updated_at": _stamp(reservation.updated_at),
    }


def _event(event: Event) -> dict[str, object]:
    return {
        "id": event.id,
        "lease_id": event.lease_id,
        "event_type": event.event_type.value,
        "time": _moment(event.due_at),
        "status": event.status.value,
        "created_at": _stamp(event.created_at),
        "updated_at": _stamp(event.updated_at),
        **({} if event.message is None else {"message": event.message}),
    }


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}"


def _stamp(moment: datetime | None) -> str | None:
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else None
