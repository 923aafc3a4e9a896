"""Limits that Keystone keeps, by oslo.limit."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from keystoneauth1 import loading
from keystoneauth1.exceptions import ClientException
from openstack.exceptions import SDKException
from oslo_config import cfg
from oslo_limit import limit
from oslo_limit.exception import SessionInitError

from tenure.domain.errors import Unavailable

LOG = logging.getLogger(__name__)

_GROUP = "oslo_limit"
#: The options that define a login, with their names in [service_auth].
_ACCOUNT = ("username", "password", "user_domain_name")
_PROJECT = ("project_name", "project_domain_name")
#: The errors of oslo.limit if Keystone is away, refuses, or lacks an entry; ``OSError`` if the CA file is missing.
_FAILURES = (ClientException, SDKException, SessionInitError, OSError, ValueError, LookupError, TypeError)

AWAY = "The limits of the project cannot be read from Keystone right now; try again later."


class UnifiedLimits:
    """The limits of a project: its own limit in Keystone, else the registered one.

    A limit that is not registered is 0, as for all users of oslo.limit.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Use the options of ``[oslo_limit]``; options that are not set there have the service's own values.

        Raises ``cfg.Error``, and keystoneauth's errors for an unknown ``auth_type``.
        """
        _configure_oslo_limit(conf)
        self._enforcer: limit.Enforcer | None = None
        self._missed: frozenset[str] = frozenset()

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        """Return the limits by name, -1 for no limit. Raises ``Unavailable`` if Keystone does not give them."""
        try:
            if self._enforcer is None:  # two threads may each create one; either will do
                self._enforcer = limit.Enforcer(_count_nothing, cache=False)
            # All limits at once: by name, each would be a call, and raise an error if it is not registered.
            registered = dict(self._enforcer.get_registered_limits(None))  # type: ignore[arg-type]  # None means all
            own = dict(self._enforcer.get_project_limits(project_id, None))  # type: ignore[arg-type]  # None means all
        except NotImplementedError:
            LOG.error("oslo.limit cannot work with Keystone's model of limits strict_two_level, only with flat")
            raise Unavailable(AWAY) from None
        except _FAILURES as error:
            LOG.warning("the limits cannot be read from Keystone: %s", " ".join(str(error).split()))
            raise Unavailable(AWAY) from None
        self._log_missing(frozenset(names) - registered.keys())
        limits = registered | own
        return {name: limits.get(name, 0) for name in names}

    def _log_missing(self, names: frozenset[str]) -> None:
        """Log once what is refused because no limit is registered."""
        if names - self._missed:
            LOG.warning("Keystone has no registered limits for %s: nothing of it is allowed", ", ".join(sorted(names)))
        self._missed = names


def _count_nothing(project_id: str | None, names: Collection[str]) -> dict[str, int]:
    """Return 0 for each limit: the ledger counts bookings itself, when it books."""
    return dict.fromkeys(names, 0)


def _configure_oslo_limit(conf: cfg.ConfigOpts) -> None:
    """Let oslo.limit read the same files, with the service's own account and endpoint by default.

    oslo.limit reads only the global configuration of the process, which nothing else uses here.
    """
    known = cfg.CONF
    known([], project=conf.project, default_config_files=conf.config_file, default_config_dirs=conf.config_dir)
    known.clear_default("auth_type", _GROUP)  # left over from an earlier configuration
    said = known[_GROUP]
    if not (said.endpoint_id or said.endpoint_service_type or said.endpoint_service_name):
        known.set_default("endpoint_service_type", "reservation", _GROUP)
        known.set_default("endpoint_region_name", conf.os_region_name, _GROUP)
    known.set_default("timeout", int(conf.cloud.request_timeout), _GROUP)
    known.set_default("valid_interfaces", [conf.nova.endpoint_type], _GROUP)
    known.set_default("region_name", conf.os_region_name, _GROUP)
    if said.auth_section:
        return
    if not said.auth_type:
        known.set_default("auth_type", "v3password", _GROUP)
        _set_account(known, conf)
    known.register_opts(loading.get_auth_plugin_conf_options(said.auth_type), group=_GROUP)


def _set_account(known: cfg.ConfigOpts, conf: cfg.ConfigOpts) -> None:
    known.register_opts(loading.get_auth_plugin_conf_options("v3password"), group=_GROUP)
    account = conf.service_auth
    url = (account.auth_url or "").rstrip("/")
    known.set_default("auth_url", url if url.endswith("/v3") else f"{url}/v3", _GROUP)
    names = _ACCOUNT if known[_GROUP].system_scope else (*_ACCOUNT, *_PROJECT)
    for name in names:
        known.set_default(name, account[name], _GROUP)
    known.set_default("cafile", account.cafile, _GROUP)
    known.set_default("insecure", account.insecure, _GROUP)
