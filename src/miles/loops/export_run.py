"""An HF folder out of a run: the weights of one checkpoint, whole and unharmed, for transformers, SGLang or another run."""

import shutil
from pathlib import Path

from miles.errors import CheckpointError
from miles.policy.checkpoint import HF, damage_of
from miles.policy.folders import written_aside
from miles.tracking.past_runs import checkpoints_of
from miles.tracking.run_folder import RunFolder


def export_run(run: Path, out: Path, step: int | None = None, *, merge_lora: bool = False) -> Path:
    """Copy the weights of a run's checkpoint to ``out``, which appears whole; returns the checkpoint.

    Of a run with LoRA these are the adapters, in peft's format.

    Args:
        run: the run folder.
        out: a folder that is not there yet.
        step: rollouts trained; by default those of the newest checkpoint.
        merge_lora: the whole model, with the adapters merged into the one that they were trained beside.

    Raises:
        CheckpointError: there is no such run or checkpoint, it is damaged, or ``out`` cannot be written.
    """
    if out.exists():
        raise CheckpointError(f"{out} is there already. Give a folder that is not, or remove it.")
    checkpoint = find_checkpoint(run, step)
    if damage := damage_of(checkpoint):
        raise CheckpointError(damage)
    try:
        with written_aside(out.absolute(), durable=True) as aside:
            if merge_lora:
                write_merged(checkpoint / HF, aside)
            else:
                shutil.copytree(checkpoint / HF, aside, dirs_exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out} could not be written: {error}. Free disk space or give another folder.") from error
    return checkpoint


def write_merged(adapters: Path, folder: Path) -> None:
    """The whole model of a folder of adapters, with everything else that stands beside them.

    Raises:
        CheckpointError: it holds no adapters, or their model is not where it was.
        OSError: the folder cannot be written.
    """
    from miles.engines.transfer.adapter import ADAPTER_CONFIG, ADAPTER_FILE
    from miles.policy.adapters import merge_adapters
    from miles.policy.export import write_weights

    if not (adapters / ADAPTER_CONFIG).is_file():
        raise CheckpointError(f"{adapters} holds a whole model and no adapters. Leave --merge-lora out.")
    for path in adapters.iterdir():
        if path.name not in (ADAPTER_CONFIG, ADAPTER_FILE):
            shutil.copyfile(path, folder / path.name)
    write_weights(merge_adapters(adapters), folder)


def find_checkpoint(run: Path, step: int | None) -> Path:
    """The checkpoint after ``step`` rollouts, or the newest.

    Raises:
        CheckpointError: there is none; with those that there are.
    """
    folder = RunFolder(run.absolute(), checkpoints_of(run))
    checkpoint = folder.latest() if step is None else folder.checkpoint_for(step - 1)
    if checkpoint is not None and checkpoint.is_dir():
        return checkpoint
    steps = sorted(int(path.name.removeprefix("rollout-")) + 1 for path in folder.checkpoints.glob("rollout-*"))
    known = (
        f"there are those after {', '.join(map(str, steps))} rollouts; give one of them as --step" if steps else "there is none"
    )
    wanted = "no newest checkpoint" if step is None else f"no checkpoint after {step} rollouts"
    raise CheckpointError(f"{run} has {wanted}: {known}.")
