"""The samples in ``etc`` say what the options and the policies are now."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.config import CONFIG_DIR, OPTIONS
from tests.support.waiting import COMMAND_SECONDS

REPOSITORY = Path(__file__).parents[1]
ETC = REPOSITORY / "etc"
BIN = Path(sys.executable).parent

GENERATORS = {
    "tenure.conf.sample": ("oslo-config-generator", "config-generator.conf"),
    "policy.yaml.sample": ("oslopolicy-sample-generator", "policy-generator.conf"),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_sample_is_what_make_samples_writes(tmp_path: Path, name: str):
    program, configuration = GENERATORS[name]
    command = [BIN / program, "--config-file", ETC / configuration, "--output-file", tmp_path / name]
    subprocess.run(
        [str(word) for word in command], cwd=REPOSITORY, check=True, capture_output=True, timeout=COMMAND_SECONDS
    )
    assert (tmp_path / name).read_text() == (ETC / name).read_text(), "run `make samples`"


def test_the_makefile_makes_every_sample():
    commands = subprocess.run(
        ["make", "--no-print-directory", "-n", "samples"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    for program, configuration in GENERATORS.values():
        assert f"{program} --config-file etc/{configuration}\n" in commands
    assert sorted(path.name for path in ETC.glob("*.sample")) == sorted(GENERATORS)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_sample_says_nothing_of_the_machine_that_made_it(name: str):
    text = (ETC / name).read_text()
    for word in {socket.gethostname(), socket.getfqdn(), str(REPOSITORY), str(Path.home())} - {"localhost", "/"}:
        assert not re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", text), word


def test_every_option_says_what_it_is():
    for group, options in OPTIONS.items():
        for option in options:
            sentence = option.help or ""
            assert re.fullmatch(r"[A-Z].{15,}\.", sentence), f"[{group}] {option.name}: {sentence!r}"
            for choice, said in (getattr(option.type, "choices", None) or {}).items():
                assert said, f"[{group}] {option.name}: {choice!r}"


def test_an_option_that_is_a_time_names_its_unit():
    """By the word: a number alone has been taken for seconds by somebody and for minutes by the next."""
    timed = re.compile(r"(interval|timeout|_time|minutes_\w+)$")
    found = [(option.name, option.help or "") for options in OPTIONS.values() for option in options]
    times = [(name, text) for name, text in found if timed.search(name)]
    assert len(times) >= 6
    assert [name for name, text in times if not re.search(r"\b(seconds|minutes|Seconds|Minutes)\b", text)] == []


def test_the_sample_knows_every_option():
    text = (ETC / "tenure.conf.sample").read_text()
    for group, options in OPTIONS.items():
        section = text.partition(f"\n[{group}]\n" if group != "DEFAULT" else "[DEFAULT]\n")[2].partition("\n[")[0]
        assert [one.name for one in options if not re.search(rf"^#{one.name} =", section, re.MULTILINE)] == []
    assert CONFIG_DIR == "/etc/tenure"
