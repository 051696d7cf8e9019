"""What an engine refuses to start with."""

import json
import sys
from pathlib import Path

import pytest

from miles.engines.embedded.__main__ import main
from miles.engines.embedded.model import load_model
from miles.engines.embedded.options import EmbeddedOptions
from miles.errors import EngineError

from .engine_fixtures import options_for, running

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


def test_a_wrong_model_path_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["engine", "--model-path", str(tmp_path)])
    assert main() == 1
    assert capsys.readouterr().err == f"error: {tmp_path} holds no config.json; give a Hugging Face model folder as model path.\n"


def test_other_models_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(EngineError, match=r"'gpt2' is not supported .*\(supported: llama, qwen2, qwen3\)"):
        load_model(str(tmp_path))


def test_sliding_windows_are_refused(tmp_path: Path, model_folder: Path) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    config |= {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True, "sliding_window": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="sliding-window attention is not supported"):
        load_model(str(tmp_path))


def test_rope_that_depends_on_the_batch_is_refused(tmp_path: Path, model_folder: Path) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match="rope type 'dynamic' changes with the longest row"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("context_len", [1, 513])
def test_a_context_that_the_model_does_not_have_is_refused(model_folder: Path, context_len: int) -> None:
    options = options_for(model_folder, context_len=context_len)
    with pytest.raises(EngineError, match=rf"context_len = {context_len} does not fit"), running(options):
        pass


def test_a_cache_that_does_not_fit_is_refused(model_folder: Path) -> None:
    with pytest.raises(EngineError, match=r"KV cache of \d+ slots × 512 tokens needs .* GiB are free\. Use fewer slots"):
        load_model(str(model_folder)).new_cache(10**9, 512)


def test_a_taken_port_is_a_sentence(model_folder: Path) -> None:
    with running(options_for(model_folder)) as address:
        port = int(address.rsplit(":", 1)[1])
        taken = EmbeddedOptions(str(model_folder), num_slots=2, port=port)
        with pytest.raises(EngineError, match=rf"Cannot listen on 127\.0\.0\.1:{port}"), running(taken):
            pass
