"""Values that follow from the options, each by one stated rule; shown as rows of their own with their arithmetic."""

from dataclasses import dataclass
from typing import Literal

Schedule = Literal["sync", "one_step_off", "fully_async"]


@dataclass(frozen=True, slots=True)
class Derived:
    """What the run reads where an option may be left open; never contradicts a value the user gave.

    num_prompts: lines of the prompt file.
    num_rollout: rollouts of the whole run (from --num-rollout, or --num-epoch and num_prompts).
    num_optimizer_steps: num_rollout × num_steps_per_rollout.
    max_context_len: prompt and answer together, from the option or the model's ``max_position_embeddings``.
    max_prompt_len: from the option, or the context minus the answer.
    staleness_bound: in weight versions, by the schedule.
    """

    schedule: Schedule
    global_batch_size: int
    num_steps_per_rollout: int
    num_prompts: int
    num_rollout: int
    num_optimizer_steps: int
    rollout_function_path: str
    eval_function_path: str
    device: Literal["cuda", "cpu"]
    engine: Literal["embedded", "sglang"]
    num_engines: int
    num_ranks: int
    max_context_len: int
    max_prompt_len: int
    update_weights_interval: int
    staleness_bound: int
    eval_temperature: float
    eval_top_p: float
    eval_top_k: int
    eval_max_response_len: int
