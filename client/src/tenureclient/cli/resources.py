"""The commands for the resources of all types: list, show, create, set, delete, disable, enable, reallocate.

An entry point names a command by its type and its verb, as in ``tenureclient.cli.resources:volume_pool_list``; the
list of what a lease has is ``lease_volume_pools``. The types say what is particular to them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from osc_lib import exceptions

from tenureclient.cli.arguments import sort_option
from tenureclient.cli.command import ErrorCollector, ReservationCommand, ReservationLister, ReservationShowOne
from tenureclient.cli.lease_options import LEASE
from tenureclient.cli.printable import printable
from tenureclient.cli.render import Shown, Table
from tenureclient.client import Client
from tenureclient.inventory import Inventory, ResourceChange, ResourceType
from tenureclient.options import Argument, OneOf, Option, options_of
from tenureclient.resources import INVENTORIES

_REGION = Option("--region", "NAME", help="The region that it is in (default: the service's home region)")
Change = ResourceChange[Any]


class OfType(ReservationCommand):
    """A command for the resources of the type of an inventory."""

    of: ClassVar[type[Inventory[Any, Any]]]

    @property
    def type(self) -> ResourceType[Any, Any]:
        return self.of.resource_type

    @property
    def arguments(self) -> Sequence[Argument]:
        help_text = f"{self.type.name_or_id} of the {self.type.noun}"
        return (Option(field="resource", metavar=self.type.metavar, help=help_text),)


class ListResources(OfType, ReservationLister):
    """A command that lists resources."""

    @property
    def arguments(self) -> Sequence[Argument]:
        declared = self.type
        shown = f"{', '.join(declared.sortable)} (default: {declared.sorted_by})"
        sort_by = sort_option(declared.words.replace(" ", "_"), declared.sortable, declared.sorted_by, shown)
        taking = Option("--reservable", rule=True, help=f"Only {declared.some} that take reservations")
        closed = f"Only {declared.some} that take none, for example {declared.closed} ones"
        taking_none = Option("--not-reservable", rule=False, field="reservable", help=closed)
        return (sort_by, OneOf(taking, taking_none), *options_of(declared.query).values())

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        declared = self.type
        query = {**self.fields_given(declared.query, parsed_args), "reservable": parsed_args.reservable}
        by, usual = parsed_args.sort_by, declared.sorted_by
        resources = sorted(
            self.client().inventory(self.of).matching(query),
            key=lambda resource: (declared.sort_value(resource, by), declared.sort_value(resource, usual)),
        )
        return self.table(resources, declared.listed, parsed_args)


class ShowResource(OfType, ReservationShowOne):
    """A command that shows a resource."""

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return self.shown(self.client().inventory(self.of).find(parsed_args.resource))


class CreateResource(OfType, ReservationShowOne):
    """A command that registers a resource."""

    @property
    def arguments(self) -> Sequence[Option]:
        return (*self.type.registration, _REGION)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return self.shown(self.client().inventory(self.of).register(self.given(self.arguments, parsed_args)))


class SetResource(OfType, ReservationShowOne):
    """A command that changes fields of a resource."""

    @property
    def arguments(self) -> Sequence[Argument]:
        return (*super().arguments, *self.type.changes)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        inventory = self.client().inventory(self.of)
        resource_id = inventory.find(parsed_args.resource).id
        return self.shown(inventory.change(resource_id, self.given(self.type.changes, parsed_args)))


class DeleteResources(OfType):
    """A command that removes resources from the service."""

    @property
    def arguments(self) -> Sequence[Argument]:
        help_text = f"{self.type.name_or_id} of a {self.type.noun}"
        return (Option(field="resources", metavar=self.type.metavar, count="+", help=help_text),)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        inventory = self.client().inventory(self.of)

        def delete(name: str) -> None:
            inventory.delete(inventory.find(name).id)
            self.output.write(f"Deleted {self.type.noun}: {printable(name)}\n")

        collector = ErrorCollector()
        collector.run_for(dict.fromkeys(parsed_args.resources), delete)
        collector.raise_collected(len(parsed_args.resources), f"{self.type.noun}s were not deleted")


class ChangeResource(OfType, ReservationLister):
    """A command that affects reservations: it shows what would happen and asks before it acts."""

    @property
    def arguments(self) -> Sequence[Argument]:
        dry_run = Option("--dry-run", flag=True, help="Only show what would be done")
        return (*super().arguments, dry_run, Option("--yes", flag=True, help="Do it without asking"))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        client = self.client()
        resource_id = client.inventory(self.of).find(parsed_args.resource).id
        if not parsed_args.yes or parsed_args.dry_run:
            plan = self.change(client, resource_id, parsed_args, dry_run=True)
            if parsed_args.dry_run:
                return self._affected(plan, parsed_args)
            self._confirm(self.describe(parsed_args.resource, plan))
        return self._affected(self.change(client, resource_id, parsed_args, dry_run=False), parsed_args)

    def change(self, client: Client, resource_id: str, parsed_args: argparse.Namespace, *, dry_run: bool) -> Change:
        """Make the change; with ``dry_run``, only return what it would do."""
        raise NotImplementedError

    def describe(self, name: str, plan: Change) -> str:
        """Return what would be done, as a sentence."""
        raise NotImplementedError

    def _confirm(self, sentence: str) -> None:
        """Ask the user; raise ``CommandError`` unless they agree."""
        if not self.app.stdin.isatty():
            raise exceptions.CommandError(f"{sentence} Nothing was done. Say --yes to do it without being asked.")
        self.app.stderr.write(f"{sentence} Do it? [y/N] ")
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise exceptions.CommandError("Nothing was done.")

    def _affected(self, change: Change, parsed_args: argparse.Namespace) -> Table:
        shown = ("lease_id", "status", "start_date", "end_date", "moves_to", "reason")
        return self.table(change.reservations, shown, parsed_args)


class DisableResource(ChangeResource):
    """A command that closes a resource to new reservations."""

    @property
    def arguments(self) -> Sequence[Argument]:
        return (*super().arguments, Option("--reason", "TEXT", default="", help="Why, for other administrators"))

    def change(self, client: Client, resource_id: str, parsed_args: argparse.Namespace, *, dry_run: bool) -> Change:
        return client.inventory(self.of).disable(resource_id, reason=parsed_args.reason, dry_run=dry_run)

    def describe(self, name: str, plan: Change) -> str:
        return f"{name} takes no new reservations; those that have a part in it keep it: {len(plan.reservations)}."


class EnableResource(ChangeResource):
    """A command that opens a resource to reservations again."""

    def change(self, client: Client, resource_id: str, parsed_args: argparse.Namespace, *, dry_run: bool) -> Change:
        return client.inventory(self.of).enable(resource_id, dry_run=dry_run)

    def describe(self, name: str, plan: Change) -> str:
        if plan.resource.reservable:
            return f"{name} takes reservations again."
        return f"{name} takes reservations again as soon as it is well; it is {plan.resource.health}."


class ReallocateResource(ChangeResource):
    """A command that moves the reservations of a resource to others."""

    @property
    def arguments(self) -> Sequence[Argument]:
        lease = Option("--lease", "LEASE", help="Only of this lease, by name or id")
        loses = f"Also what has started: the lease gets another {self.type.noun} and loses its {self.type.lost}"
        return (*super().arguments, lease, Option("--running", flag=True, help=f"{loses} on this one"))

    def change(self, client: Client, resource_id: str, parsed_args: argparse.Namespace, *, dry_run: bool) -> Change:
        lease_id = None if parsed_args.lease is None else client.leases.find(parsed_args.lease).id
        return client.inventory(self.of).reallocate(
            resource_id, lease_id=lease_id, running=parsed_args.running, dry_run=dry_run
        )

    def describe(self, name: str, plan: Change) -> str:
        moving = [reservation for reservation in plan.reservations if reservation.moves_to is not None]
        running = sum(reservation.status == "held" for reservation in moving)
        lost = f" {running} of them run, and lose their {self.type.lost} there." if running else ""
        return (
            f"Of {len(plan.reservations)} reservations on {name}, {len(moving)} move to other {self.type.noun}s.{lost}"
        )


class ListResourcesOfLease(OfType, ReservationLister):
    """A command that lists the resources of a lease."""

    arguments = (LEASE,)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        client = self.client()
        resources = client.leases.resources(client.leases.find(parsed_args.lease).id, self.of)
        return self.table(resources, self.type.listed_of_lease, parsed_args)


_VERBS: Mapping[str, type[OfType]] = {
    "list": ListResources,
    "show": ShowResource,
    "create": CreateResource,
    "set": SetResource,
    "delete": DeleteResources,
    "disable": DisableResource,
    "enable": EnableResource,
    "reallocate": ReallocateResource,
    "of lease": ListResourcesOfLease,
}


@cache
def commands() -> Mapping[str, type[OfType]]:
    """Return the commands of all types by the names that entry points have for them."""
    made: dict[str, type[OfType]] = {}
    for inventory in INVENTORIES.values():
        declared = inventory.resource_type
        for verb, text in declared.help.items():
            name = f"lease_{declared.list_key}" if verb == "of lease" else f"{declared.words} {verb}".replace(" ", "_")
            own = {"__module__": __name__, "__doc__": text.description, "examples": text.examples, "of": inventory}
            made[name] = type(name, (_VERBS[verb],), own)
    return made


def __getattr__(name: str) -> type[OfType]:
    """Return a command by the name that entry points have for it."""
    try:
        return commands()[name]
    except KeyError:
        raise AttributeError(f"no type of resources has a command {name}") from None


def __dir__() -> Iterable[str]:
    return [*globals(), *commands()]
