"""The option --dry-run of commands that make or change a lease."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Any

from osc_lib import exceptions

from tenureclient.cli.command import ReservationShowOne
from tenureclient.cli.render import DataColumn, Row, plain, row_of
from tenureclient.dry_run import DryRun
from tenureclient.options import Option

#: What ``take_action`` returns if there is nothing to print in the output format.
NO_FIELDS: tuple[Sequence[str], Sequence[object]] = ((), ())


DRY_RUN = Option(
    "--dry-run",
    flag=True,
    help="Change nothing; print the lease as it would be, its cost, and the limits of the project",
)


def refuse_wait(parsed_args: argparse.Namespace) -> None:
    """Raise ``CommandError`` if a dry run is to be waited for."""
    if parsed_args.dry_run and parsed_args.wait:
        raise exceptions.CommandError("--dry-run: it changes nothing; --wait waits for nothing.")


@row_of.register
def _dry_run_row(dry_run: DryRun, zone: tzinfo | None) -> Row:
    """Return the fields that are printed: those of the lease, then cost and limits."""
    return {
        **row_of(dry_run.lease, zone),
        "cost": DataColumn(plain(dry_run.cost), _cost_lines(dry_run)),
        "limits": DataColumn(plain(dry_run.limits), _limit_lines(dry_run)),
        "unasked_filters": DataColumn(list(dry_run.unasked_filters), dry_run.unasked_filters),
    }


class DryRunCommand(ReservationShowOne):
    """A command that prints a line of text when it changes a lease, and the fields of a dry run."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        return super().produce_output(parsed_args, column_names, data) if column_names else 0


def _cost_lines(dry_run: DryRun) -> Iterator[str]:
    for cost in dry_run.cost:
        is_changed = cost.hours_before not in (0, cost.hours)
        before = f" ({cost.hours_before} without the change)" if is_changed else ""
        yield f"{cost.name}: {cost.amount} at a time, {cost.hours} hours{before}"


def _limit_lines(dry_run: DryRun) -> Iterator[str]:
    """Yield the usage that would change, and the limits of the resources that the lease has."""
    names = {cost.name for cost in dry_run.cost}
    for limit in dry_run.limits:
        is_of_lease = limit.name.removeprefix("hours_of_") in names
        if limit.used == limit.would_use and (limit.limit < 0 or not is_of_lease):
            continue
        most = "no limit" if limit.limit < 0 else f"of {limit.limit}"
        yield f"{limit.name}: {limit.used} used, would be {limit.would_use} ({most})"
