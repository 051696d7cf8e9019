"""Ranks change nothing but who does the work: gradients, metrics, weights and checkpoints are those of one rank."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from miles.engines.transfer.checksum import checksum

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What every scenario of ``ranked`` gave, by name; and the folder."""
    folder = tmp_path_factory.mktemp("ranked")
    command = [sys.executable, "-m", "tests.policy.ranked", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {path.stem: torch.load(path) for path in folder.glob("*.pt")} | {"folder": folder}


def relative(one, other):
    """‖one − other‖ / ‖other‖."""
    return float((one.double() - other.double()).norm() / other.double().norm())


@pytest.mark.parametrize("ranks", ["2", "4", "2x2"])
def test_the_gradient_does_not_depend_on_the_ranks(found, ranks):
    whole = found["gradients-1"]
    for name, gradient in found[f"gradients-{ranks}"].items():
        assert whole[name].norm() > 0
        kind = name.partition(",")[0]
        assert relative(gradient, whole[name]) <= {"float32": 1e-4, "bfloat16": 0.1}.get(kind, 1e-6), name
    assert relative(found[f"gradients-{ranks}"]["bfloat16"], whole["bfloat16"]) > 1e-4
    for name in ("one sample at a time", "checkpointing", "vocabulary chunks", "end to end"):
        assert relative(found[f"gradients-{ranks}"][name], whole["packed"]) <= 1e-6
        assert relative(found[f"gradients-{ranks}"][f"float32, {name}"], whole["packed"]) <= 1e-4


def test_steps_report_the_same_and_export_the_same(found):
    for one, two in zip(found["steps-1"], found["steps-2"], strict=True):
        assert two == pytest.approx(one, rel=1e-6, abs=1e-8)
    one, two = (load_file(found["folder"] / f"export-{ranks}/model.safetensors") for ranks in (1, 2))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_sent_is_what_is_exported_and_leaves_from_the_first_rank(found, ranks):
    exported = load_file(found["folder"] / f"export-{ranks}/model.safetensors")
    first = found[f"staged-{ranks}-0"]
    assert first["weights"].keys() == exported.keys()
    for name, tensor in exported.items():
        assert torch.equal(first["weights"][name], tensor)
        assert checksum(tensor) in first["checksums"][name]
    if ranks == 2:
        assert found["staged-2-1"]["weights"] == {}


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2), (2, 1)])
def test_a_checkpoint_goes_on_with_any_number_of_ranks(found, before, after):
    whole, resumed = found["1-to-1"], found[f"{before}-to-{after}"]
    for one, other in zip(whole, resumed, strict=True):
        assert other == pytest.approx(one, rel=0 if before == after else 1e-6, abs=0 if before == after == 1 else 1e-8)


def test_a_critic_on_ranks_of_its_own_learns_the_same_on_any_number_of_them(found):
    whole = found["critic-1"]
    for one, two in zip(whole, found["critic-2"], strict=True):
        assert two == {name: pytest.approx(value, rel=1e-6, abs=1e-8) for name, value in one.items()}
    for resumed in ("critic-1-to-2", "critic-2-to-1"):
        (report,) = found[resumed]
        assert report == {name: pytest.approx(value, rel=1e-6, abs=1e-8) for name, value in whole[1].items()}
