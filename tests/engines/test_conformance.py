"""The conformance suite against the embedded engine."""

import pytest

from .conformance_suite import *  # noqa: F403 - the tests

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]
