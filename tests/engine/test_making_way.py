"""Preemptible servers are removed before a lease starts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationRequest
from tenure.drivers.simulated import EffectKind
from tenure.engine.preemption import Preemption
from tenure.services.context import Rules
from tenure.services.execution.preemption import TOPIC, PreemptionService
from tenure.services.notifications.outbox import Message
from tests.support.engines import effects_of, lease_of, rebuild
from tests.support.world import HOST, NOW, OWNER, open_world

NOTICE = timedelta(seconds=60)


def test_two_reservations_that_start_together_both_have_room(tmp_path: Path):
    """Separately, both would count on the same servers to be removed."""
    rules = Rules(preemption_notice=NOTICE)
    with open_world(tmp_path, hosts=1, rules=rules) as world:
        instances = world.cloud.world.instances
        (host,) = world.cloud.discover(HOST)
        quarter = host.capacity["VCPU"] // 4
        instances.add_flavor("spot", vcpus=quarter, extra_specs={"blazar:preemptible": "true"})
        servers = {instances.boot("somebody", "spot") for _ in range(4)}
        parameters = {"amount": 1, "vcpus": quarter, "memory_mb": 512, "disk_gb": 1, "affinity": None}
        requested = ReservationRequest("virtual:instance", {**parameters, "resource_properties": ""})
        starts_at = NOW + timedelta(hours=1)
        request = LeaseRequest("lease", starts_at, starts_at + timedelta(hours=1), reservations=(requested, requested))
        lease = world.leases.create(OWNER, request)
        service = PreemptionService(world.db, rules)
        preemption = Preemption(service, world.cloud)
        for left in (NOTICE, timedelta(seconds=30), timedelta(seconds=5)):
            world.pass_until(starts_at - left)
            preemption.run()
        assert len({server.id for server in world.cloud.world.servers()} & servers) == 2
        assert len(effects_of(world, EffectKind.SERVER_TOLD)) == 2
        world.pass_until(starts_at)
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        assert len({server.id for server in world.cloud.world.servers()} & servers) == 2


def test_server_is_notified_again_when_the_start_has_moved(tmp_path: Path):
    """Once for each deadline, however often it is looked."""
    rules = Rules(preemption_notice=NOTICE)
    with open_world(tmp_path, hosts=1, rules=rules) as world:
        messages: list[Message] = []
        rebuild(world, sink=messages.append)
        world.cloud.world.instances.add_flavor("spot", extra_specs={"blazar:preemptible": "true"})
        server_id = world.cloud.world.instances.boot("somebody", "spot")
        lease = world.book(1, start=1)
        preemption = Preemption(PreemptionService(world.db, rules), world.cloud)
        deadlines = [NOW + timedelta(hours=1), NOW + timedelta(hours=2)]
        for deadline in deadlines:
            world.leases.update(OWNER, lease.id, LeaseChange(starts_at=deadline, ends_at=deadline + NOTICE))
            for left in (NOTICE, NOTICE * 0.9):
                world.pass_until(deadline - left)
                assert preemption.run() == 1
        world.engine.settle()
        payloads = [message.payload for message in messages if message.topic == TOPIC]
        assert [(message["server_id"], message["deadline"]) for message in payloads] == [
            (server_id, f"{deadline:%Y-%m-%dT%H:%M:%S.%f}") for deadline in deadlines
        ]
