"""The ``miles`` command: what there is to call, and nothing that takes long to import.

miles train, miles train-async    parse ─► resolve ─► print ─► miles.loops.start
miles sft                         parse ─► resolve ─► print ─► miles.loops.sft
miles config …                    parse ─► examine ─► print          config_app.py
miles runs …                      read ─► print                      runs_app.py
miles metrics …                   read ─► print                      metrics_app.py
miles doctor                      look ─► judge ─► print
miles export, replay              the work is in miles.loops.export_run and miles.policy.replay
"""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from miles_cli.config_app import config_app
from miles_cli.invocation import PlainCommand, RootGroup, SftCommand, TrainAsyncCommand, TrainCommand
from miles_cli.metrics_app import metrics_app
from miles_cli.runs_app import runs_app
from miles_cli.simulate_app import add_simulate
from miles_cli.source_options import AsJson, ConfigFiles, DryRun, GpuMemory, HelpAll, Preset, Run, failed_step_words, step_words

HELP = "Reinforcement-learning post-training for language models, from a laptop CPU to a Ray cluster of GPUs."
TRAIN = """Train, one thing after another: the policy waits for rollout k, the engines wait for step k. Staleness 0.

First try: miles train --preset reverse"""
TRAIN_ASYNC = """Train while the next answers are sampled: one rollout ahead, or without end with --fully-async.

First try: miles train-async --fully-async --preset reverse"""
SFT = """Train on answers that are given: supervised fine-tuning, with the trainer of the other commands and no engines.

First try: miles sft --preset reverse-sft"""

app = typer.Typer(name="miles", cls=RootGroup, help=HELP, add_completion=False, rich_markup_mode="rich")
app.add_typer(config_app)
app.add_typer(runs_app)
app.add_typer(metrics_app)
add_simulate(app)


def _print_version(value: bool) -> None:
    if value:
        import miles

        typer.echo(f"miles {miles.__version__}")
        raise typer.Exit


def _show_completion(value: bool) -> None:
    if value:
        from miles_cli.shells import script_for_this_shell

        typer.echo(script_for_this_shell())
        raise typer.Exit


def _install_completion(value: bool) -> None:
    if value:
        from miles_cli.shells import install_for_this_shell

        typer.echo(f"Completion is in {install_for_this_shell()}. It works in the next shell that you open.")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option("--show-completion", help="Print the completion script of this shell.", callback=_show_completion),
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option("--install-completion", help="Install completion for this shell.", callback=_install_completion),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        ctx.get_help()


@app.command("train", cls=TrainCommand, help=TRAIN, short_help="Train and sample in turn: staleness 0.")
def train(
    ctx: typer.Context,
    preset: Preset = None,
    config: ConfigFiles = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    gpu_memory_gib: GpuMemory = None,
    help_all: HelpAll = False,
) -> None:
    """Run ``miles train``."""
    from miles_cli.training import Asked, train_command

    asked = Asked(dry_run, as_json, gpu_memory_gib)
    raise typer.Exit(train_command("train", ctx.obj, preset, config, asked))


@app.command("train-async", cls=TrainAsyncCommand, help=TRAIN_ASYNC, short_help="Train while the next answers are sampled.")
def train_async(
    ctx: typer.Context,
    preset: Preset = None,
    config: ConfigFiles = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    gpu_memory_gib: GpuMemory = None,
    help_all: HelpAll = False,
) -> None:
    """Run ``miles train-async``."""
    from miles_cli.training import Asked, train_command

    asked = Asked(dry_run, as_json, gpu_memory_gib)
    raise typer.Exit(train_command("train-async", ctx.obj, preset, config, asked))


@app.command("sft", cls=SftCommand, help=SFT, short_help="Train on answers that are given: supervised fine-tuning.")
def sft(
    ctx: typer.Context,
    preset: Preset = None,
    config: ConfigFiles = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    gpu_memory_gib: GpuMemory = None,
    help_all: HelpAll = False,
) -> None:
    """Run ``miles sft``."""
    from miles_cli.sft import sft_command
    from miles_cli.training import Asked

    raise typer.Exit(sft_command(ctx.obj, preset, config, Asked(dry_run, as_json, gpu_memory_gib)))


@app.command("doctor", cls=PlainCommand, short_help="Whether a run could start on this machine.")
def doctor(
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", metavar="FOLDER", help="Run folder whose disk is looked at; by default `runs`.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", metavar="HOST:PORT", help="Ray cluster that a run would join.")
    ] = None,
    try_sglang: Annotated[
        bool,
        typer.Option(
            "--try-sglang/--no-try-sglang", help="Import an installed sglang, which takes some seconds; --no-try-sglang does not."
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as one JSON object.")] = False,
) -> None:
    """Look at what a run needs of this machine: packages, GPUs, memory, ports, Ray, disk. Exit code 3 if one could not start."""
    from miles_cli.doctor import doctor as print_findings

    raise typer.Exit(print_findings(run_dir, ray_address, as_json=as_json, tries_sglang=try_sglang))


@app.command("export", cls=PlainCommand, short_help="The weights of a run as an HF folder.")
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; it must not be there yet.")],
    step: Annotated[
        int | None,
        typer.Option(
            "--step", metavar="N", help="After so many rollouts; by default the newest checkpoint.", autocompletion=step_words
        ),
    ] = None,
    merge_lora: Annotated[
        bool, typer.Option("--merge-lora", help="Of a run with LoRA: the whole model with the adapters merged, not these alone.")
    ] = False,
) -> None:
    """Write the weights of a run's checkpoint as an HF folder that transformers, SGLang and `--hf-checkpoint` take."""
    from miles_cli.exporting import export_command

    export_command(run, out, step, merge_lora=merge_lora)


@app.command("replay", cls=PlainCommand, short_help="A failed step again, sample by sample.")
def replay(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="What the error named: RUN/failed/rollout-N.", autocompletion=failed_step_words),
    ],
) -> None:
    """Take a step whose loss or gradient was no number again, and say which samples it fails on. Exit code 1 if it still does."""
    from miles_cli.replaying import replay_command

    raise typer.Exit(replay_command(folder))


def _terminated(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminated)
    app()
