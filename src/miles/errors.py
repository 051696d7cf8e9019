"""Errors that a user sees: each says where, what, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass


class MilesError(Exception):
    """Root of all errors that miles raises for its user; ``exit_code`` is the process's."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration.

    option: the option's name (``rollout_temperature``), or the unknown name as it was written.
    value: the value as the user wrote it; empty where there is none.
    origin: where it came from (``--lr``, ``run.toml:12``, ``$MILES_LR``, ``preset reverse``, ``default``).
    why: what is wrong, a clause.
    remedy: what to do, an imperative sentence.
    """

    option: str
    value: str
    origin: str
    why: str
    remedy: str

    @property
    def is_missing(self) -> bool:
        """Whether nobody has given the option, which is no mistake until the command is run."""
        return not self.value and self.origin in ("", "default")

    def __str__(self) -> str:
        given = f" = {self.value}" if self.value else ""
        origin = f" ({self.origin})" if self.origin else ""
        return f"{self.option}{given}{origin}: {self.why}. {self.remedy}"


class ConfigError(MilesError):
    """The configuration cannot be run; carries every problem found.

    notes: lines shown below the problems, for what one has to know to mend them.
    """

    exit_code = 2

    def __init__(self, problems: list[Problem], notes: Sequence[str] = ()) -> None:
        self.problems, self.notes = problems, tuple(notes)
        super().__init__("\n".join([*map(str, problems), *notes]))


class DataError(MilesError):
    """A prompt file holds something that cannot be used; the text names file and line."""

    exit_code = 2


class MachineError(MilesError):
    """The machine or cluster cannot hold the run."""

    exit_code = 3


class EngineError(MilesError):
    """An engine refused, failed or stopped answering; carries the engine's own words."""


class WeightMismatchError(EngineError):
    """An engine holds other weights than those that were published."""


class PolicyError(MilesError):
    """The policy could not take a step."""


class NotFiniteError(PolicyError):
    """A reward, log-prob, loss or gradient is no number; the optimiser step was not taken."""


class CriticNotFiniteError(NotFiniteError):
    """The same of the critic's loss or gradient: the policy has taken its own steps on the batch."""


class TrackerError(MilesError):
    """TensorBoard, Weights & Biases or trackio could not start, or take a row."""


class RewardError(MilesError):
    """A reward failed, took too long, or returned something that is no number."""


class RolloutError(MilesError):
    """Generation cannot go on."""


class CheckpointError(MilesError):
    """A checkpoint is missing, damaged or does not fit the run."""
