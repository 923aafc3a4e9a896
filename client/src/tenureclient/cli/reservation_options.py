"""Options that describe reservations: short options, or ``--reservation`` in full words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from osc_lib import exceptions

from tenureclient.cli.command import reading
from tenureclient.conditions import CONDITION_FORMS, conditions_to_json
from tenureclient.reservation_request import (
    AT_END_ACTIONS,
    BEFORE_END_ACTIONS,
    VOLUMES_AT_END,
    ReservationRequest,
)
from tenureclient.reservation_text import (
    parse_amount,
    parse_count,
    parse_extra_spec,
    parse_reservation,
)
from tenureclient.sizes import parse_size

#: For each option that gives a count: the options that describe what is counted.
_DETAILS = {
    "instances": ("flavor", "vcpus", "ram", "disk", "affinity"),
    "floating_ips": ("network", "addresses"),
    "volumes": ("size", "volume_type", "volumes_at_end"),
}
_OPTIONS = {
    "addresses": "--address",
    "floating_ips": "--floating-ips",
    "affinity": "--affinity",
    "volume_type": "--volume-type",
    "volumes_at_end": "--volumes-at-end",
}


#: The keys of a reservation in full words; those in brackets are optional.
_TYPES = """resource types, for --reservation (what is in brackets may be left out):
  physical:host
    min=COUNT [max=COUNT] [resource_properties=EXPRESSION] [hypervisor_properties=EXPRESSION]
    [vcpus=COUNT] [memory_mb=MB] [disk_gb=GB]
  virtual:instance
    amount=COUNT vcpus=COUNT memory_mb=MB disk_gb=GB [affinity=true|false|none]
    [resource_properties=EXPRESSION]
  flavor:instance
    amount=COUNT flavor_id=ID [affinity=true|false|none]
  virtual:server
    server_id=ID | flavor_id=ID | vcpus=COUNT memory_mb=MB disk_gb=GB
    [at_end=delete|stop|shelve|snapshot] [in_place=true|false] [resource_properties=EXPRESSION]
  virtual:floatingip
    network_id=ID [amount=COUNT] [required_floatingips=["ADDRESS", ...]]
  virtual:volume
    amount=COUNT size_gb=GB [volume_type=TYPE] [at_end=delete|snapshot|keep]
  physical:host and virtual:instance
    [extra_specs={"KEY": "VALUE", ...}]
  all of them but virtual:floatingip and virtual:volume
    [availability_zone=NAME]
  all of them but virtual:server
    [before_end=none|snapshot|notify|default]
  all of them
    [region=NAME]
  EXPRESSION is ["==", "$PROPERTY", "VALUE"], ["in", "$PROPERTY", "VALUE", ...], ["and", EXPRESSION, ...],
  ["or", EXPRESSION, ...] or ["not", EXPRESSION]; besides == there are != >= <= > and <."""


class _NextChoice(argparse.Action):
    """Ends a choice of reservations: the options that describe reservations begin anew."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        described = [action for action in parser._actions if action.dest in _described()]
        choice = {action.dest: getattr(namespace, action.dest) for action in described}
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), argparse.Namespace(**choice)])
        for action in described:
            setattr(namespace, action.dest, action.default)


def add_choice_option(parser: argparse.ArgumentParser) -> None:
    """Add the option between the choices of a lease."""
    parser.add_argument(
        "--or",
        dest="choices",
        nargs=0,
        action=_NextChoice,
        default=[],
        help="What follows describes other reservations, which are booked if those before do not fit (may be repeated)",
    )


def read_choices(parsed_args: argparse.Namespace) -> Sequence[Sequence[ReservationRequest]]:
    """Return the reservations of each choice. Raises ``CommandError``."""
    return [read_some_reservations(choice) for choice in [*parsed_args.choices, parsed_args]]


def first_choice(parsed_args: argparse.Namespace) -> argparse.Namespace:
    """Return the options as if the first choice were the only one."""
    first = vars(parsed_args.choices[0]) if parsed_args.choices else {}
    return argparse.Namespace(**{**vars(parsed_args), **first, "choices": []})


@cache
def _described() -> frozenset[str]:
    """Return the names under which the options that describe reservations are read."""
    parser = argparse.ArgumentParser(add_help=False)
    add_reservation_options(parser)
    return frozenset(action.dest for action in parser._actions)


class _Rule(argparse.Action):
    """Sets a rule; another one for the same choice is an error."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) not in (None, self.const):
            raise argparse.ArgumentError(self, "not allowed with the opposite")
        setattr(namespace, self.dest, self.const)


def add_reservation_options(parser: argparse.ArgumentParser) -> None:
    hosts = parser.add_argument_group("whole hosts")
    hosts.add_argument(
        "--hosts",
        metavar="COUNT",
        type=reading(parse_count),
        help="Reserve whole hosts: 2, or 2-4 for at least 2 and up to 4",
    )
    hosts.add_argument(
        "--with",
        dest="conditions",
        metavar="CONDITION",
        action="append",
        default=[],
        help="A condition on each of the hosts, or on each host of instances that have a size of their own:"
        f" {CONDITION_FORMS}, or an expression of the API (may be repeated; all must hold)",
    )
    hosts.add_argument(
        "--extra-spec",
        dest="extra_specs",
        metavar="KEY=VALUE",
        type=reading(parse_extra_spec),
        action="append",
        default=[],
        help="A condition on those hosts, written as in flavors: capabilities: and a fact of the host,"
        " or one of their properties, such as 'capabilities:vcpus=>= 8' or 'gpu=<or> a100 <or> v100' (may be"
        " repeated; all must hold)",
    )
    _add_instances(parser.add_argument_group("instances, on hosts that serve others as well"))
    _add_server(parser.add_argument_group("one server"))
    _add_floating_ips(parser.add_argument_group("floating IPs"))
    _add_volumes(parser.add_argument_group("volumes"))
    general = parser.add_argument_group("reservations in general")
    general.add_argument(
        "--region",
        metavar="NAME",
        help="The region in which the options above reserve (default: the home region of the service)",
    )
    general.add_argument(
        "--zone",
        metavar="NAME",
        help="The availability zone of the hosts, the instances and the server that the options above reserve"
        " (default: any)",
    )
    general.add_argument(
        "--before-end-action",
        metavar="ACTION",
        choices=BEFORE_END_ACTIONS,
        help="What happens before the end of the lease, for what the options above reserve: none, snapshot"
        " (of each server), notify (a notification of the service) or default (as the operator has set)",
    )
    general.add_argument(
        "--reservation",
        metavar="KEY=VALUE[,KEY=VALUE...]",
        type=reading(parse_reservation),
        action="append",
        default=[],
        help="A reservation of any resource type in full words, such as"
        " resource_type=physical:host,min=1,max=2; commas in brackets or quotes belong to the value (may be"
        " repeated)",
    )
    parser.epilog = f"{parser.epilog}\n\n{_TYPES}"
    # Output options come last in the help: users look for them last.
    parser._action_groups.sort(key=lambda group: "formatter" in (group.title or ""))


def _add_instances(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--instances",
        metavar="COUNT",
        type=reading(parse_amount),
        help="Reserve room for this many instances, of the size that the next options give",
    )
    parser.add_argument("--flavor", metavar="FLAVOR_ID", help="The size and the requirements of a flavor of the cloud")
    parser.add_argument("--vcpus", metavar="COUNT", type=reading(parse_amount), help="Virtual processors of each")
    parser.add_argument(
        "--ram", metavar="SIZE", type=reading(parse_size("m")), help="Memory of each, in MB, or such as 4g"
    )
    parser.add_argument(
        "--disk",
        metavar="SIZE",
        type=reading(parse_size("g")),
        help="Disk of each, in GB, or such as 1t (default: 0, for instances that boot from a volume)",
    )
    # Not an exclusive group: its options could not be in different choices.
    parser.add_argument(
        "--affinity",
        nargs=0,
        action=_Rule,
        const=True,
        help="All of them on one host (default: no rule)",
    )
    parser.add_argument(
        "--anti-affinity",
        dest="affinity",
        nargs=0,
        action=_Rule,
        const=False,
        help="Each of them on a host of its own",
    )


def _add_server(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--server",
        metavar="SERVER_ID",
        help="Reserve this server: it is shelved until the start, and unshelved then on reserved room",
    )
    parser.add_argument(
        "--server-flavor",
        metavar="FLAVOR_ID",
        help="Reserve room for a server of this flavor; name it later, with server_id=... in lease set",
    )
    parser.add_argument(
        "--at-end",
        metavar="ACTION",
        choices=AT_END_ACTIONS,
        help="What happens to the server at the end: delete (the default), stop, shelve, or snapshot (an"
        " image of it, and then its deletion)",
    )
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="The server stays where it is; the lease only sets its end",
    )


def _add_floating_ips(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--floating-ips",
        metavar="COUNT",
        type=reading(parse_amount),
        help="Reserve this many addresses (default: as many as there are --address)",
    )
    parser.add_argument("--network", metavar="NETWORK_ID", help="Id of the addresses' external network")
    parser.add_argument(
        "--address",
        dest="addresses",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="An address that must be among them (may be repeated)",
    )


def _add_volumes(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--volumes", metavar="COUNT", type=reading(parse_amount), help="Reserve this many volumes")
    parser.add_argument(
        "--size", metavar="SIZE", type=reading(parse_size("g")), help="Size of each, in GB, or such as 1t"
    )
    parser.add_argument(
        "--volume-type", metavar="TYPE", help="Name or id of their volume type (default: the cloud's default)"
    )
    parser.add_argument(
        "--volumes-at-end",
        choices=VOLUMES_AT_END,
        metavar="ACTION",
        help="What happens to them when the lease ends: delete (default), keep, or snapshot (one of each;"
        " the volume stays as well)",
    )


def read_reservations(parsed_args: argparse.Namespace) -> Sequence[ReservationRequest]:
    """Return the reservations that the options describe, in the order of their help; full words come last."""
    conditions_to_json(parsed_args.conditions)  # report unreadable conditions before anything else
    action = parsed_args.before_end_action
    zone = parsed_args.zone
    servers = [request.with_place(zone) for request in (*_hosts(parsed_args), *_instances(parsed_args))]
    addresses = [*_floating_ips(parsed_args), *_volumes(parsed_args)]
    server = [request.with_place(zone) for request in _server(parsed_args)]
    short = [
        *(request.with_before_end(action) for request in servers),
        # Addresses have no snapshots. Snapshots of volumes are for --volumes-at-end.
        *(request.with_before_end(None if action == "snapshot" else action) for request in addresses),
        *server,
    ]
    if action == "snapshot" and addresses and not servers:
        raise exceptions.CommandError(
            "--before-end-action: addresses have no snapshot; for them there is none, notify or default."
            " For volumes there is --volumes-at-end."
        )
    if action and len(short) == len(server):
        raise exceptions.CommandError(
            "--before-end-action: it is for --hosts, --instances, --floating-ips and --volumes;"
            " a --reservation has before_end=... of its own."
        )
    if zone is not None and not servers and not server:
        raise exceptions.CommandError(
            "--zone: it is for --hosts, --instances, --server and --server-flavor; a --reservation has"
            " availability_zone=... of its own."
        )
    if parsed_args.region is not None and not short:
        raise exceptions.CommandError(
            "--region: it is for --hosts, --instances and --floating-ips; a --reservation has region=... of its own."
        )
    return [*(request.in_region(parsed_args.region) for request in short), *parsed_args.reservation]


def read_some_reservations(parsed_args: argparse.Namespace) -> Sequence[ReservationRequest]:
    """Return the reservations like ``read_reservations``; raise ``CommandError`` if there are none."""
    reservations = read_reservations(parsed_args)
    if not reservations:
        raise exceptions.CommandError(
            "Say what to reserve, with --hosts, --instances, --floating-ips or --reservation."
        )
    return reservations


def _hosts(parsed_args: argparse.Namespace) -> Iterator[ReservationRequest]:
    for option in _host_options(parsed_args):
        if parsed_args.hosts is None and parsed_args.instances is None:
            raise exceptions.CommandError(f"{option}: say how many hosts with --hosts, or --instances.")
        if parsed_args.hosts is not None and parsed_args.instances is not None:
            raise exceptions.CommandError(
                f"{option}: it is not clear whether it is for the hosts or for the instances; write one of"
                " them as --reservation."
            )
    if parsed_args.hosts is not None:
        least, most = parsed_args.hosts
        wanted = ReservationRequest.hosts(least, most, conditions=parsed_args.conditions)
        yield wanted.with_place(extra_specs=_extra_specs(parsed_args))


def _host_options(parsed_args: argparse.Namespace) -> Sequence[str]:
    """Return the given options that restrict the kind of hosts."""
    given = (("--with", parsed_args.conditions), ("--extra-spec", parsed_args.extra_specs))
    return [option for option, value in given if value]


def _extra_specs(parsed_args: argparse.Namespace) -> Mapping[str, str]:
    specs: dict[str, str] = {}
    for key, value in parsed_args.extra_specs:
        if key in specs:
            raise exceptions.CommandError(f"--extra-spec: {key} is given twice.")
        specs[key] = value
    return specs


def _instances(parsed_args: argparse.Namespace) -> Iterator[ReservationRequest]:
    amount = parsed_args.instances
    if amount is None:
        _refuse_details(parsed_args, "instances")
        return
    if parsed_args.flavor is not None:
        for name in ("vcpus", "ram", "disk"):
            if getattr(parsed_args, name) is not None:
                raise exceptions.CommandError(f"--{name}: the size is that of the flavor; give either.")
        for option in _host_options(parsed_args):
            raise exceptions.CommandError(f"{option}: the flavor itself says which hosts its instances need.")
        yield ReservationRequest.flavor(parsed_args.flavor, amount, affinity=parsed_args.affinity)
        return
    if parsed_args.vcpus is None or parsed_args.ram is None:
        raise exceptions.CommandError("--instances: say of which size, with --flavor, or with --vcpus and --ram.")
    wanted = ReservationRequest.instances(
        amount,
        vcpus=parsed_args.vcpus,
        memory_mb=parsed_args.ram,
        disk_gb=parsed_args.disk or 0,
        affinity=parsed_args.affinity,
        conditions=parsed_args.conditions,
    )
    yield wanted.with_place(extra_specs=_extra_specs(parsed_args))


def _server(parsed_args: argparse.Namespace) -> Iterator[ReservationRequest]:
    server, flavor = parsed_args.server, parsed_args.server_flavor
    if server is None and flavor is None:
        for given, option in ((parsed_args.at_end, "--at-end"), (parsed_args.in_place, "--in-place")):
            if given:
                raise exceptions.CommandError(f"{option}: say which server with --server, or --server-flavor.")
        return
    if server is not None and flavor is not None:
        raise exceptions.CommandError("--server-flavor: a server that exists has a flavor; give either.")
    if parsed_args.in_place and server is None:
        raise exceptions.CommandError("--in-place: only a server that is there can stay there; name it with --server.")
    yield ReservationRequest.server(server, flavor_id=flavor, at_end=parsed_args.at_end, in_place=parsed_args.in_place)


def _floating_ips(parsed_args: argparse.Namespace) -> Iterator[ReservationRequest]:
    amount, addresses = parsed_args.floating_ips, parsed_args.addresses
    if amount is None and not addresses:
        _refuse_details(parsed_args, "floating_ips")
        return
    if parsed_args.network is None:
        raise exceptions.CommandError("--floating-ips: say of which network, with --network.")
    if amount is not None and amount < len(addresses):
        raise exceptions.CommandError(f"--floating-ips: {amount} is less than there are --address.")
    yield ReservationRequest.floatingips(parsed_args.network, amount, addresses=addresses)


def _volumes(parsed_args: argparse.Namespace) -> Iterator[ReservationRequest]:
    amount = parsed_args.volumes
    if amount is None:
        _refuse_details(parsed_args, "volumes")
        return
    if parsed_args.size is None:
        raise exceptions.CommandError("--volumes: say of which size, with --size.")
    yield ReservationRequest.volumes(
        amount,
        size_gb=parsed_args.size,
        volume_type=parsed_args.volume_type or "",
        at_end=parsed_args.volumes_at_end or "delete",
    )


def _refuse_details(parsed_args: argparse.Namespace, counted: str) -> None:
    """Refuse options that describe resources of which no count is given."""
    for name in _DETAILS[counted]:
        if getattr(parsed_args, name) not in (None, []):
            option, count = (_OPTIONS.get(option_name, f"--{option_name}") for option_name in (name, counted))
            raise exceptions.CommandError(f"{option}: say how many with {count}.")
