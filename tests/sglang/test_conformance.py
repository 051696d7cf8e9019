"""The conformance suite, updates in flight included, against a real sglang."""

import pytest

from ..engines.conformance_suite import *  # noqa: F403 - the tests
from ..engines.load_suite import *  # noqa: F403 - the tests
from ..engines.openai_suite import *  # noqa: F403 - the tests
from ..engines.update_suite import *  # noqa: F403 - the tests

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(200)]
