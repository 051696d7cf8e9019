"""What a run does until its end, in numbers, and the points at which it evaluates and saves."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from miles.config.resolution import Resolution

LISTED = 8  # points that are written out


@dataclass(frozen=True, slots=True)
class Work:
    """Amounts from the first rollout to the last.

    answer_tokens, prompt_tokens: at most.
    evaluations, saves: rollouts after which they take place; 0 is before the first.
    """

    rollouts: int
    groups: int
    samples: int
    optimizer_steps: int
    answer_tokens: int
    prompt_tokens: int
    evaluations: tuple[int, ...]
    saves: tuple[int, ...]

    def data(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


def work_of(resolution: Resolution) -> Work:
    """The amounts of a configuration."""
    config, derived = resolution.config, resolution.derived
    groups = derived.num_rollout * config.data.rollout_batch_size
    samples = groups * config.data.n_samples_per_prompt
    evaluation, last = config.evaluation, derived.num_rollout
    first = () if evaluation.skip_eval_before_train else (0,)
    evaluates = evaluation.eval_prompt_data or evaluation.eval_checkpoint_function_path
    evaluations = (*first, *points(evaluation.eval_interval, last)) if evaluates else ()
    return Work(
        rollouts=last,
        groups=groups,
        samples=samples,
        optimizer_steps=derived.num_optimizer_steps,
        answer_tokens=samples * config.data.rollout_max_response_len,
        prompt_tokens=groups * derived.max_prompt_len,
        evaluations=evaluations,
        saves=tuple(points(config.model.save_interval, last)),
    )


def points(interval: int | None, last: int) -> Iterator[int]:
    """Rollouts after which something recurs, the last one always."""
    if interval is not None:
        yield from range(interval, last, interval)
    yield last


def work_lines(resolution: Resolution, work: Work) -> Iterator[str]:
    """The amounts in words."""
    data, derived = resolution.config.data, resolution.derived
    groups, size = data.rollout_batch_size, data.n_samples_per_prompt
    yield f"each rollout: {groups} groups × {size} samples = {groups * size} samples"
    yield f"each optimiser step: {derived.global_batch_size} samples; {derived.num_steps_per_rollout} per rollout"
    stop = f"num_epoch = {data.num_epoch}" if data.num_epoch is not None else f"num_rollout = {data.num_rollout}"
    yield f"stops after {work.rollouts} rollouts ({stop}): {work.optimizer_steps} optimiser steps"
    if derived.num_prompts:
        passes = work.groups / derived.num_prompts
        yield f"prompts: {work.groups} groups over {derived.num_prompts} prompts, {passes:.3g} passes"
    else:
        yield f"prompts: {work.groups} groups, as {data.data_source_path} gives them"
    yield f"samples: {work.samples:,} to the end, with at most {work.answer_tokens:,} answer tokens"
    yield f"lengths: prompt up to {derived.max_prompt_len}, answer up to {data.rollout_max_response_len} tokens"


def point_lines(resolution: Resolution, work: Work) -> Iterator[str]:
    """When the run evaluates and saves, in words."""
    evaluation = resolution.config.evaluation
    function = evaluation.eval_checkpoint_function_path
    names = [name for name, _ in evaluation.eval_prompt_data] if function is None else [f"by {function}"]
    if not names:
        yield "no evaluation: there is no --eval-prompt-data"
    else:
        yield f"evaluates {', '.join(names)} {spell_points(work.evaluations)}"
        yield from _way_lines(resolution)
    yield f"saves a checkpoint {spell_points(work.saves)}"


def spell_points(points: Sequence[int]) -> str:
    """``4 times: before the first rollout, after 50, 100, 150``."""
    return f"{_times(points)}: {_listed(points)}"


def _way_lines(resolution: Resolution) -> Iterator[str]:
    """Whether training goes on meanwhile, in words."""
    evaluation, engines = resolution.config.evaluation, resolution.derived.num_eval_engines
    if not engines and evaluation.eval_checkpoint_function_path is None:
        yield "the rollout's engines evaluate; production pauses, what is in flight goes on"
        return
    where = f"on {engines} engine{'s' if engines > 1 else ''} of its own" if engines else "in a process of its own"
    overflow = {"wait": "a point that comes due meanwhile waits", "skip": "a point that comes due meanwhile is skipped"}
    limit = f"{evaluation.eval_timeout_seconds:g} s each at most"
    yield f"evaluation goes on beside training, {where}, {limit}; {overflow[evaluation.eval_overflow]}"


def _times(points: Sequence[int]) -> str:
    return "once" if len(points) == 1 else f"{len(points)} times"


def _listed(points: Sequence[int]) -> str:
    """``before the first rollout, after 50, 100, 150``; the middle of many is left out."""
    after = [str(point) for point in points if point]
    if len(after) > LISTED:
        after = [*after[:3], "…", *after[-2:]]
    start = ["before the first rollout"] if 0 in points else []
    return ", ".join([*start, f"after {', '.join(after)}"])
