"""A checkpoint written in the background is the one of its moment, whatever the policy does meanwhile."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from miles.errors import CheckpointError
from miles.policy.background_save import BackgroundSave
from miles.policy.checkpoint import HF, damage_of, load_checkpoint, save_checkpoint
from miles.policy.folders import remove_unfinished
from miles.policy.trainer import Trainer
from tests.policy.builders import PRESET, config, derived, policy_model, random_rollout

pytestmark = pytest.mark.unit
ROLLOUTS = [random_rollout(seed, num_groups=2) for seed in (41, 42)]


def trainer(**options):
    return Trainer(config(**options), derived(8), model=policy_model("llama", torch.float32))


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}])
def test_it_is_the_checkpoint_of_its_moment(tmp_path, options):
    built = trainer(**options)
    built.train_on(ROLLOUTS[0], 0)
    save_checkpoint(built, tmp_path / "now", PRESET)
    saving = BackgroundSave(built, tmp_path / "later", PRESET)
    assert not (tmp_path / "later").exists()
    report = built.train_on(ROLLOUTS[1], 1)
    saving.finish()
    assert not damage_of(tmp_path / "later")
    names = {path.name for path in (tmp_path / "now" / HF).iterdir()}
    assert {path.name for path in (tmp_path / "later" / HF).iterdir()} == names
    weights = next(name for name in names if name.endswith(".safetensors"))
    now, later = (load_file(tmp_path / folder / HF / weights) for folder in ("now", "later"))
    assert now.keys() == later.keys()
    assert all(torch.equal(later[name], tensor) for name, tensor in now.items())
    resumed = trainer(**options)
    load_checkpoint(resumed, tmp_path / "later")
    assert resumed.train_on(ROLLOUTS[1], 1) == report
    assert {path.name for path in tmp_path.iterdir()} == {"now", "later"}


def test_a_failure_says_so_and_leaves_nothing(tmp_path):
    saving = BackgroundSave(trainer(), tmp_path / "kept", PRESET)
    (aside,) = tmp_path.iterdir()
    (aside / HF).rename(aside / "elsewhere")
    with pytest.raises(CheckpointError, match="kept could not be written: .*Nothing that was there is lost"):
        saving.finish()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_tidied_away(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f".a.{gone.pid}.part", f".b.{gone.pid}.old", f".c.{gone.pid}.old", "c", ".d.1.part", ".lock"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name.strip(".")).touch()
    remove_unfinished(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"b", "c", ".d.1.part", ".lock"}, "process 1 is alive"
    assert (tmp_path / "c/c").exists()


def test_a_run_may_begin_with_another_ones_weights_and_moments(tmp_path):
    first = trainer(lr_decay_style="cosine")
    first.train_on(ROLLOUTS[0], 0)
    save_checkpoint(first, tmp_path / "kept", PRESET)
    torch.rand(5)
    noise = torch.get_rng_state()
    second = trainer(lr_decay_style="cosine")
    rate = second.learning_rate
    load_checkpoint(second, tmp_path / "kept", anew=True)
    assert (second.num_optimizer_steps, second.learning_rate) == (0, rate)
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(map(torch.equal, second.model.parameters(), first.model.parameters()))
    ours, theirs = (list(built.optimizer.state.values()) for built in (second, first))
    assert ours and all(torch.equal(one["exp_avg_sq"], other["exp_avg_sq"]) for one, other in zip(ours, theirs, strict=True))
