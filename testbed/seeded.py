"""Hosts that Nova knows and that nothing runs on: rows in its databases, for tests that need hundreds of them.

They are called seed-1, seed-2 and so on, and so are their providers in Placement, which offer nothing: no server is
ever sent there. The database itself reports for them, so that Nova calls them up for as long as they are there.
"""

from __future__ import annotations

from testbed.backing import execute

PREFIX = "seed-"
#: What their uuids begin with: of compute nodes and providers, of providers of reservations, and of services.
_NODE, _RESERVED, _SERVICE = ("5eed0000", "5eed0001", "5eed0002")
#: An event of the database, in place of processes that report.
_BEAT = "nova.seeded_hosts_report"
_BEAT_SECONDS = 15
#: Nova's own count of seconds, in UTC.
_NOW = "UTC_TIMESTAMP()"


def names(count: int) -> list[str]:
    """What that many are called."""
    return [f"{PREFIX}{number}" for number in range(1, count + 1)]


def seed(count: int, *, pool: str | None = None) -> None:
    """Have exactly that many hosts; with a ``pool``, in the aggregate of that name, as registered ones are.

    Raises ``TestbedError``.
    """
    statements = [*_removal(), *_hosts(count), *(_pooled(count, pool) if pool else ())]
    execute([*statements, "COMMIT", *_beat()], log="seed")


def unseed() -> None:
    """Have none of them, nor anything that tells of them. Raises ``TestbedError``."""
    execute([*_removal(), "COMMIT"], log="seed")


def _uuid(kind: str) -> str:
    return f"CONCAT('{kind}-0000-4000-8000-', LPAD(seq, 12, '0'))"


def _hosts(count: int) -> list[str]:
    name, numbers = f"CONCAT('{PREFIX}', seq)", f"nova.seq_1_to_{count}"
    like = "host = 'compute-1' AND deleted = 0"
    return [
        "INSERT INTO nova.services (created_at, host, `binary`, topic, report_count, disabled, deleted, last_seen_up, "
        "forced_down, version, uuid) "
        f"SELECT {_NOW}, {name}, 'nova-compute', 'compute', 1, 0, 0, {_NOW}, 0, version, {_uuid(_SERVICE)} "
        f"FROM nova.services, {numbers} WHERE {like} AND `binary` = 'nova-compute'",
        "INSERT INTO nova.compute_nodes (created_at, updated_at, vcpus, memory_mb, local_gb, vcpus_used, "
        "memory_mb_used, local_gb_used, hypervisor_type, hypervisor_version, cpu_info, disk_available_least, "
        "free_ram_mb, free_disk_gb, current_workload, running_vms, hypervisor_hostname, deleted, host_ip, "
        "supported_instances, pci_stats, metrics, stats, host, ram_allocation_ratio, cpu_allocation_ratio, "
        "disk_allocation_ratio, uuid, mapped) "
        f"SELECT {_NOW}, {_NOW}, vcpus, memory_mb, local_gb, 0, 512, 0, hypervisor_type, hypervisor_version, "
        f"cpu_info, disk_available_least, memory_mb - 512, local_gb, 0, 0, {name}, 0, host_ip, supported_instances, "
        f"pci_stats, metrics, stats, {name}, ram_allocation_ratio, cpu_allocation_ratio, disk_allocation_ratio, "
        f"{_uuid(_NODE)}, 1 FROM nova.compute_nodes, {numbers} WHERE {like}",
        "INSERT INTO nova_api.host_mappings (created_at, cell_id, host) "
        f"SELECT {_NOW}, cell_id, {name} FROM nova_api.host_mappings, {numbers} WHERE host = 'compute-1'",
        "INSERT INTO placement.resource_providers (created_at, uuid, name, generation) "
        f"SELECT {_NOW}, {_uuid(_NODE)}, {name}, 1 FROM {numbers}",
        f"UPDATE placement.resource_providers SET root_provider_id = id WHERE uuid LIKE '{_NODE}-%'",
    ]


def _pooled(count: int, pool: str) -> list[str]:
    numbers = f"nova.seq_1_to_{count}"
    return [
        "INSERT INTO nova_api.aggregate_hosts (created_at, host, aggregate_id) "
        f"SELECT {_NOW}, CONCAT('{PREFIX}', seq), id FROM nova_api.aggregates, {numbers} WHERE name = '{pool}'",
        "INSERT INTO placement.resource_providers (created_at, uuid, name, generation, root_provider_id, "
        "parent_provider_id) "
        f"SELECT {_NOW}, {_uuid(_RESERVED)}, CONCAT('blazar_{PREFIX}', seq), 0, id, id "
        f"FROM placement.resource_providers, {numbers} WHERE name = CONCAT('{PREFIX}', seq)",
    ]


def _beat() -> list[str]:
    return [
        "SET GLOBAL event_scheduler = ON",
        f"CREATE EVENT {_BEAT} ON SCHEDULE EVERY {_BEAT_SECONDS} SECOND DO UPDATE nova.services "
        f"SET report_count = report_count + 1, last_seen_up = {_NOW}, updated_at = {_NOW} WHERE host LIKE '{PREFIX}%'",
    ]


def _removal() -> list[str]:
    providers = f"SELECT id FROM placement.resource_providers WHERE name LIKE '%{PREFIX}%' AND uuid LIKE '5eed000%'"
    tables = ("inventories", "allocations", "resource_provider_traits", "resource_provider_aggregates")
    return [
        f"DROP EVENT IF EXISTS {_BEAT}",
        "START TRANSACTION",
        *(f"DELETE FROM placement.{table} WHERE resource_provider_id IN ({providers})" for table in tables),
        f"DELETE FROM placement.resource_providers WHERE name LIKE 'blazar_{PREFIX}%'",
        f"UPDATE placement.resource_providers SET root_provider_id = NULL WHERE name LIKE '{PREFIX}%'",
        f"DELETE FROM placement.resource_providers WHERE name LIKE '{PREFIX}%'",
        f"DELETE FROM nova_api.aggregate_hosts WHERE host LIKE '{PREFIX}%'",
        f"DELETE FROM nova_api.host_mappings WHERE host LIKE '{PREFIX}%'",
        f"DELETE FROM nova.compute_nodes WHERE host LIKE '{PREFIX}%'",
        f"DELETE FROM nova.services WHERE host LIKE '{PREFIX}%'",
    ]
