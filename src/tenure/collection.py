"""The garbage collection of Tenure's processes."""

from __future__ import annotations

import gc


def spare_loaded_objects() -> None:
    """Leave the objects that exist now out of later garbage collections, in which all threads wait.

    Modules, models and statements make some 200,000 objects that never become garbage, an index of 100,000 resources
    some 300,000.
    """
    gc.collect()
    gc.freeze()
