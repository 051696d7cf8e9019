"""The doctor tries the sglang that is installed here."""

import pytest

from miles_cli.machine import error_of_importing_sglang

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(150)]


def test_this_sglang_would_start() -> None:
    assert error_of_importing_sglang(has_gpu=False) == ""
