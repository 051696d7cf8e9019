"""A run's weights come out whole, or not at all."""

import json

import pytest

from miles.errors import CheckpointError
from miles.loops.export_run import export_run
from miles.policy.checkpoint import FILES, HF, fingerprints

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints after 10 and 20 rollouts."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text("[train]\nlr = 1\n")
    for rollout_id in (9, 19):
        folder = tmp_path / f"run/checkpoints/rollout-{rollout_id:06d}"
        (folder / HF).mkdir(parents=True)
        (folder / "trainer").mkdir()
        (folder / HF / "model.safetensors").write_text(f"weights {rollout_id}")
        (folder / FILES).write_text(json.dumps(fingerprints(folder)))
    (tmp_path / "run/checkpoints/latest").write_text("rollout-000019\n")
    return tmp_path / "run"


@pytest.mark.parametrize(("step", "words"), [(None, "weights 19"), (20, "weights 19"), (10, "weights 9")])
def test_the_checkpoint_asked_for_is_copied(run, tmp_path, step, words):
    export_run(run, tmp_path / "out", step)
    assert (tmp_path / "out/model.safetensors").read_text() == words
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


def test_checkpoints_elsewhere_are_found(run, tmp_path):
    (run / "checkpoints").rename(tmp_path / "kept")
    (run / "config.toml").write_text(f'save = "{tmp_path / "kept"}"\n')
    export_run(run, tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").is_file()


def test_what_cannot_be_exported_is_said(run, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint after 15 rollouts: there are those after 10, 20 rollouts"):
        export_run(run, tmp_path / "out", 15)
    with pytest.raises(CheckpointError, match="holds no run"):
        export_run(tmp_path, tmp_path / "out")
    with pytest.raises(CheckpointError, match="is there already"):
        export_run(run, run)
    (run / "checkpoints/rollout-000009" / HF / "model.safetensors").write_text("weights x")
    with pytest.raises(CheckpointError, match="is damaged"):
        export_run(run, tmp_path / "out", 10)
    assert not (tmp_path / "out").exists()
