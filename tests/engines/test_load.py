"""Fifty updates of an embedded engine under load, and the suite of updates by the transports that the unit lane leaves out."""

import pytest

from .load_suite import *  # noqa: F403 - the tests that sglang runs too
from .update_suite import *  # noqa: F403 - likewise
from .ways import WAYS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@pytest.fixture(params=[way for way in WAYS if way != "disk"])
def way(request: pytest.FixtureRequest) -> str:
    """A transport."""
    return str(request.param)
