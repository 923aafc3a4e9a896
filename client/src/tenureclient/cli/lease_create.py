"""lease create"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path

from osc_lib import exceptions

from tenureclient.cli.alternatives import CreateAlternatives, Dates
from tenureclient.cli.arguments import length_option
from tenureclient.cli.command import ReservationShowOne
from tenureclient.cli.lease_options import (
    DRY_RUN,
    NOTIFY,
    DatedCommand,
    date_options,
    refuse_wait,
    wait_for,
    wait_options,
)
from tenureclient.cli.render import Shown
from tenureclient.cli.reservation_options import (
    NEXT_CHOICE,
    RESERVATION_OPTIONS,
    first_choice,
    read_choices,
    types_help,
)
from tenureclient.cli.window_options import WINDOW_OPTIONS, has_window, read_window
from tenureclient.errors import NotEnoughResources
from tenureclient.models import DryRun, NewLease
from tenureclient.moments import DURATION_FORMS, MOMENT_FORMS, NOW, Moment
from tenureclient.offers import StartWindow
from tenureclient.options import Group, OneOf, Option, options_of
from tenureclient.reservation_request import BootRequest

DEFAULT_LENGTH = timedelta(hours=24)


class CreateLease(DatedCommand, ReservationShowOne):
    """Reserve resources for a stretch of time.

    Books everything that the options ask for, or nothing. If resources are not free, the answer says how many
    there are, how many match, and how many of those are free. The commands below it book what is possible.

    With --within, --earliest, --latest, --on or --between, the lease gets the first period that fits. With
    --or, it gets the first of several choices that fits; what is described before --or comes first.

    With --wait-if-full, a lease that does not fit waits for room, up to its latest start: it is WAITING and
    holds nothing. Leases get room in the order of their requests.

    With --boot, servers are made when the lease starts, one for each reservation of virtual:server that has a
    server_name. Until then they are in 'planned server list'.
    """

    examples = (
        ("bio-42 --hosts 2 --for 3d", "two hosts, from now, for three days"),
        (
            "web --instances 4 --vcpus 2 --ram 4g --disk 20 --anti-affinity --for 1w",
            "four instances of a size, each on another host",
        ),
        (
            "lab --instances 2 --flavor 3 --floating-ips 2 --network 5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001 --for 1d",
            "two instances of a flavor, and two addresses to reach them",
        ),
        (
            "bio-42 --hosts 2-4 --with 'vcpus>=8' --with gpu=v100 --start 'friday 14:00' --for 8h --wait",
            "two to four hosts with properties, waiting for the start",
        ),
        (
            "bio-42 --hosts 4 --with gpu=a100 --or --hosts 8 --with gpu=v100 --for 3d --within 2w",
            "four hosts of one kind, or else eight of another, as soon as they are free in two weeks",
        ),
        (
            "bio-42 --hosts 4 --for 3d --within 2w --wait-if-full --confirm-within 12h",
            "four hosts within two weeks, even if none are free yet; to be confirmed within 12h then",
        ),
        (
            "web --reservation resource_type=virtual:server,flavor_id=4,server_name=web --boot web.json"
            " --start 'friday 14:00' --for 8h",
            "a server that is made on friday",
        ),
        ("bio-42 --hosts 2 --for 3d --dry-run", "book nothing, and see what it would take"),
        (
            "bio-42 --start-date '2027-03-01 09:30' --end-date '2027-03-02 09:30' --reservation"
            ' \'resource_type=physical:host,min=1,max=1,resource_properties=[">=", "$vcpus", "8"]\'',
            "as with python-blazarclient",
        ),
    )

    notes = types_help()
    formatters_last = True
    arguments = (
        Option(field="name", metavar="LEASE", help="Name for the lease"),
        OneOf(*date_options("start", f"Start, in local time: {MOMENT_FORMS} (default: now)")),
        OneOf(
            length_option(f"Length: {DURATION_FORMS} (default: 24h)"),
            *date_options(
                "end",
                "End, written like the start; +2h counts from now, a day or a time of day from the start",
            ),
        ),
        OneOf(
            *date_options("before-end", "When to warn of the end, or make a snapshot (default: as the cloud decides)")
        ),
        NOTIFY,
        Group("an open start, in place of --start and --end", *WINDOW_OPTIONS),
        *RESERVATION_OPTIONS,
        NEXT_CHOICE,
        Option("--event", "KEY=VALUE[,KEY=VALUE...]", gather=list, help="Accepted from old scripts; has no effect"),
        *options_of(NewLease).values(),
        Option(
            "--boot-microversion",
            "VERSION",
            help="With --boot: Nova's microversion of the request, in numbers (default: 2.1)",
        ),
        DRY_RUN,
        *wait_options("until the lease is ACTIVE"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        choices = read_choices(parsed_args)
        window = self._window(parsed_args)
        start = self.read_date(parsed_args, "start") or NOW
        end = self._end(parsed_args, start)
        before_end = self.read_instant(parsed_args, "before_end", after=start)
        refuse_wait(parsed_args)
        if parsed_args.hold_for and parsed_args.wait:
            raise exceptions.CommandError("--hold: a held lease does not start; --wait waits for nothing.")
        if parsed_args.confirm_within and not parsed_args.wait_if_full:
            raise exceptions.CommandError("--confirm-within: only a lease that may wait is confirmed later.")
        if parsed_args.hold_for and parsed_args.wait_if_full:
            raise exceptions.CommandError("--hold: a lease that may wait is held by --confirm-within.")
        if parsed_args.wait_if_full and window is None and start == NOW:
            raise exceptions.CommandError(
                "--wait-if-full: a lease that starts now cannot wait. Say until when it may start with"
                " --within or --latest, such as --within 2d, or give a later --start."
            )
        if parsed_args.event:
            self.log.warning("--event has no effect; --notify DATE MESSAGE sends a notification at a moment.")
        events = self.read_notify(parsed_args, after=start)
        has_choices = len(choices) > 1
        fields = self.fields_given(NewLease, parsed_args)
        fields |= {
            "start": start if window is None else None,
            "end": end if window is None else None,
            "window": window,
            "before_end": before_end,
            "reservations": () if has_choices else choices[0],
            "any_of": choices if has_choices else (),
            "events": events,
            "boot": _boot(parsed_args),
        }
        client = self.client()
        try:
            lease = client.leases.create(parsed_args.name, dry_run=parsed_args.dry_run, **fields)
        except NotEnoughResources as error:
            dates = Dates(self.date_of(start), end, before_end, tuple(events))
            options = first_choice(parsed_args)
            types = [reservation.resource_type for reservation in choices[0]]
            raise CreateAlternatives(self, options, types, dates).refusal(error) from error
        if isinstance(lease, DryRun):
            return self.shown(lease)
        if parsed_args.wait:
            lease = wait_for(client, lease.id, parsed_args)
        if lease.status == "WAITING":
            self.log.warning("There is no room for it yet: it is on the waiting list.")
        return self.shown(lease)

    def _window(self, parsed_args: argparse.Namespace) -> StartWindow | None:
        """Return when the lease may start; None if its start is fixed."""
        if not has_window(parsed_args):
            return None
        for name in ("start", "start_date", "end", "end_date", "before_end", "before_end_date", "notify"):
            if getattr(parsed_args, name) not in (None, []):
                raise exceptions.CommandError(
                    f"--{name.replace('_', '-')}: the start is open, so no date depends on it; give either."
                )
        return read_window(self, parsed_args, parsed_args.length or DEFAULT_LENGTH)

    def _end(self, parsed_args: argparse.Namespace, start: Moment) -> datetime:
        end = self.read_instant(parsed_args, "end", after=start)
        if end is not None:
            return end
        length: timedelta = parsed_args.length or DEFAULT_LENGTH
        try:
            return self.date_of(start) + length
        except OverflowError:
            raise exceptions.CommandError("--for: the end is too far away.") from None


def _boot(parsed_args: argparse.Namespace) -> BootRequest | None:
    """Return the request by which servers are made at the start; None if there is none. Raises ``CommandError``."""
    if parsed_args.boot is None:
        if parsed_args.boot_microversion is not None:
            raise exceptions.CommandError("--boot-microversion: it is the microversion of a request; give --boot, too.")
        return None
    try:
        is_input = parsed_args.boot == "-"
        request = json.loads(sys.stdin.read() if is_input else Path(parsed_args.boot).read_text(encoding="utf-8"))
    except OSError as error:
        raise exceptions.CommandError(f"--boot: {error}") from error
    except (ValueError, RecursionError) as error:
        raise exceptions.CommandError(f"--boot: {parsed_args.boot} is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise exceptions.CommandError(f'--boot: {parsed_args.boot} is no object such as {{"server": {{...}}}}.')
    version = {} if parsed_args.boot_microversion is None else {"microversion": parsed_args.boot_microversion}
    return BootRequest(request, **version)
