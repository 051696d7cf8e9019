"""``miles runs list`` and ``show``: what run folders tell, for people and for programs."""

import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles.config.registry import option_table
from miles.errors import ConfigError, Problem
from miles.tracking.past_runs import LENGTHS, PastRun, read_or_say, read_run, runs_under
from miles_cli.progress import MAX_STALENESS, MEAN_STALENESS, REWARD, TOKENS
from miles_cli.showing import console_here, print_pairs, say
from miles_cli.summary import near
from miles_cli.wording import rough, schedule_sentence

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("run", "state", "schedule", "rollouts", "reward", "evaluation", "written")
LAST = {
    REWARD: "reward",
    "rollout/response_len/mean": "answer length",
    MEAN_STALENESS: "staleness, mean",
    MAX_STALENESS: "staleness, max",
    "train/loss": "loss",
    "train/grad_norm": "gradient norm",
    "train/train_rollout_logprob_abs_diff": "log-prob difference",
    TOKENS: "tokens/s",
    "perf/step_time": "seconds of a step",
}
STYLES = {"running": "cyan", "done": "green", "stopped": "yellow", "failed": "red", "died": "red", "unreadable": "red"}


def list_command(root: Path, *, as_json: bool) -> None:
    """Print the runs in a folder.

    Raises:
        ConfigError: there is no such folder.
    """
    if not root.is_dir() and root != Path("runs"):
        raise ConfigError([Problem("root", str(root), "", "there is no such folder", "Give the folder that holds the runs")])
    found = {path: read_or_say(path) for path in runs_under(root)}
    console = console_here()
    if as_json:
        console.file.write(json.dumps([_brief(path, run) for path, run in found.items()], indent=2, ensure_ascii=False) + "\n")
    elif not found:
        say(console, [f"no runs in {root}; `miles train --preset reverse` makes one"])
    else:
        _print_table(console, [_cells(path, run) for path, run in found.items()])


def show_command(folder: Path, *, as_json: bool) -> None:
    """Print one run.

    Raises:
        ConfigError: there is no run in the folder.
        CheckpointError: what it wrote is damaged.
    """
    if not folder.is_dir():
        raise ConfigError([Problem("run", str(folder), "", "there is no such folder", "`miles runs list` lists the runs")])
    run, console = read_run(folder), console_here()
    if as_json:
        console.file.write(json.dumps(_data(run), indent=2, ensure_ascii=False) + "\n")
        return
    say(console, [f"{near(folder.absolute())}: {_state_words(run)}", ""])
    print_pairs(console, [(f"  {label}", text) for label, text in _facts(run)])
    lines = [text for purpose, line in ways_on(run) for text in (f"# {purpose}", line)]
    console.print("\n".join(["", *lines]), markup=False, soft_wrap=True)  # so that a command can be copied whole


def ways_on(run: PastRun) -> Iterator[tuple[str, str]]:
    """Commands that can be copied, each with its purpose."""
    folder, config = (shlex.quote(near(path.absolute())) for path in (run.path, run.path / "config.toml"))
    again = f"miles {run.record.command} --config {config} --run-dir {folder}"
    if run.state == "done":
        of_command = next(name for name in LENGTHS if run.record.command in option_table()[name].commands)
        length = "num_epoch" if run.value("num_epoch") not in ("", "none") else of_command
        yield "train further", f"{again} --{length.replace('_', '-')} N"
    elif run.state != "running":
        yield "go on", again
    if any(saved.is_whole for saved in run.checkpoints):
        yield "its weights as an HF folder", f"miles export {folder} OUT"
    yield "what it ran with", f"miles config show {folder}"


def _state_words(run: PastRun) -> str:
    start, state = run.last_start, str(run.state)
    if start is None:
        return state
    if state == "running":
        return f"running since {start.started}, process {start.pid} on {start.host}"
    if state == "died":
        return f"died: process {start.pid} on {start.host}, started {start.started}, is gone without a word"
    code = f", exit code {start.exit_code}" if start.exit_code else ""
    return f"{state} {start.ended}{code}"


def _facts(run: PastRun) -> Iterator[tuple[str, str]]:
    record = run.record
    yield "command", f"miles {record.command} · {schedule_sentence(record.schedule, record.staleness_bound)}"
    yield "steps" if record.schedule == "sft" else "rollouts", _progress(run)
    if run.last_start is not None and run.last_start.reason:
        yield "why", run.last_start.reason
    for name, (first, last) in run.evaluations.items():
        yield f"eval/{name}", f"{first:.3f} → {last:.3f}"
    for key, label in LAST.items():
        if run.last_row.get(key) is not None:
            yield label, f"{run.last_row[key]:.6g}"
    if not run.checkpoints:
        yield "checkpoints", "none"
    for place, saved in enumerate(run.checkpoints):
        marks = [*(["latest"] if saved.is_latest else []), *([] if saved.is_whole else ["not whole"])]
        about = f"  ({', '.join(marks)})" if marks else ""
        yield "" if place else "checkpoints", f"after {saved.step} rollouts: {near(saved.path)}{about}"


def _progress(run: PastRun) -> str:
    return f"{run.rollouts_done} of {run.num_rollout}" if run.num_rollout else str(run.rollouts_done)


def _cells(path: Path, run: PastRun | str) -> tuple[str, ...]:
    if isinstance(run, str):
        return (near(path.absolute()), "unreadable", run, "", "", "", "")
    reward = run.last_row.get(REWARD)
    results = ", ".join(f"{name} {last:.3f}" for name, (_, last) in run.evaluations.items())
    ago = f"{rough(time.time() - _last_written(path))} ago"
    schedule = run.record.schedule.replace("_", "-")
    return near(path.absolute()), run.state, schedule, _progress(run), "" if reward is None else f"{reward:.3f}", results, ago


def _last_written(path: Path) -> float:
    return max(file.stat().st_mtime for file in (path, path / "metrics.jsonl") if file.exists())


def _print_table(console: "Console", rows: list[tuple[str, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not console.is_terminal:
        widths = [max(len(row[column]) for row in [COLUMNS, *rows]) for column in range(len(COLUMNS))]
        say(
            console,
            ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in [COLUMNS, *rows]],
        )
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    console.print(table)


def _brief(path: Path, run: PastRun | str) -> dict[str, Any]:
    return {"path": str(path), "state": "unreadable", "why": run} if isinstance(run, str) else _data(run)


def _data(run: PastRun) -> dict[str, Any]:
    checkpoints = [
        {"step": saved.step, "path": str(saved.path), "whole": saved.is_whole, "latest": saved.is_latest}
        for saved in run.checkpoints
    ]
    return {
        "path": str(run.path),
        "state": run.state,
        "command": run.record.command,
        "schedule": run.record.schedule,
        "rollouts_done": run.rollouts_done,
        "num_rollout": run.num_rollout,
        "last_row": run.last_row,
        "evaluations": {name: {"first": first, "last": last} for name, (first, last) in run.evaluations.items()},
        "checkpoints": checkpoints,
        "last_start": asdict(run.last_start) if run.last_start else None,
        "go_on": dict(ways_on(run)),
    }
