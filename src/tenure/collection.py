"""The garbage collection of Tenure's processes."""

from __future__ import annotations

import gc


def spare_loaded_objects() -> None:
    """Leave the objects that exist now out of later garbage collections, in which all threads wait.

    Modules, models and statements make some 200,000 objects that never become garbage. An index of the ledger has few
    objects, but large tables, of which a collection visits each entry.
    """
    gc.collect()
    gc.freeze()
