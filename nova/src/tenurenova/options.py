"""The options in nova.conf: those of Blazar's filter, in its group, under its names."""

from oslo_config import cfg

from tenurenova.decision import Rules

GROUP = "blazar:physical:host"

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "aggregate_freepool_name",
        default=Rules.free_pool,
        help="The aggregate in which hosts wait for reservations; the same as in the reservation service.",
    ),
    cfg.StrOpt(
        "blazar_az_prefix",
        default=Rules.zone_prefix,
        help="What the availability zones of reservations begin with; the same as in the reservation service.",
    ),
    cfg.StrOpt(
        "blazar_owner",
        default=Rules.owner_key,
        help="The key, in the metadata of a reservation's aggregate, under which the id of the owning project is.",
    ),
    cfg.BoolOpt(
        "allow_preemptibles",
        default=Rules.preemptibles_allowed,
        help="Whether flavors with the extra spec blazar:preemptible=true may use the hosts whose only pool is the "
        "aggregate of the option preemptible_aggregate, for as long as nobody reserves these.",
    ),
    cfg.StrOpt(
        "preemptible_aggregate",
        default=Rules.preemptible_pool,
        help="The aggregate in whose hosts preemptible servers may run.",
    ),
)


def listed() -> list[tuple[str, list[cfg.Opt]]]:
    """What oslo-config-generator puts into a sample."""
    return [(GROUP, list(OPTIONS))]


def register(conf: cfg.ConfigOpts) -> None:
    """Make the options known.

    Blazar's filter registers some of the same names with texts of its own where Nova is told to load both. Those are
    left as they are: they mean the same. It would fail where it finds ours, so call this when all filters are loaded.
    """
    for option in OPTIONS:
        try:
            conf.register_opt(option, GROUP)
        except cfg.DuplicateOptError:
            continue


def rules(conf: cfg.ConfigOpts) -> Rules:
    """The rules as the operator has set them; `register` has been called."""
    group = conf[GROUP]
    return Rules(
        free_pool=group.aggregate_freepool_name,
        zone_prefix=group.blazar_az_prefix,
        owner_key=group.blazar_owner,
        preemptibles_allowed=group.allow_preemptibles,
        preemptible_pool=group.preemptible_aggregate,
    )
