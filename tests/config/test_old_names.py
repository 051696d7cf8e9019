"""Old names: whoever types one is told the new one, as a flag and as a key."""

import pytest

from miles.config.old_names import old_name_words, old_names
from miles.config.reading import read_value
from miles.config.registry import option_table
from miles.config.resolve import examine
from miles.config.sources import FlagValue

pytestmark = pytest.mark.unit
NAMES = sorted(old_names())
OLD = [name for name in NAMES if old_names()[name].fate != "kept"]


@pytest.mark.parametrize("name", NAMES)
def test_what_an_old_name_became_is_an_option_and_takes_the_value(name, tmp_path):
    old = old_names()[name]
    assert (old.option in option_table()) == (old.fate != "absent")
    assert (name in option_table()) == (old.fate == "kept")
    if old.value:
        option = option_table()[old.option]
        assert read_value(option, old.value, tmp_path) in (option.choices or (True, False))
    if old.fate in ("folded", "absent"):
        assert old.why
        assert not old.why.endswith(".")


@pytest.mark.parametrize("name", OLD)
def test_typing_an_old_name_tells_the_new_one(bench, name):
    old = old_names()[name]
    flag = "--" + name.replace("_", "-")
    sources = bench.sources(files=[f"{name} = 1"])
    sources = type(sources)({**sources.flags, name: FlagValue("1", flag)}, sources.config_files, cwd=bench.folder)
    by_key, by_flag = examine("train", sources).problems
    for problem, as_flag in ((by_key, False), (by_flag, True)):
        expected = "is not here: " if old.fate == "absent" else f"is {old.instead(as_flag=as_flag)} here"
        assert problem.why.startswith(expected)
    assert (by_flag.option, by_key.option) == (flag, name)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--use-tis", "Write --off-policy-correction tis"),
        ("use_tis", 'Write off_policy_correction = "tis"'),
        ("--disable-grpo-std-normalization", "Write --no-grpo-std-normalization"),
        ("disable-grpo-std-normalization", "Write grpo_std_normalization = false"),
        ("--use-dynamic-batch-size", "Write --max-tokens-per-gpu"),
        ("--tensor-model-parallel-size", "Leave --tensor-model-parallel-size out"),
        ("--sglang-mem-fraction-static", "Write --sglang mem-fraction-static VALUE"),
        ("sglang_mem_fraction_static", "Write mem-fraction-static in the table [sglang]"),
    ],
)
def test_the_remedy_can_be_typed(typed, words):
    found = old_name_words(typed)
    assert found is not None
    assert found[1] == words


@pytest.mark.parametrize("name", ["lr", "--rollout-batch-size", "never_heard_of", "fully_async"])
def test_other_names_are_none_of_its_business(name):
    assert old_name_words(name) is None
