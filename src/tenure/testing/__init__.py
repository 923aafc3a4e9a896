"""The contracts of drivers and resource types, as tests that whoever writes one inherits.

Needs pytest, which ``pip install 'tenure[testing]'`` brings. ``rig`` has what all suites of drivers share; ``hosts``,
``instances``, ``addresses`` and ``preemption`` are the suites of drivers, one for each kind of thing that is reserved.
"""

import pytest

# Before any of them is imported, so that their assertions say what they compared.
pytest.register_assert_rewrite(
    *(f"tenure.testing.{suite}" for suite in ("rig", "hosts", "instances", "addresses", "preemption"))
)
