"""What consumers of notifications hear of leases on the message bus, under Blazar's names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from keystoneauth1.session import Session
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from tests.support.site import RABBITMQ_URL, Site, have_testbed, moment, wait_for

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


@dataclass
class Consumer:
    """One who takes notifications off a queue, and comes back when the connection is lost."""

    queue: str
    heard: list[dict[str, Any]] = field(default_factory=list)

    def listen(self) -> None:
        """Take whatever is there now."""
        with Connection(RABBITMQ_URL, connect_timeout=5) as bus:
            channel = bus.default_channel
            while (message := channel.basic_get(self.queue)) is not None:
                envelope = json.loads(message.body)
                assert envelope["oslo.version"] == "2.0"
                self.heard.append(json.loads(envelope["oslo.message"]))
                channel.basic_ack(message.delivery_tag)

    def types(self, lease_id: str) -> list[str]:
        """The types of what was heard of a lease, in the order in which they came; repetitions count once."""
        keys: dict[str, str] = {}
        for one in self.heard:
            if one["payload"]["lease_id"] == lease_id:
                keys.setdefault(one["message_id"], one["event_type"])
        return list(keys.values())

    def wait(self, lease_id: str, *types: str) -> None:
        """Listen until exactly these were heard of a lease, in this order."""

        def complete() -> bool:
            try:
                self.listen()
            except (OperationalError, OSError):
                return False  # the message bus is not back yet
            return len(self.types(lease_id)) >= len(types)

        wait_for(f"{', '.join(types)} after {', '.join(self.types(lease_id))}", complete, pause=0.25)
        assert self.types(lease_id) == list(types)


@pytest.fixture
def consumer(site: Site) -> Consumer:
    return Consumer(f"{site.topic}.info")


def test_a_lease_is_told_of_from_its_booking_to_its_deletion(site: Site, demo: Session, consumer: Consumer):
    site.register("compute-1")
    lease = site.book(demo, on="compute-1", seconds=3600, before_end_date=moment(seconds=8))
    lease.wait("ACTIVE")
    lease.change(name="renamed", end_date=moment(seconds=1800))
    told = ["lease.create", "lease.event.start_lease", "lease.update", "lease.event.before_end_lease"]
    consumer.wait(lease.id, *told)
    lease.change(end_date="now")
    lease.wait("TERMINATED")
    lease.delete()
    consumer.wait(lease.id, *told, "lease.update", "lease.event.end_lease", "lease.delete")
    first, *_, last = [one for one in consumer.heard if one["payload"]["lease_id"] == lease.id]
    assert (first["priority"], first["publisher_id"]) == ("INFO", "blazar.lease")
    assert PAYLOAD - first["payload"].keys() == set()
    assert first["payload"]["project_id"] == demo.get_project_id()
    assert first["payload"]["user_id"] == demo.get_user_id()
    assert (first["payload"]["status"], last["payload"]["name"]) == ("PENDING", "renamed")
    (reservation,) = first["payload"]["reservations"]
    assert (reservation["id"], reservation["resource_type"]) == (lease.reservation, "physical:host")
    assert {one["event_type"] for one in first["payload"]["events"]} == {"start_lease", "before_end_lease", "end_lease"}
    assert "secret" not in json.dumps(consumer.heard)


def test_what_happens_while_the_message_bus_is_away_is_told_later(site: Site, demo: Session, consumer: Consumer):
    """Of a lease that needs nothing of the cloud, which needs the message bus itself."""
    ends = moment(seconds=14)
    lease = site.book(demo, start=moment(seconds=8), seconds=12, reservations=[], before_end_date=moment(seconds=10))
    consumer.wait(lease.id, "lease.create")
    have_testbed("stop", "rabbitmq")
    try:
        wait_for("the end of the lease", lambda: moment() > ends, seconds=30)
    finally:
        have_testbed("up")
    wait_for("the API to reach the manager again", lambda: lease.api.get(f"/leases/{lease.id}").status_code == 200)
    lease.wait("TERMINATED")
    events = ("lease.event.start_lease", "lease.event.before_end_lease", "lease.event.end_lease")
    consumer.wait(lease.id, "lease.create", *events)
