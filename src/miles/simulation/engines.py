"""Simulated engines: slots, passes shared by all running samples, pauses for updates, a version for every token.

    queue ──prefill──► running ──decode──► answered
      ▲───retract─────────┘

Between two events (a sample arrives or ends, a pause, an update) an engine takes whole decode steps of equal length, so time
jumps from event to event and not from token to token.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from miles.clock import Clock
from miles.simulation.cores import Cores, Task
from miles.simulation.workload import Workload
from miles.types import VersionSpan

Spans = tuple[VersionSpan, ...]


@dataclass(eq=False, slots=True)
class Decoding:
    """A sample at an engine. prompt: the same for all that share one; done: tokens so far; ended: gets the spans of versions."""

    length: int
    prompt: object
    ended: "asyncio.Future[Spans]"
    done: int = 0
    spans: list[VersionSpan] = field(default_factory=list)

    def advance(self, steps: int, version: int) -> None:
        """So many more tokens under ``version``."""
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = self.spans[-1]._replace(end=self.done + steps)
        else:
            self.spans.append(VersionSpan(version, self.done, self.done + steps))
        self.done += steps


@dataclass(slots=True)
class Stride:
    """Equal steps under way; an event makes the one that is being taken the last."""

    task: Task
    step: float

    @property
    def num_steps(self) -> int:
        """As many as fit into the seconds that it needs."""
        return round(self.task.seconds / self.step)

    def end_after_this_step(self, cores: Cores) -> None:
        """The next event is looked at between two steps."""
        cores.shorten(self.task, (int(cores.got(self.task) / self.step) + 1) * self.step)


class SimulatedEngine:
    """One engine. busy_seconds: time spent computing; slot_steps: steps, times the samples that took them."""

    def __init__(self, clock: Clock, cores: Cores, workload: Workload) -> None:
        self.version, self.paused, self.busy_seconds, self.slot_steps, self.num_in_flight = 0, False, 0.0, 0, 0
        self._clock, self._cores, self._workload, self._speeds = clock, cores, workload, workload.speeds
        self._queue: deque[Decoding] = deque()
        self._running: list[Decoding] = []
        self._event, self._stands = asyncio.Event(), asyncio.Event()
        self._stride: Stride | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no sample is running or queued."""
        return not self._queue and not self._running

    async def generate(self, length: int, prompt: object) -> Spans:
        """The spans of an answer of so many tokens, when it is finished or interrupted; cancelling the call frees its slot."""
        sample = Decoding(length, prompt, asyncio.get_running_loop().create_future())
        self._queue.append(sample)
        self._look()
        try:
            return await sample.ended
        finally:
            if not sample.ended.done() or sample.ended.cancelled():
                self._forget(sample)

    async def pause(self) -> None:
        """Return when it stands; the step that is under way ends first."""
        self.paused = True
        self._look()
        await self._stands.wait()

    async def take_weights(self, seconds: float) -> None:
        """Be busy with that."""
        if seconds > 0:
            await self._compute(self._cores.begin(seconds))

    def go_on(self, version: int, *, retracts: bool) -> None:
        """Sample under ``version`` from here on; ``retracts``: what was running begins with its tokens computed again."""
        if retracts:
            self._queue.extendleft(reversed(self._running))
            self._running.clear()
        self.version, self.paused = version, False
        self._look()

    def interrupt(self) -> None:
        """End every sample with the tokens that it has."""
        for sample in (*self._queue, *self._running):
            if not sample.ended.done():
                sample.ended.set_result(tuple(sample.spans))
        self._queue.clear()
        self._running.clear()
        self._look()

    async def run(self) -> None:
        """Compute until cancelled."""
        while True:
            self._event.clear()
            if self.paused or self.is_empty:
                self._stands.set()
                await self._event.wait()
                self._stands.clear()
                continue
            joining = self._fill()
            if joining and self._speeds.token_seconds is not None:
                await self._prefill(joining)
            else:
                await self._decode()

    def _fill(self) -> list[Decoding]:
        joining = []
        while self._queue and len(self._running) < self._workload.slots:
            joining.append(self._queue.popleft())
            self._running.append(joining[-1])
        return joining

    async def _prefill(self, joining: list[Decoding]) -> None:
        """Each distinct prompt once, and what was answered before a retraction."""
        prompts = len({id(sample.prompt) for sample in joining})
        answered = sum(sample.done for sample in joining)
        tokens = prompts * self._workload.prompt_tokens + answered
        await self._compute(self._cores.begin(self._speeds.prefill(len(joining), tokens, again=answered > 0)))
        await self._advance([sample for sample in joining if sample in self._running], 1)

    async def _decode(self) -> None:
        step = self._speeds.decode_step(len(self._running))
        most = min(sample.length - sample.done for sample in self._running)
        self._stride = stride = Stride(self._cores.begin(most * step), step)
        try:
            await self._compute(stride.task)
        finally:
            self._stride = None
        await self._advance(list(self._running), stride.num_steps)

    async def _compute(self, task: Task) -> None:
        began = self._clock.now()
        await self._cores.until_ended(task)
        self.busy_seconds += self._clock.now() - began

    async def _advance(self, samples: list[Decoding], steps: int) -> None:
        """So many more tokens for each; those that are finished leave and are answered."""
        self.slot_steps += steps * len(samples)
        for sample in samples:
            sample.advance(steps, self.version)
        finished = [sample for sample in samples if sample.done >= sample.length]
        for sample in finished:
            self._running.remove(sample)
        if finished and self._workload.overheads.answer_seconds:
            await self._compute(self._cores.begin(len(finished) * self._workload.overheads.answer_seconds))
        for sample in finished:
            if not sample.ended.done():
                sample.ended.set_result(tuple(sample.spans))

    def _forget(self, sample: Decoding) -> None:
        for holder in (self._queue, self._running):
            if sample in holder:
                holder.remove(sample)
        self._look()

    def _look(self) -> None:
        """Something happened."""
        self._event.set()
        if self._stride is not None:
            self._stride.end_after_this_step(self._cores)
