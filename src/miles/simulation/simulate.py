"""A simulated run: the loop, the rollout function, the ledger and the staleness control are those of a real one.

resolution, workload ──► virtual clock ─► simulated engines ─► the real rollout function ─► the real loop ─► Forecast
"""

import statistics
from dataclasses import dataclass, replace

from miles.config.commands import AnyConfig
from miles.config.resolution import Resolution
from miles.loops.parts import Cadence, Parts, StopFlag
from miles.loops.run import Run
from miles.loops.schedules import run_schedule
from miles.rollout.build import rollout_function
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.ledger import Ledger
from miles.rollout.prompt_lines import PromptLine
from miles.rollout.prompts import PromptSource
from miles.simulation.cores import Cores, Process
from miles.simulation.fleet import SimulatedFleet
from miles.simulation.parts import NoTrace, Rows, SimulatedGenerator, SimulatedPolicy, SimulatedPublisher
from miles.simulation.virtual_time import VirtualClock, run_virtual
from miles.simulation.workload import Workload
from miles.types import Metrics, mean

WARM_UP = 0.2  # share of the steps that are left out: the pipeline fills


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a schedule comes to.

    step_seconds: median of the steps after the warm-up; tokens_per_second: response tokens trained, over the same steps.
    engine_idle, policy_idle: share of the whole time. staleness: of the groups consumed, in versions.
    discarded_groups: dropped, or sampled again because they were too old; masked_share: of the response tokens.
    """

    schedule: str
    num_engines: int
    step_seconds: float
    tokens_per_second: float
    engine_idle: float
    policy_idle: float
    mean_staleness: float
    max_staleness: float
    discarded_groups: int
    masked_share: float


def simulate(
    resolution: Resolution, workload: Workload, *, num_engines: int, num_steps: int, num_ranks: int | None = None
) -> Forecast:
    """Run ``num_steps`` rollouts of a configuration on virtual time, with its own number of ranks unless another is given.

    Raises:
        MilesError: what a real run would have raised.
    """
    forecast: Forecast = run_virtual(
        _run(resolution, workload, num_engines, num_steps, num_ranks or resolution.derived.num_ranks)
    )
    return forecast


async def _run(resolution: Resolution, workload: Workload, num_engines: int, num_steps: int, num_ranks: int) -> Forecast:
    clock, config = VirtualClock(), resolution.config
    derived = replace(resolution.derived, num_rollout=num_steps)
    host = Cores(workload.cores)
    devices = host if derived.device == "cpu" else Cores()
    driver = Process(host)
    fleet = SimulatedFleet(clock, devices, workload, num_engines)
    limit, together = config.rollout.rollout_timeout_seconds, config.rollout.rollout_submission_granularity == "group"
    generator = SimulatedGenerator(clock, driver, fleet, workload, config.data.n_samples_per_prompt, limit, together)
    ledger, rows = Ledger(), Rows()
    prompts = placeholders(derived.num_prompts or 1)
    fn = rollout_function(
        RolloutFnInput(config, derived, prompts, ledger, generator, clock, room=fleet, interrupt=fleet.interrupt)
    )
    policy = SimulatedPolicy(clock, driver, host, devices, workload, num_ranks, derived.num_steps_per_rollout)
    alone = derived.update_weight_transfer_mode == "disk" and not config.engine.check_weight_update
    publisher = SimulatedPublisher(clock, driver, policy, fleet, workload, alone, retracts_at_updates(config))
    cadence = Cadence(num_steps, derived.update_weights_interval, eval_before_train=False)
    run = Run(Parts(fn, ledger, policy, publisher, None, rows, rows), cadence, clock, NoTrace(), StopFlag())
    fleet.start()
    try:
        await run_schedule(run, derived.schedule)
    finally:
        await fn.close()
        await fleet.close()
    return forecast_of(derived.schedule, rows.rows, fleet, policy, clock.now())


def retracts_at_updates(config: AnyConfig) -> bool:
    """Whether running requests lose their cache when weights are replaced."""
    return getattr(config.rollout, "pause_generation_mode", "retract") == "retract"


def placeholders(num_prompts: int) -> PromptSource:
    """As many prompts as the data has; what they say plays no part."""
    return PromptSource([PromptLine(row, "", (0,), None) for row in range(num_prompts)])


def forecast_of(schedule: str, rows: list[Metrics], fleet: SimulatedFleet, policy: SimulatedPolicy, seconds: float) -> Forecast:
    """What the rows and the clocks say."""
    warm = rows[int(WARM_UP * len(rows)) :]
    busy = mean([engine.busy_seconds for engine in fleet.engines])
    last = rows[-1]
    dropped = sum(value for key, value in last.items() if key.startswith("ledger/dropped/"))
    retried = sum(row.get("rollout/retried", 0.0) for row in rows)
    return Forecast(
        schedule=schedule,
        num_engines=len(fleet.engines),
        step_seconds=statistics.median(row["perf/step_time"] for row in warm),
        tokens_per_second=sum(row["rollout/num_tokens"] for row in warm) / max(sum(row["perf/step_time"] for row in warm), 1e-9),
        engine_idle=1 - busy / seconds,
        policy_idle=1 - policy.busy_seconds / seconds,
        mean_staleness=mean([row["rollout/staleness/mean"] for row in warm]),
        max_staleness=max(row["rollout/staleness/max"] for row in rows),
        discarded_groups=int(dropped + retried),
        masked_share=mean([row.get("rollout/masked/share", 0.0) for row in warm]),
    )
