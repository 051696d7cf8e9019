"""``miles simulate`` on the command line: its options beside those of a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from miles_cli.invocation import SimulateCommand
from miles_cli.source_options import ConfigFiles, HelpAll, Preset, run_words

PANEL = "Simulation"
HELP = """Simulate the three schedules on a virtual clock: the real producer, buffer, pacing and loops, with simulated
engines and policy. Takes the options of miles train and miles train-async; each schedule gets those it has.

First try: miles simulate --preset reverse --lengths lognormal:200,0.8 --train-seconds 5 --rollout-max-response-len 240"""


def _option(flag: str, metavar: str | None, help: str, **more: Any) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, rich_help_panel=PANEL, **more)


Trace = Annotated[
    Path | None,
    _option(
        "--trace",
        "RUN",
        "Run folder of a `miles train` run: its answers' lengths and its times are taken.",
        autocompletion=run_words,
    ),
]
Lengths = Annotated[
    str | None,
    _option("--lengths", "DISTRIBUTION", "Answer lengths: constant:TOKENS, uniform:LEAST,MOST or lognormal:MEDIAN,SIGMA."),
]
TrainSeconds = Annotated[
    float | None,
    _option("--train-seconds", "NUMBER", "A training step on a rollout of average length; it grows with the tokens.", min=0),
]
DecodeSeconds = Annotated[
    float | None, _option("--decode-seconds", "NUMBER", "One decode step of an engine; by default 0.02.", min=1e-9)
]
Engines = Annotated[int | None, _option("--engines", "INTEGER", "Engines; by default as many as the run would have.", min=1)]
Accelerators = Annotated[
    int | None,
    _option("--accelerators", "INTEGER", "Search the best split of so many between policy and engines.", min=2),
]
Cores = Annotated[
    int | None,
    _option(
        "--cores",
        "INTEGER",
        "Cores that engines and policy on CPUs share with the driver; by default those of the recorded machine, or one each.",
        min=1,
    ),
]
Steps = Annotated[int, _option("--steps", "INTEGER", "Training steps to simulate.", min=2)]


def add_simulate(app: typer.Typer) -> None:
    """Put the command where it is called."""
    app.command("simulate", cls=SimulateCommand, help=HELP, short_help="What each schedule would come to, on a virtual clock.")(
        simulate
    )


def simulate(
    ctx: typer.Context,
    preset: Preset = None,
    config: ConfigFiles = None,
    trace: Trace = None,
    lengths: Lengths = None,
    train_seconds: TrainSeconds = None,
    decode_seconds: DecodeSeconds = None,
    engines: Engines = None,
    accelerators: Accelerators = None,
    cores: Cores = None,
    steps: Steps = 40,
    as_json: Annotated[bool, _option("--json", None, "The forecasts as one JSON object.")] = False,
    help_all: HelpAll = False,
) -> None:
    """Run ``miles simulate``."""
    from miles_cli.simulating import Asked, simulate_command

    asked = Asked(trace, lengths, train_seconds, decode_seconds, engines, accelerators, steps, cores)
    simulate_command(ctx.obj, preset, config, asked, as_json=as_json)
