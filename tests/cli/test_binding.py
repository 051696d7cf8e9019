"""Typer splits words; nothing that was typed is changed, guessed or lost on the way to the resolver."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from miles.config.registry import Option, all_options, options_of
from miles.config.sources import FlagValue
from miles_cli.app import app
from tests.cli.conftest import Typist

pytestmark = pytest.mark.cli
COMMANDS = ("train", "train-async")
LAWS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12)
VALUED = [option for option in all_options() if option.shape.scalar is not bool]
SINGLE = [option for option in VALUED if not option.shape.repeated]
SWITCHES = [option for option in all_options() if option.shape.scalar is bool]
OPTION = st.sampled_from(SINGLE)


def names(options: list[Option] | tuple[Option, ...]) -> set[str]:
    return {option.name for option in options}


@LAWS
@given(command=st.sampled_from(COMMANDS), option=OPTION, word=WORDS, joined=st.booleans())
def test_a_value_arrives_as_typed(typist: Typist, command: str, option: Option, word: str, joined: bool) -> None:
    words = [f"{option.flag}={word}"] if joined else [option.flag, word]
    assert typist([command, *words]) == {option.name: FlagValue(word, option.flag)}


@LAWS
@given(
    command=st.sampled_from(COMMANDS), chosen=st.lists(st.tuples(OPTION, WORDS), unique_by=lambda item: item[0].name, max_size=6)
)
def test_flags_keep_their_order(typist: Typist, command: str, chosen: list[tuple[Option, str]]) -> None:
    words = [word for option, value in chosen for word in (option.flag, value)]
    flags = typist([command, *words])
    assert list(flags.items()) == [(option.name, FlagValue(value, option.flag)) for option, value in chosen]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", SWITCHES, ids=lambda option: option.name)
def test_switches_know_how_they_were_typed(typist: Typist, command: str, option: Option) -> None:
    assert typist([command, option.flag]) == {option.name: FlagValue(True, option.flag)}
    if not option.meta.selector:
        assert typist([command, option.negative_flag]) == {option.name: FlagValue(False, option.negative_flag)}


@pytest.mark.parametrize("option", [option for option in VALUED if option.shape.repeated], ids=lambda option: option.name)
def test_repeated_options_collect(typist: Typist, option: Option) -> None:
    once, twice = (["a", "b"], ["c", "d"]) if option.shape.pairs else (["a"], ["c"])
    flags = typist(["train-async", option.flag, *once, option.flag, *twice])
    expected = (("a", "b"), ("c", "d")) if option.shape.pairs else ("a", "c")
    assert flags == {option.name: FlagValue(expected, option.flag)}


def test_of_an_option_typed_again_the_last_counts_and_the_others_are_kept(typist: Typist) -> None:
    earlier = (FlagValue("1", "--lr"), FlagValue("3", "--lr"))
    assert typist(["train", "--lr", "1", "--lr=3", "--lr", "2"]) == {"lr": FlagValue("2", "--lr", earlier)}
    words = ["train", "--rollout-shuffle", "--no-rollout-shuffle"]
    shuffled = FlagValue(True, "--rollout-shuffle")
    assert typist(words) == {"rollout_shuffle": FlagValue(False, "--no-rollout-shuffle", (shuffled,))}


@LAWS
@given(option=st.sampled_from(all_options()), data=st.data())
def test_an_abbreviation_is_never_taken_for_the_option(typist: Typist, option: Option, data: st.DataObject) -> None:
    length = data.draw(st.integers(3, len(option.flag) - 1))
    short = option.flag[:length]
    known = {o.flag for o in all_options()} | {o.negative_flag for o in all_options()} | {"--config", "--preset"}
    if short in known:
        return
    flags = typist(["train", short, "1"])
    assert option.name not in flags
    assert [flag.text for flag in flags.values()] == [short]


@LAWS
@given(option=st.sampled_from([option for option in all_options() if "_" in option.name]), is_joined=st.booleans())
def test_a_flag_with_underscores_is_the_option(typist: Typist, option: Option, is_joined: bool) -> None:
    values = {bool: []}.get(option.shape.scalar, ["a", "-1"] if option.shape.pairs else ["-1"])
    flag = "--" + option.name
    words = [f"{flag}={values[0]}", *values[1:]] if is_joined and values else [flag, *values]
    dashed = typist(["train-async", option.flag, *values, "--lr", "1"])
    assert typist(["train-async", *words, "--lr", "1"]) == dashed | {option.name: dashed[option.name]._replace(text=flag)}


def test_a_repeated_option_with_underscores_keeps_all_its_values(typist: Typist) -> None:
    words = ["--eval_prompt_data", "a", "x", "--eval_prompt_data", "b", "y", "--rollout_stop", "one", "--rollout_stop=two"]
    assert {name: flag.value for name, flag in typist(["train", *words]).items()} == {
        "eval_prompt_data": (("a", "x"), ("b", "y")),
        "rollout_stop": ("one", "two"),
    }
    assert typist(["train", "--no-rollout_shuffle"])["rollout_shuffle"].value is False


@pytest.mark.parametrize("words", [["--lerning-rate", "3"], ["--lerning-rate=3"]])
def test_an_unknown_flag_keeps_its_value(typist: Typist, words: list[str]) -> None:
    assert typist(["train", *words, "--lr", "1"]) == {
        "lerning_rate": FlagValue("3", "--lerning-rate"),
        "lr": FlagValue("1", "--lr"),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "reverse"], "See `miles train --help`"),
        (["trian"], "Did you mean 'train'? See `miles --help`"),
        (["train", "--preset"], "--preset"),
        (["train", "--lr"], "Write --lr NUMBER"),
        (["train", "--sglang", "a"], "Write --sglang NAME VALUE"),
        (["train-async", "--fully-async=yes"], "Write --fully-async, or leave it out"),
        (["train", "--group-rm=yes"], "Write --group-rm or --no-group-rm"),
    ],
)
def test_words_that_fit_nowhere_are_named(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_both_commands_bind_their_own_options_and_only_catch_the_others() -> None:
    from miles_cli.binding import bound_options

    for command in COMMANDS:
        bound = bound_options(command)
        assert {b.name for b in bound if not b.hidden} == names(options_of(command))
        assert {b.name for b in bound} == names(all_options())


def test_nothing_typed_means_no_flags(typist: Typist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILES_LR", "3")
    assert typist(["train"]) == {}
