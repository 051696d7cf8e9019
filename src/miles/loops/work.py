"""At the end of a run its engines say what their steps cost; the trace keeps it for ``miles simulate --trace``."""

from collections.abc import Callable

from miles.engines.fleet import EngineFleet
from miles.errors import EngineError
from miles.tracking.trace import ENGINE_WORK, Trace


async def note_work(trace: Trace, engines: EngineFleet, say: Callable[[str], None]) -> None:
    """One note for each embedded engine that serves; a run that has ended does not fail because one does not answer."""
    try:
        for info in await engines.on_all(lambda client: client.server_info()):
            for state in info["internal_states"]:
                trace.note(ENGINE_WORK, state["work"])
    except EngineError as error:
        say(f"trace.json does not say what steps of the engines cost: {error}")
