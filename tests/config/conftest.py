"""A model folder and a prompt file that satisfy every check, so that a test speaks only of what it tests."""

import json

import pytest

from tests.config.support import Bench
from tests.pretend import a_machine_with


@pytest.fixture(autouse=True, scope="session")
def sglang_here():
    """As where sglang is installed; what is said without it has tests of its own."""
    with a_machine_with(has_sglang=True, has_router=True):
        yield


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (folder / "prompts.jsonl").write_text('{"prompt": "a", "label": "b"}\n' * 10 + "\n")
    (folder / "heldout.jsonl").write_text('{"prompt": "a", "label": "b"}\n')
    return Bench(folder)
