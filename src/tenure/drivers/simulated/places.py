"""How hosts and servers of a simulated cloud are named, and what is said where there is no place."""

from __future__ import annotations

import sqlite3

from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudAmbiguous, CloudNotFound, CloudRefused

#: How many servers each of several clouds may have had.
SERVERS = 1_000_000


class NoValidHost(CloudRefused):
    """No host would have the server: Nova's scheduler says the same."""


def find_host(tx: sqlite3.Connection, reference: str) -> sqlite3.Row:
    """The row of the host with that id, or else that name; raises as ``CloudDriver.look_up`` does."""
    if reference.isascii() and reference.isdigit():
        row: sqlite3.Row | None = tx.execute("SELECT * FROM host WHERE id = ?", (reference,)).fetchone()
        if row is not None and str(row["id"]) == reference:
            return row
    rows: list[sqlite3.Row] = tx.execute("SELECT * FROM host WHERE name = ? LIMIT 2", (reference,)).fetchall()
    if not rows:
        raise CloudNotFound(f"There is no host {reference}.")
    if len(rows) > 1:
        raise CloudAmbiguous(f"Several hosts are named {reference}.")
    return rows[0]


def server_id(number: int) -> str:
    return f"server-{number:06d}"


def number_of(server: str) -> int:
    prefix, _, number = server.partition("-")
    if prefix != "server" or not (number.isascii() and number.isdigit()):
        raise CloudNotFound(Reason(f"There is no server {server}."))
    return int(number)
