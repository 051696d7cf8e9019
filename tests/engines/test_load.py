"""Fifty updates of an embedded engine under load."""

import pytest

from .load_suite import *  # noqa: F403 - the tests that sglang runs too

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
