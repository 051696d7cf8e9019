"""CPU time of the control path per sample, and memory per waiting group: ledger, pacing, buffer, producer, hand-over.

    python bench/scheduler.py

Runs the fully async rollout function on a virtual clock with groups that are ready-made, so that what is left is control. The
event loop itself is in the number, the engines' client is not.
"""

import asyncio
import random
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.ledger import Ledger
from miles.simulation.simulate import placeholders
from miles.simulation.virtual_time import VirtualClock, run_virtual
from miles.types import Group, Prompt, Sample, SampleStatus, VersionSpan

SAMPLES, BOUND, LENGTH = 4, 4, 16
SIZES = (100, 1_000, 10_000)
REPEATS = 5
TRAINED_SAMPLES = 20_000


def setup_for(in_flight: int) -> RolloutFnInput:
    """A run whose bound admits so many samples."""
    batch = in_flight // (SAMPLES * (BOUND + 1))
    steps = max(BOUND + 2, TRAINED_SAMPLES // (batch * SAMPLES))
    values = {"rollout_batch_size": batch, "n_samples_per_prompt": SAMPLES, "num_rollout": steps, "max_weight_staleness": BOUND}
    flags = {name: FlagValue(str(value), "--" + name) for name, value in values.items()}
    flags["fully_async"] = FlagValue(True, "--fully-async")
    found = resolve("train-async", Sources(flags, preset="reverse", environ={}, cwd=Path.cwd()))
    source = placeholders(found.derived.num_prompts)
    return RolloutFnInput(found.config, found.derived, source, Ledger(), ReadyMade(), VirtualClock())


class ReadyMade:
    """Groups that differ in nothing but their index and version, after a random time."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        columns = ((0,) * LENGTH, (0.0,) * LENGTH, (1,) * LENGTH)
        span = (VersionSpan(0, 0, LENGTH),)
        self._samples = tuple(Sample(0, n, (0,), *columns, span, SampleStatus.COMPLETED, "", n % 2) for n in range(SAMPLES))

    async def __call__(self, prompt: Prompt, version: int) -> Group:
        """The group."""
        await asyncio.sleep(self._rng.random())
        span = (VersionSpan(version, 0, LENGTH),)
        return Group(prompt, tuple(replace(sample, versions=span) for sample in self._samples), version)


async def run(setup: RolloutFnInput) -> int:
    """All steps; the samples trained."""
    fn, samples = FullyAsyncRolloutFn(setup), 0
    for rollout_id in range(setup.derived.num_rollout):
        rollout = await fn(rollout_id, rollout_id)
        samples += len(rollout.samples)
        await asyncio.sleep(0.2)
        setup.ledger.mark_trained(rollout)
        fn.published(rollout_id + 1)
    await fn.close()
    return samples


def microseconds_per_sample(in_flight: int) -> float:
    """The least of the repeats."""
    times = []
    for _ in range(REPEATS):
        setup = setup_for(in_flight)
        began = time.process_time()
        samples = run_virtual(run(setup))
        times.append((time.process_time() - began) / samples * 1e6)
    return min(times)


def bytes_per_waiting_group(number: int = 20_000) -> float:
    """What the ledger holds of a group that waits."""
    tracemalloc.start()
    ledger = Ledger()
    for _ in range(number):
        ledger.reserve()
    for index in range(number):
        ledger.put_back(index)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / number


def main() -> None:
    """Print the table."""
    found = {size: microseconds_per_sample(size) for size in SIZES}
    for size, value in found.items():
        print(f"{size:>6} samples in flight: {value:6.1f} µs of CPU a sample, {value / found[SIZES[0]]:.2f} × the first")
    print(f"a waiting group takes {bytes_per_waiting_group():.0f} bytes")


if __name__ == "__main__":
    main()
