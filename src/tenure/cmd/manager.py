"""``tenure-manager``: the logic of leases, and the engine that carries them out. Several managers may run."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from oslo_config.cfg import ConfigOpts

from tenure.cmd.process import (
    StartFailed,
    configure,
    run,
    show_metrics,
    wait_for_schema,
    wait_for_the_end,
)
from tenure.cmd.type_services import find_unserved
from tenure.collection import spare_loaded_objects
from tenure.deployment import ConfigurationError, open_manager
from tenure.factory import Service
from tenure.rpc.bus import Misconfigured
from tenure.rpc.listener import NovaListener
from tenure.rpc.server import RpcServer
from tenure.services.regions import RegionService

PROG = "tenure-manager"
HOST = "physical:host"
LOG = logging.getLogger(__name__)

#: How long a stop waits for running calls of the API, and then for running calls to the cloud, in seconds. Claims of
#: calls that take longer expire.
STOP_SECONDS = 20.0
#: How long a stop waits for a notification of Nova to be recorded, in seconds. If that takes longer, it is sent again.
LISTENER_SECONDS = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stopped; return the exit code."""
    return run(lambda: serve(configure(sys.argv[1:] if argv is None else argv, prog=PROG)), prog=PROG)


def serve(conf: ConfigOpts, *, checkpoint: Callable[[str], None] = lambda _point: None) -> int:
    """Serve as configured, as soon as the database can be used; return the exit code.

    ``checkpoint`` is called at named points of every event. Raises ``StartFailed``.
    """
    try:
        service = open_manager(conf, checkpoint=checkpoint)
        server = _new_server(conf, service)
    except (ConfigurationError, Misconfigured) as error:
        raise StartFailed(str(error)) from error
    wait_for_schema(service.components.db)
    _refuse_regions(service)
    check_services(service, named=bool(conf.manager.enabled_types))
    show_metrics(conf)
    spare_loaded_objects()
    service.engine.start()
    # In a thread, since it waits for the message bus. Neither the engine nor a stop should wait for that.
    listening = threading.Thread(target=server.start, name="tenure-rpc-start", daemon=True)
    listening.start()
    listener = _listen_to_nova(conf, service)
    LOG.info("%s runs", conf.manager.name)
    wait_for_the_end()
    ended = server.stop(STOP_SECONDS)
    if listener is not None:
        ended = listener.stop(LISTENER_SECONDS) and ended
    service.engine.stop(STOP_SECONDS)
    service.components.db.close()
    LOG.info("%s has stopped", conf.manager.name)
    if not ended:
        _exit_at_once()
    return 0


def _refuse_regions(service: Service) -> None:
    """Raise ``StartFailed`` if the region of registered hosts is not configured: no manager would manage them."""
    wrong = RegionService(service.components.db).wrong_with(service.components.rules.regions)
    if wrong is not None:
        raise StartFailed(wrong)


def check_services(service: Service, *, named: bool) -> None:
    """Log which types need services that the cloud does not have, before anybody books them.

    Raises ``StartFailed`` for a type that the configuration has ``named``, if it lacks a service everywhere.
    """
    findings = find_unserved(service.components.types.enabled, service.driver)
    for error in findings.errors:
        LOG.warning("whether the cloud has the services of all resource types could not be checked: %s", error)
    for unserved in findings.unserved:
        if named and not unserved.regions:
            raise StartFailed(f"[manager] enabled_types: {unserved}")
        LOG.warning("%s; [manager] enabled_types can name the other types", unserved)


def _new_server(conf: ConfigOpts, service: Service) -> RpcServer:
    options = conf.manager
    in_lanes = sum(bounds.most for bounds in service.components.bounds.values())
    threads = max(options.rpc_threads, in_lanes + service.components.permits)  # what waits in a lane has a thread, too
    return RpcServer(conf, service.manager, topic=options.rpc_topic, name=options.name, threads=threads)


def _exit_at_once() -> NoReturn:
    """End the process at once: its libraries would wait for running calls, or for a message bus that is away.

    Interrupted work continues when its claim expires, as after a crash.
    """
    LOG.warning("stopped while calls of the API were running, or without the message bus")
    logging.shutdown()
    os._exit(0)


def _listen_to_nova(conf: ConfigOpts, service: Service) -> NovaListener | None:
    """Listen for failed hosts and for new and deleted servers, as far as the operator has enabled it."""
    hosts = conf["physical:host"]
    report = partial(service.healing.report, HOST) if hosts.enable_notification_monitor else None
    on_server = None
    if service.default_leases is not None and conf["virtual:server"].default_lease_notifications:
        on_server = service.default_leases.changed.wake.set
    if report is None and on_server is None:
        return None
    listener = NovaListener(
        conf,
        report,
        topics=hosts.notification_topics,
        exchange=hosts.notification_exchange,
        on_server=on_server,
    )
    listener.start()
    return listener


if __name__ == "__main__":
    sys.exit(main())
