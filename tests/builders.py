"""What tests of several parts build: derived values, and a run folder as a stopped run leaves it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from miles.config.derived import Derived
from miles.tracking.run_folder import RunFolder, RunState, write_state

PLAIN = Derived(
    schedule="sync",
    global_batch_size=4,
    num_steps_per_rollout=1,
    num_prompts=7,
    num_rollout=10,
    num_optimizer_steps=10,
    rollout_function_path="miles.rollout.inference:InferenceRolloutFn",
    eval_function_path="miles.loops.evaluate:evaluate",
    device="cpu",
    engine="embedded",
    update_weight_transfer_mode="disk",
    num_engines=1,
    num_ranks=1,
    max_context_len=64,
    max_prompt_len=32,
    update_weights_interval=1,
    staleness_bound=0,
    eval_temperature=0.0,
    eval_top_p=1.0,
    eval_top_k=-1,
    eval_max_response_len=8,
)


def derived(**changes: Any) -> Derived:
    """Derived values of a small sync run on a CPU."""
    return replace(PLAIN, **changes)


def stopped_run(path: Path) -> RunFolder:
    """A run folder as it stands after rollout 6, without the record of how it was started."""
    run = RunFolder(path, path / "checkpoints")
    checkpoint = run.checkpoint_for(6)
    checkpoint.mkdir(parents=True)
    run.point_latest_at(checkpoint)
    write_state(checkpoint, RunState(7, 7, {}))
    (path / "metrics.jsonl").write_text('{"rollout_id": 6}\n')
    return run
