"""Requests to a cloud over HTTP by keystoneauth, with one session, timeouts, and our errors."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from keystoneauth1 import exceptions, plugin
from keystoneauth1.access import AccessInfo
from keystoneauth1.identity import BaseIdentityPlugin, v3
from keystoneauth1.session import Session, TCPKeepAliveAdapter

from tenure.clock import Clock
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudBusy
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.requests import LOGIN, Circumstances, Owner, Request, answer_to, name_of, refusal

if TYPE_CHECKING:
    from requests import Response

T = TypeVar("T")

#: Called after every HTTP call with the service's type, the driver method, the outcome (the status as text, ``timeout``
#: or ``unreachable``), and the duration in seconds. A login is a call to ``identity``, for every driver method.
OnCall = Callable[[str, str, str, float], None]

#: The header by which the middleware in front of Nova leaves its answer as it is.
PLAIN: Final = "X-Tenure-Plain"
#: The version in the addresses of services whose endpoints may lack it, with the pattern that it replaces.
_VERSIONS: Final = {
    "compute": (re.compile(r"/v2(\.1)?(/.*)?$"), "/v2.1"),
    "image": (re.compile(r"/v2$"), "/v2"),
    "network": (re.compile(r"/v2\.0$"), "/v2.0"),
}


def connect(
    options: OpenStackOptions,
    *,
    on_call: OnCall | None = None,
    request_id: Callable[[], str | None] = lambda: None,
    clock: Clock | None = None,
) -> OpenStackCloud:
    """Return the cloud that the options describe, over HTTP; sends no request."""
    return OpenStackCloud(options, HttpTransport(options, on_call=on_call), request_id=request_id, clock=clock)


class HttpTransport:
    """A ``Transport`` over the network. Its threads share its connections and its token.

    A few threads send all requests. This limits the number of concurrent requests, and enforces the timeout of a driver
    call even if a server sends one byte a second. ``on_call`` is called in one of these threads, and must not raise.
    """

    def __init__(self, options: OpenStackOptions, *, on_call: OnCall | None = None) -> None:
        self.concurrency = options.concurrency
        self.session = _open_session(options)
        self._options = options
        self._on_call = on_call
        #: The endpoints by service, for each token. The catalogue comes with the token, and keystoneauth copies the
        #: whole of it for each search.
        self._endpoints: WeakKeyDictionary[AccessInfo, dict[str, str | None]] = WeakKeyDictionary()
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="openstack")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.session.close()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        try:
            return self._threads.submit(call)
        except RuntimeError:  # closed meanwhile
            raise CloudBusy(Reason("The connection to the cloud is being closed.")) from None

    def send(self, request: Request, circumstances: Circumstances) -> Any:
        account = request.owner.account if request.owner is not None else None
        if request.token is None:
            self._get_token(account, circumstances)
        response = self._ask(request, account, circumstances)
        if response.status_code == 401 and request.token is None and self.session.invalidate(account):
            self._get_token(account, circumstances)
            response = self._ask(request, account, circumstances)
        return answer_to(request, response.status_code, response.text)

    def has(self, service: str, circumstances: Circumstances) -> bool:
        self._get_token(None, circumstances)
        with _driver_errors(LOGIN):
            try:
                return self._find_endpoint(service, self.session.auth) is not None
            except exceptions.EndpointNotFound:
                return False

    def owner(self, trust_id: str) -> Owner:
        return Owner(trust_id, _password(self._options, trust_id=trust_id))

    def log_in(self, owner: Owner, circumstances: Circumstances) -> None:
        self._get_token(owner.account, circumstances)

    def user_id(self, circumstances: Circumstances) -> str:
        self._get_token(None, circumstances)
        return str(self.session.get_user_id())

    def _get_token(self, account: plugin.BaseAuthPlugin | None, circumstances: Circumstances) -> None:
        """Log in unless there is a valid token; raise a ``CloudError``."""
        known = account or self.session.auth
        before = getattr(known, "auth_ref", None)
        outcome = "unreachable"
        began = time.monotonic()
        try:
            with _driver_errors(LOGIN):
                try:
                    self.session.get_token(account)
                except exceptions.HttpError as error:
                    outcome = str(error.http_status)
                    raise
            outcome = "201"
        except _TimedOut:
            outcome = "timeout"
            raise
        finally:
            if outcome != "201" or getattr(known, "auth_ref", None) is not before:  # otherwise there was a valid token
                self._report(LOGIN.service, circumstances.verb, outcome, began)

    def _ask(self, request: Request, account: plugin.BaseAuthPlugin | None, circumstances: Circumstances) -> Response:
        """Return the response to a request, whatever its status; raise a ``CloudError`` if there is none."""
        headers = {"Accept": "application/json"}
        if request.service == "compute":
            headers[PLAIN] = "true"
        if request.token is not None:
            headers["X-Auth-Token"] = request.token
        if circumstances.request_id is not None:
            headers["X-OpenStack-Request-ID"] = circumstances.request_id
        outcome = "unreachable"
        began = time.monotonic()
        try:
            with _driver_errors(request):
                response = self.session.request(
                    self._address(request, account),
                    request.method,
                    json=request.body,
                    params=dict(request.params),
                    headers=headers,
                    microversion=request.microversion,
                    microversion_service_type=request.service,
                    authenticated=request.token is None,
                    auth=account,
                    allow_reauth=False,  # keystoneauth's own login would be reported as a call to the service
                    timeout=min(circumstances.seconds, self._options.request_timeout.total_seconds()),
                    raise_exc=False,
                    redirect=False,
                    log=not request.is_secret,
                )
            outcome = str(response.status_code)
            return response
        except _TimedOut:
            outcome = "timeout"
            raise
        finally:
            self._report(request.service, circumstances.verb, outcome, began)

    def _report(self, service: str, verb: str, outcome: str, began: float) -> None:
        if self._on_call is not None:
            self._on_call(service, verb, outcome, time.monotonic() - began)

    def _address(self, request: Request, account: plugin.BaseAuthPlugin | None) -> str:
        if request.service == "identity":
            return f"{self._options.identity_url}{request.path}"
        endpoint = self._find_endpoint(request.service, account or self.session.auth)
        if endpoint is None:
            where = f" in region {self._options.region}" if self._options.region else ""
            raise CloudBusy(f"The catalogue has no {self._options.interface} endpoint of {request.service}{where}.")
        root = endpoint.rstrip("/")
        if request.service in _VERSIONS:
            written, version = _VERSIONS[request.service]
            root = written.sub("", root) + version
        return f"{root}{request.path}"

    def _find_endpoint(self, service: str, account: plugin.BaseAuthPlugin | None) -> str | None:
        """Return the endpoint in the catalogue of the account's token; logs in unless there is a valid token."""
        assert isinstance(account, BaseIdentityPlugin)
        endpoints = self._endpoints.setdefault(account.get_access(self.session), {})
        if service not in endpoints:
            endpoints[service] = self.session.get_endpoint(
                account,
                service_type=service,
                interface=self._options.interface,
                region_name=self._options.region,
                skip_discovery=True,
            )
        return endpoints[service]


def _open_session(options: OpenStackOptions) -> Session:
    session = Session(
        auth=_password(options),
        verify=False if options.insecure else (options.cafile or True),
        timeout=options.request_timeout.total_seconds(),
        app_name="tenure",
    )
    for scheme in ("https://", "http://"):  # as many connections as concurrent calls
        session.mount(scheme, TCPKeepAliveAdapter(pool_maxsize=options.concurrency))
    return session


def _password(options: OpenStackOptions, *, trust_id: str | None = None) -> v3.Password:
    """Return the service's account: in its own project, or with that trust."""
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


class _TimedOut(CloudBusy):
    """No answer in time."""


@contextmanager
def _driver_errors(request: Request) -> Iterator[None]:
    """Translate keystoneauth's errors into those of drivers."""
    name = name_of(request.service)
    try:
        yield
    except exceptions.ConnectTimeout:
        raise _TimedOut(Reason(f"{name} did not answer in time.")) from None
    except exceptions.SSLError as error:
        raise CloudBusy(_tls_reason(name, error)) from None
    except exceptions.ConnectionError:
        raise CloudBusy(Reason(f"{name} cannot be reached.")) from None
    except exceptions.HttpError as error:  # from Keystone, for a token
        status = error.http_status or 500
        text = error.response.text if error.response is not None else ""
        raise refusal(LOGIN, status, text) from None
    except exceptions.CatalogException:
        raise CloudBusy(f"The catalogue has no endpoint of {name}.") from None
    except exceptions.ClientException as error:
        raise CloudBusy(f"{name} cannot be used: {type(error).__name__}.") from None
    except OSError as error:  # the file with the CA certificates is missing
        raise CloudBusy(f"{name} cannot be used: {error}") from None


def _tls_reason(name: str, error: BaseException) -> str:
    """Return why there is no TLS connection, in the words of OpenSSL."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{name}'s certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"{name} cannot be reached by TLS: {cause.reason}"
        cause = cause.__cause__ or cause.__context__
    return f"{name} cannot be reached by TLS."
