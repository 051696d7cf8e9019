"""The last words of a run: what it reached, where it is, and what to try next."""

import shlex

from miles.config.resolution import Resolution
from miles.tracking.reporter import RunSummary
from miles_cli.wording import duration

ENDINGS = {0: "done", 1: "failed", 130: "interrupted"}


def summary_lines(summary: RunSummary, resolution: Resolution, rewards: str = "") -> list[str]:
    """The summary; ``rewards`` is a sparkline."""
    ending = ENDINGS.get(summary.exit_code, f"ended with exit code {summary.exit_code}")
    lines = [f"{ending} after {summary.num_rollouts_done} rollouts, {duration(summary.seconds)}"]
    if summary.reason:
        lines.append(summary.reason)
    for name, value in summary.last_eval.items():
        before = f"{summary.first_eval[name]:.3f} → " if name in summary.first_eval else ""
        lines.append(f"eval/{name}  {before}{value:.3f}")
    if rewards:
        lines.append(f"reward  {rewards}")
    lines.append(f"run folder  {summary.run_dir}")
    if summary.checkpoint:
        lines.append(f"checkpoint  {summary.checkpoint}")
    return [*lines, "", "next:", *(f"  {command}" for command in next_commands(summary, resolution))]


def next_commands(summary: RunSummary, resolution: Resolution) -> list[str]:
    """Commands that can be copied, each with what it is for."""
    config = shlex.quote(str(summary.run_dir / "config.toml"))
    command = f"miles {resolution.command}"
    offers: list[tuple[str, str]] = []
    if summary.exit_code == 130 and resolution.command == "train":
        offers.append((f"{command} --config {config} --run-dir {shlex.quote(str(summary.run_dir))}", "go on where it stopped"))
    if summary.exit_code == 0:
        offers.append((_other_schedule(resolution, config), "the same by another schedule"))
        offers.append((f"{command} --config {config} --seed {resolution.config.run.seed + 1}", "again with another seed"))
    offers.append((f"miles config show {resolution.command} --config {config}", "what it ran with, and why"))
    width = max(len(text) for text, _ in offers)
    return [f"{text.ljust(width)}  # {purpose}" for text, purpose in offers]


def _other_schedule(resolution: Resolution, config: str) -> str:
    preset = _preset(resolution)
    source = f"--preset {preset}" if preset else f"--config {config}"
    flag = " --fully-async" if resolution.derived.schedule == "sync" else ""
    return f"miles train-async{flag} {source}" if flag else f"miles train {source}"


def _preset(resolution: Resolution) -> str:
    origins = {str(item.origin.text) for row in resolution.rows for item in row.chain if item.origin.kind == "preset"}
    return next(iter(origins)).removeprefix("preset ") if origins else ""
