"""Which of the three ways a run evaluates: on the rollout's engines, on engines of its own, or by a function given a folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from miles.clock import Clock
from miles.config.dotted import load_dotted
from miles.config.resolution import Resolution
from miles.engines.fleet import EngineFleet
from miles.loops.beside import Beside, Limits, Measure
from miles.loops.checkpoint_function import CheckpointFunction
from miles.loops.data import RunData
from miles.loops.evaluate import BoundEvaluator, FleetMeasure
from miles.rollout.build import eval_generator
from miles.rollout.rewards import Rewards
from miles.tracking.trace import Spans
from miles.weights.disk import DiskTransport, WeightExporter
from miles.weights.publish import Publisher
from miles.weights.snapshot import InPlace, Snapshots


@dataclass(frozen=True, slots=True)
class EvaluationParts:
    """What evaluations are made of.

    weights: folder for weights. logs: folder for the output of processes.
    begins_elsewhere: the policy's first weights are not those of ``--hf-checkpoint``.
    """

    policy: WeightExporter
    resolution: Resolution
    data: RunData
    rewards: Rewards
    weights: Path
    logs: Path
    clock: Clock
    trace: Spans
    say: Callable[[str], None]
    begins_elsewhere: bool = False


def goes_beside(resolution: Resolution) -> bool:
    """Whether training goes on while an evaluation runs."""
    return resolution.derived.num_eval_engines > 0 or resolution.config.evaluation.eval_checkpoint_function_path is not None


def bound_evaluator(parts: EvaluationParts, engines: EngineFleet) -> BoundEvaluator | None:
    """The evaluation of held-out prompts on these engines, None without such prompts."""
    if not parts.data.heldout:
        return None
    config, derived = parts.resolution.config, parts.resolution.derived
    generator = eval_generator(config, derived, parts.data.tokenizer, engines, parts.rewards)
    return BoundEvaluator(load_dotted(derived.eval_function_path), parts.data.heldout, generator)


def evaluation_beside(parts: EvaluationParts, engines: EngineFleet | None) -> Beside | None:
    """Evaluations that training does not wait for, on engines of their own or by the user's function; None without them."""
    if not goes_beside(parts.resolution):
        return None
    config = parts.resolution.config
    snapshots = Snapshots(parts.policy, config.model.hf_checkpoint, parts.weights / "held", parts.begins_elsewhere)
    limits = Limits(config.evaluation.eval_overflow == "skip", config.evaluation.eval_timeout_seconds)
    measure = _measure(parts, engines)
    return None if measure is None else Beside(measure, snapshots, limits, parts.clock, parts.trace, parts.say)


def _measure(parts: EvaluationParts, engines: EngineFleet | None) -> Measure | None:
    config = parts.resolution.config
    path = config.evaluation.eval_checkpoint_function_path
    if path is not None:
        return CheckpointFunction(path, parts.logs / "evaluation.log")
    evaluator = None if engines is None else bound_evaluator(parts, engines)
    if engines is None or evaluator is None:
        return None
    timeout, folder = config.engine.update_weights_timeout_seconds, parts.weights / "evaluated"
    loader = Publisher(DiskTransport(InPlace(), folder), engines, "retract", timeout, parts.clock)
    return FleetMeasure(loader, evaluator, folder)
