"""``tenure-status upgrade check``: tells before an upgrade whether this release can take over."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck
from oslo_upgradecheck.common_checks import check_policy_json

from tenure.cmd.process import StartFailed, configure, why_unavailable, wrong_with_schema
from tenure.cmd.type_services import find_unserved
from tenure.deployment import ConfigurationError, open_database, open_driver, open_types, regions_of
from tenure.domain.errors import Unavailable
from tenure.drivers.contract import CloudError
from tenure.services.regions import RegionService
from tenure.store import schema

PROG = "tenure-status"
HOST = "physical:host"
LOG = logging.getLogger(__name__)

#: The exit code if the checks could not be run.
UNCHECKED = 255

Result = upgradecheck.Result
Code = upgradecheck.Code


class Checks(upgradecheck.UpgradeCommands):
    """The checks before an upgrade."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf

    def _database(self) -> Result:
        """Check that the database answers, and that this release knows its schema."""
        try:
            db = open_database(self._conf)
        except ConfigurationError as error:
            return Result(Code.FAILURE, str(error))
        try:
            revision, wrong = schema.current(db), wrong_with_schema(db)
            differences = schema.drift(db) if wrong is None else []
            narrow = schema.texts_of_another_set(db) if wrong is None else []
        except Unavailable as error:
            return Result(Code.FAILURE, why_unavailable(error))
        finally:
            db.close()
        if wrong is not None:
            can_be_upgraded = revision is None or schema.knows(revision)
            return Result(Code.WARNING if can_be_upgraded else Code.FAILURE, wrong)
        if differences:
            return Result(Code.FAILURE, f"the schema was changed by hand: {differences[0]}")
        if narrow:
            return Result(Code.FAILURE, f"not in utf8mb4, the character set of all texts: {', '.join(narrow)}")
        return Result(Code.SUCCESS)

    def _cloud(self) -> Result:
        """Check that the service user can log in and list the hosts of the cloud."""
        try:
            hosts = open_driver(self._conf).discover(HOST)
        except (ConfigurationError, CloudError) as error:
            return Result(Code.FAILURE, str(error))
        return Result(Code.SUCCESS, f"{len(hosts)} hosts")

    def _regions(self) -> Result:
        """Check that the regions of all registered resources are configured."""
        try:
            regions, db = regions_of(self._conf), open_database(self._conf)
        except ConfigurationError as error:
            return Result(Code.FAILURE, str(error))
        try:
            if wrong_with_schema(db) is not None:
                return Result(Code.SUCCESS)  # unknown, but then the check of the database fails
            wrong = RegionService(db).wrong_with(regions)
        except Unavailable as error:
            return Result(Code.FAILURE, why_unavailable(error))
        finally:
            db.close()
        return Result(Code.SUCCESS, ", ".join(regions) or None) if wrong is None else Result(Code.FAILURE, wrong)

    def _types(self) -> Result:
        """Check that the cloud has the services of the resource types that the configuration names."""
        try:
            types, driver = open_types(self._conf), open_driver(self._conf)
        except ConfigurationError as error:
            return Result(Code.FAILURE, str(error))
        unserved = find_unserved(types.enabled, driver).unserved
        refused = self._conf.manager.enabled_types and any(not found.regions for found in unserved)
        return Result(Code.FAILURE if refused else Code.SUCCESS, "; ".join(map(str, unserved)) or None)

    def _policy(self) -> Result:
        """Check that the policy file is not JSON, which oslo.policy no longer reads."""
        return check_policy_json(self, self._conf)

    _upgrade_checks = (
        ("Database", _database),
        ("Cloud", _cloud),
        ("Regions", _regions),
        ("Resource types", _types),
        ("Policy file", _policy),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 success, 1 warning, 2 failure, 255 if nothing was checked."""
    arguments = sys.argv[1:] if argv is None else argv
    commands = cfg.SubCommandOpt("command", title="commands", handler=_add_commands)
    try:
        conf = configure(arguments, prog=PROG, options=[commands], quiet=["tenure.store.database"])
        upgradecheck.CONF = conf  # the library reads --json from it
        return int(Checks(conf).check())
    except StartFailed as failure:
        print(f"{PROG}: {failure}", file=sys.stderr)
    except Exception:
        LOG.exception("the checks could not be made")
    return UNCHECKED


def _add_commands(nouns: Any) -> None:
    upgrade = nouns.add_parser("upgrade", help="what an upgrade needs", description="what an upgrade needs")
    upgrade.add_argument("verb", choices=["check"], metavar="check", help="tell whether this release can take over")
    upgrade.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")


if __name__ == "__main__":
    sys.exit(main())
