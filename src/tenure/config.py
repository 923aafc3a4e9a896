"""What an operator can set, for the processes that run beside a real cloud.

The names are Blazar's where the meaning is the same, so that a ``blazar.conf`` needs little work. Nothing here is
global: a process makes one ``ConfigOpts`` and hands it down.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from oslo_config import cfg, types

PROJECT = "tenure"
#: Where the configuration is looked for without ``--config-file``: this folder, if the variable is not set.
CONFIG_DIR = "/etc/tenure"
CONFIG_DIR_VARIABLE = "OS_TENURE_CONFIG_DIR"

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
        help="The cloud, by its entry point in tenure.drivers: 'openstack', or 'simulated' to try Tenure out.",
    ),
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "Keystone, by keystonemiddleware"),
            ("token_file", "the file that [api] token_file names"),
        ],
        help="Who says who a caller is.",
    ),
    cfg.ListOpt(
        "regions",
        default=[],
        help="The regions where one Tenure serves several, the home region first: that of requests which name none, "
        "and of what was there before there were regions. Each has a group of its own, such as [region:north].",
    ),
    cfg.StrOpt(
        "state_path",
        help="The folder in which drivers of resource types by others may keep files; all managers share it.",
    ),
    cfg.StrOpt("os_region_name", help="The region whose services Tenure uses; needed where Keystone knows several."),
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
        "pool_timeout", default=30.0, min=0.1, help="How many seconds to wait for a connection where all are in use."
    ),
)
_API = (
    cfg.URIOpt(
        "public_url",
        schemes=("http", "https"),
        help="The URL of the API's root as clients see it, for links; without it, it is told from each request.",
    ),
    cfg.IntOpt(
        "threads",
        default=16,
        min=1,
        help="How many requests one tenure-api process serves side by side; a WSGI server has its own setting.",
    ),
    cfg.StrOpt(
        "token_file",
        help="The file of users and their tokens where auth_strategy is token_file. Its mode must be 0600.",
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
        help="What this manager is called on the message bus and in logs. No two managers may share a name.",
    ),
    cfg.IntOpt(
        "rpc_threads",
        default=16,
        min=2,
        help="How many calls of the API one manager serves side by side; half of them may wait for the cloud.",
    ),
    cfg.IntOpt(
        "workers",
        default=16,
        min=1,
        help="How many starts a manager carries out side by side, and as many other events, and as many requests. "
        "One of several regions has three quarters of them at most.",
    ),
    cfg.IntOpt(
        "minutes_before_end_lease",
        default=60,
        min=0,
        help="How many minutes before its end the before-end event of a lease comes, if the user has not said it; "
        "0 for none.",
    ),
    cfg.IntOpt(
        "max_attempts",
        default=10,
        min=1,
        help="How often a start, a change or a before-end action is tried at least; an end is tried for ever.",
    ),
    cfg.IntOpt(
        "planning_time",
        default=5,
        min=1,
        help="For how many seconds a request may look for room. Then it is answered with 503, and nothing has changed.",
    ),
    cfg.IntOpt(
        "start_patience",
        default=60,
        min=0,
        help="For how many minutes at least a start is tried that the cloud does not make, before the lease is in "
        "ERROR; for longer where start_patience_percent says so.",
    ),
    cfg.IntOpt(
        "start_patience_percent",
        default=10,
        min=0,
        max=100,
        help="How much of the time of a lease, in percent, may pass until its start is given up.",
    ),
    cfg.IntOpt(
        "before_end_patience",
        default=60,
        min=0,
        help="For how many minutes the end of a reservation waits for what is to be done before it and is not done, "
        "such as images that are being saved. Then its servers are deleted all the same.",
    ),
    cfg.IntOpt(
        "repair_interval",
        default=60,
        min=1,
        help="How many seconds lie between two comparisons of the cloud with the ledger; what differs is mended.",
    ),
    cfg.IntOpt(
        "preemption_notice",
        default=0,
        min=0,
        help="For how many seconds before a start preemptible servers that are in its way are told that they go. What "
        "is reserved and has not started may be used by servers of flavors with the property blazar:preemptible then, "
        "as the scheduler's filter allows (allow_preemptibles). 0: nobody may use it, and none is looked for.",
    ),
    cfg.IntOpt(
        "inventory_interval",
        default=600,
        min=0,
        help="How many seconds lie between two looks at what hosts have: their sizes, Placement's inventories and "
        "traits, facts for the property language. What was promised and is not there any more is planned anew, or "
        "flagged where it runs. 0: never; `tenure-manage host sync` does it then.",
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
        help="The port on which a process shows its metrics to Prometheus; where it is taken, the next free of the "
        "fifteen behind it. Without it there are none.",
    ),
    cfg.HostAddressOpt(
        "host",
        default="127.0.0.1",
        help="The address on which a process shows its metrics. Nobody is asked who he is there.",
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
        help="How many seconds all calls of one step may take together, such as a start; then it is tried again.",
    ),
    cfg.IntOpt("concurrency", default=16, min=1, help="How many HTTP calls to the cloud a manager makes side by side."),
)


def _once(name: str, group: str = "DEFAULT") -> list[cfg.DeprecatedOpt]:
    """What Blazar calls an option, or has called it once and still reads."""
    return [cfg.DeprecatedOpt(name, group=group)]


#: How Tenure itself logs in at Keystone.
_SERVICE_AUTH = (
    cfg.URIOpt("auth_url", schemes=("http", "https"), help="The address of Keystone, with or without /v3."),
    cfg.StrOpt(
        "username",
        default="tenure",
        deprecated_opts=_once("os_admin_username"),
        help="The service user; an administrator, since it sees all hosts and servers and manages aggregates.",
    ),
    cfg.StrOpt(
        "password", secret=True, deprecated_opts=_once("os_admin_password"), help="The service user's password."
    ),
    cfg.StrOpt(
        "user_domain_name",
        default="Default",
        deprecated_opts=_once("os_admin_user_domain_name"),
        help="The domain of the service user.",
    ),
    cfg.StrOpt(
        "project_name",
        default="service",
        deprecated_opts=_once("os_admin_project_name"),
        help="The project that the service user acts in.",
    ),
    cfg.StrOpt(
        "project_domain_name",
        default="Default",
        deprecated_opts=_once("os_admin_project_domain_name"),
        help="The domain of that project.",
    ),
    cfg.StrOpt(
        "cafile",
        deprecated_opts=_once("cafile"),
        help="A file with the certificates of authorities for all services; without it, the system's.",
    ),
    cfg.BoolOpt("insecure", default=False, help="Whether certificates are not checked. Never use it in production."),
)
_ENFORCEMENT = (
    cfg.ListOpt(
        "enabled_filters",
        default=[],
        help="Who is asked before a lease is made or changed, by entry points in tenure.enforcement_filters, in this "
        "order: 'MaxLeaseDurationFilter', 'ExternalServiceFilter', and what the site has installed of its own.",
    ),
    cfg.IntOpt(
        "max_lease_duration",
        default=-1,
        min=-1,
        help="How many seconds a lease may last, where MaxLeaseDurationFilter is enabled; -1 for as long as it likes.",
    ),
    cfg.ListOpt(
        "max_lease_duration_exempt_project_ids",
        default=[],
        help="The ids of projects whose leases may last longer than max_lease_duration.",
    ),
    cfg.URIOpt(
        "external_service_base_endpoint",
        schemes=("http", "https"),
        help="The URL of the service that ExternalServiceFilter asks; its calls are relative to it, as links in a page "
        "are: without a / at its end, the last part of its path is replaced.",
    ),
    cfg.StrOpt(
        "external_service_check_create_endpoint",
        help="Where it is asked about a new lease, instead of check-create below the base.",
    ),
    cfg.StrOpt(
        "external_service_check_update_endpoint",
        help="Where it is asked about a change of a lease, instead of check-update below the base.",
    ),
    cfg.StrOpt(
        "external_service_on_end_endpoint",
        help="Where it is told that a lease is over, instead of on-end below the base.",
    ),
    cfg.StrOpt(
        "external_service_commit_create_endpoint",
        help="Where it is told that a lease was made, such as commit-create below the base; it is told only if set.",
    ),
    cfg.StrOpt(
        "external_service_commit_update_endpoint",
        help="Where it is told that a lease was changed, such as commit-update below the base; it is told only if set.",
    ),
    cfg.StrOpt("external_service_token", default="", secret=True, help="What it is sent as X-Auth-Token, if anything."),
    cfg.StrOpt(
        "external_service_bearer_token",
        default="",
        secret=True,
        help="What it is sent as bearer token in Authorization, if anything.",
    ),
    cfg.FloatOpt(
        "external_service_timeout",
        default=10.0,
        min=0.1,
        max=25.0,
        help="How many seconds one call of it may take. Clients wait for as long.",
    ),
    cfg.StrOpt(
        "external_service_on_failure",
        default="refuse",
        choices=[
            ("refuse", "there are no new leases, and no changes, until it does"),
            ("allow", "it is not asked then; it is told of the lease all the same, when it answers again"),
        ],
        help="What becomes of requests while it does not answer, or answers 5xx.",
    ),
    cfg.StrOpt(
        "external_service_cafile",
        help="A file with the certificates of authorities that vouch for it; without it, the system's.",
    ),
)
#: What a region says for itself; what it does not say is as for all of them.
REGION = (
    cfg.StrOpt("driver", help="The cloud of the region; that of [DEFAULT] unless set."),
    cfg.StrOpt("os_region_name", help="What Keystone calls the region; its own name unless set."),
    cfg.URIOpt(
        "auth_url", schemes=("http", "https"), help="The address of its Keystone; that of [service_auth] unless set."
    ),
    cfg.StrOpt("username", help="The service user there; as in [service_auth] unless set."),
    cfg.StrOpt("password", secret=True, help="The service user's password; as in [service_auth] unless set."),
    cfg.StrOpt("user_domain_name", help="The domain of the service user; as in [service_auth] unless set."),
    cfg.StrOpt("project_name", help="The project of the service user; as in [service_auth] unless set."),
    cfg.StrOpt("project_domain_name", help="The domain of that project; as in [service_auth] unless set."),
    cfg.StrOpt("cafile", help="The authorities that the services of the region are trusted by; as in [service_auth]."),
    cfg.StrOpt("path", help="The file of a simulated region; must be set for each but one."),
)
_QUOTA = (
    cfg.StrOpt(
        "driver",
        default="none",
        choices=[
            ("none", "nobody: nothing is limited"),
            ("config", "the option limits, the same for every project"),
            ("unified", "Keystone, by its unified limits; what is not registered there is 0"),
        ],
        help="Who says how much a project may have booked.",
    ),
    cfg.Opt(
        "limits",
        type=types.Dict(types.Integer(min=-1)),
        default={},
        help="How much a project may have, as name:number,...; -1 for no limit. Names: leases; what is booked at one "
        "time, by type (hosts, instances, floating_ips, and so on); hours_of_ and one of these, for the hours of all "
        "of them within horizon_days.",
    ),
    cfg.ListOpt("exempt_project_ids", default=[], help="The ids of projects that the option limits is not for."),
    cfg.IntOpt(
        "horizon_days",
        default=30,
        min=1,
        help="How many days from now on what is limited by hours is counted.",
    ),
    cfg.FloatOpt(
        "cache_seconds",
        default=5.0,
        min=0,
        help="How long what Keystone has said of a project is taken for true; for the driver unified.",
    ),
    cfg.StrOpt(
        "on_failure",
        default="deny",
        choices=[
            ("deny", "nothing is booked or enlarged"),
            ("allow", "the limits hold that were told last, and none where none were told"),
        ],
        help="What happens while Keystone does not tell the limits; for the driver unified.",
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
            ("public", "those for everybody"),
            ("internal", "those for services"),
            ("admin", "those for administrators"),
        ],
        help="Which endpoints of the service catalogue are used, of Nova and of all other services.",
    ),
    cfg.StrOpt(
        "image_prefix",
        default="reserved_",
        deprecated_opts=_once("image_prefix"),
        help="What the names of snapshots begin with.",
    ),
    cfg.StrOpt(
        "aggregate_freepool_name",
        default="freepool",
        deprecated_opts=_once("aggregate_freepool_name", "physical:host"),
        help="The host aggregate of hosts that can be reserved and are not. The operator makes it.",
    ),
    cfg.StrOpt(
        "blazar_owner",
        default="blazar:owner",
        deprecated_opts=_once("blazar_owner", "physical:host"),
        help="The aggregate's metadata that names the project of a reservation.",
    ),
    cfg.BoolOpt(
        "az_aware",
        default=True,
        help="Whether the availability zone of a host is looked up, so that leases can ask for it.",
    ),
)
_SERVER = (
    cfg.BoolOpt(
        "default_lease",
        default=False,
        help="Whether servers that are booted without a lease get one, so that forgotten ones come to an end.",
    ),
    cfg.IntOpt("default_lease_days", default=30, min=1, help="How many days the lease of such a server lasts."),
    cfg.IntOpt(
        "default_notice_hours",
        default=72,
        min=1,
        help="How many hours before the end of such a lease others are told of it; at most half of its time.",
    ),
    cfg.StrOpt(
        "default_at_end",
        default="shelve",
        choices=[
            ("shelve", "it is shelved, and takes no room"),
            ("stop", "it is shut down"),
            ("delete", "it is deleted"),
        ],
        help="What becomes of such a server at the end of its lease.",
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
        help="What the availability zone of a reservation's aggregate begins with.",
    ),
    cfg.StrOpt(
        "before_end",
        default="",
        choices=[
            ("", "nothing"),
            ("snapshot", "an image is made of each server, for its owner"),
            ("notify", "a notification that names the reservation"),
        ],
        help="What is done for a reservation of hosts at the before-end event of its lease, where the user has not "
        "said it.",
    ),
    cfg.BoolOpt(
        "enable_notification_monitor", default=False, help="Whether to listen to Nova's notifications of failed hosts."
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
    cfg.BoolOpt("enable_polling_monitor", default=True, help="Whether to ask Nova for failed hosts at intervals."),
    cfg.IntOpt("polling_interval", default=60, min=1, help="How many seconds lie between two such questions."),
    cfg.IntOpt(
        "healing_interval",
        default=0,
        min=0,
        help="Minutes ahead for which reservations on failed hosts are moved to others; 0 for no limit.",
    ),
    cfg.IntOpt(
        "replace_after",
        default=5,
        min=-1,
        help="Minutes for which a host must have been down before a running lease gets another one, and loses its "
        "servers there; -1 for never.",
    ),
    cfg.BoolOpt(
        "private_properties_asked_for",
        default=False,
        help="Whether users may ask for hosts by properties that are private. They see no value then, but can find it "
        "out by asking.",
    ),
)

#: All options by their groups, as they stand in the file.
OPTIONS: Mapping[str, Sequence[cfg.Opt]] = {
    "DEFAULT": _DEFAULT,
    "api": _API,
    "cloud": _CLOUD,
    "database": _DATABASE,
    "enforcement": _ENFORCEMENT,
    "manager": _MANAGER,
    "metrics": _METRICS,
    "notifications": _NOTIFICATIONS,
    "nova": _NOVA,
    "physical:host": _HOST,
    "region:<name>": REGION,
    "quota": _QUOTA,
    "virtual:server": _SERVER,
    "service_auth": _SERVICE_AUTH,
    "simulated": _SIMULATED,
}


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options by group, for oslo's generator of sample files."""
    return [(group, list(options)) for group, options in OPTIONS.items()]


def new_config() -> cfg.ConfigOpts:
    """A configuration that knows our options and has read nothing yet."""
    conf = cfg.ConfigOpts()
    for group, options in OPTIONS.items():
        if options is not REGION:
            conf.register_opts(options, group=None if group == "DEFAULT" else group)
    return conf


def read_config(
    conf: cfg.ConfigOpts, arguments: Sequence[str], *, files: Iterable[Path] = (), prog: str | None = None
) -> None:
    """Read the command line and the files: those it names, else ``files``, else the usual ones.

    Raises ``cfg.Error`` for what cannot be read, and ends the process for a wrong command line, as argparse does.
    """
    defaults = [str(file) for file in files] or None
    conf(list(arguments), project=PROJECT, prog=prog, version=metadata.version(PROJECT), default_config_files=defaults)
