"""What consumers of notifications hear of leases on the message bus, under Blazar's names."""

from __future__ import annotations

import json

import pytest
from keystoneauth1.session import Session

from tests.support.consumer import Consumer
from tests.support.site import Site, have_testbed, moment
from tests.support.waiting import wait_for

#: What Blazar's payload has; its consumers read any of it.
PAYLOAD = {
    "lease_id",
    "user_id",
    "project_id",
    "trust_id",
    "start_date",
    "end_date",
    "status",
    "reservations",
    "events",
    "name",
    "created_at",
    "updated_at",
    "degraded",
}


@pytest.fixture
def consumer(site: Site) -> Consumer:
    return Consumer(f"{site.topic}.info")


def test_notifications_cover_a_lease_from_booking_to_deletion(site: Site, demo: Session, consumer: Consumer):
    site.register("compute-1")
    lease = site.book(demo, on="compute-1", seconds=3600, before_end_date=moment(seconds=8))
    lease.wait("ACTIVE")
    lease.change(name="renamed", end_date=moment(seconds=1800))
    topics = ["lease.create", "lease.event.start_lease", "lease.update", "lease.event.before_end_lease"]
    consumer.wait(lease.id, *topics)
    lease.change(end_date="now")
    lease.wait("TERMINATED")
    lease.delete()
    consumer.wait(lease.id, *topics, "lease.update", "lease.event.end_lease", "lease.delete")
    first, *_, last = [message for message in consumer.heard if message["payload"]["lease_id"] == lease.id]
    assert (first["priority"], first["publisher_id"]) == ("INFO", "blazar.lease")
    assert PAYLOAD - first["payload"].keys() == set()
    assert first["payload"]["project_id"] == demo.get_project_id()
    assert first["payload"]["user_id"] == demo.get_user_id()
    assert (first["payload"]["status"], last["payload"]["name"]) == ("PENDING", "renamed")
    (reservation,) = first["payload"]["reservations"]
    assert (reservation["id"], reservation["resource_type"]) == (lease.reservation, "physical:host")
    assert {event["event_type"] for event in first["payload"]["events"]} == {
        "start_lease",
        "before_end_lease",
        "end_lease",
    }
    assert "secret" not in json.dumps(consumer.heard)


def test_notifications_missed_by_the_message_bus_are_sent_later(site: Site, demo: Session, consumer: Consumer):
    """Of a lease that needs nothing of the cloud, which needs the message bus itself."""
    ends = moment(seconds=14)
    lease = site.book(demo, start=moment(seconds=8), seconds=12, reservations=[], before_end_date=moment(seconds=10))
    consumer.wait(lease.id, "lease.create")
    have_testbed("stop", "rabbitmq")
    try:
        wait_for("the end of the lease", lambda: moment() > ends, seconds=30)
    finally:
        have_testbed("start")
    wait_for("the API to reach the manager again", lambda: lease.api.get(f"/leases/{lease.id}").status_code == 200)
    lease.wait("TERMINATED")
    events = ("lease.event.start_lease", "lease.event.before_end_lease", "lease.event.end_lease")
    consumer.wait(lease.id, "lease.create", *events)
