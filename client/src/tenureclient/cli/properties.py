"""host property list, show, set; host set, unset"""

from __future__ import annotations

import argparse

from osc_lib import exceptions

from tenureclient.cli.arguments import add_arguments
from tenureclient.cli.command import ReservationCommand, ReservationLister, ReservationShowOne
from tenureclient.cli.render import Shown, Table, row_of, table
from tenureclient.resources.hosts import PROPERTIES


class ListHostProperties(ReservationLister):
    """List the properties by which hosts can be chosen."""

    examples = (("--detail", "with the values that hosts have"),)

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--detail", action="store_true", help="Show values and visibility as well")
        parser.add_argument(
            "--sort-by",
            metavar="<property_column>",
            choices=("property", "private"),
            default="property",
            help="Field to sort by: property or private (default: property)",
        )
        parser.add_argument("--all", action="store_true", help="Show private properties too (for administrators)")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        host_properties = self.client().properties.list(detail=parsed_args.detail, include_private=parsed_args.all)
        if parsed_args.sort_by == "private":
            ordered = sorted(
                host_properties, key=lambda host_property: (bool(host_property.private), host_property.name)
            )
        else:
            ordered = sorted(host_properties, key=lambda host_property: host_property.name)
        shown = ("property", "private", "property_values") if parsed_args.detail else ("property",)
        return table((row_of(host_property, self.zone) for host_property in ordered), shown, ())


class ShowHostProperty(ReservationShowOne):
    """Show a property with the values that hosts have."""

    examples = (("gpu", "one property"),)

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="PROPERTY_NAME", help="Name of the property")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return self.shown(self.client().properties.show(parsed_args.name))


class SetHostProperty(ReservationCommand):
    """Hide a property from users, or show it to them."""

    examples = (("rack --private", "for administrators only"),)

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="PROPERTY_NAME", help="Name of the property")
        visibility = parser.add_mutually_exclusive_group()
        visibility.add_argument("--private", action="store_true", help="Only administrators see it")
        visibility.add_argument("--public", action="store_true", help="Everybody sees it (default)")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.client().properties.set(parsed_args.name, private=parsed_args.private)
        self.output.write(f"Updated host property: {parsed_args.name}\n")


class _OfHost(ReservationCommand):
    """A command for the properties of one host."""

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments_to(parser)
        parser.add_argument("resource", metavar="HOST", help="Name or id of the host")


class SetHost(_OfHost):
    """Give properties to a host, or change their values."""

    examples = (("compute-1 --extra gpu=a100", "another value"),)

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments_to(parser)
        add_arguments(parser, {"properties": PROPERTIES})

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.properties:
            raise exceptions.CommandError("Nothing to change: give --extra KEY=VALUE.")
        client = self.client()
        host = client.hosts.find(parsed_args.resource)
        client.hosts.update(host.id, properties=dict(parsed_args.properties))
        self.output.write(f"Updated host: {parsed_args.resource}\n")


class UnsetHost(_OfHost):
    """Take properties away from a host."""

    examples = (("compute-1 --extra gpu", "one property"),)

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments_to(parser)
        parser.add_argument(
            "--extra",
            "--property",
            dest="names",
            metavar="<key>",
            action="append",
            default=[],
            help="Name of a property (may be repeated)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.names:
            raise exceptions.CommandError("Nothing to change: give --extra KEY.")
        client = self.client()
        client.hosts.unset(client.hosts.find(parsed_args.resource).id, parsed_args.names)
        self.output.write(f"Updated host: {parsed_args.resource}\n")
