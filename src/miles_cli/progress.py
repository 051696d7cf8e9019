"""What a run has shown so far, kept as numbers; screens draw it."""

from collections import deque
from dataclasses import dataclass, field

from miles.tracking.metrics_file import evals_in
from miles.types import Metrics

REWARD, LOSS = "rollout/raw_reward", "train/loss"
MEAN_STALENESS = "rollout/staleness/mean"
MAX_STALENESS = "rollout/staleness/max"
QUEUE = "rollout/fully_async/queue_size"
TOKENS = "perf/tokens_per_second"
TIMES = {"perf/step_time": "step", "perf/rollout_time": "rollout", "perf/train_time": "train", "perf/train_wait_time": "wait"}
BLOCKS = "▁▂▃▄▅▆▇█"
RECENT = 20  # steps over which speed is taken
HISTORY = 400


@dataclass(slots=True)
class RunProgress:
    """The run so far.

    started: clock reading in seconds when the run's process began to watch it.
    curve: reward of the last rollouts, or loss of the last steps of `miles sft`.
    ends: clock readings at which the last rollouts were done, for the time left.
    """

    started: float
    done: int = 0
    total: int = 0
    row: Metrics = field(default_factory=dict)
    curve: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    ends: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT + 1))
    first_eval: Metrics = field(default_factory=dict)
    last_eval: Metrics = field(default_factory=dict)
    worst_staleness: float = 0.0

    def add(self, row: Metrics, done: int, total: int, now: float) -> None:
        """Take in a line of metrics.jsonl."""
        self.done, self.total = done, total
        if not self.ends:
            self.ends.append((0 if is_step(row) else done, now if not is_step(row) else self.started))
        if is_step(row):
            self.row = dict(row)
            self.curve.append(row[REWARD] if REWARD in row else row[LOSS])
            self.ends.append((done, now))
            self.worst_staleness = max(self.worst_staleness, row.get(MAX_STALENESS, 0.0))
        results = evals_in(row)
        self.last_eval.update(results)
        for name, value in results.items():
            self.first_eval.setdefault(name, value)

    def seconds_left(self) -> float | None:
        """At the speed of the last rollouts; None while that is unknown."""
        if len(self.ends) < 2:
            return None
        (first, begin), (last, end) = self.ends[0], self.ends[-1]
        if last <= first or end <= begin:
            return None
        return (self.total - last) * (end - begin) / (last - first)


def is_step(row: Metrics) -> bool:
    """Whether the row is of a rollout that was trained, or of a step of ``miles sft``."""
    return REWARD in row or LOSS in row


def sparkline(values: list[float], width: int) -> str:
    """The values as a line of blocks, oldest left; each block is the mean of its share.

    The lowest value is the lowest block and the highest the highest.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    shares = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    means = [sum(share) / len(share) for share in shares]
    low, span = min(means), max(means) - min(means)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / span * top) if span else 0] for value in means)
