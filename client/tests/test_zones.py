"""The names of time zones that are sent to the server."""

from __future__ import annotations

import os
from datetime import timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from conftest import Run
from tenureclient.cli.command import Surroundings
from tenureclient.cli.shell import TenureShell
from tenureclient.cli.window_options import name_of_zone
from tenureclient.testing import FakeServer


@pytest.mark.parametrize(
    ("zone", "name"), [(ZoneInfo("Europe/Paris"), "Europe/Paris"), (timezone(timedelta(hours=1)), None)]
)
def test_a_zone_is_named_as_in_the_database(zone: tzinfo, name: str | None) -> None:
    assert name_of_zone(zone) == name


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        (":Asia/Tokyo", "Asia/Tokyo"),
        ("UTC", "UTC"),
        ("", "UTC"),
        ("nowhere", None),
        ("CST6CDT,M3.2.0,M11.1.0", None),
        ("../../etc/passwd", None),
    ],
)
def test_the_variable_names_the_zone_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, variable: str, name: str | None
) -> None:
    monkeypatch.setenv("TZ", variable)
    assert name_of_zone(None) == name


def test_the_link_names_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TZ", raising=False)
    link = tmp_path / "localtime"
    monkeypatch.setattr("tenureclient.cli.window_options._LOCAL_ZONE", link)
    os.symlink("/usr/share/zoneinfo/Asia/Tokyo", link)
    # A distribution may have the zone under another name: the link is followed to its end.
    assert name_of_zone(None) in ("Asia/Tokyo", "Japan")
    link.unlink()
    link.write_bytes(b"a copy of a zone")
    assert name_of_zone(None) is None


def test_a_zone_without_a_name_must_be_given(
    server: FakeServer, tenure: Run, capsys: pytest.CaptureFixture[str], plain_logging: None
) -> None:
    surroundings = Surroundings(now=lambda: server.now, zone=timezone(timedelta(hours=1)))
    arguments = ["find", "--hosts", "1", "--on", "mon"]
    assert TenureShell(surroundings=surroundings).run(arguments) == 1
    assert "--time-zone: the zone of this machine has no known name" in capsys.readouterr().err
    assert TenureShell(surroundings=surroundings).run([*arguments, "--time-zone", "UTC"]) == 0
