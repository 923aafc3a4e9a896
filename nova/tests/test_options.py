"""The options: those of Blazar's filter, so that its nova.conf works for ours."""

from pathlib import Path

from oslo_config import cfg

from tenurenova import options
from tenurenova.decision import Rules


def configured(folder: Path, text: str) -> cfg.ConfigOpts:
    file = folder / "nova.conf"
    file.write_text(text)
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[str(file)])
    return conf


def test_a_file_without_the_group_means_blazars_names(tmp_path: Path) -> None:
    conf = configured(tmp_path, "[DEFAULT]\n")
    options.register(conf)
    assert options.rules(conf) == Rules("freepool", "blazar_", "blazar:owner", False, "freepool")


def test_a_file_for_blazars_filter_configures_our_filter(tmp_path: Path) -> None:
    conf = configured(
        tmp_path,
        "[blazar:physical:host]\naggregate_freepool_name = idle\nblazar_az_prefix = res-\nblazar_owner = lab:owner\n"
        "project_id_key = blazar:tenant\nallow_preemptibles = yes\npreemptible_aggregate = spot\n",
    )
    options.register(conf)
    assert options.rules(conf) == Rules("idle", "res-", "lab:owner", True, "spot")


def test_both_filters_may_be_loaded() -> None:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    theirs = cfg.StrOpt("aggregate_freepool_name", default="freepool", help="Another text.")
    conf.register_opt(theirs, options.GROUP)
    options.register(conf)
    options.register(conf)
    assert options.rules(conf) == Rules()


def test_the_sample_has_every_option_with_a_text() -> None:
    ((group, listed),) = options.listed()
    assert group == "blazar:physical:host"
    assert {option.dest for option in listed} == {
        "aggregate_freepool_name",
        "allow_preemptibles",
        "blazar_az_prefix",
        "blazar_owner",
        "preemptible_aggregate",
    }
    assert all(option.help for option in listed)
