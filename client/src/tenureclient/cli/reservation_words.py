"""The options of reservations as words of another command line."""

from __future__ import annotations

import argparse

from tenureclient.cli.reservation_options import add_reservation_options
from tenureclient.reservation_request import ReservationRequest
from tenureclient.reservation_text import format_reservation


def words_of_reservations(parsed_args: argparse.Namespace) -> list[str]:
    """Return the options and values, as on a command line, that describe the same reservations."""
    parser = argparse.ArgumentParser(add_help=False)
    add_reservation_options(parser)
    words: list[str] = []
    for action in parser._actions:
        given = getattr(parsed_args, action.dest)
        if given == action.default:
            continue
        option = action.option_strings[0]
        if action.nargs == 0:  # a flag
            words += [option] if given == action.const else []
            continue
        for value in given if isinstance(given, list) else [given]:
            words += [option, _word(value)]
    return words


def with_amount(parsed_args: argparse.Namespace, amount: int) -> argparse.Namespace:
    """Return the options with another amount of their only reservation."""
    options = argparse.Namespace(**vars(parsed_args))
    if options.hosts is not None:
        options.hosts = (amount, amount)
    for name in ("instances", "volumes", "floating_ips"):
        if getattr(options, name) is not None or (name == "floating_ips" and options.addresses):
            setattr(options, name, amount)
    options.reservation = [_resized(request, amount) for request in options.reservation]
    return options


def _resized(request: ReservationRequest, amount: int) -> ReservationRequest:
    names = {"min", "max", "amount"} & set(request.parameters)
    return ReservationRequest(request.resource_type, {**request.parameters, **dict.fromkeys(names, amount)})


def _word(value: object) -> str:
    """Return the value of an option as it is written."""
    match value:
        case (int(least), int(most)):
            return str(least) if least == most else f"{least}-{most}"
        case (str(key), str(spec)):
            return f"{key}={spec}"
        case ReservationRequest():
            return format_reservation(value)
    return str(value)
