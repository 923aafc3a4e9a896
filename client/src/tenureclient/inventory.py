"""Operations on registered resources of any type; for administrators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tenureclient import errors
from tenureclient.models import ResourceChange
from tenureclient.transport import Answer, Transport, parsed
from tenureclient.wire import JsonObject, JsonValue, Version

_PAGE = 500
_REGIONS = "regions"


class Registered(Protocol):
    """A resource that is registered with the reservation service."""

    @property
    def id(self) -> str: ...

    @property
    def reservable(self) -> bool: ...


R = TypeVar("R", bound=Registered)


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """The names of one type of resource in the API, and how to read its documents."""

    path: str
    document_key: str
    list_key: str
    noun: str
    #: The field by which people identify a resource.
    name: str
    read: Callable[[JsonValue], R]


class Inventory(Generic[R]):
    """The registered resources of one type."""

    def __init__(self, transport: Transport, kind: Kind[R]) -> None:
        self._transport = transport
        self._kind = kind

    def get(self, resource_id: str) -> R:
        return self._read_resource(self._transport.call("GET", self._kind.path, resource_id))

    def find(self, name_or_id: str) -> R:
        """Return the resource with this name, or else with this id."""
        noun = self._kind.noun
        named = list(self._named(name_or_id))
        if len(named) > 1:
            ids = ", ".join(resource.id for resource in named)
            raise errors.NotUnique(f"Several {noun}s are named '{name_or_id}': {ids}. Give the id.")
        if named:
            return named[0]
        try:
            return self.get(name_or_id)
        except errors.NotFound as error:
            raise errors.NotFound(
                f"There is no {noun} '{name_or_id}'.",
                code=error.code,
                name=error.name,
                request_id=error.request_id,
            ) from error

    def delete(self, resource_id: str) -> None:
        """Remove the resource from the reservation service. No lease may still need it."""
        self._transport.call("DELETE", self._kind.path, resource_id)

    def disable(self, resource_id: str, *, reason: str = "", dry_run: bool = False) -> ResourceChange[R]:
        """Close the resource to new reservations; existing ones keep it. ``dry_run`` only previews."""
        return self._change(resource_id, "disable", {"reason": reason, "dry_run": dry_run})

    def enable(self, resource_id: str, *, dry_run: bool = False) -> ResourceChange[R]:
        """Open the resource to reservations again, as far as it is healthy. ``dry_run`` only previews."""
        return self._change(resource_id, "enable", {"dry_run": dry_run})

    def reallocate(
        self, resource_id: str, *, lease_id: str | None = None, running: bool = False, dry_run: bool = False
    ) -> ResourceChange[R]:
        """Move the resource's reservations, of one lease or of all, to other resources.

        ``dry_run`` only previews. Reservations that have started stay, unless ``running``: then they lose
        what runs on the resource.
        """
        return self._change(resource_id, "reallocate", {"lease_id": lease_id, "running": running, "dry_run": dry_run})

    def _register(self, body: JsonObject | Callable[[Version], JsonObject], region: str | None) -> R:
        """Register a resource, in this region if one is given."""

        def sent(version: Version) -> JsonObject:
            fields = body(version) if callable(body) else body
            return fields if region is None else {**fields, "region": region}

        feature, since = (None, Version.V1_1) if region is None else (_REGIONS, Version.V1_2)
        path = self._kind.path
        return self._read_resource(
            self._transport.call("POST", path, body=sent, feature=feature, since=since, makes=True)
        )

    def _named(self, name: str) -> Iterator[R]:
        """Yield the resources with this name."""
        return self._list({self._kind.name: name}, reservable=None, sort_key="id", descending=False)

    def _list(
        self,
        filters: Mapping[str, str | None],
        *,
        reservable: bool | None,
        sort_key: str,
        descending: bool,
    ) -> Iterator[R]:
        """Yield the resources whose fields match the given filters; pages are fetched as needed."""
        kind = self._kind
        keys = ("id", kind.name)
        if sort_key not in keys:
            raise ValueError(f"{kind.noun.capitalize()}s can be sorted by {', '.join(keys)}, not by {sort_key}.")
        query = {"limit": str(_PAGE), "sort_key": sort_key, "sort_dir": "desc" if descending else "asc"}
        wanted = {name: value for name, value in filters.items() if value is not None}
        query |= wanted
        if reservable is not None:
            query["reservable"] = "true" if reservable else "false"
        feature, since = (_REGIONS, Version.V1_2) if "region" in wanted else (None, Version.V1_1)
        pages = self._transport.pages(
            kind.path,
            items=kind.list_key,
            query=query,
            read=kind.read,
            feature=feature,
            since=since,
        )
        first = next(pages, None)
        if first is None:
            return
        if self._transport.version is Version.V1_0:  # API 1.0 ignores filters
            fitting = [
                resource
                for resource in (first, *pages)
                if all(getattr(resource, name) == value for name, value in wanted.items())
                and reservable in (None, resource.reservable)
            ]
            yield from sorted(fitting, key=lambda resource: str(getattr(resource, sort_key)), reverse=descending)
            return
        yield first
        yield from pages

    def _change(self, resource_id: str, action: str, body: JsonObject) -> ResourceChange[R]:
        answer = self._transport.call(
            "POST",
            self._kind.path,
            resource_id,
            action,
            body=lambda _version: body,
            feature=f"closing and emptying {self._kind.noun}s",
            since=Version.V1_2,
        )
        kind = self._kind
        return parsed(lambda body: ResourceChange.from_wire(body, kind.document_key, kind.noun, kind.read), answer.body)

    def _read_resource(self, answer: Answer) -> R:
        return parsed(self._kind.read, answer.body.get(self._kind.document_key))
