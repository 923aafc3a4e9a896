"""Options that describe reservations: short options of each type, or ``--reservation`` in full words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from osc_lib import exceptions

from tenureclient.options import Group, Option, every_option
from tenureclient.reservation_request import BEFORE_END_ACTIONS, ReservationRequest
from tenureclient.reservation_text import parse_reservation
from tenureclient.reservation_type import ReservationType
from tenureclient.resources import RESERVATION_TYPES

_TYPES = list(RESERVATION_TYPES.values())
_GENERAL = (
    Option(
        "--region",
        "NAME",
        help="The region in which the options above reserve (default: the home region of the service)",
    ),
    Option(
        "--zone",
        "NAME",
        help="The availability zone of the hosts, the instances and the server that the options above reserve"
        " (default: any)",
    ),
    Option(
        "--before-end-action",
        "ACTION",
        choices=BEFORE_END_ACTIONS,
        help="What happens before the end of the lease, for what the options above reserve: none, snapshot"
        " (of each server), notify (a notification of the service) or default (as the operator has set)",
    ),
    Option(
        "--reservation",
        "KEY=VALUE[,KEY=VALUE...]",
        parse_reservation,
        gather=list,
        help="A reservation of any resource type in full words, such as"
        " resource_type=physical:host,min=1,max=2; commas in brackets or quotes belong to the value (may be"
        " repeated)",
    ),
)


_WITH_ZONE = [reservation_type for reservation_type in _TYPES if reservation_type.has_zone]
_WITH_ACTION = [reservation_type for reservation_type in _TYPES if reservation_type.before_end]


def types_help() -> str:
    """Return the keys of a reservation in full words; those in brackets are optional."""
    lines = ["resource types, for --reservation (what is in brackets may be left out):"]
    for reservation_type in _TYPES:
        lines += [f"  {reservation_type.name}", *(f"    {parameters}" for parameters in reservation_type.parameters)]
    with_specs = _listed([reservation_type.name for reservation_type in _TYPES if reservation_type.has_extra_specs])
    lines += [f"  {with_specs}", '    [extra_specs={"KEY": "VALUE", ...}]']
    with_resources = _listed([reservation_type.name for reservation_type in _TYPES if reservation_type.has_resources])
    lines += [f"  {with_resources}", '    [resources={"CLASS": COUNT, ...}]']
    lines += [f"  {_all_in(_WITH_ZONE)}", "    [availability_zone=NAME]"]
    lines += [f"  {_all_in(_WITH_ACTION)}", f"    [before_end={'|'.join(BEFORE_END_ACTIONS)}]"]
    lines += ["  all of them", "    [region=NAME]"]
    lines += [
        '  EXPRESSION is ["==", "$PROPERTY", "VALUE"], ["in", "$PROPERTY", "VALUE", ...], ["and", EXPRESSION, ...],',
        '  ["or", EXPRESSION, ...] or ["not", EXPRESSION]; besides == there are != >= <= > and <.',
    ]
    return "\n".join(lines)


def _all_in(types: Sequence[ReservationType]) -> str:
    others = [reservation_type.name for reservation_type in _TYPES if reservation_type not in types]
    return f"all of them but {_listed(others)}" if others else "all of them"


def _requesting(types: Sequence[ReservationType]) -> Sequence[str]:
    """Return the options that request something of these types."""
    options = [
        option
        for reservation_type in types
        for option in reservation_type.options
        if option.name in reservation_type.requesting
    ]
    return [option.names for option in options if option.gather is None]


def _listed(names: Sequence[str], word: str = "and") -> str:
    return f" {word} ".join(text for text in (", ".join(names[:-1]), names[-1]) if text)


#: The options of which a command that reserves something needs one.
NEEDED = _listed([*_requesting(_TYPES), "--reservation"], "or")


#: The options that describe reservations, and the names of their fields.
RESERVATION_OPTIONS = (
    *(
        Group(reservation_type.heading, *reservation_type.options)
        for reservation_type in _TYPES
        if reservation_type.options
    ),
    Group("reservations in general", *_GENERAL),
)
DESCRIBING = frozenset(option.name for option in every_option(RESERVATION_OPTIONS))


class _NextChoice(argparse.Action):
    """Ends a choice of reservations: the options that describe reservations begin anew."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        described = [action for action in parser._actions if action.dest in DESCRIBING]
        choice = {action.dest: getattr(namespace, action.dest) for action in described}
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), argparse.Namespace(**choice)])
        for action in described:
            setattr(namespace, action.dest, action.default)


#: The option between the choices of a lease.
NEXT_CHOICE = Option(
    "--or",
    action=_NextChoice,
    default=[],
    field="choices",
    help="What follows describes other reservations, which are booked if those before do not fit (may be repeated)",
)


def read_choices(parsed_args: argparse.Namespace) -> Sequence[Sequence[ReservationRequest]]:
    """Return the reservations of each choice. Raises ``CommandError``."""
    return [read_some_reservations(choice) for choice in [*parsed_args.choices, parsed_args]]


def first_choice(parsed_args: argparse.Namespace) -> argparse.Namespace:
    """Return the options as if the first choice were the only one."""
    first = vars(parsed_args.choices[0]) if parsed_args.choices else {}
    return argparse.Namespace(**{**vars(parsed_args), **first, "choices": []})


def read_reservations(parsed_args: argparse.Namespace) -> Sequence[ReservationRequest]:
    """Return the reservations that the options describe, in the order of their help; full words come last."""
    short = list(_short(parsed_args))
    action = parsed_args.before_end_action
    requested = [reservation_type for reservation_type in _TYPES if reservation_type.is_requested(parsed_args)]
    acting = [reservation_type for reservation_type in requested if reservation_type.before_end]
    if action and acting and not any(action in reservation_type.before_end for reservation_type in acting):
        raise exceptions.CommandError(
            "--before-end-action: addresses have no snapshot; for them there is none, notify or default."
            " For volumes there is --volumes-at-end."
        )
    if action and not acting:
        raise exceptions.CommandError(
            f"--before-end-action: it is for {_listed(_requesting(_WITH_ACTION))};"
            " a --reservation has before_end=... of its own."
        )
    if parsed_args.zone is not None and not any(reservation_type.has_zone for reservation_type in requested):
        raise exceptions.CommandError(
            f"--zone: it is for {_listed(_requesting(_WITH_ZONE))};"
            " a --reservation has availability_zone=... of its own."
        )
    if parsed_args.region is not None and not short:
        raise exceptions.CommandError(
            f"--region: it is for {_listed(_requesting(_TYPES))}; a --reservation has region=... of its own."
        )
    return [*short, *parsed_args.reservation]


def _short(parsed_args: argparse.Namespace) -> Iterator[ReservationRequest]:
    """Yield the reservations that are described by the options of their types."""
    action = parsed_args.before_end_action
    for reservation_type in _TYPES:
        for request in reservation_type.requests(parsed_args):
            placed = request.with_place(parsed_args.zone if reservation_type.has_zone else None)
            acting = placed.with_before_end(action if action in reservation_type.before_end else None)
            yield acting.in_region(parsed_args.region)


def read_some_reservations(parsed_args: argparse.Namespace) -> Sequence[ReservationRequest]:
    """Return the reservations like ``read_reservations``; raise ``CommandError`` if there are none."""
    reservations = read_reservations(parsed_args)
    if not reservations:
        raise exceptions.CommandError(f"Say what to reserve, with {NEEDED}.")
    return reservations
