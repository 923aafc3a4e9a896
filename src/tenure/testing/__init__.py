"""The contracts of drivers and resource types, as test suites that their authors inherit.

Needs pytest, which ``pip install 'tenure[testing]'`` brings. ``types`` is the suite of resource types. ``rig`` and
``breaking`` are shared by all suites of drivers, and ``resources`` is the suite of drivers for resources that are
reserved as a whole.
"""

import pkgutil

import pytest

# Before they are imported, so that failed assertions show the compared values.
pytest.register_assert_rewrite(*(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")))
