"""The properties by which hosts can be chosen."""

from __future__ import annotations

from typing import Annotated

from tenureclient import errors
from tenureclient.documents import Document, document
from tenureclient.sent import query_of
from tenureclient.transport import Calls
from tenureclient.wire import Fields


def _property_name(fields: Fields, _name: str) -> str:
    """Return the name of a property. The answer to a change has it under another key than the list."""
    return fields.text("property" if fields.value("property") else "property_name")


@document("a property")
class HostProperty(Document):
    """A property by which hosts can be chosen. ``private`` and ``values`` are sent only in detail."""

    name: Annotated[str, _property_name]
    private: bool | None = None
    values: tuple[str, ...] | None = None


class HostProperties(Calls):
    """Names, values and visibility of the properties of hosts."""

    def list(self, *, detail: bool = False, include_private: bool = False) -> tuple[HostProperty, ...]:
        """Return the properties, with their values if ``detail``. Only administrators see private ones.

        Before API 1.3, the list is for administrators.
        """
        query = query_of(detail=detail, all=include_private)
        answer = self._transport.call("GET", "os-hosts", "properties", query=query)
        return answer.read_each(HostProperty.from_wire, "resource_properties")

    def show(self, name: str) -> HostProperty:
        """Return one property with its values; a private one too, if the caller may see it."""
        for host_property in self.list(detail=True, include_private=True):
            if host_property.name == name:
                return host_property
        raise errors.NotFound(f"No host has a property '{name}'.", code=404, name="NotFound")

    def set(self, name: str, *, private: bool) -> HostProperty:
        """Hide a property from users, or show it to them."""
        answer = self._transport.call("PATCH", "os-hosts", "properties", name, body=lambda _: {"private": private})
        return answer.read(HostProperty.from_wire, "resource_property")
