"""A process that works on a simulated cloud until it is killed; its arguments say what to do.

``hold FILE VERB HOSTS [TYPE]``: calls the verb and says ``held`` when a fault stops it.
``churn FILE RESERVATION HOSTS``: starts and ends the reservation for ever, and says so after each round.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from tenure.drivers.contract import CloudBusy
from tests.drivers.crash_commands import command_for, trusting
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import patience


def hold(path: str, verb: str, hosts: str, resource_type: str = "physical:host") -> None:
    cloud = SimulatedCloud(path)
    command = replace(command_for("r-1", hosts, resource_type), trust_id=next(iter(cloud.world.trusts()), None))
    calls = {
        "ensure_started": lambda: cloud.ensure_started(command),
        "before_end": lambda: cloud.before_end(command, "snapshot"),
        "ensure_ended": lambda: cloud.ensure_ended(command),
    }
    threading.Thread(target=calls[verb], daemon=True).start()
    print("held" if cloud.wait_until_blocked(timeout_seconds=patience()) else "was never held", flush=True)
    threading.Event().wait()


def churn(path: str, reservation_id: str, hosts: str) -> None:
    cloud = SimulatedCloud(path)
    command = trusting(cloud, command_for(reservation_id, hosts))
    while True:
        try:
            cloud.ensure_started(command)
            for _ in command.resources:
                cloud.world.boot_server(command.project_id, reservation_id=reservation_id)
            cloud.before_end(command, "snapshot")
            assert cloud.ensure_ended(command).done
        except CloudBusy:
            continue
        print("round", flush=True)


if __name__ == "__main__":
    work: dict[str, Callable[..., None]] = {"hold": hold, "churn": churn}
    work[sys.argv[1]](*sys.argv[2:])
