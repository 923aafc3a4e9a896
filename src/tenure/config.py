"""The operator's options, for processes with a real cloud.

They have Blazar's names if the meaning is the same, so that a ``blazar.conf`` needs few changes. Nothing here is
global: a process creates a ``ConfigOpts`` and passes it on.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from oslo_config import cfg, types

from tenure.domain.lanes import USUAL, Lane

PROJECT = "tenure"
#: The folder of the configuration without ``--config-file``, if the environment variable is not set.
CONFIG_DIR = "/etc/tenure"
CONFIG_DIR_VARIABLE = "OS_TENURE_CONFIG_DIR"


def _deprecated_name(name: str, group: str = "DEFAULT") -> list[cfg.DeprecatedOpt]:
    """Return Blazar's name of an option, present or deprecated."""
    return [cfg.DeprecatedOpt(name, group=group)]


_DEFAULT = (
    cfg.HostAddressOpt(
        "host", default="127.0.0.1", help="The address that tenure-api listens on. A WSGI server has its own setting."
    ),
    cfg.PortOpt("port", default=1234, help="The port that tenure-api listens on."),
    cfg.IntOpt(
        "cleaning_time",
        default=0,
        min=0,
        help="How many minutes a resource stays unused after each reservation, for cleaning.",
    ),
    cfg.StrOpt(
        "driver",
        default="openstack",
        help="The kind of cloud: 'openstack', or 'simulated' to try Tenure out.",
    ),
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "Keystone, by keystonemiddleware"),
            ("token_file", "the file that [api] token_file names"),
        ],
        help="How the callers of the API are authenticated.",
    ),
    cfg.ListOpt(
        "regions",
        default=[],
        help="The regions, if one Tenure serves several. The home region comes first: requests that name no "
        "region mean it, and it has what existed before there were regions. Each has a group, such as [region:north].",
    ),
    cfg.StrOpt(
        "state_path",
        help="The folder for files of third-party type drivers; all managers share it.",
    ),
    cfg.StrOpt("os_region_name", help="The region whose services Tenure uses; needed if Keystone has several."),
)
_DATABASE = (
    cfg.StrOpt(
        "connection",
        secret=True,
        help="The database: mysql+pymysql://user:password@host/tenure or "
        "postgresql+psycopg://user:password@host/tenure. Write @ : / in the password as %40 %3A %2F, and $ as $$.",
    ),
    cfg.IntOpt(
        "max_pool_size", default=20, min=2, help="How many connections a manager keeps open; it may use twice as many."
    ),
    cfg.FloatOpt(
        "pool_timeout", default=30.0, min=0.1, help="How many seconds to wait for a connection if all are in use."
    ),
)
_API = (
    cfg.URIOpt(
        "public_url",
        schemes=("http", "https"),
        help="The URL of the API's root as clients see it, for links; by default it is taken from each request.",
    ),
    cfg.IntOpt(
        "threads",
        default=128,
        min=2,
        help="How many requests one tenure-api process serves concurrently, half of them of one project; a WSGI server "
        "has its own setting.",
    ),
    cfg.StrOpt(
        "token_file",
        help="The file of users and their tokens, if auth_strategy is token_file. Its mode must be 0600.",
    ),
)
_MANAGER = (
    cfg.StrOpt(
        "rpc_topic",
        default="tenure.manager",
        help="The topic of the message bus on which managers take calls from the API. APIs and managers share it.",
    ),
    cfg.StrOpt(
        "name",
        default=socket.gethostname(),
        sample_default="<the name of the machine>",
        help="The name of this manager on the message bus and in logs. Each manager needs a different name.",
    ),
    cfg.ListOpt(
        "enabled_types",
        default=[],
        deprecated_opts=_deprecated_name("plugins", "manager"),
        sample_default="<all that are installed>",
        help="The resource types that can be booked, such as physical:host, virtual:instance. Blazar's names of "
        "plugins, such as physical.host.plugin, mean its types. Not set: all that are installed. APIs and managers "
        "share it. What was booked of other types is kept until its end.",
    ),
    cfg.IntOpt(
        "rpc_threads",
        default=16,
        min=2,
        help="How many calls of the API one manager serves concurrently at least: it has as many threads as run and "
        "wait in its lanes. Half of this number may wait for the cloud.",
    ),
    cfg.IntOpt(
        "workers",
        default=16,
        min=1,
        help="How many starts a manager carries out concurrently, and as many other events, and as many requests. "
        "With several regions, each region gets at most three quarters of them.",
    ),
    cfg.IntOpt(
        "minutes_before_end_lease",
        default=60,
        min=0,
        help="How many minutes before its end the before-end event of a lease comes, unless the user sets it; "
        "0 for none.",
    ),
    cfg.IntOpt(
        "max_attempts",
        default=10,
        min=1,
        help="How often a start, a change or a before-end action is tried at least; an end is retried without limit.",
    ),
    cfg.IntOpt(
        "planning_time",
        default=5,
        min=1,
        help="How many seconds a request may search for room. After that it gets a 503, and nothing has changed.",
    ),
    cfg.IntOpt(
        "exact_time_ms",
        default=300,
        min=0,
        help="How many milliseconds a request for a lease may take to search all arrangements of what has not started, "
        "before it is refused; 0 for no such search.",
    ),
    cfg.IntOpt(
        "search_time_ms",
        default=300,
        min=0,
        help="How many milliseconds a search for offers may try periods for which plans would have to move; 0 finds "
        "only periods in which there is room as plans are.",
    ),
    cfg.IntOpt(
        "waiting_turn_ms",
        default=500,
        min=1,
        help="How many milliseconds the leases of a project on the waiting list, one after the other, may search for "
        "room while requests wait for that; all projects together twice as long. A lease that needs more time is "
        "searched for beside requests, which may take what was freed before it.",
    ),
    cfg.IntOpt(
        "start_patience",
        default=60,
        min=0,
        help="How many minutes a start is retried at least if the cloud does not carry it out. After that the lease is "
        "in ERROR. It can be longer, see start_patience_percent.",
    ),
    cfg.IntOpt(
        "start_patience_percent",
        default=10,
        min=0,
        max=100,
        help="How much of a lease's duration, in percent, may pass before its start is given up.",
    ),
    cfg.IntOpt(
        "before_end_patience",
        default=60,
        min=0,
        help="How many minutes the end of a reservation waits for unfinished before-end actions, such as images that "
        "are being saved. After that its servers are deleted all the same.",
    ),
    cfg.IntOpt(
        "reconcile_interval",
        default=60,
        min=1,
        help="The interval in seconds between comparisons of the cloud with the ledger; differences are reconciled.",
    ),
    cfg.IntOpt(
        "preemption_notice",
        default=0,
        min=0,
        help="How many seconds before a start preemptible servers in its way are notified that they will be removed. "
        "Until then, servers of flavors with the property blazar:preemptible may use reserved hosts that have not "
        "started, if the scheduler's filter allows it (allow_preemptibles). 0: they get no notice. If the filter "
        "allows them, they are deleted when the lease starts, and the start is late by the time that this takes.",
    ),
    cfg.IntOpt(
        "inventory_interval",
        default=600,
        min=0,
        help="The interval in seconds between updates of the hosts: their sizes, Placement's inventories and traits, "
        "facts for the property language. Promises that a host can no longer keep are replanned, or flagged if they "
        "run. 0: never; `tenure-manage host sync` does it then.",
    ),
)
_NOTIFICATIONS = (
    cfg.StrOpt(
        "publisher_id", default="blazar.lease", help="The sender of notifications, as consumers of Blazar's expect it."
    ),
)
_METRICS = (
    cfg.PortOpt(
        "port",
        help="The port on which a process serves its metrics to Prometheus; if it is taken, the next free port of the "
        "fifteen behind it. Not set: no metrics.",
    ),
    cfg.HostAddressOpt(
        "host",
        default="127.0.0.1",
        help="The address on which a process serves its metrics. It has no authentication.",
    ),
)
_CLOUD = (
    cfg.FloatOpt(
        "request_timeout",
        default=15.0,
        min=1.0,
        help="How many seconds one HTTP call to a service of the cloud may take.",
    ),
    cfg.FloatOpt(
        "verb_timeout",
        default=30.0,
        min=1.0,
        max=45.0,
        help="How many seconds all calls of one step, such as a start, may take together; after that it is retried.",
    ),
    cfg.IntOpt("concurrency", default=16, min=1, help="How many concurrent HTTP calls to the cloud a manager makes."),
)
#: How Tenure itself logs in to Keystone.
_SERVICE_AUTH = (
    cfg.URIOpt("auth_url", schemes=("http", "https"), help="The address of Keystone, with or without /v3."),
    cfg.StrOpt(
        "username",
        default="tenure",
        deprecated_opts=_deprecated_name("os_admin_username"),
        help="The service user; an administrator, since it sees all hosts and servers and manages aggregates.",
    ),
    cfg.StrOpt(
        "password",
        secret=True,
        deprecated_opts=_deprecated_name("os_admin_password"),
        help="The service user's password.",
    ),
    cfg.StrOpt(
        "user_domain_name",
        default="Default",
        deprecated_opts=_deprecated_name("os_admin_user_domain_name"),
        help="The domain of the service user.",
    ),
    cfg.StrOpt(
        "project_name",
        default="service",
        deprecated_opts=_deprecated_name("os_admin_project_name"),
        help="The project that the service user acts in.",
    ),
    cfg.StrOpt(
        "project_domain_name",
        default="Default",
        deprecated_opts=_deprecated_name("os_admin_project_domain_name"),
        help="The domain of that project.",
    ),
    cfg.StrOpt(
        "cafile",
        deprecated_opts=_deprecated_name("cafile"),
        help="A file with CA certificates for all services; the default is the system's.",
    ),
    cfg.BoolOpt("insecure", default=False, help="Whether to skip certificate checks. Never use it in production."),
)
_ENFORCEMENT = (
    cfg.ListOpt(
        "enabled_filters",
        default=[],
        help="The filters that check leases before they are created or changed, by entry point in "
        "tenure.enforcement_filters, in this order: 'MaxLeaseDurationFilter', 'ExternalServiceFilter', or your own.",
    ),
    cfg.IntOpt(
        "max_lease_duration",
        default=-1,
        min=-1,
        help="The maximum duration of a lease in seconds, if MaxLeaseDurationFilter is enabled; -1 for no limit.",
    ),
    cfg.ListOpt(
        "max_lease_duration_exempt_project_ids",
        default=[],
        help="The ids of projects whose leases may last longer than max_lease_duration.",
    ),
    cfg.URIOpt(
        "external_service_base_endpoint",
        schemes=("http", "https"),
        help="The URL of the service that ExternalServiceFilter calls. Its calls are relative to it, like links in a "
        "page: without a / at its end, the last part of its path is replaced.",
    ),
    cfg.StrOpt(
        "external_service_check_create_endpoint",
        help="The URL to check a new lease, instead of check-create below the base.",
    ),
    cfg.StrOpt(
        "external_service_check_update_endpoint",
        help="The URL to check a change of a lease, instead of check-update below the base.",
    ),
    cfg.StrOpt(
        "external_service_on_end_endpoint",
        help="The URL to report the end of a lease, instead of on-end below the base.",
    ),
    cfg.StrOpt(
        "external_service_commit_create_endpoint",
        help="The URL to report a created lease, such as commit-create below the base; reported only if set.",
    ),
    cfg.StrOpt(
        "external_service_commit_update_endpoint",
        help="The URL to report a changed lease, such as commit-update below the base; reported only if set.",
    ),
    cfg.StrOpt(
        "external_service_token", default="", secret=True, help="The value of X-Auth-Token in its calls, if any."
    ),
    cfg.StrOpt(
        "external_service_bearer_token",
        default="",
        secret=True,
        help="The bearer token in the Authorization header of its calls, if any.",
    ),
    cfg.FloatOpt(
        "external_service_timeout",
        default=10.0,
        min=0.1,
        max=25.0,
        help="The time-out of each of its calls in seconds. Clients wait that long.",
    ),
    cfg.StrOpt(
        "external_service_on_failure",
        default="refuse",
        choices=[
            ("refuse", "leases cannot be created or changed until it answers"),
            ("allow", "leases are not checked; they are still reported when it answers again"),
        ],
        help="What happens to requests while it does not answer, or answers 5xx.",
    ),
    cfg.StrOpt(
        "external_service_cafile",
        help="A file with CA certificates for it; the default is the system's.",
    ),
)
#: The options of a region; an option that is not set has the general value.
REGION = (
    cfg.StrOpt("driver", help="The cloud of the region; by default that of [DEFAULT]."),
    cfg.StrOpt("os_region_name", help="Keystone's name for the region; by default its own name."),
    cfg.URIOpt(
        "auth_url", schemes=("http", "https"), help="The address of its Keystone; by default that of [service_auth]."
    ),
    cfg.StrOpt("username", help="The service user there; by default as in [service_auth]."),
    cfg.StrOpt("password", secret=True, help="The service user's password; by default as in [service_auth]."),
    cfg.StrOpt("user_domain_name", help="The domain of the service user; by default as in [service_auth]."),
    cfg.StrOpt("project_name", help="The project of the service user; by default as in [service_auth]."),
    cfg.StrOpt("project_domain_name", help="The domain of that project; by default as in [service_auth]."),
    cfg.StrOpt("cafile", help="A file with CA certificates for its services; by default as in [service_auth]."),
    cfg.StrOpt("path", help="The file of a simulated region; only one region may use the default."),
)
_QUOTA = (
    cfg.StrOpt(
        "driver",
        default="none",
        choices=[
            ("none", "no limits"),
            ("config", "the option limits, with the same values for every project"),
            ("unified", "unified limits in Keystone; a limit that is not registered there is 0"),
        ],
        help="The source of the projects' limits.",
    ),
    cfg.Opt(
        "limits",
        type=types.Dict(types.Integer(min=-1)),
        default={},
        help="The limits of each project, as name:number,...; -1 for no limit. Names: leases; the amount booked at one "
        "time, by type (hosts, instances, floating_ips, and so on); hours_of_ and one of these, for the sum of their "
        "hours within horizon_days.",
    ),
    cfg.ListOpt(
        "exempt_project_ids", default=[], help="The ids of projects to which the option limits does not apply."
    ),
    cfg.IntOpt(
        "horizon_days",
        default=30,
        min=1,
        help="The number of days from now within which hours are counted.",
    ),
    cfg.FloatOpt(
        "cache_seconds",
        default=5.0,
        min=0,
        help="How long Keystone's limits of a project are cached; for the driver unified.",
    ),
    cfg.StrOpt(
        "on_failure",
        default="deny",
        choices=[
            ("deny", "nothing can be booked or enlarged"),
            ("allow", "the last known limits apply, or none if there are none"),
        ],
        help="What happens while Keystone does not give the limits; for the driver unified.",
    ),
)
_SIMULATED = (
    cfg.StrOpt("path", default="cloud.db", help="The file of the simulated cloud; all managers must reach it."),
)
_NOVA = (
    cfg.StrOpt(
        "endpoint_type",
        default="internal",
        choices=[
            ("public", "the public ones"),
            ("internal", "those for services"),
            ("admin", "those for administrators"),
        ],
        help="Which endpoints of the service catalogue to use, for Nova and all other services.",
    ),
    cfg.StrOpt(
        "image_prefix",
        default="reserved_",
        deprecated_opts=_deprecated_name("image_prefix"),
        help="The prefix of the names of snapshots.",
    ),
    cfg.StrOpt(
        "aggregate_freepool_name",
        default="freepool",
        deprecated_opts=_deprecated_name("aggregate_freepool_name", "physical:host"),
        help="The host aggregate of reservable hosts that are not reserved at the time. The operator creates it.",
    ),
    cfg.StrOpt(
        "blazar_owner",
        default="blazar:owner",
        deprecated_opts=_deprecated_name("blazar_owner", "physical:host"),
        help="The metadata key of a reservation's aggregate whose value is the id of the owning project.",
    ),
    cfg.BoolOpt(
        "az_aware",
        default=True,
        help="Whether to look up the availability zones of hosts, so that leases can ask for them.",
    ),
    cfg.MultiStrOpt(
        "pci_aliases",
        default=[],
        help="The aliases by which flavors ask for PCI devices, each as in [pci] alias of Nova's API, whose scheduler "
        "must have [filter_scheduler] pci_in_placement on. Flavors with other aliases cannot be reserved.",
    ),
)
_SERVER = (
    cfg.BoolOpt(
        "default_lease",
        default=False,
        help="Whether servers that are booted without a lease get one, so that forgotten servers come to an end.",
    ),
    cfg.IntOpt("default_lease_days", default=30, min=1, help="The duration of the lease of such a server in days."),
    cfg.IntOpt(
        "default_lease_spread_hours",
        default=24,
        min=0,
        help=(
            "How many hours longer such a lease lasts at most, by the server's id, so that the servers that got their "
            "leases together are not all shelved together; 0 for none."
        ),
    ),
    cfg.IntOpt(
        "default_leases_per_pass",
        default=100,
        min=1,
        help="How many such leases a manager requests at most in one pass; passes begin every minute.",
    ),
    cfg.BoolOpt(
        "default_lease_notifications",
        default=False,
        help=(
            "Whether to look for new and deleted servers as soon as Nova notifies of one, on the topics of "
            "[physical:host] notification_topics, and not only every minute."
        ),
    ),
    cfg.IntOpt(
        "default_notice_hours",
        default=72,
        min=1,
        help="How many hours before the end of such a lease the notification is sent; at most half of its duration.",
    ),
    cfg.StrOpt(
        "default_at_end",
        default="shelve",
        choices=[
            ("shelve", "it is shelved, and uses no host"),
            ("stop", "it is shut down"),
            ("delete", "it is deleted"),
        ],
        help="What happens to such a server at the end of its lease.",
    ),
    cfg.ListOpt(
        "default_lease_exempt_project_ids",
        default=[],
        help="The ids of projects whose servers get no such lease, such as those of other services.",
    ),
)
_HOST = (
    cfg.StrOpt(
        "blazar_az_prefix",
        default="blazar_",
        help="The prefix of the availability zone of a reservation's aggregate.",
    ),
    cfg.StrOpt(
        "before_end",
        default="",
        choices=[
            ("", "nothing"),
            ("snapshot", "an image of each server is created for its owner"),
            ("notify", "a notification with the reservation is sent"),
        ],
        help="What happens to a reservation of hosts at the before-end event of its lease, unless the user sets it.",
    ),
    cfg.BoolOpt(
        "enable_notification_monitor",
        default=False,
        help="Whether to listen to Nova's notifications about failed hosts.",
    ),
    cfg.ListOpt(
        "notification_topics",
        default=["versioned_notifications"],
        help="The topics on which Nova publishes versioned notifications.",
    ),
    cfg.StrOpt(
        "notification_exchange",
        default="nova",
        help="The exchange of those topics: [DEFAULT] control_exchange of Nova.",
    ),
    cfg.BoolOpt("enable_polling_monitor", default=True, help="Whether to poll Nova for failed hosts."),
    cfg.IntOpt("polling_interval", default=60, min=1, help="The interval in seconds between two polls."),
    cfg.IntOpt(
        "healing_interval",
        default=0,
        min=0,
        help="Reservations on failed hosts are moved if they start within this many minutes; 0 for no limit.",
    ),
    cfg.IntOpt(
        "replace_after",
        default=5,
        min=-1,
        help="How many minutes a host must be down before a running lease gets another host, and loses its servers on "
        "the failed one; -1 for never.",
    ),
    cfg.BoolOpt(
        "private_properties_asked_for",
        default=False,
        help="Whether users may ask for hosts by properties that are private. They see no value then, but can find it "
        "out by asking.",
    ),
)

#: What the operations of each lane are.
_OPERATIONS_OF_LANES: Mapping[Lane, str] = {
    Lane.READING: "requests that only read what is stored",
    Lane.SEARCHING: "searches, dry runs, alternatives to refusals, availability and usage",
    Lane.BOOKING: "changes of leases and resources",
}
_LANES: Sequence[cfg.Opt] = [
    option
    for lane, bounds in USUAL.items()
    for option in (
        cfg.IntOpt(
            f"{lane.value}_running",
            default=bounds.running,
            min=1,
            help=f"How many {_OPERATIONS_OF_LANES[lane]} a manager carries out concurrently.",
        ),
        cfg.IntOpt(
            f"{lane.value}_running_of_project",
            default=bounds.running_of_project,
            min=1,
            help="How many of these belong to one project.",
        ),
        cfg.IntOpt(
            f"{lane.value}_waiting",
            default=bounds.waiting,
            min=0,
            help="How many more wait for that. Beyond this number they get a 503 with Retry-After at once.",
        ),
        cfg.IntOpt(
            f"{lane.value}_waiting_of_project",
            default=bounds.waiting_of_project,
            min=0,
            help="How many of those that wait belong to one project.",
        ),
        cfg.FloatOpt(
            f"{lane.value}_wait",
            default=bounds.wait_seconds,
            min=0.0,
            help="How many seconds they wait. After that they get a 503 with Retry-After.",
        ),
    )
]

_PURGE = (
    cfg.IntOpt(
        "ended_leases_days",
        default=0,
        min=0,
        help="After how many days leases that have ended or were deleted are deleted for good, with their history and "
        "their messages; accounts of earlier periods say that they are incomplete then. 0: never; `tenure-manage db "
        "purge` does it.",
    ),
    cfg.IntOpt(
        "deleted_before_start",
        default=1000,
        min=0,
        help="How many leases that were deleted before they began are kept of each project; they are in no accounts. "
        "0: all of them.",
    ),
    cfg.IntOpt(
        "delivered_messages_days",
        default=7,
        min=0,
        help="After how many days messages that have arrived are deleted; those to services that keep accounts are "
        "kept as long as their lease lasts. 0: never.",
    ),
    cfg.IntOpt(
        "feed_hours",
        default=1,
        min=1,
        help="For how many hours the entries of the ledger's feed are kept. A manager that has not read it for longer "
        "reads the whole ledger again.",
    ),
)

#: All options by group, in the order of the file.
OPTIONS: Mapping[str, Sequence[cfg.Opt]] = {
    "DEFAULT": _DEFAULT,
    "api": _API,
    "cloud": _CLOUD,
    "database": _DATABASE,
    "enforcement": _ENFORCEMENT,
    "lanes": _LANES,
    "manager": _MANAGER,
    "metrics": _METRICS,
    "notifications": _NOTIFICATIONS,
    "nova": _NOVA,
    "physical:host": _HOST,
    "purge": _PURGE,
    "region:<name>": REGION,
    "quota": _QUOTA,
    "virtual:server": _SERVER,
    "service_auth": _SERVICE_AUTH,
    "simulated": _SIMULATED,
}


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for oslo's generator of sample files."""
    return [(group, list(options)) for group, options in OPTIONS.items()]


def new_config() -> cfg.ConfigOpts:
    """Return a configuration with our options; nothing has been read yet."""
    conf = cfg.ConfigOpts()
    for group, options in OPTIONS.items():
        if options is not REGION:
            conf.register_opts(options, group=None if group == "DEFAULT" else group)
    return conf


def read_config(
    conf: cfg.ConfigOpts, arguments: Sequence[str], *, files: Iterable[Path] = (), prog: str | None = None
) -> None:
    """Read the command line and the configuration files: those it names, else ``files``, else the usual ones.

    Raises ``cfg.Error`` for a file that cannot be read. For a wrong command line it ends the process, as argparse does.
    """
    defaults = [str(file) for file in files] or None
    conf(list(arguments), project=PROJECT, prog=prog, version=metadata.version(PROJECT), default_config_files=defaults)
