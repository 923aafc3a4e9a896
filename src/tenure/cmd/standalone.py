"""``tenure-standalone``: the whole service in one process, on SQLite and a simulated cloud."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import secrets
import shlex
import signal
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml
from alembic.util import CommandError
from sqlalchemy.exc import DatabaseError

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth, TokenFileError, TokenUser, TokenUsers, write_token_file
from tenure.api.policies import ROLES, Policies
from tenure.clock import SystemClock
from tenure.cmd.data_folder import weakness_of
from tenure.cmd.limits import LimitsError, read_limits
from tenure.cmd.listening import listen
from tenure.cmd.log_lines import write_safe_lines
from tenure.cmd.whole_files import replacing
from tenure.collection import spare_loaded_objects
from tenure.domain.errors import Unavailable
from tenure.domain.lanes import USUAL
from tenure.domain.regions import NAME
from tenure.drivers.contract import CloudDriver
from tenure.drivers.router import Router
from tenure.drivers.simulated import SimulatedCloud
from tenure.drivers.simulated.fleet import add_fleet, pooled_hosts
from tenure.drivers.simulated.openstack.http import CloudEndpoints
from tenure.engine.default_leases import DefaultTerms
from tenure.factory import Components, Filters, Service, build, open_type_drivers
from tenure.resources.contract import ResourceTypes, load_types
from tenure.resources.named import only_named
from tenure.services.context import Rules
from tenure.services.limits.quotas import FixedLimits, Quotas, names_of
from tenure.services.regions import RegionService
from tenure.services.upkeep.purge import PurgeTerms
from tenure.store import schema
from tenure.store.database import Database

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

HOST_TYPE = "physical:host"
SERVER_TYPE = "virtual:server"
#: The project of the first administrator; it is exempt from limits.
_ADMIN_PROJECT = "admin-project"
WORKERS = 16
#: How many requests may wait for the cloud at a time.
PERMITS = 8
#: How many threads serve requests: all that run and wait in lanes, or wait for the cloud, and a few that refuse.
THREADS = sum(bounds.most for bounds in USUAL.values()) + PERMITS + 8
MAX_HOSTS = 100_000
#: How long a stop waits for running requests, in seconds, after the five seconds of waitress: they may wait for the
#: cloud for ten. Then how long it waits for running calls to the cloud.
REQUEST_SECONDS = 7.0
STOP_SECONDS = 10.0
#: How long a boot for a lease waits for the service, which runs in the same process and may be as slow as the boot.
BOOT_SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stopped; return the exit code."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    write_safe_lines(indent="  ")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    os.umask(0o077)  # the databases hold secrets
    try:
        return serve(arguments)
    except StartFailed as failure:
        print(f"tenure-standalone: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # interrupted before it serves
        return 128 + signal.SIGINT


class StartFailed(Exception):
    """The service cannot start as requested; the text says why, and what to do."""


def serve(
    arguments: argparse.Namespace,
    *,
    checkpoint: Callable[[str], None] = lambda _point: None,
    filters: Filters = MappingProxyType({}),
) -> int:
    """Serve as the arguments say; return the exit code. ``checkpoint`` is called at named points of every event.

    ``filters`` are enforcement filters, by name. Raises ``StartFailed``.
    """
    data_dir: Path = arguments.data_dir
    with _lock_folder(data_dir):
        return _serve(arguments, data_dir, checkpoint, filters)


def _serve(
    arguments: argparse.Namespace,
    data_dir: Path,
    checkpoint: Callable[[str], None],
    filters: Filters,
) -> int:
    try:
        clouds = open_clouds(data_dir, arguments.regions)
        service = open_service(
            data_dir,
            hosts=arguments.hosts,
            regions=arguments.regions,
            clouds=clouds,
            types=arguments.types,
            checkpoint=checkpoint,
            filters=filters,
            purge=PurgeTerms(ended_leases=arguments.purge_after_days),
            default_terms=_default_terms(arguments.default_leases, arguments.types),
        )
    except CommandError as error:
        raise StartFailed(
            f"what is in {data_dir} was written by a newer release of Tenure ({error}); "
            "start that release, or choose another --data-dir"
        ) from error
    except LimitsError as error:
        raise StartFailed(str(error)) from error
    except (DatabaseError, sqlite3.DatabaseError, Unavailable, ValueError) as error:
        raise StartFailed(f"what is in {data_dir} cannot be used: {getattr(error, 'orig', error)}") from error
    events, messages = service.events.take_over(), service.outbox.take_over()
    if events or messages:
        LOG.warning(
            "%d events and %d messages were under way when the service ended; they are taken up again", events, messages
        )
    tokens = data_dir / "tokens.yaml"
    if not tokens.exists():
        with replacing(tokens) as unfinished:
            write_token_file(unfinished, _first_users())
    try:
        api = create_app(
            service.manager,
            service.components.types,
            authenticate=lambda inner: TokenFileAuth(inner, tokens, known_roles=ROLES),
            requests_of_project=THREADS // 2,
        )
        users = TokenUsers(tokens, known_roles=ROLES)
    except TokenFileError as error:
        service.components.db.close()
        raise StartFailed(str(error)) from error
    for cloud in clouds.values():
        cloud.openstack.accounts = users.accounts
    endpoints = {name: cloud.openstack for name, cloud in clouds.items()}
    app = CloudEndpoints(endpoints, api, users.find)
    try:
        server = listen(app, host=arguments.host, port=arguments.port, threads=THREADS)
    except (OSError, ValueError) as error:
        service.components.db.close()
        raise StartFailed(f"cannot listen on {arguments.host}:{arguments.port}: {error}") from error
    for region in clouds:
        app.put_before_compute(
            region,
            partial(_before_compute, service=service, region=region, data_dir=data_dir, own_url=_own_url(server)),
        )
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    base = f"http://{host}:{server.effective_port}"
    url = f"{base}/v1"
    _write_clouds(data_dir / "clouds.yaml", tokens, f"{base}/identity/v3")
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, _leave)
    spare_loaded_objects()
    try:
        service.engine.start()
        file = shlex.quote(str((data_dir / "clouds.yaml").absolute()))
        print(f"Tenure serves {url}\nclients: export OS_CLIENT_CONFIG_FILE={file} OS_CLOUD=tenure-demo", flush=True)
        server.run()  # ends by SystemExit, which it does not pass on
    except SystemExit:
        pass
    server.task_dispatcher.shutdown(timeout=REQUEST_SECONDS)
    service.engine.stop(STOP_SECONDS)
    service.components.db.close()
    LOG.info("stopped")
    return 0


def _before_compute(
    compute: WSGIApplication, service: Service, region: str, data_dir: Path, own_url: str
) -> WSGIApplication:
    """Return Nova's API in a region, as users reach it."""
    inner = _with_reserved_boots(compute, region, data_dir, own_url)
    return inner if service.default_leases is None else partial(_notify, inner, service.default_leases.changed.wake)


def _notify(
    compute: WSGIApplication, wake: threading.Event, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    """Answer a request, and have the servers looked through if it may have changed one, as Nova's notifications do."""
    answer = compute(environ, start_response)
    if environ["REQUEST_METHOD"] != "GET":
        wake.set()
    return answer


def _with_reserved_boots(compute: WSGIApplication, region: str, data_dir: Path, own_url: str) -> WSGIApplication:
    """Return Nova's API in a region with servers that are booted for a lease, if ``tenure-nova`` is installed.

    It books the leases at ``own_url``; requests do not decide what is called.
    """
    try:
        from tenurenova.middleware import filter_factory
    except ImportError:
        return compute
    options = {"lock_folder": str(data_dir / "boots"), "at_once": str(WORKERS // 4), "timeout": str(BOOT_SECONDS)}
    wrapped: WSGIApplication = filter_factory({}, endpoint=own_url, lease_region=region, **options)(compute)
    return wrapped


def _own_url(server: Any) -> str:
    """Return the URL at which this process reaches its own API: the address on which it listens."""
    address, port = server.socket.getsockname()[:2]
    found = ip_address(address.partition("%")[0])
    if found.is_unspecified:
        found = ip_address("127.0.0.1" if found.version == 4 else "::1")
    return f"http://[{found}]:{port}/v1" if found.version == 6 else f"http://{found}:{port}/v1"


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End the server's loop. Ignore further signals, so that they do not disturb the stop."""
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, signal.SIG_IGN)
    raise SystemExit


@contextmanager
def _lock_folder(data_dir: Path) -> Iterator[None]:
    """Lock the folder against other processes, and create it if needed. The system releases the lock at exit."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        weakness = weakness_of(data_dir)
        if weakness is not None:
            raise StartFailed(weakness)
        if not os.access(data_dir, os.W_OK | os.X_OK):
            raise StartFailed(f"cannot use {data_dir}: it cannot be written to")
        lock = (data_dir / "lock").open("a")
        for database in data_dir.glob("*.db*"):
            database.chmod(0o600)  # earlier releases created it with the mode of the umask
    except OSError as error:
        raise StartFailed(f"cannot use {data_dir}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartFailed(f"another tenure-standalone uses {data_dir}; choose another --data-dir") from error
        yield


def open_clouds(data_dir: Path, regions: Sequence[str] = ()) -> dict[str, SimulatedCloud]:
    """Open the simulated cloud of each region, or the only one, whose name is empty; create those that are new."""
    home, *others = regions or ("",)
    clouds = {home: SimulatedCloud(str(data_dir / "cloud.db"))}
    for name in others:
        clouds[name] = SimulatedCloud(str(data_dir / f"cloud-{name}.db"))
    return clouds


def open_service(
    data_dir: Path,
    *,
    hosts: int,
    regions: Sequence[str] = (),
    clouds: Mapping[str, SimulatedCloud] | None = None,
    types: ResourceTypes | None = None,
    checkpoint: Callable[[str], None] = lambda _point: None,
    filters: Filters = MappingProxyType({}),
    purge: PurgeTerms | None = None,
    default_terms: DefaultTerms | None = None,
) -> Service:
    """Open the service on the files in ``data_dir``; create them, and ``hosts`` reservable hosts, on the first start.

    With ``regions``, that many hosts are created in each; the first region is the one that existed before regions.
    ``clouds`` are those of ``open_clouds``, if they are open already. ``types`` are the resource types, by default all.
    ``purge`` is what is purged from time to time. ``default_terms`` are those of leases for servers without one.
    """
    db = Database(f"sqlite:///{data_dir / 'tenure.db'}")
    schema.upgrade(db)
    clouds = clouds or open_clouds(data_dir, regions)
    if regions:
        RegionService(db).name_home(regions[0])
    wrong = RegionService(db).wrong_with(regions)
    if wrong is not None:
        raise ValueError(wrong)
    router = Router(clouds, workers=WORKERS)
    for region, part in router.by_region(HOST_TYPE).items():
        _register_hosts(db, clouds[region or ""], hosts, part, region=region or "")
    types = types or load_types()
    limits = read_limits(data_dir, names_of(types))
    for cloud in clouds.values():
        cloud.openstack.quotas = limits.of_cloud
    components = Components(
        db=db,
        driver=router if regions else clouds[""],
        type_drivers=open_type_drivers(data_dir),
        types=types,
        authorize=Policies().authorize,
        clock=SystemClock(),
        rules=Rules(regions=tuple(regions), longest_lease=limits.longest_lease),
        quotas=Quotas(FixedLimits(limits.of_projects, exempt=[_ADMIN_PROJECT])),
        checkpoint=checkpoint,
        filters=filters,
        workers=WORKERS,
        permits=PERMITS,
        purge=purge or PurgeTerms(),
        default_terms=default_terms,
        ailments=lambda: {"cloud": _ailment_of(clouds.values())},
    )
    return build(components)


def _default_terms(lasts: timedelta | None, types: ResourceTypes | None) -> DefaultTerms | None:
    """Return the terms of default leases that last so long; None for none. Raises ``StartFailed``."""
    if lasts is None:
        return None
    if types is not None and SERVER_TYPE not in {bookable.name for bookable in types.enabled}:
        raise StartFailed(f"--default-leases needs {SERVER_TYPE} among --types")
    return DefaultTerms(SERVER_TYPE, lasts=lasts)


def _ailment_of(clouds: Iterable[SimulatedCloud]) -> str | None:
    """Return what is wrong with one of the clouds; None if nothing is."""
    return next((ailment for cloud in clouds if (ailment := cloud.ailment()) is not None), None)


def _register_hosts(db: Database, cloud: SimulatedCloud, hosts: int, driver: CloudDriver, *, region: str) -> None:
    """Create the hosts on the first start, and more of them if more are asked for; complete an interrupted start.

    They are made in the pool, so that those which an operator has unregistered are told from new ones.
    """
    with db.read() as tx:
        known = tx.resources.known_external_ids(HOST_TYPE, region=region)
    if len(known) >= hosts:
        return
    add_fleet(cloud.openstack, hosts, pooled=True)
    pool = pooled_hosts(cloud.openstack)
    found = [host for host in driver.discover(HOST_TYPE) if host.external_id not in known]
    numbers = {host.external_id: host.external_id.rpartition(":")[2] for host in found}
    new = sorted(
        (host for host in found if numbers[host.external_id] in pool), key=lambda host: int(numbers[host.external_id])
    )
    properties = [_properties(host.traits) for host in new]
    now = SystemClock().now()
    db.write(lambda tx: tx.resources.add_many(new, properties, now=now))


def _properties(traits: frozenset[str]) -> dict[str, str]:
    """Return the properties that an operator would set for a simulated host: its GPU."""
    models = [trait.removeprefix("CUSTOM_GPU_").lower() for trait in traits if trait.startswith("CUSTOM_GPU_")]
    return {"gpu": models[0]} if models else {}


def _first_users() -> list[TokenUser]:
    return [
        TokenUser(
            user_id=f"{name}-user",
            user_name=name,
            project_id=f"{name}-project",
            project_name=name,
            roles=roles,
            token=secrets.token_hex(32),
        )
        for name, roles in (("admin", ("admin", "member", "reader")), ("demo", ("member", "reader")))
    ]


def _write_clouds(path: Path, tokens: Path, auth_url: str) -> None:
    """Write the file in which OpenStack's clients find their clouds; ``auth_url`` is that of Keystone."""
    users = yaml.safe_load(tokens.read_text())["users"]
    clouds = {
        f"tenure-{user['user_name']}": {
            "auth_type": "v3token",
            "auth": {"auth_url": auth_url, "token": user["token"]},
        }
        for user in users
        if user["user_name"] in {"admin", "demo"}
    }
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".clouds-")  # readable by this user only
    with open(descriptor, "w", encoding="utf-8") as file:
        yaml.safe_dump({"clouds": clouds}, file)
    os.replace(temporary, path)


def _port(text: str) -> int:
    return _within(text, 0, 65535)


def _days(text: str) -> timedelta:
    return timedelta(days=_within(text, 1, 36_500))


def _hosts(text: str) -> int:
    return _within(text, 1, MAX_HOSTS)


def _regions(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) != len(names) or not all(map(NAME.fullmatch, names)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names of regions, such as north,south")
    return names


def _types(text: str) -> ResourceTypes:
    try:
        return only_named(load_types(), [name.strip() for name in text.split(",")])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _within(text: str, lowest: int, highest: int) -> int:
    if not (text.isascii() and text.isdigit() and lowest <= int(text) <= highest):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {lowest} to {highest}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="tenure-standalone",
        description="Serve Tenure's API on a simulated cloud, from one process, with everything in one folder.",
    )
    made.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    made.add_argument("--port", type=_port, default=1234, help="the port, 0 for any free one (default: %(default)s)")
    made.add_argument(
        "--data-dir", type=Path, default=Path("tenure-data"), help="where everything is kept (default: ./%(default)s)"
    )
    made.add_argument(
        "--hosts",
        type=_hosts,
        default=8,
        help="how many simulated hosts to make on the first start (default: %(default)s)",
    )
    made.add_argument(
        "--regions",
        type=_regions,
        default=(),
        metavar="NAME,NAME...",
        help="simulate so many clouds, each a region with its own hosts; the first is the home region, and stays it",
    )
    made.add_argument(
        "--types",
        type=_types,
        metavar="TYPE,TYPE...",
        help="the resource types that can be booked, such as physical:host,virtual:instance (default: all)",
    )
    made.add_argument(
        "--purge-after-days",
        type=_days,
        metavar="DAYS",
        help="delete leases for good, with their history, so many days after they have ended (default: never)",
    )
    made.add_argument(
        "--default-leases",
        type=_days,
        metavar="DAYS",
        help="give every server without a lease one of so many days, at whose end it is shelved (default: no lease)",
    )
    made.add_argument("--debug", action="store_true", help="log more")
    return made


if __name__ == "__main__":
    sys.exit(main())
