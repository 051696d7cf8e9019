"""The dry run: who sits where, who waits for whom, how many steps, and what is written; nothing is started.

Imports the user's code, because a path that cannot be imported fails here and not after minutes; neither torch nor
Ray is imported by miles itself.
"""

from dataclasses import dataclass

from miles.config.resolution import Resolution


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do."""

    headings: tuple[tuple[str, tuple[str, ...]], ...]

    def lines(self) -> tuple[str, ...]:
        """The plan as plain text."""
        return tuple(line for heading, body in self.headings for line in (heading, *(f"  {text}" for text in body)))


def make_plan(resolution: Resolution) -> Plan:
    """The plan of a configuration.

    Raises:
        ConfigError: user code could not be imported or does not take what it is called with.
    """
    return Plan((("command", (f"miles {resolution.command}",)),))
