"""The operations between the API and the manager, each with its arguments and its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from tenure.rpc.wire import decode, encode
from tenure.services.context import new_id
from tenure.services.manager import OPERATIONS, SERVICES, Manager

#: The argument that holds the id of a new lease.
NEW_IDS: Mapping[str, str] = {"leases.create": "lease_id", "leases.add_reservation": "reservation_id"}


@dataclass(frozen=True)
class Operation:
    """A use case with its name, and the conversion of its arguments and its result to plain values."""

    name: str
    signature: inspect.Signature
    hints: Mapping[str, Any]

    @property
    def service(self) -> str:
        """The service of the manager that has it; empty for the manager itself."""
        return self.name.rpartition(".")[0]

    @property
    def verb(self) -> str:
        return self.name.rpartition(".")[2]

    def encode_arguments(self, *positional: object, **named: object) -> dict[str, Any]:
        """Return the arguments as plain values, by name. Raises ``TypeError`` for arguments that do not fit.

        New things get their id here. So a manager that receives the same message twice finds what the first one made.
        """
        bound = self.signature.bind(*positional, **named)
        if self.name in NEW_IDS:
            bound.arguments.setdefault(NEW_IDS[self.name], new_id())
        return {name: encode(value, self.hints[name]) for name, value in bound.arguments.items()}

    def decode_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the decoded arguments. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for invalid ones."""
        return {name: decode(value, self.hints[name]) for name, value in arguments.items()}

    def encode_result(self, result: object) -> Any:
        return encode(result, self.hints["return"])

    def decode_result(self, result: Any) -> Any:
        return decode(result, self.hints["return"])

    def bound_to(self, manager: Manager) -> Callable[..., Any]:
        """Return the method that carries out the use case."""
        owner: object = getattr(manager, self.service) if self.service else manager
        method: Callable[..., Any] = getattr(owner, self.verb)
        return method


def _declare(name: str) -> Operation:
    service, _, verb = name.rpartition(".")
    if not service:
        hints = get_type_hints(Manager)[verb]
        return Operation(name, inspect.Signature(), {"return": hints.__args__[-1]})
    method = getattr(SERVICES[service], verb)
    signature = inspect.signature(method)
    without_self = signature.replace(parameters=list(signature.parameters.values())[1:])
    return Operation(name, without_self, get_type_hints(method))


#: All operations by name; nothing else can be called.
TABLE: Mapping[str, Operation] = {name: _declare(name) for name in sorted(OPERATIONS)}
