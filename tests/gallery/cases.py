"""The mistakes of the gallery, by kind: what was typed, what the files held, which variables were set."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ASYNC = "miles train-async --config base.toml"
SYNC = "miles train --config base.toml"
FULLY = "miles train-async --fully-async --config base.toml"
SHOW = "miles config show train --config base.toml"
HELD_OUT = "--eval-prompt-data a prompts.jsonl"
MIXED = '{"prompt": "1 + 1", "label": "2"}\n{"prompt": 3, "label": "2"}\n{"promt": "1 + 2", "label": "3"}\n'
SIZED = '{"vocab_size": 151936, "max_position_embeddings": 4096}'


@dataclass(frozen=True)
class Case:
    """One mistake.

    files: name → text of what lies in the working directory beside what every case finds there.
    env: variables set.
    cluster: what the cluster has, for a mistake that only shows at the start.
    shows: options whose lines show that it is no mistake.
    """

    title: str
    line: str
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, float] = field(default_factory=dict)
    shows: tuple[str, ...] = ()


def in_file(title: str, text: str, line: str = SYNC, name: str = "run.toml") -> Case:
    """A case whose mistake stands in a file given after the others."""
    return Case(title, f"{line} --config {name}", {name: text})


MINE = """\
def pick(group, threshold):
    return True


def score(sample, prompt):
    return 1.0


def generate(engine, prompt, sampling, rid):
    return None
"""

CASES: Mapping[str, tuple[Case, ...]] = {
    "Several at once": (
        Case(
            "All of them, in the order of the options",
            f"{SYNC} --lr nan --rollout-temperature 0 --fully-async --global-batch-size 7 --lerning-rate 1 "
            "--dynamic-sampling-filter-path mine:pikc --prompt-data gone.jsonl",
            {"mine.py": MINE},
        ),
    ),
    "Conflicts": (
        Case("An option of the other command", f"{SYNC} --fully-async --lr 1e-5"),
        Case("The same, the other way round", f"{ASYNC} --colocate"),
        Case("An option of a schedule that was not chosen", f"{ASYNC} --max-weight-staleness 2"),
        in_file("The same in a file", "[train-async]\nmax_weight_staleness = 2\n", ASYNC),
        Case("Two options that both choose the rollout function", f"{FULLY} --rollout-function-path my.code:Rollout"),
        Case("An older variable that contradicts", FULLY, env={"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "0"}),
        Case("A schedule chosen by a variable", ASYNC, env={"MILES_FULLY_ASYNC": "1"}),
        Case("Two ways to say how long", f"{SYNC} --num-rollout 10 --num-epoch 2"),
        Case("No way to say how long", f"{SYNC} --num-rollout none"),
        Case("Two rewards", f"{SYNC} --rm-type exact --custom-rm-path mine:score", {"mine.py": MINE}),
        Case("An option without effect", f"{SYNC} --tis-clip 3"),
        Case("Truncated sampling under a correction", f"{ASYNC} --rollout-top-p 0.9"),
    ),
    "Values": (
        Case("Out of range", f"{SYNC} --n-samples-per-prompt 0"),
        Case("Outside an open range", f"{SYNC} --rollout-top-p 1.5"),
        Case("Not a number", f"{SYNC} --lr fast"),
        Case("Not a finite number", f"{SYNC} --lr inf"),
        Case("Not a whole number", f"{SYNC} --rollout-batch-size 2.5"),
        in_file("The wrong type in a file", 'rollout_shuffle = "perhaps"\n'),
        Case("In a variable", SYNC, env={"MILES_SEED": "-1"}),
        Case("Not one of the choices", f"{FULLY} --pause-generation-mode in-place"),
        Case("No value", f"{SYNC} --lr"),
        Case("A value for a switch", f"{SYNC} --group-rm=yes"),
        Case("Nothing given", "miles train"),
    ),
    "Names": (
        Case("An unknown flag", f"{SYNC} --lerning-rate 1"),
        Case("An abbreviated flag", f"{ASYNC} --fully"),
        in_file("An unknown key", "lr = 1e-5\n\nrollout_temprature = 0.7\n"),
        in_file("A key written with dashes is understood, and named as written", "rollout-temperature = 0\n"),
        in_file("The same key in both spellings", "save-interval = 5\nsave_interval = 10\n"),
        in_file("A flag of the command line in a file", 'preset = "reverse"\n'),
        in_file("A section that other tools have", "[optimizer]\nlr = 1e-5\n"),
        in_file("A key in the wrong section", "[train]\nupdate_weights_interval = 2\n", ASYNC),
        in_file("A section of a schedule, misspelt", "[fully-async]\nmax_weight_staleness = 2\n", FULLY),
        Case("A name of slime", f"{SYNC} --use-tis"),
        Case("A name of slime that has no counterpart", f"{SYNC} --tensor-model-parallel-size 2"),
        Case("An unknown preset", "miles train --preset revers"),
        Case("An unknown command", "miles trian"),
        Case("An argument that sglang does not have", f"{SYNC} --sglang mem-fraction-statik 0.7"),
        in_file("One in a file, at its line", "[sglang]\nlog-level = 'info'\nmem-fraction-statik = 0.7\n"),
        Case("An argument of sglang that miles owns", f"{SYNC} --sglang tp-size 2"),
    ),
    "Files": (
        in_file("No TOML", "lr = 1e-5\nseed ~ 2\n"),
        in_file("A bracket left open", "lr = 1e-5\nrollout_stop = [\n"),
        in_file("A table where a value is due", "[lr]\nstart = 1e-5\n"),
        Case("A missing configuration file", f"{SYNC} --config gone.toml"),
        Case("A missing prompt file", f"{SYNC} --prompt-data gone.jsonl"),
        Case("A folder in place of a file", f"{SYNC} --prompt-data model"),
        Case("An empty prompt file", f"{SYNC} --prompt-data empty.jsonl", {"empty.jsonl": "\n"}),
        Case("A prompt file that is no JSONL", f"{SYNC} --prompt-data list.txt", {"list.txt": "1 + 1\n"}),
        Case("Prompts under another key", f"{SYNC} --prompt-data math.jsonl", {"math.jsonl": '{"question": "1 + 1"}\n'}),
        Case("Lines that are no prompts", f"{SYNC} --prompt-data mixed.jsonl --dry-run", {"mixed.jsonl": MIXED}),
        Case("A model that is no folder", f"{SYNC} --hf-checkpoint org/model"),
        Case("A folder that is no model", f"{SYNC} --hf-checkpoint .", {}),
        Case("A file in place of the run folder", f"{SYNC} --run-dir prompts.jsonl"),
        Case("A file in place of the checkpoint folder", f"{SYNC} --save prompts.jsonl"),
        Case("Evaluation without data", f"{SYNC} --eval-interval 10"),
        Case("Two held-out data sets of one name", f"{SYNC} {HELD_OUT} {HELD_OUT}"),
        Case("Held-out data that are not there", f"{SYNC} --eval-prompt-data gsm8k gone.jsonl"),
    ),
    "Your code": (
        Case("No such module", f"{SYNC} --dynamic-sampling-filter-path mien:pick --dry-run", {"mine.py": MINE}),
        Case("No such name in it", f"{SYNC} --dynamic-sampling-filter-path mine:pikc --dry-run", {"mine.py": MINE}),
        Case("The wrong arguments", f"{SYNC} --dynamic-sampling-filter-path mine:pick --dry-run", {"mine.py": MINE}),
        Case("Not async", f"{SYNC} --custom-generate-function-path mine:generate --dry-run", {"mine.py": MINE}),
        Case("A module that fails", f"{SYNC} --dynamic-sampling-filter-path wrong:pick --dry-run", {"wrong.py": "import gone\n"}),
        Case("No path at all", f"{SYNC} --dynamic-sampling-filter-path pick --dry-run"),
    ),
    "Sizes": (
        Case("A batch that does not divide", f"{SYNC} --global-batch-size 7"),
        Case("Four sides of the batch equation that disagree", f"{SYNC} --global-batch-size 64 --num-steps-per-rollout 3"),
        Case("An answer as long as the context", f"{SYNC} --rollout-max-context-len 64 --rollout-max-response-len 64"),
        Case("A prompt and an answer too long together", f"{SYNC} --rollout-max-prompt-len 4000 --rollout-max-response-len 200"),
        Case("Samples taken for groups", f"{FULLY} --async-max-concurrent-samples 4"),
        Case("A warm-up longer than the run", f"{SYNC} --lr-warmup-iters 11"),
    ),
    "Machine": (
        Case("GPUs that make no whole engines", f"{SYNC} --engine sglang --rollout-num-gpus 3 --rollout-num-gpus-per-engine 2"),
        Case("An embedded engine on several devices", f"{SYNC} --rollout-num-gpus-per-engine 2 --engine embedded"),
        Case("Colocated, with GPUs of the engines' own", f"{SYNC} --colocate --rollout-num-gpus 2"),
        Case("More than the cluster has", f"{SYNC} --rollout-num-gpus 40 --ray-address auto", cluster={"CPU": 16.0}),
        Case("Offloading where there is nothing to offload to", f"{SYNC} --optimizer-cpu-offload"),
        Case("A reference model that is not there", f"{SYNC} --use-kl-loss --kl-loss-coef 0.01 --ref-load gone"),
        Case(
            "A reference model with another vocabulary",
            f"{SYNC} --use-kl-loss --ref-load other --hf-checkpoint sized",
            {"other/config.json": '{"vocab_size": 32000}', "sized/config.json": SIZED},
        ),
        Case("A reference model without a KL term", f"{SYNC} --ref-load model"),
        Case("The weight of a KL term that there is not", f"{SYNC} --kl-loss-coef 0.01"),
    ),
    "Starting again in a run folder": (
        Case("With another learning rate", f"{SYNC} --run-dir runs/one --lr 3e-5 --num-rollout 20 --dry-run"),
        Case("With another group size", f"{SYNC} --run-dir runs/one --n-samples-per-prompt 4 --dry-run"),
        Case("Without the record of how it was started", f"{SYNC} --run-dir runs/two --dry-run"),
    ),
    "No mistakes": (
        Case("A KL term and no reference model", f"{SHOW} --use-kl-loss --kl-loss-coef 0.01", shows=("ref_load",)),
        Case("Checkpoints and no folder for them", f"{SHOW} --save-interval 5", shows=("save", "save_interval")),
        Case("A variable of the other command", SHOW, env={"MILES_MAX_WEIGHT_STALENESS": "2"}, shows=("warning:",)),
    ),
}  # fmt: skip
