"""Requests to the services of a cloud, and the meaning of their answers.

This module only uses HTTP's terms. A ``Transport`` sends the requests: ``http`` over the network.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound, CloudRefused

T = TypeVar("T")

#: The names of the services.
_NAMES: Final = {
    "compute": "Nova",
    "placement": "Placement",
    "image": "Glance",
    "identity": "Keystone",
    "network": "Neutron",
    "block-storage": "Cinder",
    "accelerator": "Cyborg",
}
#: Statuses worth a retry. So are 401, which remains if a new token was refused, too, and 406, which comes from a
#: service of an older version during an upgrade.
_PASSING: Final = frozenset({408, 413, 425, 429})
_LONGEST_TEXT: Final = 300


class Conflict(CloudBusy):
    """Something exists already, or another operation is in progress (409)."""


class BadRequest(CloudRefused):
    """The cloud refuses the request as invalid (400)."""


class Forbidden(CloudRefused):
    """The account lacks permission (403)."""


class NotAcceptable(CloudBusy):
    """The service does not have the microversion of the request (406)."""


class Unauthorized(CloudBusy):
    """The account or its token is not accepted (401)."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lease, as whom the service acts by a trust. ``account`` belongs to the transport."""

    trust_id: str
    account: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a service: a method, a path below the endpoint, and a JSON body.

    It is sent as the service, or as ``owner``, or with the ``token`` of a caller.
    """

    service: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    microversion: str | None = None
    owner: Owner | None = None
    token: str | None = field(default=None, repr=False)
    #: Whether the body is a secret, which is in no log, and of which no answer is shown.
    is_secret: bool = False

    @property
    def is_of_owner(self) -> bool:
        """Whether it is sent as the lease's owner, who may then read the answer."""
        return self.owner is not None or self.token is not None


#: The request of a token from Keystone.
LOGIN: Final = Request("identity", "POST", "/auth/tokens")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The driver method for which a request is sent, its timeout, and the id under which services log it."""

    verb: str
    seconds: float
    request_id: str | None = None


class Transport(Protocol):
    """The connection to a cloud, shared by all threads."""

    #: The maximum number of concurrent requests.
    concurrency: int

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run the call in a thread of the transport, or at once. Raises ``CloudBusy`` if it is closed."""

    def send(self, request: Request, circumstances: Circumstances) -> Any:
        """Return the service's answer as JSON, None for an empty one; raise a ``CloudError``."""

    def has(self, service: str, circumstances: Circumstances) -> bool:
        """Whether the catalogue has an endpoint of the service; raise a ``CloudError`` if it cannot be read."""

    def owner(self, trust_id: str) -> Owner:
        """Return the owner of this trust. Sends no request."""

    def log_in(self, owner: Owner, circumstances: Circumstances) -> None:
        """Log in as the owner; raise a ``CloudError``."""

    def user_id(self, circumstances: Circumstances) -> str:
        """Return the id of the service's own user; raise a ``CloudError``."""

    def close(self) -> None:
        """Send no more requests."""


class Calls:
    """The requests of one driver call, which together take no longer than ``timeout``.

    With ``is_long``, the timeout starts again after each answer.
    """

    def __init__(
        self,
        transport: Transport,
        verb: str,
        timeout: timedelta,
        request_id: str | None = None,
        *,
        is_long: bool = False,
    ) -> None:
        self._transport = transport
        self._verb = verb
        self._seconds = timeout.total_seconds()
        self._is_long = is_long
        self._deadline = time.monotonic() + self._seconds
        self._request_id = request_id

    @property
    def concurrency(self) -> int:
        """The maximum number of concurrent requests."""
        return self._transport.concurrency

    def send(self, request: Request) -> Any:
        """Return the service's answer as JSON; raise a ``CloudError``."""
        return self._alone(partial(self._transport.send, request))

    def send_all(self, requests: Sequence[Request]) -> list[Any]:
        """Send requests concurrently; return the answer to each, or its ``CloudError``, in order.

        After the timeout, requests without an answer have a ``CloudBusy``; those that were not begun are not sent.
        """
        return self._together([partial(self._transport.send, request) for request in requests])

    def has(self, service: str) -> bool:
        """Whether the cloud has the service; raise a ``CloudError`` if that cannot be read."""
        return bool(self._alone(partial(self._transport.has, service)))

    def owner(self, trust_id: str) -> Owner:
        """Return the owner of this trust; sends no request."""
        return self._transport.owner(trust_id)

    def log_in(self, owner: Owner) -> None:
        """Log in as the owner; raise a ``CloudError``."""
        self._alone(partial(self._transport.log_in, owner))

    def user_id(self) -> str:
        """Return the id of the service's own user; raise a ``CloudError``."""
        return str(self._alone(self._transport.user_id))

    def _alone(self, call: Callable[[Circumstances], Any]) -> Any:
        (answer,) = self._together([call])
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def _together(self, calls: Sequence[Callable[[Circumstances], Any]]) -> list[Any]:
        """Return the result of each call, or its ``CloudError``.

        A driver call never queues more calls than there are threads, so that other driver calls get their turn.
        """
        answers: list[Any] = []
        waiting: deque[Future[Any]] = deque()
        try:
            for call in calls:
                if len(waiting) == self._transport.concurrency:
                    answers.append(self._answer(waiting.popleft()))
                waiting.append(self._transport.submit(partial(self._in_time, call)))
            while waiting:
                answers.append(self._answer(waiting.popleft()))
        finally:
            for future in waiting:
                future.cancel()
        return answers

    def _answer(self, future: Future[Any]) -> Any:
        try:
            answer = future.result(timeout=max(0.0, self._deadline - time.monotonic()))
            if self._is_long:  # only an answer extends the time: an outage is noticed within one timeout
                self._deadline = time.monotonic() + self._seconds
            return answer
        except FutureTimeout:
            future.cancel()
            return self._too_long()
        except CloudError as error:
            return error

    def _in_time(self, call: Callable[[Circumstances], Any]) -> Any:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_long()
        return call(Circumstances(self._verb, left, self._request_id))

    def _too_long(self) -> CloudBusy:
        return CloudBusy(Reason(f"The cloud took too long for {self._verb}."))


def name_of(service: str) -> str:
    """Return the name of the service."""
    return _NAMES.get(service, service)


def answer_to(request: Request, status: int, text: str) -> Any:
    """Return the JSON of an answer, None for an empty one; raise the ``CloudError`` for its status."""
    if status >= 300:
        raise refusal(request, status, text)
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a deeply nested document is invalid too
        raise CloudBusy(f"{name_of(request.service)} answered something that is no JSON.") from None


#: After this, Nova and Neutron quote what was sent.
_QUOTED: Final = re.compile(r"\s*\bValue: ")


def refusal(request: Request, status: int, text: str) -> CloudError:
    """Return the error for an answer with this status."""
    name = name_of(request.service)
    message = _message(text)
    if request.is_secret:
        message = _QUOTED.split(message)[0]
    full_text = f"{name}: {message or 'no reason is given'} (HTTP {status})"
    reason = (
        Reason(full_text)
        if request.is_of_owner and status < 500
        else Reason(f"{name} answers with HTTP {status}.", full_text)
    )
    match status:
        case 400:
            return BadRequest(reason)
        case 401:
            return Unauthorized(reason)
        case 403:
            return Forbidden(reason)
        case 404:
            return CloudNotFound(reason)
        case 406:
            return NotAcceptable(reason)
        case 409:
            return Conflict(reason)
        case _ if status in _PASSING or status >= 500 or 300 <= status < 400:
            return CloudBusy(reason)
        case _:
            return CloudRefused(reason)


def _message(text: str) -> str:
    """Return the text in an error's body, for all formats of services."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if isinstance(found, dict) and isinstance(found.get("errors"), list) and found["errors"]:
        found = found["errors"][0]
    while isinstance(found, dict):
        found = found.get("message") or found.get("detail") or next(iter(found.values()), "")
    text = " ".join(found.split())[:_LONGEST_TEXT] if isinstance(found, str) else ""
    return "".join(character if character.isprintable() else "?" for character in text)
