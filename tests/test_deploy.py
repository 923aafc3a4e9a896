"""What lies in ``deploy`` for operators: systemd's units, the container file, the settings of web servers."""

from __future__ import annotations

import configparser
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from tenure import metrics
from tenure.api.auth import write_token_file
from tenure.cmd import api, manager
from tenure.metrics import PresentGauges
from tests.api.rig import USERS
from tests.support.waiting import COMMAND_SECONDS

REPOSITORY = Path(__file__).parents[1]
DEPLOY = REPOSITORY / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
BIN = Path(sys.executable).parent

#: What systemd calls well protected, in tenths.
EXPOSURE = 20

systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze not found; apt-get install systemd"
)


def settings(unit: Path) -> dict[str, str]:
    """The settings of a unit; of those that stand in it several times, the last."""
    lines = [line.partition("=") for line in unit.read_text().splitlines() if line and line[0] not in "#["]
    return {name: value for name, _, value in lines}


def analyze(tmp_path: Path, unit: Path, *command: str) -> str:
    """What systemd says of a unit whose program is there."""
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/tenure/bin", str(BIN)))
    done = subprocess.run(
        ["systemd-analyze", *command, str(here)], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stderr


@systemd_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_every_unit(tmp_path: Path, unit: Path):
    assert unit.name not in analyze(tmp_path, unit, "verify", "--man=no")


@systemd_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_process_has_few_rights_on_its_machine(tmp_path: Path, unit: Path):
    analyze(tmp_path, unit, "security", "--no-pager", "--offline=yes", f"--threshold={EXPOSURE}")
    assert settings(unit)["User"] == "tenure"
    assert settings(unit)["NoNewPrivileges"] == "yes"


def test_every_unit_starts_an_existing_program():
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert {unit.name: settings(unit)["ExecStart"] for unit in UNITS} == {
        f"{name}.service": f"/opt/tenure/bin/{name}" for name in ("tenure-api", "tenure-manager")
    }
    assert {unit.stem for unit in UNITS} <= scripts.keys()


def test_systemd_waits_for_an_orderly_stop():
    """Longer than the programs themselves do; else it kills what would have ended well."""
    waits = {unit.stem: int(settings(unit)["TimeoutStopSec"]) for unit in UNITS}
    assert waits["tenure-api"] > api.REQUEST_SECONDS + 5  # waitress waits five seconds by itself
    assert waits["tenure-manager"] > manager.STOP_SECONDS + 30  # a request that waits for the cloud


# The container

CONTAINERFILE = DEPLOY / "Containerfile"


def test_the_container_file_has_no_fault():
    done = subprocess.run(
        [str(BIN / "hadolint"), "--no-color", str(CONTAINERFILE)],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_container_is_built_of_files_that_there_are():
    ignore = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    admitted = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert "*" in ignore
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE.read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert sources == admitted
    assert [source for source in sources if not (REPOSITORY / source).exists()] == []
    ignored = [line for line in ignore if line.startswith("**")]
    assert not any(fnmatch.fnmatch("src/tenure/config.py", pattern) for pattern in ignored)


def test_the_container_runs_as_an_unprivileged_user():
    text = CONTAINERFILE.read_text()
    [number] = re.findall(r"^USER (\d+):\1$", text, re.MULTILINE)
    assert int(number) > 0
    assert f"--uid {number} " in text
    assert "--constraint constraints.txt" in text


# Web servers


#: Loads the application as a server does, from a file or by name, and prints its answer to GET / in the last line.
SERVE = """
import importlib, json, runpy, sys
from wsgiref.util import setup_testing_defaults

how, where = sys.argv[1:]
if how == "file":
    application = runpy.run_path(where)["application"]
else:
    module, _, name = where.partition(":")
    application = getattr(importlib.import_module(module), name)
environ, answer = {}, []
setup_testing_defaults(environ)
answer += application(environ, lambda status, *_: answer.append(status.encode()))
print(json.dumps([part.decode() for part in answer]))
"""


def uwsgi_settings() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(DEPLOY / "uwsgi.ini")
    return parser["uwsgi"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "where"),
    [("name", uwsgi_settings()["module"]), ("file", str(DEPLOY / "tenure.wsgi"))],
    ids=["uwsgi", "apache"],
)
def test_web_servers_load_the_application(tmp_path: Path, how: str, where: str):
    """It is configured by the folder that the settings of uWSGI name."""
    variable, _, folder = uwsgi_settings()["env"].partition("=")
    assert folder == "/etc/tenure"
    (tmp_path / "tenure.conf").write_text(
        "[DEFAULT]\nauth_strategy = token_file\ntransport_url = fake://\n"
        f"[api]\ntoken_file = {tmp_path / 'tokens.yaml'}\npublic_url = https://reservations.example.org\n"
    )
    write_token_file(tmp_path / "tokens.yaml", USERS.values())
    done = subprocess.run(
        [sys.executable, "-c", SERVE, how, where],
        env=os.environ | {variable: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status, body = json.loads(done.stdout.splitlines()[-1])
    assert status == "300 Multiple Choices"
    assert json.loads(body)["versions"][0]["links"][0]["href"] == "https://reservations.example.org/v1"


def test_apache_serves_the_file_and_may_read_it():
    text = (DEPLOY / "apache.conf").read_text()
    [file] = re.findall(r"^    WSGIScriptAlias / (\S+)$", text, re.MULTILINE)
    granted = re.findall(r"^    <Directory (\S+)>\n        Require all granted$", text, re.MULTILINE)
    guide = (REPOSITORY / "docs" / "operations" / "install.md").read_text()
    assert Path(file).name == "tenure.wsgi"
    assert granted == [str(Path(file).parent)]
    assert f"[`deploy/tenure.wsgi`](../../deploy/tenure.wsgi) in `{granted[0]}`" in guide


# Monitoring

MONITORING = REPOSITORY / "docs" / "operations" / "monitoring.md"


def shown_metrics() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The type and the labels of each metric, by the name that Prometheus knows it by."""
    found = {}
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            [family] = metric.describe()
            suffix = "_total" if family.type == "counter" else ""
            found[family.name + suffix] = (family.type, tuple(metric._labelnames))
        elif isinstance(metric, PresentGauges):
            found |= {family.name: (family.type, metric.LABELS) for family in metric.describe()}
    return found


def test_every_metric_is_explained_with_its_labels():
    rows = re.findall(r"^\| `(tenure_\w+)` \| (.*?) \|", MONITORING.read_text(), re.MULTILINE)
    explained = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    assert explained == {name: labels for name, (_, labels) in shown_metrics().items()}


def test_alerts_ask_for_metrics_that_there_are():
    [group] = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"]
    known = shown_metrics()
    suffixes = {"histogram": ("_count", "_sum", "_bucket"), "counter": ("",), "gauge": ("",)}
    series = {name + suffix: labels for name, (kind, labels) in known.items() for suffix in suffixes[kind]}
    asked = [found for rule in group["rules"] for found in re.findall(r"\b(tenure_\w+)(?:\{(.*?)\})?", rule["expr"])]
    assert len(asked) >= 8
    for name, matchers in asked:
        labels = re.findall(r"(\w+)=~?!?\"", matchers) + re.findall(r"(\w+)!=\"", matchers)
        assert set(labels) <= {*series[name], "le"}, name


def test_every_alert_is_documented():
    [group] = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"]
    documented = re.findall(r"^\| `(Tenure\w+)` \|.{20,}\|$", MONITORING.read_text(), re.MULTILINE)
    assert documented == [rule["alert"] for rule in group["rules"]]
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in group["rules"])


def test_a_late_start_is_counted_by_a_limit_that_is_measured():
    """An alert that asks for a bucket that there is not would never ring."""
    limits = {str(limit) for limit in metrics.LATENESS._upper_bounds}
    asked = set(re.findall(r'le="([^"]+)"', (DEPLOY / "prometheus-rules.yaml").read_text()))
    assert asked
    assert asked <= limits
