"""What a simulated cloud offers beside its hosts, from the beginning: flavors, networks, pools of volumes."""

from __future__ import annotations

import json
from typing import Final

#: The external network of a simulated cloud, and one that leads nowhere.
PUBLIC_NETWORK: Final = "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001"
PRIVATE_NETWORK: Final = "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0002"
#: The class of which hosts with ``CUSTOM_GPU_A100`` have four.
GPU_CLASS: Final = "CUSTOM_GPU"
GPUS: Final = json.dumps({GPU_CLASS: {"total": 4}})

_GPU_SPECS: Final = {f"resources:{GPU_CLASS}": "1", "trait:CUSTOM_GPU_A100": "required"}
#: Id, name, processors, memory in MiB, disk and ephemeral disk in GiB, swap in MiB, public or not, extra specs.
_FLAVORS: Final[tuple[tuple[str, str, int, int, int, int, int, int, dict[str, str]], ...]] = (
    ("1", "m1.tiny", 1, 512, 1, 0, 0, 1, {}),
    ("2", "m1.small", 1, 2_048, 20, 0, 0, 1, {}),
    ("3", "m1.medium", 2, 4_096, 40, 0, 0, 1, {}),
    ("4", "m1.large", 4, 8_192, 80, 20, 1_024, 1, {}),
    ("5", "g1.a100", 8, 65_536, 100, 0, 0, 1, _GPU_SPECS),
    ("7", "p1.small", 1, 2_048, 20, 0, 0, 1, {"blazar:preemptible": "true"}),
    ("6", "x1.private", 2, 4_096, 40, 0, 0, 0, {}),
)
FLAVORS: Final = tuple(
    "INSERT INTO flavor (id, name, vcpus, ram, disk, ephemeral, swap, is_public, extra_specs) VALUES"
    f" ('{ident}', '{name}', {vcpus}, {ram}, {disk}, {ephemeral}, {swap}, {public}, '{json.dumps(specs)}')"
    for ident, name, vcpus, ram, disk, ephemeral, swap, public, specs in _FLAVORS
)
ADDRESSES: Final = (
    f"INSERT INTO network VALUES ('{PUBLIC_NETWORK}', 'public', 1), ('{PRIVATE_NETWORK}', 'private', 0)",
    # id, network, CIDR, gateway, allocation pools
    f"""INSERT INTO subnet VALUES
        ('5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0101', '{PUBLIC_NETWORK}', '203.0.113.0/24', '203.0.113.1',
         '[["203.0.113.100", "203.0.113.199"]]'),
        ('5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0102', '{PUBLIC_NETWORK}', '2001:db8::/64', '2001:db8::1',
         '[["2001:db8::1:0", "2001:db8::ffff:ffff"]]'),
        ('5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0103', '{PRIVATE_NETWORK}', '10.0.0.0/24', NULL, '[]')""",
)
#: A fast pool of volumes and a slow one, with a type that leads to each, and one that leads to either.
POOLS: Final = (
    "INSERT INTO pool (name, total_gb) VALUES ('sim-storage@fast#nvme', 2000), ('sim-storage@slow#disk', 20000)",
    """INSERT INTO volume_type VALUES
        ('5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0201', 'fast', 'sim-storage@fast#nvme', 0),
        ('5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0202', 'slow', 'sim-storage@slow#disk', 1),
        ('5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0203', 'any', NULL, 0)""",
)
