"""The contracts of the verbs for each of Tenure's own resource types, as tests that every driver inherits.

What drivers by others share with ours (``rig``, ``breaking``, ``resources``) is in ``tenure.testing``.
"""

import pytest

_SUITES = ("hosts", "instances", "addresses", "preemption", "servers", "volumes")
# Before any of them is imported, so that their assertions say what they compared.
pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in _SUITES))
