"""Between a driver and its cloud: counting changes, interrupting calls, losing answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from tenure.drivers.contract import CloudBusy
from tenure.drivers.openstack.requests import Circumstances, Request
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.service import Caller
from tenure.drivers.simulated.openstack.transport import InProcess
from tenure.testing.breaking import Breaker

_READS = frozenset({"GET", "HEAD", None})


class Wire(HTTPAdapter, Breaker):
    """Wraps a session's requests: a successful request that changes something is an effect."""

    def __init__(self) -> None:
        HTTPAdapter.__init__(self, pool_maxsize=20)
        Breaker.__init__(self, requests.ConnectionError)
        #: The number of the change, counted from now on, whose answer is lost; None for no change.
        self.lose: int | None = None

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        is_change = request.method not in _READS and not (request.url or "").endswith("/auth/tokens")
        if is_change:
            self.strike()
        response = super().send(request, *args, **kwargs)
        if is_change and response.ok:
            self.count()
            with self._lock:
                lost, self.lose = self.lose == 0, None if self.lose in (0, None) else self.lose - 1
            if lost:
                response.close()
                raise requests.ConnectionError("the answer was lost")
        return response


class WireInProcess(InProcess, Breaker):
    """The same for a cloud in this process."""

    def __init__(self, cloud: OpenStack, caller_of: Callable[[str], Caller | None]) -> None:
        InProcess.__init__(self, cloud, caller_of)
        Breaker.__init__(self, CloudBusy)

    def send(self, request: Request, circumstances: Circumstances) -> Any:
        if request.method in _READS:
            return super().send(request, circumstances)
        with self.change():
            return super().send(request, circumstances)
