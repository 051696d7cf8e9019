"""Settings of every lane: CI tries the same examples each time, everybody else new ones."""

import gc
import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector need not look at it again at every test."""
    gc.collect()
    gc.freeze()
