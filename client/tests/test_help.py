"""Every command explains itself, and python-blazarclient's names and arguments are all there."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

import pytest

from conftest import Run
from tenureclient.cli.resources import commands

OWN = {command.name.replace("_", " "): command for command in entry_points(group="tenure.commands")}

# What the help of python-blazarclient 4.6.0 says, beside the formatters of cliff.
BLAZARCLIENT: Mapping[str, str] = {
    "lease list": "--sort-by",
    "lease show": "LEASE",
    "lease create": "--start-date --end-date --before-end-date --reservation --event LEASE",
    "lease set": "--name --reservation --prolong-for --prolong_for --reduce-by --end-date --defer-by"
    " --advance-by --start-date LEASE",
    "lease delete": "LEASE",
    "host list": "--sort-by",
    "host show": "HOST",
    "host create": "--extra HOST",
    "host set": "--extra HOST",
    "host unset": "--extra HOST",
    "host delete": "HOST",
    "host property list": "--detail --sort-by --all",
    "host property show": "PROPERTY_NAME",
    "host property set": "--private --public PROPERTY_NAME",
    "floatingip list": "--sort-by",
    "floatingip show": "FLOATINGIP",
    "floatingip create": "NETWORK_ID FLOATING_IP_ADDRESS",
    "floatingip delete": "FLOATINGIP",
    "allocation list": "--reservation-id --lease-id --sort-by host",
    "allocation show": "--reservation-id --lease-id host RESOURCE",
}


@pytest.mark.parametrize("command", sorted(OWN))
def test_a_command_has_a_description_and_an_example(tenure: Run, command: str) -> None:
    outcome = tenure(*command.split(), "--help")
    assert outcome.code == 0
    assert (OWN[command].load().__doc__ or "").splitlines()[0] in outcome.output
    assert "examples:\n  " in outcome.output
    assert f"\n    tenure {command} " in outcome.output


@pytest.mark.parametrize("command", sorted(BLAZARCLIENT))
def test_nothing_of_python_blazarclient_is_missing(tenure: Run, command: str) -> None:
    words = tenure(*command.split(), "--help").output.translate(str.maketrans(",{}", "   ")).split()
    assert [argument for argument in BLAZARCLIENT[command].split() if argument not in words] == []


def test_the_types_are_explained_where_they_are_asked_for(tenure: Run) -> None:
    for command in (["lease", "create"], ["lease", "reservation", "add"]):
        shown = tenure(*command, "--help").output
        for resource_type in ("physical:host", "virtual:instance", "flavor:instance", "virtual:floatingip"):
            assert f"\n  {resource_type}\n" in shown
        # What matters comes before how things are printed.
        assert shown.index("--instances COUNT ") < shown.index("output formatters:")


def test_the_groups_of_commands_belong_together() -> None:
    alone = {command.name: command.value for command in entry_points(group="openstack.tenure.v1")}
    beside = {command.name: command.value for command in entry_points(group="openstack.tenure_additions.v1")}
    assert alone == {f"reservation_{name.replace(' ', '_')}": command.value for name, command in OWN.items()}
    assert beside.items() <= alone.items()
    theirs = {f"reservation_{name.replace(' ', '_')}" for name in BLAZARCLIENT}
    # Their own "host unset" cannot be loaded, so ours does not stand in its way.
    assert theirs & set(beside) == {"reservation_host_unset"}
    assert set(alone) == theirs | set(beside)


def test_every_command_of_a_type_of_resources_has_an_entry_point() -> None:
    targets = {command.value for command in OWN.values()}
    assert {f"tenureclient.cli.resources:{name}" for name in commands()} <= targets
