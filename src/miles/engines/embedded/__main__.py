"""``python -m miles.engines.embedded``: one embedded engine as a process."""

import argparse
import asyncio
import logging
import signal
import sys
from typing import get_args

from transformers.utils.logging import disable_progress_bar

from miles.engines.embedded.options import DEFAULT_VERSION, Dtype, EmbeddedOptions
from miles.engines.embedded.server import EmbeddedServer
from miles.errors import EngineError


def main() -> int:
    """Serve until a signal; 1 if the engine cannot start or ends by itself."""
    disable_progress_bar()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return asyncio.run(serve(parse_options()))
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the command's own output
        return error.exit_code


def parse_options() -> EmbeddedOptions:
    """Options from the command line."""
    parser = argparse.ArgumentParser(prog="python -m miles.engines.embedded", description="SGLang's HTTP API on a CPU.")
    parser.add_argument("--model-path", required=True, help="Hugging Face model folder")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="float32", help="number type of weights and KV cache")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 lets the system choose")
    parser.add_argument("--num-slots", type=int, default=128, help="requests decoded together")
    parser.add_argument("--context-len", type=int, help="longest prompt plus answer, in tokens")
    parser.add_argument("--deterministic", action="store_true", help="rows do not depend on what else runs")
    parser.add_argument("--seed", type=int, help="of the seeds for requests that bring none")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--weight-version", default=DEFAULT_VERSION, help="what the weights at the start are called")
    return EmbeddedOptions(**vars(parser.parse_args()))


async def serve(options: EmbeddedOptions) -> int:
    """Start, say where, and wait for a signal or the engine's end."""
    server = EmbeddedServer(options)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    address = await server.start()
    logging.getLogger("miles.engines.embedded").info("listening at %s", address)
    ended, signalled = asyncio.ensure_future(server.wait()), asyncio.ensure_future(stopped.wait())
    await asyncio.wait([ended, signalled], return_when=asyncio.FIRST_COMPLETED)
    has_failed = ended.done()
    signalled.cancel()
    await server.stop()
    await ended
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
