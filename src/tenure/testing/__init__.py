"""The contracts of drivers and resource types, as tests that whoever writes one inherits.

Needs pytest, which ``pip install 'tenure[testing]'`` brings. ``types`` is the suite of resource types. ``rig`` and
``breaking`` have what all suites of drivers share, and ``resources`` is the suite of drivers for things that are handed
out as a whole.
"""

import pytest

_SUITES = ("rig", "types", "resources")
# Before any of them is imported, so that their assertions say what they compared.
pytest.register_assert_rewrite(*(f"tenure.testing.{suite}" for suite in _SUITES))
