"""Every option once, under every spelling, without building a validator or importing anything heavy."""

import itertools
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.config.commands import COMMANDS, WITH_ROLLOUTS
from miles.config.options.base import ChangeClass, option
from miles.config.registry import REQUIRED, all_options, find_option, nearest_option, option_name, option_table, options_of
from tests.config.support import VARIANTS, owned_names

pytestmark = pytest.mark.unit
NAMES = [option.name for option in all_options()]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_of_all_its_variants(command):
    wanted = set().union(*(owned_names(variant) for variant, (owner, _) in VARIANTS.items() if owner == command))
    names = [option.name for option in options_of(command)]
    assert sorted(names) == sorted(wanted)


def test_both_commands_together_have_them_all_once():
    assert sorted(NAMES) == sorted({name for variant in VARIANTS for name in owned_names(variant)})


@given(st.sampled_from(NAMES), st.data())
def test_every_spelling_leads_to_the_option(name, data):
    option = option_table()[name]
    spellings = [option.flag, option.variable, "$" + option.variable, name, name.replace("_", "-"), option.negative_flag]
    spelling = data.draw(st.sampled_from([text for text in spellings if text]))
    assert find_option(spelling) is option
    assert option_name(spelling) == name


@pytest.mark.parametrize("option", all_options(), ids=NAMES)
def test_every_option_says_what_it_is(option):
    assert option.help.endswith((".", "`"))
    assert option.help[0].isupper() or option.help[0] == "`"
    assert option.panel
    assert option.metavar or option.shape.scalar is bool
    assert option.required == (option.default is REQUIRED)
    others = {*option.meta.counts_when, option.meta.alternative} - {""}
    assert others <= option_table().keys()
    if option.meta.alternative:
        assert option_table()[option.meta.alternative].meta.alternative == option.name


def test_every_option_says_what_another_value_means_for_a_resumed_run():
    for name in NAMES:
        owners = option_table()[name].option_sets
        told = {owner.model_fields[name].json_schema_extra["miles"]["on_resume"] for owner in owners}
        assert len(told) == 1, name
        assert told <= set(get_args(ChangeClass)), name
    with pytest.raises(TypeError, match="on_resume"):
        option(1, "Silent.", panel="Run")


@pytest.mark.parametrize(
    ("change_class", "names"),
    [
        ("safe", ("save_interval", "eval_interval", "num_rollout", "num_epoch", "max_tokens_per_gpu", "actor_num_gpus_per_node")),
        ("course", ("lr", "seed", "rollout_batch_size", "global_batch_size", "rollout_temperature", "fully_async")),
        ("impossible", ("hf_checkpoint", "n_samples_per_prompt")),
    ],
)
def test_the_classes_of_well_known_options(change_class, names):
    assert {option_table()[name].meta.on_resume for name in names} == {change_class}


def test_panels_stand_together():
    for options in (all_options(), *(options_of(command) for command in COMMANDS)):
        panels = [option.panel for option in options]
        changes = sum(one != two for one, two in itertools.pairwise(panels))
        assert changes == len(set(panels)) - 1


def test_options_tell_their_owners():
    assert option_table()["max_weight_staleness"].commands == ("train-async",)
    assert [owner.__name__ for owner in option_table()["rollout_api"].option_sets] == ["SyncRollout", "OneStepOff", "FullyAsync"]
    assert option_table()["rollout_api"].choices == ("class", "function")
    assert option_table()["rollout_top_p"].bounds == (("gt", 0), ("le", 1))
    assert option_table()["fully_async"].default is False
    defaults = [next(o for o in options_of(c) if o.name == "off_policy_correction").default for c in WITH_ROLLOUTS]
    assert defaults == ["none", "tis"]


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("lerning_rate", "lr"), ("--fully", "fully_async"), ("--max-staleness", "max_weight_staleness"),
        ("temperature", "rollout_temperature"), ("MILES_SAVE_INTERVL", "save_interval"), ("qqq", None), ("", None),
    ],
)  # fmt: skip
def test_the_nearest_name(written, nearest):
    found = nearest_option(written, "train")
    assert (found.name if found else None) == nearest


def test_listing_builds_no_validator_and_imports_nothing_heavy():
    code = """
import sys
from miles.config.registry import all_options
from miles.config.commands import COMMANDS
all_options()
built = [root.__name__ for root in COMMANDS.values() if root.__pydantic_complete__]
built += [o.__name__ for option in all_options() for o in option.option_sets if o.__pydantic_complete__]
import miles.config.resolve, miles.config.plan, miles.config.dotted
heavy = [name for name in ("torch", "ray", "transformers", "sglang", "tomlkit", "rich", "typer") if name in sys.modules]
print(built, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[] []"
