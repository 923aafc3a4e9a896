"""The tables of a simulated cloud's file, by format."""

from __future__ import annotations

from typing import Final

from tenure.drivers.simulated.catalogue import ADDRESSES, FLAVORS, GPUS, POOLS

#: The format that is written; older ones are brought to it when they are opened.
FORMAT: Final = 5
#: The first format.
TABLES: Final = (
    """CREATE TABLE fleet (only INTEGER PRIMARY KEY CHECK (only = 1), size INTEGER NOT NULL)""",
    """CREATE TABLE host_group (
        reservation_id TEXT PRIMARY KEY, lease_id TEXT NOT NULL, project_id TEXT NOT NULL)""",
    """CREATE TABLE host (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, facts TEXT NOT NULL, traits TEXT NOT NULL,
        health TEXT NOT NULL DEFAULT 'up', pooled INTEGER NOT NULL DEFAULT 0,
        reservation_id TEXT REFERENCES host_group (reservation_id),
        CHECK (NOT (pooled AND reservation_id IS NOT NULL)))""",
    """CREATE INDEX host_by_name ON host (name)""",
    """CREATE INDEX host_by_group ON host (reservation_id) WHERE reservation_id IS NOT NULL""",
    """CREATE TABLE server (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL,
        host_id INTEGER NOT NULL REFERENCES host (id), project_id TEXT NOT NULL,
        reservation_id TEXT, vanishing INTEGER NOT NULL DEFAULT 0)""",
    """CREATE INDEX server_by_host ON server (host_id)""",
    """CREATE INDEX server_by_reservation ON server (reservation_id) WHERE reservation_id IS NOT NULL""",
    """CREATE TABLE image (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, project_id TEXT NOT NULL,
        reservation_id TEXT NOT NULL, server_id TEXT NOT NULL, status TEXT NOT NULL,
        UNIQUE (reservation_id, server_id))""",
    """CREATE TABLE journal (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, verb TEXT NOT NULL,
        effect TEXT NOT NULL, reservation_id TEXT, host TEXT, subject TEXT)""",
    """CREATE INDEX journal_by_reservation ON journal (reservation_id) WHERE reservation_id IS NOT NULL""",
    """CREATE TABLE fault (
        id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, verb TEXT, reservation_id TEXT,
        lease_name TEXT, host TEXT, remaining INTEGER, seconds REAL NOT NULL, until TEXT,
        after_effects INTEGER NOT NULL, reason TEXT)""",
    """INSERT INTO fleet (only, size) VALUES (1, 0)""",
)
_PARTS: Final = (
    # What the host's provider has besides, or otherwise than, its facts say, by resource class.
    """ALTER TABLE host ADD COLUMN inventory TEXT NOT NULL DEFAULT '{}'""",
    f"""UPDATE host SET inventory = '{GPUS}' WHERE traits LIKE '%"CUSTOM_GPU_A100"%'""",
    # What a server was booted with: a copy, since the flavor may change or go.
    """ALTER TABLE server ADD COLUMN flavor_id TEXT""",
    """ALTER TABLE server ADD COLUMN takes TEXT NOT NULL DEFAULT '{}'""",
    """ALTER TABLE server ADD COLUMN group_id TEXT""",
    """ALTER TABLE server ADD COLUMN preemptible INTEGER NOT NULL DEFAULT 0""",
    """ALTER TABLE server ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'""",
    """ALTER TABLE server ADD COLUMN stopped INTEGER NOT NULL DEFAULT 0""",
    """CREATE TABLE flavor (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, vcpus INTEGER NOT NULL, ram INTEGER NOT NULL,
        disk INTEGER NOT NULL, ephemeral INTEGER NOT NULL DEFAULT 0, swap INTEGER NOT NULL DEFAULT 0,
        is_public INTEGER NOT NULL, extra_specs TEXT NOT NULL DEFAULT '{}')""",
    """CREATE TABLE flavor_access (
        flavor_id TEXT NOT NULL REFERENCES flavor (id) ON DELETE CASCADE, project_id TEXT NOT NULL,
        PRIMARY KEY (flavor_id, project_id))""",
    """CREATE TABLE server_group (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, project_id TEXT NOT NULL, policy TEXT NOT NULL)""",
    """CREATE INDEX server_group_by_name ON server_group (name)""",
    """CREATE TABLE aggregate (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL)""",
    """CREATE TABLE aggregate_host (
        aggregate_id INTEGER NOT NULL REFERENCES aggregate (id) ON DELETE CASCADE,
        host_id INTEGER NOT NULL REFERENCES host (id) ON DELETE CASCADE,
        PRIMARY KEY (aggregate_id, host_id))""",
    """CREATE TABLE resource_class (name TEXT PRIMARY KEY, reservation_id TEXT NOT NULL)""",
    # What the provider below a host's own has of the class of a reservation.
    """CREATE TABLE part (
        host_id INTEGER NOT NULL REFERENCES host (id) ON DELETE CASCADE,
        resource_class TEXT NOT NULL REFERENCES resource_class (name), total INTEGER NOT NULL,
        PRIMARY KEY (host_id, resource_class))""",
    """CREATE TABLE network (id TEXT PRIMARY KEY, name TEXT NOT NULL, external INTEGER NOT NULL)""",
    """CREATE TABLE subnet (
        id TEXT PRIMARY KEY, network_id TEXT NOT NULL REFERENCES network (id) ON DELETE CASCADE,
        cidr TEXT NOT NULL, gateway TEXT, pools TEXT NOT NULL)""",
    """CREATE TABLE floating_ip (
        number INTEGER PRIMARY KEY AUTOINCREMENT, network_id TEXT NOT NULL, address TEXT NOT NULL,
        project_id TEXT NOT NULL, description TEXT NOT NULL DEFAULT '', tags TEXT NOT NULL DEFAULT '[]',
        port_id TEXT, UNIQUE (network_id, address))""",
    *FLAVORS,
    *ADDRESSES,
)
_VOLUMES: Final = (
    """CREATE TABLE pool (name TEXT PRIMARY KEY, total_gb INTEGER NOT NULL, up INTEGER NOT NULL DEFAULT 1)""",
    # Without a pool its volumes lie in any.
    """CREATE TABLE volume_type (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, pool TEXT, is_default INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE volume (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, project_id TEXT NOT NULL,
        size_gb INTEGER NOT NULL, volume_type TEXT NOT NULL, pool TEXT NOT NULL, status TEXT NOT NULL,
        server_id TEXT, metadata TEXT NOT NULL DEFAULT '{}')""",
    """CREATE TABLE volume_snapshot (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, project_id TEXT NOT NULL,
        volume INTEGER NOT NULL UNIQUE REFERENCES volume (number))""",
    *POOLS,
)
_SERVER_COLUMNS: Final = (
    "number, name, host_id, project_id, reservation_id, vanishing, flavor_id, takes, group_id, preemptible,"
    " metadata, stopped"
)
#: A server that is shelved is on no host; when it was booted is known from now on.
_SHELVED: Final = (
    """CREATE TABLE server_made_anew (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL,
        host_id INTEGER REFERENCES host (id), project_id TEXT NOT NULL,
        reservation_id TEXT, vanishing INTEGER NOT NULL DEFAULT 0, flavor_id TEXT,
        takes TEXT NOT NULL DEFAULT '{}', group_id TEXT, preemptible INTEGER NOT NULL DEFAULT 0,
        metadata TEXT NOT NULL DEFAULT '{}', stopped INTEGER NOT NULL DEFAULT 0,
        user_id TEXT NOT NULL DEFAULT '', booted_at TEXT)""",
    f"INSERT INTO server_made_anew ({_SERVER_COLUMNS}) SELECT {_SERVER_COLUMNS} FROM server",
    """DELETE FROM sqlite_sequence WHERE name = 'server_made_anew'""",
    """INSERT INTO sqlite_sequence SELECT 'server_made_anew', seq FROM sqlite_sequence WHERE name = 'server'""",
    """DROP TABLE server""",
    """ALTER TABLE server_made_anew RENAME TO server""",
    """CREATE INDEX server_by_host ON server (host_id)""",
    """CREATE INDEX server_by_reservation ON server (reservation_id) WHERE reservation_id IS NOT NULL""",
    """CREATE INDEX server_by_mark ON server (json_extract(metadata, '$."tenure:reservation"'))""",
)
#: What each format has beyond the one before.
ADDED: Final = {
    2: ("CREATE TABLE trust (id TEXT PRIMARY KEY, user_id TEXT NOT NULL, project_id TEXT NOT NULL)",),
    3: _PARTS,
    4: _VOLUMES,
    5: _SHELVED,
}
