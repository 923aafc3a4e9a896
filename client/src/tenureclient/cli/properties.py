"""host property list, show, set; host set, unset"""

from __future__ import annotations

import argparse

from osc_lib import exceptions

from tenureclient.cli.arguments import sort_option
from tenureclient.cli.command import ReservationCommand, ReservationLister, ReservationShowOne
from tenureclient.cli.render import Shown, Table, row_of, table
from tenureclient.options import OneOf, Option
from tenureclient.resources.hosts import PROPERTIES

_NAME = Option(field="name", metavar="PROPERTY_NAME", help="Name of the property")
_HOST = Option(field="resource", metavar="HOST", help="Name or id of the host")


class ListHostProperties(ReservationLister):
    """List the properties by which hosts can be chosen."""

    examples = (("--detail", "with the values that hosts have"),)

    arguments = (
        Option("--detail", flag=True, help="Show values and visibility as well"),
        sort_option("property", ("property", "private"), "property", "property or private (default: property)"),
        Option("--all", flag=True, help="Show private properties too (for administrators)"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        host_properties = self.client().properties.list(detail=parsed_args.detail, include_private=parsed_args.all)
        ordered = sorted(host_properties, key=lambda host_property: host_property.name)
        if parsed_args.sort_by == "private":
            ordered.sort(key=lambda host_property: bool(host_property.private))
        shown = ("property", "private", "property_values") if parsed_args.detail else ("property",)
        return table((row_of(host_property, self.zone) for host_property in ordered), shown, ())


class ShowHostProperty(ReservationShowOne):
    """Show a property with the values that hosts have."""

    examples = (("gpu", "one property"),)

    arguments = (_NAME,)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        return self.shown(self.client().properties.show(parsed_args.name))


class SetHostProperty(ReservationCommand):
    """Hide a property from users, or show it to them."""

    examples = (("rack --private", "for administrators only"),)

    arguments = (
        _NAME,
        OneOf(
            Option("--private", flag=True, help="Only administrators see it"),
            Option("--public", flag=True, help="Everybody sees it (default)"),
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.client().properties.set(parsed_args.name, private=parsed_args.private)
        self.output.write(f"Updated host property: {parsed_args.name}\n")


class SetHost(ReservationCommand):
    """Give properties to a host, or change their values."""

    examples = (("compute-1 --extra gpu=a100", "another value"),)

    arguments = (_HOST, PROPERTIES)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.properties:
            raise exceptions.CommandError("Nothing to change: give --extra KEY=VALUE.")
        client = self.client()
        host = client.hosts.find(parsed_args.resource)
        client.hosts.update(host.id, properties=dict(parsed_args.properties))
        self.output.write(f"Updated host: {parsed_args.resource}\n")


class UnsetHost(ReservationCommand):
    """Take properties away from a host."""

    examples = (("compute-1 --extra gpu", "one property"),)

    arguments = (
        _HOST,
        Option("--extra --property", "<key>", gather=list, field="names", help="Name of a property (may be repeated)"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.names:
            raise exceptions.CommandError("Nothing to change: give --extra KEY.")
        client = self.client()
        client.hosts.unset(client.hosts.find(parsed_args.resource).id, parsed_args.names)
        self.output.write(f"Updated host: {parsed_args.resource}\n")
