"""A real OpenStack control plane on this machine, on loopback only.

MariaDB, RabbitMQ and memcached; Keystone, Placement, Glance, Neutron, Cinder without storage, and Nova with four
compute hosts of its fake driver. State, logs and an openrc to source are in `.cloud` of the checkout, or in the folder
that TENURE_CLOUD_ROOT names; the virtual environment is in the cache of the account.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from testbed import backing, content, openstack, packages, seeded
from testbed.apis import Account
from testbed.openstack import COMPUTES, Filter, MakeServers
from testbed.places import BIN, CONF, KEYSTONE, LOG, OPENRC, PASSWORD, ROOT, STATE, say
from testbed.processes import (
    TestbedError,
    known_names,
    memory_mib,
    pid_of,
    start_all,
    stop,
    wait_until_listening,
)

COMPUTES_SECONDS = 120
#: Another command may be installing.
LOCK_SECONDS = 20 * 60

FILTER_IN_USE = STATE / "filter"

OPENRC_VALUES = {
    "OS_AUTH_TYPE": "password",
    "OS_AUTH_URL": f"{KEYSTONE}/v3",
    "OS_USERNAME": "admin",
    "OS_PASSWORD": PASSWORD,
    "OS_PROJECT_NAME": "admin",
    "OS_USER_DOMAIN_ID": "default",
    "OS_PROJECT_DOMAIN_ID": "default",
    "OS_REGION_NAME": "RegionOne",
    "OS_IDENTITY_API_VERSION": "3",
    "OS_PLACEMENT_API_VERSION": "1.29",
    "OS_INTERFACE": "public",
}


def install(options: argparse.Namespace) -> None:
    """Install the Debian packages and the virtual environment, if they are missing."""
    packages.install()


def up(options: argparse.Namespace) -> None:
    """Have the cloud run: install, configure and start what is missing, restart what is configured otherwise."""
    began = time.monotonic()
    if os.geteuid() != 0:
        raise TestbedError("it has to be run by root")
    packages.install()
    scheduler_filter = Filter(options.filter) if options.filter else _filter_in_use() or _default_filter()
    if scheduler_filter is Filter.TENURE and not packages.has_nova_filter():
        raise TestbedError(f"this checkout has no {packages.NOVA_FILTER}")
    say("database, message bus, cache")
    backing.prepare()
    start_all(backing.processes())
    wait_until_listening(backing.processes())
    openstack.configure(scheduler_filter)
    FILTER_IN_USE.write_text(scheduler_filter.value)
    schemas_made = STATE / "schemas-made"
    if not schemas_made.exists():
        say("schemas")
        openstack.create_schemas()
        schemas_made.touch()
    openstack.pretend_agents()
    say("services")
    start_all([openstack.keystone()])
    wait_until_listening([openstack.keystone()])
    start_all(openstack.apis())
    content.ensure_accounts(Account())
    wait_until_listening(openstack.apis())
    start_all(openstack.workers())
    admin = Account()  # its catalogue has the services now
    content.ensure_resources(admin)
    say("compute hosts")
    _wait_for_computes(admin, COMPUTES)
    openstack.discover_computes()
    _write_openrc()
    say(f"up in {time.monotonic() - began:.0f} s, with {scheduler_filter.value}'s filter; credentials: . {OPENRC}")


def _filter_in_use() -> Filter | None:
    """What a cloud that runs, if only in part, was given: who starts the rest of it again does not change that."""
    return Filter(FILTER_IN_USE.read_text()) if FILTER_IN_USE.exists() else None


def _default_filter() -> Filter:
    return Filter.TENURE if packages.has_nova_filter() else Filter.BLAZAR


def _write_openrc() -> None:
    """Written last: where it is, the cloud has been up."""
    lines = [f"export {name}={value}" for name, value in OPENRC_VALUES.items()]
    OPENRC.write_text("\n".join([*lines, f'export PATH="{BIN}:$PATH"', ""]))


def _wait_for_computes(admin: Account, names: Collection[str]) -> None:
    """Return when Nova says that each of these compute hosts is up and Placement knows what it has."""
    deadline = time.monotonic() + COMPUTES_SECONDS
    missing: set[str] = set(names)
    while missing:
        services = admin.get(f"{admin.catalogue['compute']}/os-services?binary=nova-compute")["services"]
        providers = admin.get(f"{admin.catalogue['placement']}/resource_providers")["resource_providers"]
        alive = {service["host"] for service in services if service["state"] == "up"}
        missing = set(names) - (alive & {provider["name"] for provider in providers})
        ended = [name for name in names if pid_of(name) is None]
        if ended or (missing and time.monotonic() > deadline):
            raise TestbedError(f"compute hosts did not come up: {' '.join(ended or sorted(missing))}; see {LOG}")
        if missing:
            time.sleep(1)


def down(options: argparse.Namespace) -> None:
    """Stop every process; with --purge, forget what the cloud knew as well."""
    base = [process.name for process in backing.processes()]
    stop([name for name in known_names() if name not in base])
    stop([name for name in base if name != "epmd"], grace_seconds=40)
    stop(["epmd"])
    OPENRC.unlink(missing_ok=True)
    FILTER_IN_USE.unlink(missing_ok=True)
    if options.purge:
        for folder in (STATE, CONF, LOG):
            shutil.rmtree(folder, ignore_errors=True)


def halt(options: argparse.Namespace) -> None:
    """Stop these processes only, as if they had died; `start` starts them again."""
    unknown = sorted(set(options.names) - set(known_names()))
    if unknown:
        raise TestbedError(f"no such process: {' '.join(unknown)}. There are: {' '.join(known_names())}")
    stop(options.names)


def start(options: argparse.Namespace) -> None:
    """Start what has ended or was stopped, as it is configured; `up` looks after everything else as well."""
    base = backing.processes()
    start_all(base)
    wait_until_listening(base)
    services = [openstack.keystone(), *openstack.apis()]
    start_all(services)
    wait_until_listening(services)
    start_all(openstack.workers())


def status(options: argparse.Namespace) -> None:
    """Show what runs, how much memory it has, and what the cloud says of itself."""
    names = known_names()
    pids = {name: pid_of(name) for name in names}
    memory = {name: memory_mib(pid) if pid else 0 for name, pid in pids.items()}
    for name in names:
        print(f"{name:18} {pids[name] or 'ENDED':>8} {memory[name]:6} MiB")
    print(f"{'together':18} {'':8} {sum(memory.values()):6} MiB")
    if not OPENRC.exists() or not pids.get("keystone"):
        raise TestbedError("the cloud is down: `testbed/cloud up` starts it")
    admin = Account()
    for service in admin.get(f"{admin.catalogue['compute']}/os-services")["services"]:
        print(f"{service['host']:18} {service['binary']:16} {service['state']}")
    for service in admin.get(f"{admin.catalogue['block-storage']}/os-services")["services"]:
        print(f"{service['host']:18} {service['binary']:16} {service['state']}")
    for kind, url in sorted(admin.catalogue.items()):
        print(f"{kind:18} {url}")
    if None in pids.values():
        raise TestbedError("not everything runs: `testbed/cloud up` starts what is missing")


def endpoint(options: argparse.Namespace) -> None:
    """Have the catalogue name this URL for the reservation service; without one, have it name none."""
    admin = Account()
    if options.url is None:
        content.remove_endpoints(admin, options.type)
    else:
        content.remove_endpoints(admin, options.type, but=options.name)
        content.ensure_endpoint(admin, options.type, options.name, options.url)


def make_servers(options: argparse.Namespace) -> None:
    """Have Nova make servers that are booted for a lease at its start, or at once; `up` returns to the start."""
    openstack.configure_boots(MakeServers(options.when))
    start_all(openstack.apis())
    wait_until_listening(openstack.apis())


def extra(options: argparse.Namespace) -> None:
    """Have that many more compute hosts, extra-1 and so on, on which servers run; 0 for none of them."""
    names = openstack.extra_names(options.count)
    stop([name for name in known_names() if openstack.is_extra(name) and name not in names])
    admin = Account()
    services = f"{admin.catalogue['compute']}/os-services"
    for service in admin.get(f"{services}?binary=nova-compute")["services"]:
        if openstack.is_extra(service["host"]) and service["host"] not in names:
            admin.send("DELETE", f"{services}/{service['id']}")
    start_all(openstack.extras(options.count))
    _wait_for_computes(admin, names)
    openstack.discover_computes()


def seed(options: argparse.Namespace) -> None:
    """Let Nova know that many more hosts, seed-1 and so on, on which nothing runs; those of before are replaced."""
    seeded.seed(options.count, pool=options.pool)


def unseed(options: argparse.Namespace) -> None:
    """Let Nova forget the hosts of `seed`."""
    seeded.unseed()


def constraints(options: argparse.Namespace) -> None:
    """Let pip choose anew what requirements.txt leaves open, and write constraints.txt."""
    packages.choose_constraints()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait for another command that changes this cloud. Raises ``TestbedError`` if that takes too long."""
    ROOT.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_SECONDS
    with (ROOT / "lock").open("w") as lock:
        waiting = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TestbedError("another command has been at work on this cloud for too long") from None
                if not waiting:
                    say("another command is at work on this cloud; waiting for it")
                waiting = True
                time.sleep(1)
        yield


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="testbed/cloud", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, act: object) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=act.__doc__, description=act.__doc__)
        sub.set_defaults(act=act)
        return sub

    command("install", install)
    choice = command("up", up)
    choice.add_argument(
        "--filter",
        choices=[member.value for member in Filter],
        help="the scheduler filter that Nova is given (default: the one in use, else tenure, where nova/ has it)",
    )
    command("down", down).add_argument("--purge", action="store_true", help="keep the virtual environment only")
    command("status", status)
    command("stop", halt).add_argument("names", nargs="+", metavar="NAME", help="as `status` shows it")
    command("start", start)
    entry = command("endpoint", endpoint)
    entry.add_argument("url", nargs="?", help="such as http://127.0.0.1:1234/v1; none to have no entry")
    entry.add_argument("--type", default="reservation", help="default: %(default)s")
    entry.add_argument("--name", default="tenure", help="of the service; default: %(default)s")
    when = command("make-servers", make_servers)
    when.add_argument("when", choices=[member.value for member in MakeServers])
    command("extra", extra).add_argument("count", type=int, metavar="COUNT")
    hosts = command("seed", seed)
    hosts.add_argument("count", type=int, metavar="COUNT")
    hosts.add_argument("--pool", metavar="AGGREGATE", help="put them into this one, as registered hosts are")
    command("unseed", unseed)
    command("constraints", constraints)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.act is status:
            status(options)
        else:
            with _one_at_a_time():
                options.act(options)
    except TestbedError as error:
        print(f"testbed/cloud: {error}", file=sys.stderr)
        return 1
    return 0
