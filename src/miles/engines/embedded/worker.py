"""The one thread that runs torch: takes commands between steps, hands finished answers over once per step.

Everything the event loop asks of the scheduler goes through ``Worker.call``; so the scheduler needs no locks.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

import torch

from miles.engines.embedded.model import LoadedModel, load_model
from miles.engines.embedded.options import EmbeddedOptions
from miles.engines.embedded.parse import BadRequestError
from miles.engines.embedded.request import Generation, Request
from miles.engines.embedded.runner import TorchRunner
from miles.engines.embedded.scheduler import Scheduler
from miles.engines.wire import PauseMode
from miles.errors import EngineError
from miles.long_lived import keep_what_is_loaded

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Worker:
    """Owns the scheduler's thread; its methods are called from one event loop."""

    def __init__(self, options: EmbeddedOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Condition()
        self._commands: deque[Callable[[Scheduler], None]] = deque()
        self._is_stopping = False
        self._calls: set[asyncio.Future[Any]] = set()
        self._pending: dict[str, asyncio.Future[Generation]] = {}
        self._loaded: asyncio.Future[LoadedModel] = self._loop.create_future()
        self.ended: asyncio.Future[str] = self._loop.create_future()  # why the thread ended, "" for a stop
        self._thread = threading.Thread(target=self._run, name="miles-engine", daemon=True)

    async def start(self) -> LoadedModel:
        """Load the model in the thread and begin to serve.

        Raises:
            EngineError: the model or the options cannot be served.
        """
        self._thread.start()
        return await self._loaded

    async def stop(self) -> None:
        """End the thread; requests in flight fail."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        await asyncio.shield(self.ended)

    async def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Finished generations, in the order of the requests.

        Raises:
            BadRequestError: a request of the same id is already in flight.
            EngineError: the engine has ended.
        """
        self._refuse_if_ended()
        if taken := [request.rid for request in requests if request.rid in self._pending]:
            raise BadRequestError(f"A request {taken[0]!r} is already in flight; ids must be unique.")
        futures: dict[str, asyncio.Future[Generation]] = {request.rid: self._loop.create_future() for request in requests}
        self._pending |= futures
        self._send(lambda scheduler: scheduler.add([Generation(request) for request in requests]))
        return list(await asyncio.gather(*futures.values()))

    async def abort(self, is_meant: Callable[[Request], bool]) -> None:
        """End the requests that are meant; their ``generate`` returns what was sampled."""
        await self.call(lambda scheduler: self._hand_over(scheduler.abort(is_meant)))

    async def pause(self, mode: PauseMode) -> None:
        """Stop decoding; requests that mode ``abort`` ends return what was sampled."""
        await self.call(lambda scheduler: self._hand_over(scheduler.pause(mode)))

    @property
    def rids(self) -> Set[str]:
        """Ids of the requests in flight."""
        return self._pending.keys()

    async def call(self, command: Callable[[Scheduler], T]) -> T:
        """Run ``command`` in the thread between two steps and return what it returns or raises."""
        self._refuse_if_ended()
        answer: asyncio.Future[T] = self._loop.create_future()
        self._calls.add(answer)
        answer.add_done_callback(self._calls.discard)

        def run(scheduler: Scheduler) -> None:
            try:
                result = command(scheduler)
            except Exception as error:  # noqa: BLE001 - raised again where it was asked for
                self._loop.call_soon_threadsafe(_settle, answer, None, error)
            else:
                self._loop.call_soon_threadsafe(_settle, answer, result, None)

        self._send(run)
        return await answer

    def _refuse_if_ended(self) -> None:
        if self.ended.done():
            raise EngineError(self._ended_words())

    def _ended_words(self) -> str:
        return f"The engine has ended: {self.ended.result() or 'it was stopped'}."

    def _send(self, command: Callable[[Scheduler], None]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _hand_over(self, finished: list[Generation]) -> None:
        """From the thread: these generations are done."""
        if finished:
            self._loop.call_soon_threadsafe(self._deliver, finished)

    def _deliver(self, finished: list[Generation]) -> None:
        for generation in finished:
            future = self._pending.pop(generation.request.rid)
            if not future.done():
                future.set_result(generation)

    def _run(self) -> None:
        reason = ""
        try:
            self._serve(self._prepare())
        except EngineError as error:
            reason = str(error)
        except Exception as error:  # told to everyone who waits
            logger.exception("the engine's thread ended")
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._loop.call_soon_threadsafe(self._finish, reason)

    def _prepare(self) -> Scheduler:
        options = self._options
        torch.set_num_threads(options.torch_threads)
        model = load_model(options.model_path, options.dtype)
        context_len = model.context_len if options.context_len is None else options.context_len
        if not 1 < context_len <= model.context_len:
            raise EngineError(
                f"context_len = {context_len} does not fit {options.model_path}, which takes 2 to {model.context_len} tokens."
            )
        runner = TorchRunner(model, options.num_slots, context_len, deterministic=options.deterministic)
        keep_what_is_loaded()
        self._loop.call_soon_threadsafe(_settle, self._loaded, replace(model, context_len=context_len), None)
        return Scheduler(runner, options.num_slots, options.weight_version, model.end_ids, model.tokenizer.decode)

    def _serve(self, scheduler: Scheduler) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._commands or self._is_stopping or scheduler.has_work)
                if self._is_stopping:
                    return
                commands, self._commands = self._commands, deque()
            for command in commands:
                command(scheduler)
            if scheduler.has_work:
                self._hand_over(scheduler.step())

    def _finish(self, reason: str) -> None:
        """On the loop: nobody waits for ever."""
        self.ended.set_result(reason)
        _settle(self._loaded, None, EngineError(reason))
        waiting: list[asyncio.Future[Any]] = [*self._pending.values(), *self._calls]
        for future in waiting:
            _settle(future, None, EngineError(self._ended_words()))
        self._pending.clear()


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
