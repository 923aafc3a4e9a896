import pytest

# The contract is no test module by its name, and its assertions should tell as much as those of one.
pytest.register_assert_rewrite("tests.drivers.contract")
