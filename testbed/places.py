"""Where the testbed keeps things, where its services listen, and what it says."""

from __future__ import annotations

import os
import string
import time
from pathlib import Path

TESTBED = Path(__file__).resolve().parent
REPOSITORY = TESTBED.parent

#: Everything that the testbed writes is below this folder, but for Debian packages and what is in CACHE.
ROOT = Path(os.environ.get("TENURE_CLOUD_ROOT") or REPOSITORY / ".cloud").absolute()
STATE, LOG, CONF = (ROOT / name for name in ("state", "log", "etc"))

#: The virtual environments of OpenStack's packages. To make one takes minutes, so every checkout with the same
#: requirements uses the same. They may be deleted while no cloud runs.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenure"
#: A link to the one in use.
VENV = ROOT / "venv"
BIN = VENV / "bin"
OPENRC = ROOT / "openrc"

HOST = "127.0.0.1"
#: Of every account. Nothing listens on anything but loopback.
PASSWORD = "secret"

BASE_PORTS = {"mariadb": 3306, "rabbitmq": 5672, "memcached": 11211, "epmd": 4369}
API_PORTS = {
    "keystone": 5000,
    "placement": 8778,
    "glance": 9292,
    "neutron": 9696,
    "nova-api": 8774,
    "cinder-api": 8776,
}
KEYSTONE = f"http://{HOST}:{API_PORTS['keystone']}/identity"


def say(*words: object) -> None:
    """Tell whoever watches what is being done, and when."""
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def render(template: str, target: Path, *, user: str = "nova", **values: object) -> Path:
    """Write ``etc/<template>`` to ``target``, with the names in it replaced; return ``target``.

    ``$client`` stands for the options of a keystoneauth client that is ``user`` of the project ``service``,
    ``$authtoken`` for those of keystonemiddleware.
    """
    client = "\n".join(
        [
            "auth_type = password",
            f"auth_url = {KEYSTONE}",
            f"username = {user}",
            f"password = {PASSWORD}",
            "project_name = service",
            "user_domain_id = default",
            "project_domain_id = default",
        ]
    )
    authtoken = "\n".join(
        [
            f"www_authenticate_uri = {KEYSTONE}",
            client,
            "service_token_roles_required = true",
            f"memcached_servers = {HOST}:{BASE_PORTS['memcached']}",
        ]
    )
    known = {"state": STATE, "venv": VENV, "conf": CONF, "password": PASSWORD, "client": client, "authtoken": authtoken}
    text = string.Template((TESTBED / "etc" / template).read_text()).substitute(known | values)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return target
