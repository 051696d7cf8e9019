"""The last words of a run: what it reached, where it is, and what to try next."""

import shlex
from pathlib import Path
from typing import Any

from miles.config.resolution import Resolution
from miles.config.sources import OriginKind
from miles.tracking.reporter import RunSummary
from miles_cli.wording import duration

ENDINGS = {0: "done", 1: "failed", 2: "refused", 3: "could not start", 130: "interrupted", 143: "ended by SIGTERM"}


def summary_lines(summary: RunSummary, curve: str = "", *, unit: str = "rollout") -> list[str]:
    """The summary; ``curve`` is a sparkline of rewards, or of losses where the run counts steps."""
    ending = ENDINGS.get(summary.exit_code, f"ended with exit code {summary.exit_code}")
    lines = [f"{ending} after {summary.num_rollouts_done} {unit}s, {duration(summary.seconds)}"]
    if summary.reason:
        lines.append(summary.reason)
    for name, value in summary.last_eval.items():
        before = f"{summary.first_eval[name]:.3f} → " if name in summary.first_eval else ""
        lines.append(f"eval/{name}  {before}{value:.3f}")
    if curve:
        lines.append(f"{'loss' if unit == 'step' else 'reward'}  {curve}")
    lines.append(f"run folder  {near(summary.run_dir)}")
    if summary.checkpoint:
        lines.append(f"checkpoint  {near(summary.checkpoint)}")
    return lines


def near(path: Path) -> str:
    """A path as short as it can be written from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def next_lines(summary: RunSummary, resolution: Resolution[Any]) -> list[str]:
    """What to try next: commands that can be copied, each under what it is for."""
    run_dir = shlex.quote(near(summary.run_dir))
    config = shlex.quote(near(summary.run_dir / "config.toml"))
    command = f"miles {resolution.command}"
    offers: list[tuple[str, str]] = []
    if summary.exit_code and summary.checkpoint:
        offers.append(("go on where it stopped", f"{command} --config {config} --run-dir {run_dir}"))
    if summary.exit_code == 0 and resolution.command == "sft":
        folder = shlex.quote(near((summary.checkpoint or summary.run_dir) / "hf"))
        offers.append(
            ("reinforcement learning from here", f"miles train --hf-checkpoint {folder} --prompt-data FILE --rm-type exact …")
        )
    elif summary.exit_code == 0:
        preset = preset_of(resolution)
        source = f"--preset {preset}" if preset else f"--config {config}"
        offers.append(("the same by another schedule", f"miles {_other_schedule(resolution)} {source}"))
        offers.append(
            (
                "again with another seed",
                f"{command} --config {config} --rollout-seed {resolution.config.sampling.rollout_seed + 1}",
            )
        )
    offers.append(("how it stands", f"miles runs show {run_dir}"))
    offers.append(("what it ran with", f"miles config show {run_dir}"))
    return ["next:", *(line for purpose, text in offers for line in (f"  # {purpose}", f"  {text}"))]


def _other_schedule(resolution: Resolution[Any]) -> str:
    return "train-async --fully-async" if resolution.derived.schedule == "sync" else "train"


def preset_of(resolution: Resolution[Any]) -> str:
    """The preset that the run was made from; empty where there was none."""
    origins = {item.origin.text for row in resolution.rows for item in row.chain if item.origin.kind == OriginKind.PRESET}
    return next(iter(origins)).removeprefix("preset ") if origins else ""
