"""The contracts of drivers and resource types, as tests that whoever writes one inherits.

Needs pytest, which ``pip install 'tenure[testing]'`` brings. ``types`` is the suite of resource types. ``rig`` and
``breaking`` have what all suites of drivers share; ``resources`` is the one for things that are handed out as a whole,
whatever they are, and ``hosts``, ``instances``, ``addresses``, ``volumes`` and ``preemption`` those for what Tenure
knows itself.
"""

import pytest

_SUITES = ("rig", "types", "resources", "hosts", "instances", "addresses", "preemption", "volumes")
# Before any of them is imported, so that their assertions say what they compared.
pytest.register_assert_rewrite(*(f"tenure.testing.{suite}" for suite in _SUITES))
