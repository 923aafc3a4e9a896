"""The options in nova.conf: they have the group and the names of Blazar's filter."""

from oslo_config import cfg

from tenurenova.decision import Rules

GROUP = "blazar:physical:host"

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "aggregate_freepool_name",
        default=Rules.free_pool,
        help="The aggregate whose hosts wait for reservations; the same as in the reservation service.",
    ),
    cfg.StrOpt(
        "blazar_az_prefix",
        default=Rules.zone_prefix,
        help="The prefix of the availability zones of reservations; the same as in the reservation service.",
    ),
    cfg.StrOpt(
        "blazar_owner",
        default=Rules.owner_key,
        help="The metadata key of a reservation's aggregate whose value is the id of the owning project.",
    ),
    cfg.BoolOpt(
        "allow_preemptibles",
        default=Rules.preemptibles_allowed,
        help="Whether flavors with the extra spec blazar:preemptible=true may use the hosts whose only pool is the "
        "aggregate of the option preemptible_aggregate, while they are not reserved.",
    ),
    cfg.StrOpt(
        "preemptible_aggregate",
        default=Rules.preemptible_pool,
        help="The aggregate on whose hosts preemptible servers may run.",
    ),
)


def listed() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options for the sample file of oslo-config-generator."""
    return [(GROUP, list(OPTIONS))]


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options.

    If Nova loads Blazar's filter too, that filter registers some of the same names with its own help texts. Those are
    kept: they mean the same. Blazar's filter would fail if it found ours, so call this after all filters are loaded.
    """
    for option in OPTIONS:
        try:
            conf.register_opt(option, GROUP)
        except cfg.DuplicateOptError:
            continue


def rules(conf: cfg.ConfigOpts) -> Rules:
    """Return the configured rules. Requires an earlier call of `register`."""
    group = conf[GROUP]
    return Rules(
        free_pool=group.aggregate_freepool_name,
        zone_prefix=group.blazar_az_prefix,
        owner_key=group.blazar_owner,
        preemptibles_allowed=group.allow_preemptibles,
        preemptible_pool=group.preemptible_aggregate,
    )
