"""``tenure-status upgrade check``: whether this release can take over, before it does."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log
from oslo_upgradecheck import upgradecheck
from oslo_upgradecheck.common_checks import check_policy_json

from tenure.cmd.process import config_files
from tenure.config import PROJECT, new_config
from tenure.deployment import ConfigurationError, open_database, open_driver
from tenure.domain.errors import Unavailable
from tenure.drivers.contract import CloudError
from tenure.store import schema

HOST = "physical:host"

Result = upgradecheck.Result
Code = upgradecheck.Code


class Checks(upgradecheck.UpgradeCommands):
    """What an upgrade needs."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf

    def _database(self) -> Result:
        """The database answers, and its schema is one that this release knows."""
        try:
            db = open_database(self._conf)
        except ConfigurationError as error:
            return Result(Code.FAILURE, str(error))
        try:
            found, wanted = schema.current(db), schema.head()
            differences = schema.drift(db) if found == wanted else []
        except Unavailable as error:
            return Result(Code.FAILURE, str(error))
        finally:
            db.close()
        if found != wanted:
            return Result(Code.WARNING, f"The schema is at {found or 'nothing'}: run tenure-manage db upgrade.")
        if differences:
            return Result(Code.FAILURE, f"The schema was changed by hand: {differences[0]}")
        return Result(Code.SUCCESS)

    def _cloud(self) -> Result:
        """The service user can log in, and finds the hosts of the cloud."""
        try:
            hosts = open_driver(self._conf).discover(HOST)
        except (ConfigurationError, CloudError) as error:
            return Result(Code.FAILURE, str(error))
        return Result(Code.SUCCESS, f"{len(hosts)} hosts")

    def _policy(self) -> Result:
        """The policy file is not JSON, which oslo.policy reads no more."""
        return check_policy_json(self, self._conf)

    _upgrade_checks = (
        ("Database", _database),
        ("Cloud", _cloud),
        ("Policy file", _policy),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code is the worst result: 0 well, 1 a warning, 2 a failure."""
    conf = new_config()
    log.register_options(conf)
    arguments = sys.argv[1:] if argv is None else list(argv)
    files = [str(file) for file in config_files()] or None
    code: int = upgradecheck.main(conf, PROJECT, Checks(conf), arguments, files)
    return code


if __name__ == "__main__":
    sys.exit(main())
