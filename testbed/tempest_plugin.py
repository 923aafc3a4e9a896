"""Run blazar-tempest-plugin, unmodified, against whatever reservation service the catalogue names.

The API tests (gabbi) want no registered hosts and no leases, and ask for http://127.0.0.1/reservation and /compute;
a small proxy on port 80 passes those on. The scenario tests want every compute host registered, so that a server
without a reservation has nowhere to go. Leases and hosts that are there are removed before each part.
"""

from __future__ import annotations

import argparse
import http.server
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from testbed.apis import REQUEST_SECONDS, Account
from testbed.content import EXTERNAL_NETWORK
from testbed.places import BIN, HOST, KEYSTONE, STATE, VENV, render, say
from testbed.processes import TestbedError

WORKSPACE = STATE / "tempest"
PARTS = ("api", "scenario")

#: More than each part takes.
PART_SECONDS = 30 * 60
#: How long leases and hosts may take to come and to go.
PREPARING_SECONDS = 120

FORWARDED = {"accept", "content-type", "openstack-api-version", "x-auth-token"}
BETWEEN_TWO_ONLY = {"connection", "content-length", "date", "server", "transfer-encoding"}


class Proxy(http.server.ThreadingHTTPServer):
    """`/<service>/<rest>`, as devstack's web server serves it."""

    def __init__(self, port: int, routes: Mapping[str, str]) -> None:
        super().__init__((HOST, port), Passing)
        self.routes = routes


class Passing(http.server.BaseHTTPRequestHandler):
    """A request that is passed on, and its answer back."""

    server: Proxy

    def _pass_on(self) -> None:
        _, service, rest = self.path.split("/", 2)
        length = int(self.headers.get("Content-Length") or 0)
        request = urllib.request.Request(
            f"{self.server.routes[service]}/{rest}",
            self.rfile.read(length) if length else None,
            {name: value for name, value in self.headers.items() if name.lower() in FORWARDED},
            method=self.command,
        )
        try:
            reply = urllib.request.urlopen(request, timeout=REQUEST_SECONDS)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            body = reply.read()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in BETWEEN_TWO_ONLY:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: tempest's own log has every request."""


@contextmanager
def proxy(port: int, routes: Mapping[str, str]) -> Iterator[None]:
    """Serve ``routes`` meanwhile."""
    try:
        server = Proxy(port, routes)
    except OSError as error:
        raise TestbedError(f"the API tests need port {port}: {error}") from error
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def clean(admin: Account) -> None:
    """Remove every lease and every registered host. Raises ``TestbedError`` if they stay."""
    base = admin.catalogue["reservation"]
    for what, listing in (("leases", f"{base}/leases?all_tenants=1"), ("hosts", f"{base}/os-hosts")):
        for thing in admin.get(listing)[what]:
            admin.send("DELETE", f"{listing.partition('?')[0]}/{thing['id']}")
        _wait_until(f"{what} are gone", partial(_is_empty, admin, listing, what))


def _is_empty(admin: Account, listing: str, what: str) -> bool:
    return not admin.get(listing)[what]


def register_all(admin: Account) -> None:
    """Register every compute host of the cloud, and wait until all can be reserved."""
    hosts = f"{admin.catalogue['reservation']}/os-hosts"
    services = admin.get(f"{admin.catalogue['compute']}/os-services?binary=nova-compute")["services"]
    for service in services:
        admin.send("POST", hosts, {"name": service["host"]})
    _wait_until("hosts are reservable", lambda: all(host["reservable"] for host in admin.get(hosts)["hosts"]))


def _wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PREPARING_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TestbedError(f"waited for too long until {what}")
        time.sleep(0.5)


def prepare_workspace(admin: Account) -> None:
    """Write what tempest and stestr want to be told."""
    (WORKSPACE / "lock").mkdir(parents=True, exist_ok=True)
    image = admin.get(f"{admin.catalogue['image']}/v2/images?name=tiny")["images"][0]
    flavors = admin.get(f"{admin.catalogue['compute']}/flavors")["flavors"]
    network = admin.find(f"{admin.catalogue['network']}/v2.0/networks", "network", {"name": EXTERNAL_NETWORK})
    if network is None:
        raise TestbedError("the cloud is not complete: `testbed/cloud up`")
    render(
        "tempest.conf",
        WORKSPACE / "etc/tempest.conf",
        identity=KEYSTONE,
        image=image["id"],
        network=network["id"],
        flavor=next(flavor["id"] for flavor in flavors if flavor["name"] == "m1.tiny"),
    )
    (site,) = VENV.glob("lib/python3*/site-packages")
    (WORKSPACE / ".stestr.conf").write_text(f"[DEFAULT]\ntest_path={site}/tempest/test_discover\ntop_dir={site}\n")
    if not (WORKSPACE / ".stestr").exists():
        subprocess.run([BIN / "stestr", "init"], cwd=WORKSPACE, check=True, timeout=60)


def run_tests(part: str, regex: str) -> int:
    """Run the tests of a part, one after another as they share the hosts; return tempest's exit code."""
    config = WORKSPACE / "etc/tempest.conf"
    command = [str(BIN / "tempest"), "run", "--config-file", str(config), "--serial"]
    environ = os.environ | {"TEMPEST_CONFIG_DIR": str(config.parent), "PATH": f"{BIN}:{os.environ['PATH']}"}
    tests = ["--regex", f"blazar_tempest_plugin.*{part}.*{regex}"]
    return subprocess.run([*command, *tests], cwd=WORKSPACE, env=environ, timeout=PART_SECONDS, check=False).returncode


def run_part(part: str, regex: str) -> int:
    """Prepare what a part of the tests wants, and run it."""
    admin = Account()
    if "reservation" not in admin.catalogue:
        raise TestbedError("the catalogue names no reservation service: `testbed/cloud endpoint URL`")
    prepare_workspace(admin)
    clean(admin)
    say(f"{part} tests, against", admin.catalogue["reservation"])
    if part == "scenario":
        register_all(admin)
        return run_tests(part, regex)
    routes = {kind: admin.catalogue[kind].rpartition("/v")[0] for kind in ("reservation", "compute")}
    with proxy(80, routes):
        return run_tests(part, regex)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part or both; return 0 if every test passed."""
    parser = argparse.ArgumentParser(
        prog="testbed/tempest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=PARTS, help="default: both")
    parser.add_argument("-k", dest="regex", default="", metavar="REGEX", help="only tests that match")
    options = parser.parse_args(arguments)
    try:
        codes = [run_part(part, options.regex) for part in ([options.part] if options.part else PARTS)]
    except (TestbedError, subprocess.SubprocessError) as error:
        print(f"testbed/tempest: {error}", file=sys.stderr)
        return 1
    return max(codes)
