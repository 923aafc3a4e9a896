"""``tenure-manage``: the operator's commands on the machine of a manager.

tenure-manage db upgrade        make the schema, or bring it to this release
tenure-manage db check          whether the database is as this release needs it
tenure-manage db purge --before DATE   delete ended leases and delivered messages
tenure-manage host sync         read from the cloud again what the registered hosts are
tenure-manage lease give-default  give a default lease to each server that has none
tenure-manage outbox list       messages that could not be delivered
tenure-manage outbox retry      try to deliver them again
tenure-manage outbox drop KEY   never deliver one of them
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from alembic.util import CommandError
from oslo_config import cfg
from sqlalchemy.exc import DBAPIError

from tenure.clock import SystemClock
from tenure.cmd.process import StartFailed, configure, run, why_unavailable, wrong_with_schema
from tenure.deployment import ConfigurationError, open_database, open_driver, open_healing, open_manager, regions_of
from tenure.domain.errors import Unavailable
from tenure.drivers.contract import CloudError
from tenure.engine.default_leases import DefaultLeases
from tenure.services.context import Rules
from tenure.services.notifications.outbox import OutboxService
from tenure.services.regions import RegionService
from tenure.services.resources.inventory import InventoryService
from tenure.services.upkeep.purge import PurgeService
from tenure.store import schema
from tenure.store.database import Database

PROG = "tenure-manage"
HOST = "physical:host"

Action = Callable[[cfg.ConfigOpts, Database], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return run(lambda: _main(arguments), prog=PROG)


def _main(arguments: Sequence[str]) -> int:
    commands = cfg.SubCommandOpt("command", title="commands", handler=_add_commands)
    quiet = ["tenure.store.database", "tenure.engine.default_leases"]
    conf = configure(arguments, prog=PROG, options=[commands], quiet=quiet)
    with _open(conf) as db:
        action: Action = conf.command.action
        return action(conf, db)


@contextmanager
def _open(conf: cfg.ConfigOpts) -> Iterator[Database]:
    """Open the database; report its errors as text, without a trace."""
    try:
        db = open_database(conf)
        try:
            yield db
        finally:
            db.close()
    except (ConfigurationError, CloudError) as error:
        raise StartFailed(str(error)) from error
    except Unavailable as error:
        raise StartFailed(why_unavailable(error)) from error
    except CommandError as error:
        raise StartFailed(f"the schema cannot be brought there: {error}") from error
    except DBAPIError as error:
        raise StartFailed(f"the database refuses: {error.orig}") from error


def _add_commands(nouns: Any) -> None:
    """Add the commands, each a noun and a verb."""
    verbs = _noun(nouns, "db", "the database and its schema")
    upgrade = _verb(verbs, "upgrade", _upgrade, "make the schema, or bring it to this release")
    upgrade.add_argument("--revision", default="head", help="the revision to bring it to (default: the newest)")
    _verb(verbs, "check", _check, "tell whether the database is as this release needs it; exit code 1 where it is not")
    _verb(verbs, "version", _version, "print the revision that the schema is at")
    purge = _verb(verbs, "purge", _purge, "delete leases that were over before a date, and messages that had arrived")
    purge.add_argument("--before", required=True, type=_date, metavar="DATE", help="such as 2027-01-31, in UTC")
    purge.add_argument("--dry-run", action="store_true", help="only count what would be deleted")
    verbs = _noun(nouns, "host", "the hosts that can be reserved")
    sync = _verb(verbs, "sync", _sync, "read from the cloud again what the registered hosts are")
    sync.add_argument("--dry-run", action="store_true", help="only tell what would change")
    verbs = _noun(nouns, "lease", "the leases of the ledger")
    give = _verb(verbs, "give-default", _give_default, "give a default lease to each server that has none")
    give.add_argument("--dry-run", action="store_true", help="only tell which servers would be given one")
    give.add_argument("-f", "--format", choices=["text", "json"], default="text", help="how to print the result")
    verbs = _noun(nouns, "region", "the regions that one Tenure serves")
    _verb(verbs, "name-home", _name_home, "have all that was there before there were regions be in the home region")
    verbs = _noun(nouns, "outbox", "messages on their way: notifications, and reports to enforcement filters")
    _verb(verbs, "list", _list_outbox, "print the messages that were given up, as JSON lines")
    retry = _verb(verbs, "retry", _retry_outbox, "try to deliver again what was given up")
    retry.add_argument("--key", help="only the message of this key")
    drop = _verb(verbs, "drop", _drop_outbox, "never deliver a message that was given up, so that the next can go")
    drop.add_argument("key", help="the key of the message, as the list has it")


def _noun(nouns: Any, name: str, description: str) -> Any:
    parser: ArgumentParser = nouns.add_parser(name, help=description, description=description)
    return parser.add_subparsers(title="commands", metavar="<command>", required=True)


def _verb(verbs: Any, name: str, action: Action, description: str) -> ArgumentParser:
    parser: ArgumentParser = verbs.add_parser(name, help=description, description=description)
    parser.set_defaults(action=action)
    return parser


def _upgrade(conf: cfg.ConfigOpts, db: Database) -> int:
    revision = schema.current(db)
    if revision is not None and not schema.knows(revision):
        raise StartFailed(str(wrong_with_schema(db)))
    schema.upgrade(db, conf.command.revision)
    print(f"the schema is at {schema.current(db)}")
    return 0


def _version(_conf: cfg.ConfigOpts, db: Database) -> int:
    print(schema.current(db) or "no schema")
    return 0


def _check(_conf: cfg.ConfigOpts, db: Database) -> int:
    wrong = wrong_with_schema(db)
    if wrong is not None:
        print(wrong)
        return 1
    differences = schema.drift(db)
    for difference in differences:
        print(f"differs from what this release needs: {difference}")
    if not differences:
        print(f"the database is as this release needs it ({schema.head()})")
    return 1 if differences else 0


def _date(text: str) -> datetime:
    """Return a date or a moment in the past, in UTC unless it has a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no date such as 2027-01-31 or 2027-01-31T12:00:00Z") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment > datetime.now(UTC):
        raise ArgumentTypeError(f"{text} is in the future; what was over before a moment of the past can be deleted")
    return moment.astimezone(UTC)


def _purge(conf: cfg.ConfigOpts, db: Database) -> int:
    service, before = PurgeService(db), conf.command.before
    if conf.command.dry_run:
        purged = service.preview(before)
        print(f"{purged.leases} leases and {purged.messages} messages would be deleted")
        return 0
    purged = service.purge(before)
    print(f"{purged.leases} leases and {purged.messages} messages were deleted")
    return 0


def _sync(conf: cfg.ConfigOpts, db: Database) -> int:
    hosts = open_driver(conf).discover(HOST)
    report = InventoryService(db, SystemClock()).sync(HOST, hosts, dry_run=conf.command.dry_run)
    for change in report.changes:
        print(f"{change.name}: {', '.join(change.differences)}")
    for name in report.gone:
        print(f"{name}: the cloud has it no more")
    would = "would be" if conf.command.dry_run else "were"
    print(f"{report.seen} hosts are registered, {len(report.changes)} {would} changed, {len(report.gone)} are gone")
    if report.changes and not conf.command.dry_run:
        healed = open_healing(conf, db).review(HOST, [change.external_id for change in report.changes])
        if healed.moved:
            print(f"{healed.moved} hosts of leases that have not started were exchanged for others")
        for lease_id in healed.degraded:
            print(f"lease {lease_id} does not have what was promised any more")
    return 0


def _give_default(conf: cfg.ConfigOpts, _db: Database) -> int:
    service = open_manager(conf)
    try:
        if service.default_leases is None:
            raise StartFailed("[virtual:server] default_lease is not set, so servers get no default leases")
        existing = service.default_leases.existing
        return _show_missing(conf, existing) if conf.command.dry_run else _give_all(conf, existing)
    finally:
        service.components.db.close()


def _show_missing(conf: cfg.ConfigOpts, existing: DefaultLeases) -> int:
    servers = [
        {"id": server.server_id, "name": server.name, "project_id": server.project_id, "region": server.region}
        for server in existing.missing()
    ]
    if conf.command.format == "json":
        print(json.dumps({"servers": servers}))
        return 0
    for server in servers:
        print(f"{server['id']}: {server['name']}, of project {server['project_id']}")
    print(f"{len(servers)} servers would be given a lease")
    return 0


def _give_all(conf: cfg.ConfigOpts, existing: DefaultLeases) -> int:
    """Run passes until all servers were looked through; return 1 if some were refused a lease."""
    given = 0
    refused: dict[str, str] = {}
    while True:
        report = existing.run()
        given += report.given
        refused |= report.refused
        if report.failures:
            raise StartFailed(f"{given} servers were given a lease; then the cloud failed: {report.failures[0]}")
        if report.is_complete:
            break
        print(f"{given} servers were given a lease so far", file=sys.stderr, flush=True)
    if conf.command.format == "json":
        print(json.dumps({"given": given, "refused": refused}))
    else:
        for server_id, reason in refused.items():
            print(f"{server_id}: {reason}")
        print(f"{given} servers were given a lease, {len(refused)} were refused one")
    return 1 if refused else 0


def _name_home(conf: cfg.ConfigOpts, db: Database) -> int:
    regions = regions_of(conf)
    if not regions:
        raise StartFailed("[DEFAULT] regions is not set; the first of them is the home region")
    resources, reservations = RegionService(db).name_home(regions[0])
    print(f"{resources} resources and {reservations} reservations are in region {regions[0]} now")
    return 0


def _list_outbox(_conf: cfg.ConfigOpts, db: Database) -> int:
    for message in OutboxService(db, Rules()).undeliverable():
        document = {
            "key": message.key,
            "lease_id": message.lease_id,
            "channel": message.channel,
            "event_type": message.topic,
            "created_at": message.created_at.isoformat(),
            "attempts": message.attempts,
            "error": message.last_error,
        }
        print(json.dumps(document))
    return 0


def _retry_outbox(conf: cfg.ConfigOpts, db: Database) -> int:
    count = OutboxService(db, Rules()).retry(conf.command.key)
    print(f"{count} messages will be delivered again")
    return 0


def _drop_outbox(conf: cfg.ConfigOpts, db: Database) -> int:
    if not OutboxService(db, Rules()).drop(conf.command.key):
        raise StartFailed(f"no message of key {conf.command.key} was given up")
    print("it will not be delivered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
