"""A run as it is watched: a live picture on a terminal, a line now and then elsewhere, a summary at the end."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from miles.config.derived import Derived
from miles.config.resolution import Resolution
from miles.tracking.metrics_file import evals_in
from miles.tracking.reporter import Reporter, RunSummary
from miles.types import Metrics
from miles_cli.progress import LOSS, MAX_STALENESS, MEAN_STALENESS, QUEUE, REWARD, TIMES, TOKENS, RunProgress, is_step, sparkline
from miles_cli.summary import next_lines, summary_lines
from miles_cli.wording import duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

EVERY = 10  # rollouts between two plain lines


class ClosingReporter(Reporter, Protocol):
    """A reporter that holds the terminal until it is closed."""

    def close(self) -> None:
        """Give the terminal back; safe to call twice."""
        ...


def reporter_for(resolution: Resolution[Any], console: "Console") -> ClosingReporter:
    """The live picture where there is a terminal, plain lines elsewhere."""
    if console.is_terminal:
        return LiveReporter(resolution, console)
    return PlainReporter(resolution, console)


def numbers(progress: RunProgress, derived: Derived) -> list[str]:
    """Reward, staleness against its bound, and speed, as far as they are known."""
    row = progress.row
    texts = [f"reward {row[REWARD]:.3f}"] if REWARD in row else [f"loss {row[LOSS]:.4f}"] if LOSS in row else []
    if derived.schedule != "sync" and MEAN_STALENESS in row:
        largest = row.get(MAX_STALENESS, 0.0)
        texts.append(f"staleness {row[MEAN_STALENESS]:.2f} mean, {largest:.0f} max of {derived.staleness_bound}")
    if TOKENS in row:
        texts.append(f"{row[TOKENS]:,.0f} tokens/s")
    return texts


def unit_of(resolution: Resolution[Any]) -> str:
    """What a run counts."""
    return "step" if resolution.derived.schedule == "sft" else "rollout"


class PlainReporter:
    """One line about every ten rollouts, and one for every stage, evaluation and note."""

    def __init__(self, resolution: Resolution[Any], console: "Console", now: Callable[[], float] = time.monotonic) -> None:
        self._resolution, self._console, self._now = resolution, console, now
        self._progress, self._unit = RunProgress(now()), unit_of(resolution)
        self._last_line = 0

    def stage(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def progress(self, row: Metrics, done: int, total: int) -> None:
        """Say it if it is an evaluation, the first, the last, or ten rollouts after the last line."""
        self._progress.add(row, done, total, self._now())
        results = [f"eval/{name} {value:.3f}" for name, value in evals_in(row).items()]
        due = is_step(row) and (done == 1 or done >= total or done - self._last_line >= EVERY)
        if not due and not results:
            return
        self._last_line = done if due else self._last_line
        parts = [f"{self._unit} {done}/{total}", *(numbers(self._progress, self._resolution.derived) if due else []), *results]
        left = self._progress.seconds_left()
        self._say("  ".join([*parts, f"{duration(left)} left"] if due and left and done < total else parts))

    def note(self, text: str) -> None:
        """Say it."""
        self._say(f"note: {text}")

    def finished(self, summary: RunSummary) -> None:
        """Say how it ended and what to try next."""
        lines = ["", *summary_lines(summary, unit=self._unit), "", *next_lines(summary, self._resolution)]
        self._console.print("\n".join(lines), markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is held."""

    def _say(self, text: str) -> None:
        clock = duration(self._now() - self._progress.started)
        self._console.print(f"[{clock}] {text}", markup=False, highlight=False, soft_wrap=True)


class LiveReporter:
    """A picture of the run that is redrawn in place; notes stay above it."""

    def __init__(self, resolution: Resolution[Any], console: "Console", now: Callable[[], float] = time.monotonic) -> None:
        from rich.live import Live

        self._resolution, self._console, self._now = resolution, console, now
        self._progress, self._unit = RunProgress(now()), unit_of(resolution)
        self._stage = ""
        self._live = Live(
            console=console, refresh_per_second=4, get_renderable=self.picture, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def stage(self, text: str) -> None:
        """Show it beside the spinner."""
        self._stage = text

    def progress(self, row: Metrics, done: int, total: int) -> None:
        """Take it into the picture."""
        self._stage = ""
        self._progress.add(row, done, total, self._now())

    def note(self, text: str) -> None:
        """Print it above the picture, where it stays."""
        from rich.text import Text

        self._console.print(Text(text, style="yellow"))

    def finished(self, summary: RunSummary) -> None:
        """Replace the picture by the summary."""
        self._live.transient = True
        self.close()
        from rich import box
        from rich.panel import Panel
        from rich.text import Text

        color = "green" if summary.exit_code == 0 else "red" if summary.exit_code == 1 else "yellow"
        lines = summary_lines(summary, sparkline(list(self._progress.curve), min(60, self._console.width - 20)), unit=self._unit)
        body = Text("\n".join(lines), overflow="fold")
        self._console.print(Panel(body, border_style=color, box=box.ROUNDED, expand=False))
        # not in the panel, so that a long line can be copied whole
        self._console.print("\n".join(next_lines(summary, self._resolution)), markup=False, soft_wrap=True)

    def close(self) -> None:
        """Stop redrawing; where a run ended without a summary, the last picture says how far it came."""
        self._live.stop()

    def picture(self) -> "RenderableType":
        """The run now; called from the drawing thread, so it only reads."""
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        progress = self._progress
        parts: list[RenderableType] = []
        if progress.total:
            parts += [self._bar(), *(Text(f"  {line}") for line in self._lines())]
        if self._stage or not progress.total:
            parts.append(Spinner("dots", text=Text(self._stage or "starting", style="bold")))
        return Group(*parts)

    def _bar(self) -> "RenderableType":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self._progress
        left = progress.seconds_left()
        passed = duration(self._now() - progress.started)
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        table.add_column(no_wrap=True, justify="right")
        table.add_row(
            Text(f"{self._unit} {progress.done}/{progress.total}", style="bold"),
            ProgressBar(total=progress.total, completed=progress.done),
            Text(f"{passed}, {duration(left)} left" if left is not None else passed),
        )
        return table

    def _lines(self) -> list[str]:
        progress, row = self._progress, self._progress.row
        width = max(10, min(60, self._console.width - 24))
        curve, name = (row.get(REWARD), "reward") if REWARD in row else (row.get(LOSS), "loss")
        lines = [f"{name:10} {curve:.3f}  {sparkline(list(progress.curve), width)}"] if curve is not None else []
        if self._resolution.derived.schedule != "sync" and MEAN_STALENESS in row:
            bound = self._resolution.derived.staleness_bound
            waiting = f", {row[QUEUE]:.0f} groups buffered" if QUEUE in row else ""
            lines.append(f"staleness  {row[MEAN_STALENESS]:.2f} mean, {row.get(MAX_STALENESS, 0):.0f} max of {bound}{waiting}")
        times = ", ".join(f"{name} {row[key]:.2f} s" for key, name in TIMES.items() if key in row)
        speed = f"{row[TOKENS]:,.0f} tokens/s" if TOKENS in row else ""
        if speed or times:
            lines.append(f"speed      {'  '.join(text for text in (speed, times) if text)}")
        for name, value in progress.last_eval.items():
            lines.append(f"eval       {name} {progress.first_eval[name]:.3f} → {value:.3f}")
        return lines
