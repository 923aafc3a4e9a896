"""HTTP calls to a cloud: one session, a bound on everything, and errors that say whether to try again."""

from __future__ import annotations

import json
import logging
import re
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from keystoneauth1 import exceptions, plugin
from keystoneauth1.identity import v3
from keystoneauth1.session import Session, TCPKeepAliveAdapter

from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudBusy, CloudError, CloudNotFound, CloudRefused
from tenure.drivers.openstack.options import OpenStackOptions

if TYPE_CHECKING:
    from requests import Response

LOG = logging.getLogger(__name__)

#: Told of every HTTP call: the service's type, the verb of the driver that made it, what came of it (the status as
#: text, ``timeout`` or ``unreachable``; ``refused`` for a login in an owner's name that failed), and the seconds.
#: A login is a call to ``identity``, whatever the verb is about.
OnCall = Callable[[str, str, str, float], None]

#: What people call the services.
_NAMES: Final = {
    "compute": "Nova",
    "placement": "Placement",
    "image": "Glance",
    "identity": "Keystone",
    "network": "Neutron",
    "block-storage": "Cinder",
}
#: What services are called in the header that names a microversion, where it is not what catalogues call them.
_HEADER_NAMES: Final = {"block-storage": "volume"}
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
class Request:
    """One HTTP call. ``path`` comes after the service's endpoint, or is a whole address.

    ``auth`` stands for another than the service itself; ``token`` for a token that somebody gave us.
    """

    service: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    microversion: str | None = None
    auth: plugin.BaseAuthPlugin | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def is_of_owner(self) -> bool:
        """Whether it is made in the name of who owns what it is about, who may read what is answered."""
        return self.auth is not None or self.token is not None


#: Asking Keystone for a token, which a session does by itself where it has none that lasts.
_LOGIN: Final = Request("identity", "POST", "/auth/tokens")


def open_session(options: OpenStackOptions, *, trust_id: str | None = None) -> Session:
    """A session of the service's account; nothing is sent yet."""
    session = Session(
        auth=password_of(options, trust_id=trust_id),
        verify=False if options.insecure else (options.cafile or True),
        timeout=options.request_timeout.total_seconds(),
        app_name="tenure",
    )
    for scheme in ("https://", "http://"):  # so that as many connections are kept as there may be calls at a time
        session.mount(scheme, TCPKeepAliveAdapter(pool_maxsize=options.concurrency))
    return session


def password_of(options: OpenStackOptions, *, trust_id: str | None = None) -> v3.Password:
    """The service's account: in its own project, or with that trust."""
    in_project = trust_id is None
    return v3.Password(
        auth_url=options.identity_url,
        username=options.username,
        password=options.password,
        user_domain_name=options.user_domain_name,
        project_name=options.project_name if in_project else None,
        project_domain_name=options.project_domain_name if in_project else None,
        trust_id=trust_id,
    )


class Http:
    """The way to a cloud. Safe for any number of threads, which share its connections and its token.

    All calls are made by a few threads of its own: that bounds how many are made at once, and whoever asked waits
    no longer than his verb may take, even for a server that sends one byte a second.
    """

    def __init__(
        self,
        session: Session,
        options: OpenStackOptions,
        *,
        on_call: OnCall | None = None,
        request_id: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.session = session
        self.concurrency = options.concurrency
        self._options = options
        self._on_call = on_call
        self._request_id = request_id
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="openstack")

    def begin(self, verb: str, *, is_long: bool = False) -> Calls:
        """The calls of one verb, which together have ``verb_timeout``; with ``is_long``, from each answer on anew."""
        return Calls(self, verb, self._options.verb_timeout.total_seconds(), self._request_id(), is_long=is_long)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.session.close()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        try:
            return self._threads.submit(call)
        except RuntimeError:  # closed meanwhile
            raise CloudBusy(Reason("The connection to the cloud is being closed.")) from None

    def send(self, request: Request, verb: str, seconds: float, request_id: str | None) -> Any:
        """The JSON that a call answers with, None for an empty answer; raises a ``CloudError``."""
        if request.token is None:
            self._log_in(request.auth, verb)
        response = self._ask(request, verb, seconds, request_id)
        if response.status_code == 401 and request.token is None and self.session.invalidate(request.auth):
            self._log_in(request.auth, verb)
            response = self._ask(request, verb, seconds, request_id)
        if response.status_code >= 300:
            raise refusal(request, response.status_code, response.text)
        return _json(request, response.text)

    def _log_in(self, auth: plugin.BaseAuthPlugin | None, verb: str) -> None:
        """See to it that there is a token; raises a ``CloudError``."""
        account = auth or self.session.auth
        before = getattr(account, "auth_ref", None)
        outcome = "unreachable"
        began = time.monotonic()
        try:
            with translated(_LOGIN):
                try:
                    self.session.get_token(auth)
                except exceptions.HttpError as error:
                    outcome = str(error.http_status)
                    raise
            outcome = "201"
        except _TimedOut:
            outcome = "timeout"
            raise
        finally:
            if outcome != "201" or getattr(account, "auth_ref", None) is not before:  # else there was a token
                self._tell(_LOGIN.service, verb, outcome, began)

    def _ask(self, request: Request, verb: str, seconds: float, request_id: str | None) -> Response:
        """The answer to a call, whatever its status; raises a ``CloudError`` where there is none."""
        outcome = "unreachable"
        began = time.monotonic()
        try:
            with translated(request):
                response = self.session.request(
                    self._address(request),
                    request.method,
                    json=request.body,
                    params=dict(request.params),
                    headers=_headers(request, request_id),
                    authenticated=request.token is None,
                    auth=request.auth,
                    allow_reauth=False,  # a login of its own would be taken for a call to the service
                    timeout=min(seconds, self._options.request_timeout.total_seconds()),
                    raise_exc=False,
                    redirect=False,
                )
            outcome = str(response.status_code)
            return response
        except _TimedOut:
            outcome = "timeout"
            raise
        finally:
            self._tell(request.service, verb, outcome, began)

    def _tell(self, service: str, verb: str, outcome: str, began: float) -> None:
        if self._on_call is not None:
            self._on_call(service, verb, outcome, time.monotonic() - began)

    def do(self, call: Callable[[], Any], service: str, verb: str) -> Any:
        """What the call returns; raises a ``CloudError`` instead of what keystoneauth raises."""
        began = time.monotonic()
        outcome = "refused"
        try:
            with translated(Request(service, "POST", "")):
                answer = call()
            outcome = "200"
            return answer
        finally:
            self._tell(service, verb, outcome, began)

    def _address(self, request: Request) -> str:
        if "://" in request.path:
            return request.path
        endpoint = self.session.get_endpoint(
            request.auth,
            service_type=request.service,
            interface=self._options.interface,
            region_name=self._options.region,
            skip_discovery=True,
        )
        if endpoint is None:
            where = f" in region {self._options.region}" if self._options.region else ""
            raise CloudBusy(f"The catalogue has no {self._options.interface} endpoint of {request.service}{where}.")
        return f"{_root(request.service, endpoint)}{request.path}"


class Calls:
    """The HTTP calls of one verb."""

    def __init__(self, http: Http, verb: str, seconds: float, request_id: str | None, *, is_long: bool = False) -> None:
        self._http = http
        self._verb = verb
        self._seconds = seconds
        self._is_long = is_long
        self._deadline = time.monotonic() + seconds
        self._request_id = request_id

    @property
    def concurrency(self) -> int:
        """How many calls are made side by side."""
        return self._http.concurrency

    def send(self, request: Request) -> Any:
        """The JSON that the call answers with; raises a ``CloudError``."""
        (answer,) = self.send_all([request])
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def send_all(self, requests: Sequence[Request]) -> list[Any]:
        """What each call answers with, or its ``CloudError``, in their order; they are made side by side.

        When the time of the verb is up, the calls that have no answer have a ``CloudBusy``. Those that were not
        begun are not made then.
        """
        return self._together([partial(self._send, request) for request in requests])

    def do(self, call: Callable[[], Any], service: str) -> Any:
        """The result of something that sends requests of its own, such as a login; raises a ``CloudError``."""
        (answer,) = self._together([partial(self._http.do, call, service, self._verb)])
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def _together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each call returns, or its ``CloudError``.

        Never more of them wait for a thread than there are threads: a verb of many calls lets others in between.
        """
        answers: list[Any] = []
        waiting: deque[Future[Any]] = deque()
        try:
            for call in calls:
                if len(waiting) == self._http.concurrency:
                    answers.append(self._answer(waiting.popleft()))
                waiting.append(self._http.submit(call))
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
            return CloudBusy(Reason(f"The cloud took too long for {self._verb}."))
        except CloudError as error:
            return error

    def _send(self, request: Request) -> Any:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise CloudBusy(Reason(f"The cloud took too long for {self._verb}."))
        return self._http.send(request, self._verb, left, self._request_id)


class _TimedOut(CloudBusy):
    """No answer in time."""


@contextmanager
def translated(request: Request) -> Iterator[None]:
    """Raise what a driver may raise instead of what keystoneauth raises."""
    name = _NAMES.get(request.service, request.service)
    try:
        yield
    except exceptions.ConnectTimeout:
        raise _TimedOut(Reason(f"{name} did not answer in time.")) from None
    except exceptions.SSLError as error:
        raise CloudBusy(_without_tls(name, error)) from None
    except exceptions.ConnectionError:
        raise CloudBusy(Reason(f"{name} cannot be reached.")) from None
    except exceptions.HttpError as error:  # from Keystone, when a token was asked for
        status = error.http_status or 500
        text = error.response.text if error.response is not None else ""
        raise refusal(_LOGIN, status, text) from None
    except exceptions.CatalogException:
        raise CloudBusy(f"The catalogue has no endpoint of {name}.") from None
    except exceptions.ClientException as error:
        raise CloudBusy(f"{name} cannot be used: {type(error).__name__}.") from None
    except OSError as error:  # the file with the certificates of authorities is not there
        raise CloudBusy(f"{name} cannot be used: {error}") from None


def _without_tls(name: str, error: BaseException) -> str:
    """Why there is no connection by TLS, in the words of OpenSSL."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{name}'s certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"{name} cannot be reached by TLS: {cause.reason}"
        cause = cause.__cause__ or cause.__context__
    return f"{name} cannot be reached by TLS."


def refusal(request: Request, status: int, text: str) -> CloudError:
    """What an answer with such a status means."""
    name = _NAMES.get(request.service, request.service)
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


def _json(request: Request, text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise CloudBusy(f"{_NAMES.get(request.service, request.service)} answered something that is no JSON.") from None


def _headers(request: Request, request_id: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json"}
    if request.microversion is not None:
        service = _HEADER_NAMES.get(request.service, request.service)
        headers["OpenStack-API-Version"] = f"{service} {request.microversion}"
    if request.token is not None:
        headers["X-Auth-Token"] = request.token
    if request_id is not None:
        headers["X-OpenStack-Request-ID"] = request_id
    return headers


def _root(service: str, endpoint: str) -> str:
    """The address that paths are put after: with the version, without what catalogues may have behind it."""
    root = endpoint.rstrip("/")
    if service == "compute":
        return re.sub(r"/v2(\.1)?(/.*)?$", "", root) + "/v2.1"
    if service == "image":
        return root if root.endswith("/v2") else f"{root}/v2"
    if service == "network":
        return root if root.endswith("/v2.0") else f"{root}/v2.0"
    return root
