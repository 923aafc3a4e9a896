"""What OpenStack stands on: MariaDB, RabbitMQ and memcached, private to the testbed and on loopback only.

The programs are Debian's; its services and their data are left alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from testbed.places import BASE_PORTS, HOST, LOG, PASSWORD, STATE
from testbed.processes import Process, run

DATA = STATE / "mysql"
RABBIT = STATE / "rabbit"

#: MariaDB runs this at each start. The installation makes `root@127.0.0.1` as well, hence REPLACE.
ACCOUNTS = f"""\
ALTER USER root@localhost IDENTIFIED BY '{PASSWORD}';
CREATE OR REPLACE USER root@{HOST} IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO root@{HOST} WITH GRANT OPTION;
SET GLOBAL event_scheduler = ON;
"""


def prepare() -> None:
    """Make the folders that the programs find their data in."""
    RABBIT.mkdir(parents=True, exist_ok=True)
    (STATE / "mysql-accounts.sql").write_text(ACCOUNTS)
    if not DATA.exists():
        half_made = STATE / "mysql-new"
        shutil.rmtree(half_made, ignore_errors=True)
        run(
            "mariadb-install-db",
            "--no-defaults",
            "--user=root",
            f"--datadir={half_made}",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            log="mariadb-install",
        )
        half_made.rename(DATA)


def processes() -> list[Process]:
    """Return what is to run, in the order of starting."""
    mariadb = Process(
        name="mariadb",
        command=[
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={DATA}",
            # No socket: the path of one must be short, and a checkout may lie deep.
            "--socket=",
            f"--pid-file={STATE}/mariadb.pid",
            f"--bind-address={HOST}",
            f"--port={BASE_PORTS['mariadb']}",
            f"--init-file={STATE}/mysql-accounts.sql",
            "--max-connections=1000",
            "--innodb-buffer-pool-size=512M",
            "--character-set-server=utf8mb3",
            "--skip-name-resolve",
        ],
        port=BASE_PORTS["mariadb"],
    )
    # RabbitMQ, and `rabbitmqctl` even for `version`, would start epmd on every address.
    epmd = Process(name="epmd", command=["epmd", "-address", HOST], port=BASE_PORTS["epmd"])
    rabbitmq = Process(
        name="rabbitmq",
        command=["/usr/lib/rabbitmq/bin/rabbitmq-server"],
        environ={
            "HOME": RABBIT,
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_MNESIA_BASE": RABBIT / "mnesia",
            "RABBITMQ_LOG_BASE": LOG,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": RABBIT / "plugins",
            "RABBITMQ_CONF_ENV_FILE": RABBIT / "none",
            "RABBITMQ_CONFIG_FILE": RABBIT / "none",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": BASE_PORTS["rabbitmq"],
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
        },
        port=BASE_PORTS["rabbitmq"],
    )
    memcached = Process(
        name="memcached",
        command=["memcached", "-u", "root", "-l", HOST, "-p", BASE_PORTS["memcached"], "-m", "64"],
        port=BASE_PORTS["memcached"],
    )
    return [mariadb, epmd, rabbitmq, memcached]


def create_databases(names: Iterable[str]) -> None:
    """Have an empty database of each name, unless there is one."""
    execute((f"CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb3" for name in names), log="databases")


def execute(statements: Iterable[str], *, log: str) -> None:
    """Have the database execute statements, in one session. Raises ``TestbedError``."""
    script = STATE / f"{log}.sql"
    script.write_text("".join(f"{statement};\n" for statement in statements))
    server = ["--no-defaults", "--protocol=tcp", f"--host={HOST}", f"--port={BASE_PORTS['mariadb']}"]
    run("mariadb", *server, "--user=root", f"--password={PASSWORD}", "--execute", f"source {script}", log=log)
