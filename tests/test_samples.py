"""The sample in ``etc`` lists the current options, and oslo.policy's tool lists the policy rules."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

from tenure.api.policies import list_rules
from tenure.config import CONFIG_DIR, OPTIONS
from tests.support.waiting import COMMAND_SECONDS

REPOSITORY = Path(__file__).parents[1]
ETC = REPOSITORY / "etc"
BIN = Path(sys.executable).parent

SAMPLE = ETC / "tenure.conf.sample"


def test_the_sample_equals_the_output_of_make_samples(tmp_path: Path):
    written = tmp_path / "tenure.conf.sample"
    generate("oslo-config-generator", "--config-file", ETC / "config-generator.conf", "--output-file", written)
    assert written.read_text() == SAMPLE.read_text(), "run `make samples`"


def test_the_makefile_makes_every_sample():
    commands = subprocess.run(
        ["make", "--no-print-directory", "-n", "samples"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert "oslo-config-generator --config-file etc/config-generator.conf\n" in commands
    assert list(ETC.glob("*.sample")) == [SAMPLE]


def test_the_tool_of_oslo_policy_prints_every_rule(tmp_path: Path):
    written = tmp_path / "policy.yaml.sample"
    generate("oslopolicy-sample-generator", "--namespace", "tenure", "--output-file", written)
    printed = dict(re.findall(r'^#"(.+)": "(.*)"$', written.read_text(), re.MULTILINE))
    assert printed == {rule.name: rule.check_str for rule in list_rules()}


def generate(program: str, *words: str | Path) -> None:
    command = [str(word) for word in (BIN / program, *words)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=COMMAND_SECONDS)


def test_a_sample_names_nothing_of_the_machine_that_made_it():
    for word in {socket.gethostname(), socket.getfqdn(), str(REPOSITORY), str(Path.home())} - {"localhost", "/"}:
        assert not re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", SAMPLE.read_text()), word


def test_every_option_has_a_description():
    for group, options in OPTIONS.items():
        for option in options:
            sentence = option.help or ""
            assert re.fullmatch(r"[A-Z].{15,}\.", sentence), f"[{group}] {option.name}: {sentence!r}"
            for choice, said in (getattr(option.type, "choices", None) or {}).items():
                assert said, f"[{group}] {option.name}: {choice!r}"


def test_an_option_that_is_a_time_names_its_unit():
    """A number without a unit may be read as seconds or as minutes."""
    timed = re.compile(r"(interval|timeout|_time|minutes_\w+)$")
    found = [(option.name, option.help or "") for options in OPTIONS.values() for option in options]
    times = [(name, text) for name, text in found if timed.search(name)]
    assert len(times) >= 6
    assert [name for name, text in times if not re.search(r"\b(seconds|minutes|Seconds|Minutes)\b", text)] == []


def test_the_sample_knows_every_option():
    text = SAMPLE.read_text()
    for group, options in OPTIONS.items():
        section = text.partition(f"\n[{group}]\n" if group != "DEFAULT" else "[DEFAULT]\n")[2].partition("\n[")[0]
        assert [option.name for option in options if not re.search(rf"^#{option.name} =", section, re.MULTILINE)] == []
    assert CONFIG_DIR == "/etc/tenure"
