"""Who runs in which slot: requests join and leave at any decode step, rows in use stay contiguous.

Pure bookkeeping over a runner; one thread owns it.

    add ──► waiting ──prefill──► rows ──finished or aborted──► returned by step() / abort()
               ▲───────retract────┘
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from miles.engines.embedded.finish import Decode, abort_finish, finish_of, length_finish
from miles.engines.embedded.request import Generation, Request
from miles.engines.embedded.runner import Runner
from miles.engines.embedded.work import Work, joined
from miles.engines.wire import PauseMode


class Scheduler:
    """Continuous batching over ``num_slots`` slots; row i of ``rows`` sits in slot i.

    work: what steps took since weights were replaced for the first time; those before were the model's first.
    """

    def __init__(self, runner: Runner, num_slots: int, version: str, end_ids: frozenset[int], decode: Decode) -> None:
        self._runner = runner
        self._num_slots = num_slots
        self._end_ids = end_ids
        self._decode = decode
        self.version = version
        self.is_paused = self.has_no_cache = False
        self.waiting: deque[Generation] = deque()
        self.rows: list[Generation] = []
        self.work = Work()
        self._is_warm = False

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return not self.is_paused and not self.has_no_cache and bool(self.rows or self.waiting)

    def busy_words(self) -> str | None:
        """Who holds or will hold the cache; requests that wait in a pause hold nothing."""
        num_waiting = 0 if self.is_paused else len(self.waiting)
        if not self.rows and not num_waiting:
            return None
        return f"{len(self.rows)} requests are running and {num_waiting} are waiting"

    def release_cache(self) -> None:
        """Give the cache's memory back; no request may hold it. Whoever comes waits for ``resume_cache``."""
        self.has_no_cache = True
        self._runner.release()

    def resume_cache(self) -> None:
        """Take the memory again and serve who waits."""
        self._runner.resume()
        self.has_no_cache = False

    def add(self, generations: Sequence[Generation]) -> None:
        """Queue new requests."""
        self.waiting.extend(generations)

    def step(self) -> list[Generation]:
        """Let waiting requests join, add one token to every row; return those that finished or failed."""
        began = time.thread_time()
        joining, finished = self._choose()
        step = joined(joining)
        if joining:
            finished += self._join(joining)
        if self.rows:
            step = step.and_decoded(len(self.rows))
            finished += self._advance()
        self.work.add(step, len(finished), time.thread_time() - began)
        return finished

    def _choose(self) -> tuple[list[Generation], list[Generation]]:
        """Who fills free slots from the queue, alike lengths together; and requests for no tokens, which end without a slot."""
        joining: list[Generation] = []
        empty: list[Generation] = []
        while self.waiting and len(self.rows) + len(joining) < self._num_slots:
            generation = self.waiting.popleft()
            wants_tokens = generation.request.sampling.max_new_tokens > 0
            (joining if wants_tokens else empty).append(generation)
        for generation in empty:
            generation.finish = length_finish(0)
        joining.sort(key=lambda generation: generation.num_tokens)
        return joining, self._closed(empty)

    def _join(self, joining: list[Generation]) -> list[Generation]:
        first = len(self.rows)
        self.rows += joining
        return self._draw(first, lambda: self._runner.prefill(joining, first))

    def _advance(self) -> list[Generation]:
        return self._draw(0, lambda: self._runner.decode(len(self.rows)))

    def _draw(self, first: int, run: Callable[[], list[tuple[int, float]]]) -> list[Generation]:
        """Append what ``run`` draws to the rows from ``first`` on; a failure in it fails exactly these rows."""
        try:
            drawn = run()
        except Exception as error:  # noqa: BLE001 - whatever torch raises is the answer to these requests, not the server's end
            for generation in self.rows[first:]:
                generation.error = f"{type(error).__name__} while sampling: {error}"
            return self._remove(list(range(first, len(self.rows))))
        leaving = [row for row, draw in enumerate(drawn, start=first) if self._take(self.rows[row], *draw)]
        return self._remove(leaving)

    def _take(self, generation: Generation, token: int, logprob: float) -> bool:
        """Append one draw; whether the generation is finished or failed by it."""
        if not math.isfinite(logprob):
            generation.error = f"the model gave no finite log-probabilities under weight version {self.version}"
            return True
        generation.append(token, logprob)
        try:
            generation.finish = finish_of(generation, self._end_ids, self._decode)
        except Exception as error:  # noqa: BLE001 - as in _draw; a tokenizer may raise anything
            generation.error = f"{type(error).__name__} while looking for a stop string: {error}"
            return True
        return generation.finish is not None

    def _remove(self, leaving: list[int]) -> list[Generation]:
        """Take rows (ascending) out; rows from the end move into the slots that they free in front."""
        removed = [self.rows[row] for row in leaving]
        for row in leaving:
            if self.rows[row].error is not None:
                self._runner.clear(slice(row, row + 1))
        self._close_up(leaving)
        if any(generation.error is not None for generation in removed):
            self._runner.clear(slice(len(self.rows), self._num_slots))  # padding rows were computed as well
        return self._closed(removed)

    def _close_up(self, leaving: list[int]) -> None:
        num_kept, gone = len(self.rows) - len(leaving), set(leaving)
        targets = [row for row in leaving if row < num_kept]
        sources = [row for row in range(num_kept, len(self.rows)) if row not in gone]
        for source, target in zip(sources, targets, strict=True):
            self.rows[target] = self.rows[source]
        del self.rows[num_kept:]
        if sources:
            self._runner.move(sources, targets)

    def _closed(self, generations: list[Generation]) -> list[Generation]:
        for generation in generations:
            generation.final_version = self.version
        return generations

    def abort(self, is_meant: Callable[[Request], bool]) -> list[Generation]:
        """End every request that is meant; returns them with what was sampled."""
        leaving = [row for row, generation in enumerate(self.rows) if is_meant(generation.request)]
        running = self._remove(leaving)
        queued = [generation for generation in self.waiting if is_meant(generation.request)]
        self.waiting = deque(generation for generation in self.waiting if not is_meant(generation.request))
        for generation in running:
            generation.finish = abort_finish(was_running=True)
        for generation in queued:
            generation.finish = abort_finish(was_running=False)
        return running + self._closed(queued)

    def pause(self, mode: PauseMode) -> list[Generation]:
        """Stop stepping until ``resume``; returns what mode ``abort`` ended.

        ``retract`` puts running requests back to the front of the queue with their tokens, to be prefilled again;
        ``in_place`` leaves them in their slots.
        """
        self.is_paused = True
        if mode == "abort":
            return self.abort(lambda request: True)
        if mode == "retract":
            for generation in self.rows:
                generation.num_retractions += 1
            self.waiting.extendleft(reversed(self.rows))
            self.rows.clear()
        return []

    def resume(self) -> None:
        """Go on after ``pause``."""
        self.is_paused = False

    def weights_replaced(self, new_version: str | None) -> None:
        """The runner computes with new weights from here on; None keeps the version's name."""
        if not self._is_warm:
            self.work, self._is_warm = Work(), True
        for generation in [*self.rows, *self.waiting]:
            generation.note_weights_replaced(self.version)
        if new_version is not None:
            self.version = new_version
