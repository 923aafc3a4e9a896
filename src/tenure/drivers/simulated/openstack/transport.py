"""The transport of the OpenStack driver to a cloud in the same process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from tenure.drivers.openstack.requests import LOGIN, Circumstances, Owner, Request, refusal
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.service import ApiRequest, Caller, Refused, error_body

T = TypeVar("T")

#: The account of the reservation service in the cloud.
SERVICE: Final = Caller("a11ce000000000000000000000000001", "5e41ce00000000000000000000000001", frozenset({"admin"}))


class InProcess:
    """A ``Transport`` to a cloud in the same process: a request is answered in the thread that sends it.

    ``caller_of`` returns the account of a token, None for an unknown token.
    """

    concurrency = 8

    def __init__(self, cloud: OpenStack, caller_of: Callable[[str], Caller | None]) -> None:
        self._cloud = cloud
        self._caller_of = caller_of

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        return future

    def send(self, request: Request, circumstances: Circumstances) -> Any:
        asked = ApiRequest(
            request.service,
            request.method,
            request.path,
            _query(request.params),
            request.body,
            request.microversion,
        )
        self._cloud.verb = circumstances.verb
        try:
            status, body = self._cloud.answer(asked, self._caller(request))
        except Refused as refused:
            raise refusal(request, refused.status, json.dumps(error_body(request.service, refused))) from None
        if status >= 300:
            raise refusal(request, status, json.dumps(body))
        return body

    def has(self, service: str, circumstances: Circumstances) -> bool:
        return service in self._cloud.service_types

    def owner(self, trust_id: str) -> Owner:
        return Owner(trust_id)

    def log_in(self, owner: Owner, circumstances: Circumstances) -> None:
        try:
            with self._cloud.objects.look():
                self._cloud.keystone.acting_as(owner.trust_id)
        except Refused as refused:
            raise refusal(LOGIN, refused.status, json.dumps(error_body(LOGIN.service, refused))) from None

    def user_id(self, circumstances: Circumstances) -> str:
        return SERVICE.user_id

    def close(self) -> None:
        """Do nothing: no request is in progress."""

    def _caller(self, request: Request) -> Caller:
        if request.owner is not None:
            return self._cloud.keystone.acting_as(request.owner.trust_id)
        if request.token is None:
            return SERVICE
        caller = self._caller_of(request.token)
        if caller is None:
            raise Refused(401, "The request you have made requires authentication.")
        return caller


def _query(params: Mapping[str, str | Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Return the parameters one by one, as in a URL."""
    return tuple(
        (name, value) for name, values in params.items() for value in ([values] if isinstance(values, str) else values)
    )
