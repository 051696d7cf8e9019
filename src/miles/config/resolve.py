"""From sources to a configuration: merge the layers first, then look at everything once, and report every problem."""

from miles.config.resolution import Examination, Resolution
from miles.config.sources import Sources
from miles.errors import ConfigError


def examine(command: str, sources: Sources) -> Examination:
    """Everything that can be said about a configuration, right or wrong, without importing user code."""
    raise ConfigError([])


def resolve(command: str, sources: Sources) -> Resolution:
    """The configuration of ``miles <command>``.

    Raises:
        ConfigError: with every problem found, in the order of the options.
    """
    found = examine(command, sources)
    if found.problems or found.config is None or found.derived is None:
        raise ConfigError(list(found.problems))
    return Resolution(command, found.config, found.derived, found.rows, found.warnings)
