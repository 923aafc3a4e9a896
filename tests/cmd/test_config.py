"""What an operator's files say, as the processes read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import cfg

from tenure.config import new_config, read_config
from tenure.deployment import ConfigurationError, open_manager, open_quotas, open_types, regions_of


def read(folder: Path, text: str) -> cfg.ConfigOpts:
    file = folder / "tenure.conf"
    file.write_text(text)
    conf = new_config()
    read_config(conf, [], files=[file], prog="test")
    return conf


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("[physical:host]\naggregate_freepool_name", "aggregate_freepool_name"),
        ("[physical:host]\nblazar_owner", "blazar_owner"),
        ("[DEFAULT]\nimage_prefix", "image_prefix"),
    ],
)
def test_old_names_that_blazar_still_reads_are_read(tmp_path: Path, old: str, name: str):
    assert read(tmp_path, f"{old} = other\n").nova[name] == "other"
    assert read(tmp_path, f"{old} = other\n[nova]\n{name} = newer\n").nova[name] == "newer"


def test_a_region_named_twice_is_refused(tmp_path: Path):
    assert regions_of(read(tmp_path, "[DEFAULT]\nregions = north, south\n")) == ("north", "south")
    with pytest.raises(ConfigurationError, match="regions: one is named twice"):
        regions_of(read(tmp_path, "[DEFAULT]\nregions = north, south, north\n"))


def enabled(conf: cfg.ConfigOpts) -> set[str]:
    return {resource_type.name for resource_type in open_types(conf).enabled}


def test_plugins_of_blazar_are_the_types_that_can_be_booked(tmp_path: Path):
    plugins = "[manager]\nplugins = physical.host.plugin,virtual.instance.plugin,virtual.floatingip.plugin\n"
    assert enabled(read(tmp_path, plugins)) == {"physical:host", "virtual:instance", "virtual:floatingip"}
    assert enabled(read(tmp_path, f"{plugins}enabled_types = physical:host\n")) == {"physical:host"}
    assert enabled(read(tmp_path, "")) == {resource_type.name for resource_type in open_types(read(tmp_path, ""))}


@pytest.mark.parametrize("option", ["enabled_types", "plugins"])
@pytest.mark.parametrize("names", ["dummy.vm.plugin", "physical:host, network.plugin, device.plugin", "host"])
def test_an_unknown_type_or_plugin_is_named(tmp_path: Path, option: str, names: str):
    conf = read(tmp_path, f"[manager]\n{option} = {names}\n")
    unknown = " and no ".join(sorted(repr(name) for name in names.split(", ") if name != "physical:host"))
    known = r"only flavor:instance, physical:host, virtual:floatingip, .*"
    with pytest.raises(ConfigurationError, match=rf"^\[manager\] enabled_types: there is no {unknown}, {known}"):
        open_types(conf)


def test_default_leases_need_their_type(tmp_path: Path):
    text = f"[database]\nconnection = sqlite:///{tmp_path / 'tenure.db'}\n[DEFAULT]\ndriver = simulated\n"
    text += f"[simulated]\npath = {tmp_path / 'cloud.db'}\n[virtual:server]\ndefault_lease = true\n"
    conf = read(tmp_path, f"{text}[manager]\nenabled_types = physical:host\n")
    with pytest.raises(ConfigurationError, match=r"enabled_types does not name virtual:server"):
        open_manager(conf)


def test_limits_of_a_type_that_is_off_may_stay(tmp_path: Path):
    conf = read(tmp_path, "[manager]\nenabled_types = physical:host\n[quota]\ndriver = config\nlimits = volumes:3\n")
    assert open_quotas(conf).of_project("p", open_types(conf)) == {"volumes": 3}
