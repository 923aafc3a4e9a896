"""blazar-tempest-plugin 0.19.0, complete and unmodified, run by ``testbed/tempest`` against Tenure.

What its scenarios take is what they sleep: 75 and 30 seconds in one, and until a lease of a minute or two ends.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.cloud import REPOSITORY, Cloud
from tests.support.site import Site, open_site

API_SECONDS = 300
SCENARIO_SECONDS = 1200

#: How many tests the plugin has; each passes.
API_TESTS = 22
SCENARIOS = 8

#: How long Keystone is waited for; Blazar knows no limit. Ten clients sign in at once in one scenario, and each costs
#: Keystone up to two seconds of a processor that is busy with other things.
KEYSTONE_SECONDS = 60


def run(part: str, *, seconds: float) -> dict[str, int]:
    """How many tests of a part passed, were skipped and failed."""
    command = [str(REPOSITORY / "testbed/tempest"), part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    print(done.stdout[-20000:], done.stderr[-2000:])
    found = dict(re.findall(r"^ - (Passed|Skipped|Failed): (\d+)$", done.stdout, re.MULTILINE))
    assert found, "tempest has counted nothing"
    return {outcome: int(count) for outcome, count in found.items()}


@pytest.fixture(scope="module")
def patient(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    options = {"keystone_authtoken": {"http_connect_timeout": KEYSTONE_SECONDS}}
    with open_site(tmp_path_factory.mktemp("tempest"), cloud, options=options) as site:
        yield site


@pytest.mark.parametrize(
    ("part", "passed", "seconds"),
    [
        pytest.param("api", API_TESTS, API_SECONDS, id="api"),
        pytest.param("scenario", SCENARIOS, SCENARIO_SECONDS, id="scenario", marks=pytest.mark.long),
    ],
)
def test_the_plugin_passes(patient: Site, part: str, passed: int, seconds: float):
    assert run(part, seconds=seconds) == {"Passed": passed, "Skipped": 0, "Failed": 0}
