"""Schemathesis, with all its checks, on the API as it is served and described: per microversion, per role."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import Version
from tenure.resources.contract import load_types
from tests.support.lengths import LONG, times
from tests.support.standalone import BIN, standalone
from tests.support.waiting import COMMAND_SECONDS, patience

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = times(6, 20)
#: How many operations each version has.
OPERATIONS = {
    version.value: sum(map(len, describe(operations_of(tuple(load_types())), version)["paths"].values()))
    for version in Version
}
#: Who asks at which microversion: at the oldest a member, at the newest an administrator; the others in a long run.
USUAL = {(min(OPERATIONS), "demo"), (max(OPERATIONS), "admin")}
CALLERS = [
    pytest.param(version, user, marks=[] if (version, user) in USUAL else pytest.mark.long)
    for version in OPERATIONS
    for user in ("admin", "demo")
]


@pytest.mark.parametrize(("version", "user"), CALLERS)
def test_the_api_keeps_its_own_description(tmp_path: Path, version: str, user: str):
    phases = ["examples", "fuzzing", "stateful"]
    if LONG:
        phases.append("coverage")  # of the limits of each schema, which takes most of the time
    with standalone(tmp_path / "data") as service:
        root = service.url.removesuffix("/v1")
        done = subprocess.run(
            [
                str(BIN / "schemathesis"),
                "--config-file",
                str(CONFIG),
                "run",
                f"{root}/openapi.json?version={version}",
                "--checks=all",
                f"--phases={','.join(phases)}",
                f"--max-examples={EXAMPLES}",
                f"--request-timeout={patience()}",
                "--seed=1",
                "--continue-on-failure",
                "--no-color",
                "--generation-database=none",
                f"--header=X-Auth-Token: {service.token(user)}",
                f"--header=OpenStack-API-Version: reservation {version}",
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "SCHEMATHESIS_HOOKS": "tests.contract.hooks",
                "PYTHONPATH": str(ROOT),
                "PYTHONHASHSEED": "0",  # the order of sets decides what is generated
            },
            capture_output=True,
            text=True,
            timeout=2 * COMMAND_SECONDS,
            check=False,
        )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report[-8000:]
    assert f"Tested: {OPERATIONS[version]}" in report, report[-3000:]
    with closing(sqlite3.connect(tmp_path / "data" / "tenure.db")) as database:
        [(made,)] = database.execute("SELECT count(*) FROM leases")
    assert made, "no request got as far as a lease"
