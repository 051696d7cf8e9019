"""What resolving gives: the configuration, what follows from it, and a row for every value with where it came from."""

from dataclasses import dataclass
from typing import Generic, NamedTuple

from typing_extensions import TypeVar

from miles.config.commands import AnyConfig, SftConfig
from miles.config.derived import Derived
from miles.config.sources import Origin
from miles.errors import Problem

CHAIN_SEPARATOR = " · "
Config = TypeVar("Config", default=AnyConfig)


class OriginOf(NamedTuple):
    """A value, as text, and where it came from."""

    origin: Origin
    value: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the resolved table.

    section: field of the root (``rollout``); ``derived`` for a value without an option of its own.
    value: as text; secrets are masked.
    chain: every origin of the value, the one that counts first; empty for a derived value.
    derived: the value follows from others; ``arithmetic`` says how (``16 × 8 / 128 = 1``, ``from --fully-async``).
    note: why a value given does not count (a preset's value that the user's choice made void).
    """

    section: str
    panel: str
    option: str
    value: str
    chain: tuple[OriginOf, ...] = ()
    derived: bool = False
    arithmetic: str = ""
    note: str = ""

    @property
    def origin(self) -> str:
        """``--lr · over run.toml:12 (0.2) · over $MILES_LR (0.1)``; for a derived value its arithmetic."""
        if self.derived:
            return self.arithmetic
        texts = [str(self.chain[0].origin)] if self.chain else []
        texts += [f"over {lower.origin} ({lower.value})" for lower in self.chain[1:] if lower.origin.kind != "default"]
        return CHAIN_SEPARATOR.join(texts) + (f"; {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Resolution(Generic[Config]):
    """A configuration that can be run; of a command with rollouts unless said otherwise."""

    command: str
    config: Config
    derived: Derived
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Examination:
    """What is known of a configuration that may be incomplete or wrong.

    config, derived: None where they cannot be made.
    problems: in the order of the options; empty for a configuration that can be run.
    """

    command: str
    config: AnyConfig | SftConfig | None
    derived: Derived | None
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    problems: tuple[Problem, ...]
