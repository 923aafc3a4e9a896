"""Requests to the services of a cloud: what a transport carries, and what their answers mean.

Nothing here knows HTTP beyond its words. A ``Transport`` takes requests to a cloud: ``http`` over the network.
"""

from __future__ import annotations

import json
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

#: What people call the services.
_NAMES: Final = {
    "compute": "Nova",
    "placement": "Placement",
    "image": "Glance",
    "identity": "Keystone",
    "network": "Neutron",
    "block-storage": "Cinder",
}
#: Statuses that may be others the next time. 401 is what is left when a new token did not help either; 406 comes from
#: a service of an older version than we had before, while it is exchanged.
_PASSING: Final = frozenset({401, 406, 408, 413, 425, 429})
_LONGEST_TEXT: Final = 300


class Conflict(CloudBusy):
    """The cloud says that something else is there, or goes on (409)."""


class BadRequest(CloudRefused):
    """The cloud does not take the request (400)."""


class Forbidden(CloudRefused):
    """The cloud does not let this account do that (403)."""


class Unauthorized(CloudBusy):
    """Keystone or a service does not take the account or its token (401)."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lease, as whom the service acts by a trust. ``account`` is the transport's own."""

    trust_id: str
    account: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a service: a method, a path behind the service's endpoint, a body to be sent as JSON.

    It is sent in the service's own name, or as ``owner``, or with ``token``, which a caller has given to us.
    """

    service: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    microversion: str | None = None
    owner: Owner | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def is_of_owner(self) -> bool:
        """Whether it is sent in the name of the lease's owner, who may then read the answer."""
        return self.owner is not None or self.token is not None


#: Asking Keystone for a token.
LOGIN: Final = Request("identity", "POST", "/auth/tokens")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """For which verb of the driver a request is sent, how long it may take, and under which id services log it."""

    verb: str
    seconds: float
    request_id: str | None = None


class Transport(Protocol):
    """The way to a cloud, for any number of threads side by side."""

    #: How many requests it sends side by side.
    concurrency: int

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make the call in a thread of the transport, or at once. Raises ``CloudBusy`` when it is closed."""

    def send(self, request: Request, circumstances: Circumstances) -> Any:
        """The JSON that the service answers with, None for an empty answer; raises a ``CloudError``."""

    def owner(self, trust_id: str) -> Owner:
        """The owner who gave this trust. Nothing is sent."""

    def log_in(self, owner: Owner, circumstances: Circumstances) -> None:
        """Log in as the owner; raises a ``CloudError`` where that does not work."""

    def user_id(self, circumstances: Circumstances) -> str:
        """The id of the service's own user; raises a ``CloudError``."""

    def close(self) -> None:
        """Send no more requests."""


class Calls:
    """The requests of one verb, which together take no longer than ``timeout``; with ``is_long``, after each answer."""

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
        """How many requests are sent side by side."""
        return self._transport.concurrency

    def send(self, request: Request) -> Any:
        """The JSON that the service answers with; raises a ``CloudError``."""
        return self._alone(partial(self._transport.send, request))

    def send_all(self, requests: Sequence[Request]) -> list[Any]:
        """The answer to each request, or its ``CloudError``, in their order; they are sent side by side.

        When the time of the verb is up, the requests without an answer have a ``CloudBusy``. Those that were not begun
        are not sent then.
        """
        return self._together([partial(self._transport.send, request) for request in requests])

    def owner(self, trust_id: str) -> Owner:
        """The owner who gave this trust; nothing is sent before a request is."""
        return self._transport.owner(trust_id)

    def log_in(self, owner: Owner) -> None:
        """Log in as the owner; raises a ``CloudError`` where that does not work."""
        self._alone(partial(self._transport.log_in, owner))

    def user_id(self) -> str:
        """The id of the service's own user; raises a ``CloudError``."""
        return str(self._alone(self._transport.user_id))

    def _alone(self, call: Callable[[Circumstances], Any]) -> Any:
        (answer,) = self._together([call])
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def _together(self, calls: Sequence[Callable[[Circumstances], Any]]) -> list[Any]:
        """What each call returns, or its ``CloudError``.

        Never more of them wait for a thread than there are threads: a verb of many calls lets others in between.
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
            if self._is_long:  # only what arrives gives more time: an outage is over after that of one verb
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
    """What people call the service."""
    return _NAMES.get(service, service)


def answer_to(request: Request, status: int, text: str) -> Any:
    """The JSON of an answer, None for an empty one; raises the ``CloudError`` that the status means."""
    if status >= 300:
        raise refusal(request, status, text)
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise CloudBusy(f"{name_of(request.service)} answered something that is no JSON.") from None


def refusal(request: Request, status: int, text: str) -> CloudError:
    """The error that an answer with such a status means."""
    name = name_of(request.service)
    whole = f"{name}: {_message(text) or 'no reason is given'} (HTTP {status})"
    said = (
        Reason(whole) if request.is_of_owner and status < 500 else Reason(f"{name} answers with HTTP {status}.", whole)
    )
    match status:
        case 400:
            return BadRequest(said)
        case 401:
            return Unauthorized(said)
        case 403:
            return Forbidden(said)
        case 404:
            return CloudNotFound(said)
        case 409:
            return Conflict(said)
        case _ if status in _PASSING or status >= 500 or 300 <= status < 400:
            return CloudBusy(said)
        case _:
            return CloudRefused(said)


def _message(text: str) -> str:
    """The sentence in an error's body, however the service wraps it up."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return ""
    if isinstance(found, dict) and isinstance(found.get("errors"), list) and found["errors"]:
        found = found["errors"][0]
    while isinstance(found, dict):
        found = found.get("message") or found.get("detail") or next(iter(found.values()), "")
    return " ".join(str(found).split())[:_LONGEST_TEXT] if isinstance(found, str) else ""
