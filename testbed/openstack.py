"""OpenStack itself: its configuration, its schemas, and the processes that make it up."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from testbed.backing import create_databases, execute
from testbed.packages import NOVA_FILTER, NOVA_FILTER_NAME, NOVA_MIDDLEWARE, nova_sources
from testbed.places import API_PORTS, BIN, CONF, HOST, KEYSTONE, PASSWORD, STATE, TESTBED, VENV, render
from testbed.processes import Process, run

DATABASES = ("keystone", "placement", "glance", "neutron", "nova_api", "nova", "nova_cell0", "cinder")

#: What the services keep in files, below the folder of states.
FOLDERS = (
    "keystone/fernet",
    "keystone/credential",
    "glance/images",
    "glance/staging",
    "glance/tasks",
    "neutron/lock",
    "nova/lock",
    "cinder/lock",
    "cinder/coordination",
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a compute host says it has."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    #: A file of `etc` that tells Nova what else it has.
    provider: str | None = None


#: Not all alike, on purpose.
COMPUTES: Mapping[str, Size] = {
    "compute-1": Size(vcpus=8, memory_mb=16384, disk_gb=200),
    "compute-2": Size(vcpus=8, memory_mb=16384, disk_gb=200),
    "compute-3": Size(vcpus=16, memory_mb=32768, disk_gb=400),
    "compute-4": Size(vcpus=8, memory_mb=16384, disk_gb=200, provider="provider.yaml"),
}

#: What each of those beyond them has.
EXTRA = Size(vcpus=8, memory_mb=16384, disk_gb=200)
_EXTRA_PREFIX = "extra-"


class Filter(Enum):
    """Which scheduler filter keeps reserved hosts for those who reserved them."""

    TENURE = "tenure"
    BLAZAR = "blazar"


class MakeServers(Enum):
    """When a server is made that is booted with hints for a lease."""

    AT_START = "at_start"
    AT_ONCE = "at_once"


_FILTERS = {
    Filter.TENURE: (NOVA_FILTER, NOVA_FILTER_NAME),
    Filter.BLAZAR: ("blazarnova.scheduler.filters.blazar_filter.BlazarFilter", "BlazarFilter"),
}


def configure(scheduler_filter: Filter) -> None:
    """Write every configuration file, and the folders that they name."""
    for folder in FOLDERS:
        (STATE / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    render("keystone.conf", CONF / "keystone/keystone.conf")
    render("placement.conf", CONF / "placement/placement.conf", user="placement")
    render("glance-api.conf", CONF / "glance/glance-api.conf", user="glance")
    shutil.copy(VENV / "etc/glance/glance-api-paste.ini", CONF / "glance")
    render("neutron.conf", CONF / "neutron/neutron.conf", user="neutron")
    render("cinder.conf", CONF / "cinder/cinder.conf", user="cinder")
    render("nova.conf", CONF / "nova/nova.conf")
    path, name = _FILTERS[scheduler_filter]
    render("nova-scheduler.conf", CONF / "nova/scheduler.conf", filter=path, filter_name=name)
    configure_boots(MakeServers.AT_START)
    (virt,) = VENV.glob("lib/python3*/site-packages/nova/virt")
    shutil.copy(TESTBED / "fakehosts.py", virt)
    for host, size in COMPUTES.items():
        _configure_compute(host, size)


def configure_boots(make_servers: MakeServers) -> None:
    """Write which filters are in front of Nova's API, ours among them with this option."""
    paste = (VENV / "etc/nova/api-paste.ini").read_text()
    (CONF / "nova/api-paste.ini").write_text(_with_reservations(paste, make_servers))


def _with_reservations(paste: str, make_servers: MakeServers) -> str:
    """Nova's pipelines with our filter in front of its API, for those who boot servers for a lease."""
    options = {
        "paste.filter_factory": NOVA_MIDDLEWARE,
        "make_servers": make_servers.value,
        "lock_folder": STATE / "nova/lock/boots",
    }
    section = "".join(f"{name} = {value}\n" for name, value in options.items())
    return paste.replace(" keystonecontext ", " keystonecontext reservations ") + f"\n[filter:reservations]\n{section}"


def _configure_compute(host: str, size: Size) -> None:
    render("nova-compute.conf", CONF / f"nova/{host}.conf", host=host)
    (CONF / "nova" / host).mkdir(exist_ok=True)
    (STATE / "nova" / host / "instances").mkdir(parents=True, exist_ok=True)
    if size.provider is not None:
        render(size.provider, CONF / "nova" / host / "provider.yaml")


def create_schemas() -> None:
    """Make the databases and their tables, and Keystone's first account; what is there stays."""
    create_databases(DATABASES)
    with ThreadPoolExecutor() as pool:
        work = [pool.submit(job) for job in (_neutron_schema, _nova_schema, _cinder_schema, _other_schemas)]
        for job in work:
            job.result()


def _manage(program: str, config: str, *arguments: object) -> None:
    run(BIN / program, "--config-file", CONF / config, *arguments, log=program)


def _nova_schema() -> None:
    for arguments in (("api_db", "sync"), ("cell_v2", "map_cell0"), ("db", "sync")):
        _manage("nova-manage", "nova/nova.conf", *arguments)
    _manage("nova-manage", "nova/nova.conf", "cell_v2", "create_cell", "--name", "cell1")


def _neutron_schema() -> None:
    _manage("neutron-db-manage", "neutron/neutron.conf", "upgrade", "heads")


def _cinder_schema() -> None:
    _manage("cinder-manage", "cinder/cinder.conf", "db", "sync")


def _other_schemas() -> None:
    owner = ("--keystone-user", "root", "--keystone-group", "root")
    _manage("keystone-manage", "keystone/keystone.conf", "db_sync")
    _manage("keystone-manage", "keystone/keystone.conf", "fernet_setup", *owner)
    _manage("keystone-manage", "keystone/keystone.conf", "credential_setup", *owner)
    urls = [word for kind in ("public", "internal", "admin") for word in (f"--bootstrap-{kind}-url", KEYSTONE)]
    first = ("--bootstrap-password", PASSWORD, "--bootstrap-region-id", "RegionOne")
    service = ("--bootstrap-service-name", "keystone")
    _manage("keystone-manage", "keystone/keystone.conf", "bootstrap", *first, *service, *urls)
    _manage("placement-manage", "placement/placement.conf", "db", "sync")
    _manage("glance-manage", "glance/glance-api.conf", "db_sync")


def pretend_agents() -> None:
    """Have Neutron see an agent of Open vSwitch on each compute host, forever alive: it binds the servers' ports."""
    configuration = '{"tunnel_types": ["vxlan"], "bridge_mappings": {}}'
    name = "'Open vSwitch agent', 'neutron-openvswitch-agent', 'N/A'"
    execute(
        (
            "INSERT IGNORE INTO neutron.agents (id, agent_type, `binary`, topic, host, admin_state_up, created_at, "
            "started_at, heartbeat_timestamp, configurations, `load`) "
            f"VALUES (UUID(), {name}, '{host}', 1, NOW(), NOW(), '2999-01-01', '{configuration}', 0)"
            for host in COMPUTES
        ),
        log="agents",
    )


def discover_computes() -> None:
    """Let Nova map compute hosts that it does not know yet."""
    _manage("nova-manage", "nova/nova.conf", "cell_v2", "discover_hosts")


def keystone() -> Process:
    """Return the process that the accounts are made at, before anybody else is started."""
    # Under a prefix, as clients of Blazar's time build `//v3` from an address without one.
    mount = ["--mount", "/identity=keystone.wsgi.api:application", "--manage-script-name"]
    environ = {"OS_KEYSTONE_CONFIG_DIR": CONF / "keystone"}
    return _api("keystone", mount, environ, reads=[CONF / "keystone/keystone.conf"])


def apis() -> list[Process]:
    """Return the other services' APIs."""

    # Not `--mount /=`: Glance then fails for want of SCRIPT_NAME.
    def api(
        name: str, module: str, config: str, variable: str, *, whole_folder: bool = True, sources: Sequence[Path] = ()
    ) -> Process:
        path = CONF / config
        environ = {variable: path.parent if whole_folder else path}
        return _api(name, ["--module", f"{module}:application"], environ, reads=[path, *sources])

    nova = [CONF / "nova/api-paste.ini", *nova_sources()]
    cinder = CONF / "cinder/cinder.conf"
    volumes = ["--module", "cinder.wsgi.api:application", "--pyargv", f"--config-file {cinder}"]
    return [
        api("placement", "placement.wsgi.api", "placement/placement.conf", "OS_PLACEMENT_CONFIG_DIR"),
        api("glance", "glance.wsgi.api", "glance/glance-api.conf", "OS_GLANCE_CONFIG_DIR"),
        api("neutron", "neutron.wsgi.api", "neutron/neutron.conf", "OS_NEUTRON_CONFIG_FILES", whole_folder=False),
        # Its folder must hold both `nova.conf` and `api-paste.ini`.
        api("nova-api", "nova.wsgi.osapi_compute", "nova/nova.conf", "OS_NOVA_CONFIG_DIR", sources=nova),
        _api("cinder-api", volumes, {}, reads=[cinder]),
    ]


def _api(name: str, application: Sequence[object], environ: Mapping[str, object], reads: Sequence[Path]) -> Process:
    """An API server: uwsgi on a loopback port."""
    flags = ["--master", "--die-on-term", "--enable-threads", "--lazy-apps", "--thunder-lock", "--need-app"]
    more = ["--disable-logging", "--buffer-size", 65535, "--add-header", "Connection: close", "--virtualenv", VENV]
    port = API_PORTS[name]
    count = 1 if name == "glance" else 2
    command = [BIN / "uwsgi", "--http-socket", f"{HOST}:{port}", *application, *flags, *more, "--processes", count]
    return Process(name=name, command=command, environ=environ, reads=reads, port=port)


def workers() -> list[Process]:
    """Return what listens on the message bus only: schedulers, conductor, volumes and compute hosts."""
    nova, cinder = CONF / "nova/nova.conf", CONF / "cinder/cinder.conf"
    return [
        _worker("nova-conductor", [nova]),
        _worker("nova-scheduler", [nova, CONF / "nova/scheduler.conf"], nova_sources()),
        _worker("cinder-scheduler", [cinder]),
        _worker("cinder-volume", [cinder]),
        *(_compute(host, size) for host, size in COMPUTES.items()),
    ]


def extra_names(count: int) -> list[str]:
    """Return what so many compute hosts beyond those that are always there are called."""
    return [f"{_EXTRA_PREFIX}{number}" for number in range(1, count + 1)]


def is_extra(name: str) -> bool:
    """Whether a host or a process of that name is one of them."""
    return name.startswith(_EXTRA_PREFIX)


def extras(count: int) -> list[Process]:
    """Return so many compute hosts beyond those that are always there, ready to be started."""
    names = extra_names(count)
    for name in names:
        _configure_compute(name, EXTRA)
    return [_compute(name, EXTRA) for name in names]


def _worker(name: str, configs: Sequence[Path], sources: Sequence[Path] = ()) -> Process:
    return Process(name=name, command=[BIN / name, *_options(configs)], reads=[*configs, *sources])


def _compute(host: str, size: Size) -> Process:
    configs = [CONF / "nova/nova.conf", CONF / f"nova/{host}.conf"]
    return Process(
        name=host,
        command=[BIN / "nova-compute", *_options(configs)],
        environ={"FAKE_VCPUS": size.vcpus, "FAKE_MEMORY_MB": size.memory_mb, "FAKE_LOCAL_GB": size.disk_gb},
        reads=[*configs, CONF / "nova" / host / "provider.yaml", TESTBED / "fakehosts.py"],
    )


def _options(configs: Sequence[Path]) -> list[object]:
    return [word for path in configs for word in ("--config-file", path)]
