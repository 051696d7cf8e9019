import pytest

pytest.register_assert_rewrite("tests.engines.conformance_suite", "tests.engines.update_suite")
