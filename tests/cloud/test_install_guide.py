"""The guide for operators can be followed, from nothing to a server on a reserved host, on a real cloud.

What it says is typed as it stands, by root, in namespaces of its own: its ``/etc`` is a copy, its ``/opt`` is empty,
and all its processes end with it. Only what cannot be there is stood in for: systemd, by a script that starts what a
unit says as the user that it says; and the way to the testbed's message bus, which is not that of Debian's service.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1.session import Session
from kombu.connection import Connection

from tests.cloud.followed import GUIDE, has_been_followed
from tests.conftest import NOTHING_LEFT_OUT
from tests.support.bus import RABBITMQ_URL, amqp
from tests.support.cloud import OPENRC, Cloud
from tests.support.commands import run_to_end
from tests.support.databases import MARIADB, POSTGRESQL
from tests.support.installed import copy_checkout
from tests.support.site import FREE_POOL, Nova, Server, name_in_catalogue, named_in_catalogue
from tests.support.waiting import COMMAND_SECONDS, patience, wait_for

#: The host that is reserved.
HOST = "compute-4"
GUIDE_SECONDS = 900

#: Other addresses of the loopback than those that others may use.
NAMES = {"controller": "127.0.0.1", "database": "127.0.0.1", "reservation": "127.0.0.3"}
POSTGRESQL_ADDRESS = "127.0.0.2"

ENTER = """
mount --bind "$SANDBOX/etc" /etc
for folder in /opt/*/; do
    [ -d "$folder" ] || continue
    mkdir -p "$SANDBOX$folder"
    mount --bind "$folder" "$SANDBOX$folder"
done
mount --rbind "$SANDBOX/opt" /opt
cd "$SANDBOX/checkout"
export PATH="$SANDBOX/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
set -eo pipefail
trap 'echo "FAILED: $BASH_COMMAND" >&2; tail -n 60 "$SANDBOX"/log/* >&2' ERR
"""

SYSTEMCTL = """#!/bin/bash
# Replaces systemd for simple units where it does not run.
set -eu
verb=$1; shift
for unit; do
    [ "$unit" = --now ] && continue
    file=/etc/systemd/system/$unit.service pid=$SANDBOX/run/$unit
    program=$(sed -n 's/^ExecStart=//p' "$file") user=$(sed -n 's/^User=//p' "$file")
    case $verb in
    enable)
        cd /
        setsid setpriv --reuid "$user" --regid "$user" --init-groups --no-new-privs --bounding-set=-all \\
            env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin $program </dev/null >>"$SANDBOX/log/$unit" 2>&1 &
        echo $! >"$pid" ;;
    disable)
        kill "$(cat "$pid")"
        timeout "$(sed -n 's/^TimeoutStopSec=//p' "$file")" tail --pid="$(cat "$pid")" -f /dev/null ;;
    *) exit 1 ;;
    esac
done
"""

RABBITMQCTL = """#!/bin/sh
export HOME="{state}/rabbit" RABBITMQ_NODENAME=rabbit@localhost RABBITMQ_CONF_ENV_FILE=/nonexistent
export ERL_EPMD_ADDRESS=127.0.0.1
exec /usr/lib/rabbitmq/bin/rabbitmqctl "$@"
"""


def test_every_block_of_the_guide_is_typed():
    """But for those that only name what an operator puts in himself, or does another day."""
    text = GUIDE.read_text()
    left_out = re.findall(r"^```(?!console)(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in left_out] == ["sh", "yaml", "sh", "sh", "sh"]
    assert left_out[0][1].startswith("export API_HOST=")
    assert all(name in text for name, (_, text) in zip(("pg_dump", "mariadb", "pg_restore"), left_out[2:], strict=True))
    for kind in (MARIADB, POSTGRESQL):
        assert len(blocks(kind)) == text.count("```console") - 1


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(MARIADB, marks=pytest.mark.long if has_been_followed() else []),
        pytest.param(POSTGRESQL, marks=pytest.mark.long),
    ],
)
def test_the_guide_can_be_followed(tmp_path: Path, cloud: Cloud, admin: Session, kind: str):
    nova = Nova(cloud, admin)
    before = nova.aggregates()
    try:
        with sandbox(tmp_path, cloud) as environ, database(kind, tmp_path) as more:
            done = follow("\n".join(blocks(kind)), {**environ, **more})
        after = {name: nova.members(name) for name in nova.aggregates()}
    finally:
        restore(nova, before)
    assert done.returncode == 0, done.stdout[-12000:]
    for line in ("the database is as this release needs it", "| ACTIVE", HOST):
        assert line in done.stdout, line
    # The pool is the guide's to make where there was none; else it leaves the hosts as they were.
    assert after == {FREE_POOL: set(), **{name: set(aggregate["hosts"]) for name, aggregate in before.items()}}


def restore(nova: Nova, before: Mapping[str, Mapping[str, Any]]) -> None:
    """Have the aggregates of before again, with their hosts, and no server of the guide."""
    for server in nova.api.get("/servers?all_tenants=1&name=on-my-host").json()["servers"]:
        Server(nova, server["id"]).delete()
    for name, found in nova.aggregates().items():
        known = before.get(name)
        for host in set(found["hosts"]) - set(known["hosts"] if known else ()):
            nova.api.post(f"/os-aggregates/{found['id']}/action", json={"remove_host": {"host": host}})
        if known is None:
            nova.api.delete(f"/os-aggregates/{found['id']}")


def blocks(kind: str) -> list[str]:
    """What is typed, block by block, where that kind of database is chosen."""
    other = "### PostgreSQL" if kind == MARIADB else "### MariaDB"
    sections = re.split(r"^(?=##)", GUIDE.read_text(), flags=re.MULTILINE)
    kept = "".join(section for section in sections if not section.startswith(other))
    found = re.findall(r"^```console\n(.*?)^```", kept, re.DOTALL | re.MULTILINE)
    return [re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in found]


def follow(typed: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Type it in a shell that sees its own ``/etc`` and ``/opt``; what it starts ends with it."""
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"]
    return run_to_end([*command, f"{ENTER}\nset -x\n{typed}"], env=environ, seconds=GUIDE_SECONDS)


@contextmanager
def sandbox(folder: Path, cloud: Cloud) -> Iterator[dict[str, str]]:
    """What the shell of the guide sees; the environment to run it in. The cloud is as before at the end."""
    for name in ("bin", "home", "log", "opt", "run"):
        (folder / name).mkdir()
    subprocess.run(["cp", "-a", "/etc", folder / "etc"], check=True, timeout=patience())
    with (folder / "etc" / "hosts").open("a") as hosts:
        hosts.writelines(f"{address} {name}\n" for name, address in NAMES.items())
    copy_checkout(folder / "checkout")
    for name, text in {
        "systemctl": SYSTEMCTL,
        "rabbitmqctl": RABBITMQCTL.format(state=OPENRC.parent / "state"),
    }.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    for user in ("admin", "demo"):
        (folder / "home" / f"{user}-openrc").write_text(_openrc(cloud, user))
    (folder / "home" / ".my.cnf").write_text("[client]\nhost = 127.0.0.1\nuser = root\npassword = secret\n")
    with ExitStack() as stack:
        stack.callback(name_in_catalogue, named_in_catalogue(cloud))
        name_in_catalogue(None)
        stack.callback(_forget_bus, folder)
        yield {
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))},
            "PIP_CACHE_DIR": str(folder.parent / "pip"),  # of the whole run
            "LANG": "C.UTF-8",
            "HOME": str(folder / "home"),
            "SANDBOX": str(folder),
            "API_HOST": "reservation",
            "DB_HOST": "database",
            "MQ_HOST": "controller",
            "MEMCACHED": "controller:11211",
            "DB_PASSWORD": "ledger7",
            "MQ_PASSWORD": "bus7",
            "SERVICE_PASSWORD": cloud.openrc["OS_PASSWORD"],
            "HOST": HOST,
            "IMAGE": "tiny",
            "FLAVOR": "m1.tiny",
        }


def _openrc(cloud: Cloud, user: str) -> str:
    """The variables of an account of the testbed, without its programs."""
    account = {**cloud.openrc, "OS_USERNAME": user, "OS_PROJECT_NAME": user}
    return "".join(f"export {name}={value}\n" for name, value in account.items() if name.startswith("OS_"))


def _forget_bus(folder: Path) -> None:
    """Take the guide's account and its queues from the testbed's message bus."""
    ctl = [str(folder / "bin" / "rabbitmqctl")]
    subprocess.run([*ctl, "delete_user", "tenure"], check=False, capture_output=True, timeout=patience())
    listed = subprocess.run(
        [*ctl, "list_queues", "--silent", "name"], check=True, capture_output=True, text=True, timeout=patience()
    )
    with Connection(amqp(RABBITMQ_URL), connect_timeout=patience()) as bus:
        for queue in listed.stdout.split():
            if queue.startswith("tenure.manager") or queue == "notifications.info":
                bus.default_channel.queue_delete(queue)


@contextmanager
def database(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """A server on which the guide's database does not exist; what the shell must know of it besides."""
    if kind == MARIADB:
        try:
            yield {}
        finally:
            _sql("DROP DATABASE IF EXISTS tenure; DROP USER IF EXISTS tenure@'%'")
    else:
        with _postgresql(folder / "postgresql") as more:
            yield more


def _sql(statements: str) -> None:
    server = ["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root", "--password=secret"]
    subprocess.run(["mariadb", *server, "--execute", statements], check=True, capture_output=True, timeout=patience())


@contextmanager
def _postgresql(folder: Path) -> Iterator[dict[str, str]]:
    """A server of PostgreSQL, as Debian has it, but for its address and its folder."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        reason = "PostgreSQL: not installed; apt-get install postgresql"
        if os.environ.get(NOTHING_LEFT_OUT) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    home = Path("/tmp") / f"tenure-guide-{os.getpid()}"  # the test's own folder is closed to other users
    home.mkdir(mode=0o755)
    try:
        shutil.chown(home, "postgres")
        as_server = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]
        init = [programs[-1] / "initdb", "-D", home / "data", "-A", "scram-sha-256", "--auth-local=trust"]
        subprocess.run([*as_server, *map(str, init)], check=True, capture_output=True, timeout=COMMAND_SECONDS, cwd="/")
        options = ["-c", f"listen_addresses={POSTGRESQL_ADDRESS}", "-c", "fsync=off", "-k", home]
        command = [*as_server, *map(str, [programs[-1] / "postgres", "-D", home / "data", *options])]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        try:
            ready = [str(programs[-1] / "pg_isready"), "-q", "-h", str(home)]

            def is_ready() -> bool:
                assert server.poll() is None, (home / "log").read_text()
                return subprocess.run(ready, check=False, timeout=patience()).returncode == 0

            wait_for("PostgreSQL", is_ready)
            yield {"PGHOST": str(home), "PGUSER": "postgres", "DB_HOST": POSTGRESQL_ADDRESS}
        finally:
            server.terminate()
            server.wait(patience())
    finally:
        shutil.rmtree(home)
