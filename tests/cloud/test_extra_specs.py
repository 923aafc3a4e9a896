"""Nova's own filters on the cases by which ``tests/domain/test_extra_specs.py`` judges how extra specs are read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from testbed.places import BIN
from tests.support.waiting import COMMAND_SECONDS

CASES = Path(__file__).parents[1] / "data/extra_specs.jsonl"
#: What Nova's filters do with a host, by the verdict of a case.
NOVA: dict[str, set[object]] = {
    "yes": {True},
    "no": {False},
    "error": {"ValueError"},
    "refused": {False, "ValueError", "IndexError"},
}


def test_novas_filters_say_what_the_cases_say():
    command = [str(BIN / "python"), "-W", "ignore", str(Path(__file__).with_name("nova_verdicts.py")), str(CASES)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    assert found.returncode == 0, found.stderr
    cases = [record for record in map(json.loads, CASES.read_text().splitlines()) if "specs" in record]
    verdicts = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(verdicts) == len(cases)
    differing = [
        (case, verdict) for case, verdict in zip(cases, verdicts, strict=True) if verdict not in NOVA[case["verdict"]]
    ]
    assert differing == []
