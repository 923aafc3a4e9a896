"""What an operator's files say, as the processes read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import cfg

from tenure.config import new_config, read_config
from tenure.deployment import ConfigurationError, regions_of


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
