"""``miles config explain`` for what is no option of a run: flags of commands, variables, arguments of servers."""

import json
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from miles.config.registry import find_option
from miles.config.server_arguments import OWNED, SERVERS, argument_list
from miles.config.sources import COMMAND_FLAGS
from miles_cli.app import app
from miles_cli.beside_options import explained, nearest_key

pytestmark = [pytest.mark.cli, pytest.mark.usefixtures("place")]
ARGUMENTS = [(server, name) for server in SERVERS for name in argument_list(server).arguments]


def explain(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["config", "explain", *words])
    assert result.exit_code == code, result.output
    return result.output


def flags_below(command, name: str = "miles"):
    for param in command.params:
        if param.param_type_name == "option":
            yield name, param.opts[0]
    for word, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from flags_below(below, f"{name} {word}")


def test_every_flag_of_every_command_is_explained() -> None:
    for command, flag in flags_below(typer.main.get_command(app)):
        found = explained(flag, {})
        assert find_option(flag) or found, flag
        if found:
            assert command in dict(found.facts)["command"] or len([label for label, _ in found.facts if label == "command"]) > 1


def test_flags_of_the_command_line_are_known_to_files_and_variables(place: Path) -> None:
    found = {
        flag
        for command, flag in flags_below(typer.main.get_command(app))
        if command.startswith(("miles train", "miles config show"))
    }
    assert {"--" + name.replace("_", "-") for name in COMMAND_FLAGS} == {flag for flag in found if not find_option(flag)}
    (place / "run.toml").write_text("dry_run = true\n")
    words = ["config", "show", "train", "--preset", "reverse", "--config", "run.toml", "--json"]
    said = CliRunner().invoke(app, words, env={"MILES_JSON": "1"}).stderr
    assert "dry_run = true (run.toml:1): is a flag of the command line" in said
    assert "--json (command line): is a flag of another command" in said
    shown = CliRunner().invoke(app, words[:5], env={"MILES_JSON": "1"}).stdout
    assert "warning: $MILES_JSON is ignored: --json is a flag of the command line" in shown


@pytest.mark.parametrize("flag", ["--preset", "--config", "--dry-run", "--format", "--gpu-memory-gib"])
def test_a_flag_alone_is_what_is_asked_about(flag: str) -> None:
    assert explain(flag).startswith(f"{flag}: ")
    assert "no file key and no variable" in explain(flag)


def test_a_flag_before_a_key_is_a_flag() -> None:
    assert "preset reverse" in explain("--preset", "reverse", "lr")


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ARGUMENTS))
def test_every_argument_of_a_server_is_explained_under_its_spellings(asked: tuple[str, str]) -> None:
    server, name = asked
    found = explained(f"{server}.{name}", {})
    assert found is not None
    assert found.head.startswith(f"{server}.{name}: ")
    assert found == explained(f"--{server}-{name}", {}) == explained(f"{server}.{name.replace('-', '_')}", {})
    assert argument_list(server).arguments[name].help in found.head
    assert ("refused" in dict(found.facts)) == (name in OWNED[server])


def test_the_value_that_is_passed_on_is_shown(place: Path) -> None:
    (place / "run.toml").write_text("[sglang]\nmem-fraction-static = 0.7\nlog-level = 'info'\n")
    assert "now       0.7" in explain("mem-fraction-static", "--config", "run.toml")
    assert "now       not given" in explain("mem-fraction-static")
    assert "--rollout-num-gpus-per-engine" in explain("sglang.tp-size")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("--presett", "--preset"), ("mem-fraction-statik", "sglang.mem-fraction-static"),
     ("router.cache-treshold", "router.cache-threshold"),
     ("MILES_CONFG", "MILES_CONFIG"), ("qqqqqq", "")],
)  # fmt: skip
def test_what_was_nearly_meant(key: str, nearest: str) -> None:
    assert nearest_key(key) == nearest
    if nearest:
        assert explain(key).startswith(f"There is no {key}; the nearest is {nearest}.")
    else:
        assert "no option has this name" in explain(key, code=2)


def test_variables_of_the_past() -> None:
    assert explain("MILES_EXPERIMENTAL_ROLLOUT_REFACTOR").startswith(
        "MILES_EXPERIMENTAL_ROLLOUT_REFACTOR is read as --rollout-api"
    )
    assert "none: MILES_FULLY_ASYNC is refused" in explain("MILES_FULLY_ASYNC")
    assert explain("$MILES_CONFIG") == explain("MILES_CONFIG")


def test_for_programs() -> None:
    data = json.loads(explain("sglang.log-level", "--format", "json"))
    assert (data["asked"], data["flag"]) == ("sglang.log-level", "--sglang log-level VALUE")
