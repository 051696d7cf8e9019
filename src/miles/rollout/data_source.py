"""A data source of the user's (``--data-source-path``): prompts from anywhere, in the order in which it gives them.

ledger issues index i ─► the source's next prompt, kept while group i is alive ─► checkpoint: the source's position, and
the prompts of the groups alive; a resumed run goes on from both, so that no prompt is lost and none is given twice.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from miles.errors import CheckpointError, DataError
from miles.rollout.ledger import Ledger
from miles.rollout.prompt_lines import PromptFormat, Tokenizer, prompt_line
from miles.types import Prompt

PRUNED_FROM = 1024


class DataSource(Protocol):
    """What a source of yours must do; it is built with the run's configuration, once per epoch.

    When it has no prompt left it raises ``StopIteration``: the epoch has ended, and the next begins with a source built anew.
    A source that never ends has one epoch.
    """

    def __next__(self) -> Mapping[str, Any]:
        """The next prompt, with the keys that a line of a prompt file would have (``--input-key``, ``--label-key``)."""
        ...

    def state(self) -> Any:
        """The position within the epoch, JSON-able."""
        ...

    def restore(self, state: Any) -> None:
        """Go on from what ``state`` returned; called on a new source before the first prompt."""
        ...


class SourcedPrompts:
    """The prompts of a data source by index; each is asked for once, when the ledger first issues its index."""

    def __init__(self, path: str, build: Callable[[], DataSource], tokenizer: Tokenizer, line_format: PromptFormat) -> None:
        """Build the first source.

        Raises:
            DataError: that fails.
        """
        self._path, self._build, self._tokenizer, self._format = path, build, tokenizer, line_format
        self._known: dict[int, Prompt] = {}
        self._drawn = self._epoch = self._row = 0
        self._prune_at = PRUNED_FROM
        self._source = self._built()

    def prompt(self, index: int) -> Prompt:
        """The prompt of a group that is alive, or the next one.

        Raises:
            DataError: the source failed, or gave something that is no prompt.
        """
        while index >= self._drawn:
            self._known[self._drawn] = self._draw()
            self._drawn += 1
        return self._known[index]

    def reserve(self, ledger: Ledger) -> Prompt:
        """The prompt that is due next by the ledger, which now counts it as in flight."""
        if len(self._known) >= self._prune_at:
            self._forget_settled(ledger)
        return self.prompt(ledger.reserve())

    def state(self, ledger: Ledger) -> Any:
        """Position and the prompts of the groups alive, JSON-able; of the same moment as the ledger's snapshot.

        Raises:
            CheckpointError: the source cannot tell its position.
        """
        self._forget_settled(ledger)
        prompts = [[p.index, p.row, p.epoch, p.text, list(p.token_ids), p.label, dict(p.metadata)] for p in self._known.values()]
        try:
            position = self._source.state()
        except Exception as error:
            raise CheckpointError(
                f"the data source {self._path} cannot tell its position: {error!r}. Mend its state()"
            ) from error
        return {"drawn": self._drawn, "epoch": self._epoch, "row": self._row, "position": position, "prompts": prompts}

    def restore(self, state: Any) -> None:
        """Go on from ``state``.

        Raises:
            CheckpointError: there is none, or the source does not take it.
        """
        try:
            self._source.restore(state["position"])
            self._drawn, self._epoch, self._row = state["drawn"], state["epoch"], state["row"]
            known = [Prompt(i, row, epoch, text, tuple(ids), *more) for i, row, epoch, text, ids, *more in state["prompts"]]
        except Exception as error:
            raise CheckpointError(
                f"the data source {self._path} cannot go on from the checkpoint: {error!r}. Mend its restore(), or pass "
                "--accept-missing-state to start anew"
            ) from error
        self._known = {prompt.index: prompt for prompt in known}

    def _draw(self) -> Prompt:
        try:
            fields = self._next()
        except StopIteration:
            self._source, self._epoch, self._row = self._built(), self._epoch + 1, 0
            try:
                fields = self._next()
            except StopIteration as error:
                raise DataError(f"the data source {self._path} gave no prompt at all") from error
        if not isinstance(fields, Mapping):
            raise DataError(f"the data source {self._path} gave {str(fields)[:80]!r}, not an object such as a prompt file's line")
        try:
            line = prompt_line(fields, self._row, self._tokenizer, self._format)
        except DataError as error:
            raise DataError(f"the data source {self._path}, prompt {self._row} of epoch {self._epoch}: {error}") from error
        self._row += 1
        return Prompt(self._drawn, line.row, self._epoch, line.text, line.token_ids, line.label, line.metadata)

    def _next(self) -> Any:
        try:
            return next(self._source)
        except StopIteration:
            raise
        except Exception as error:
            raise DataError(f"the data source {self._path} failed at prompt {self._row}: {error!r}") from error

    def _built(self) -> DataSource:
        try:
            return self._build()
        except Exception as error:
            raise DataError(f"the data source {self._path} cannot be built: {error!r} (--data-source-path)") from error

    def _forget_settled(self, ledger: Ledger) -> None:
        """Drop the prompts of groups that are trained or dropped."""
        self._known = {index: prompt for index, prompt in self._known.items() if ledger.state(index) is not None}
        self._prune_at = max(PRUNED_FROM, 2 * len(self._known))
