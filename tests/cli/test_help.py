"""Help: every option explained once, in its own command, and nothing cut at any width."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from miles.config.registry import all_options, options_of
from miles_cli.app import app
from miles_cli.describe import spell, spell_bounds
from miles_cli.help_screen import PANELS

pytestmark = pytest.mark.cli
COMMANDS = ("train", "train-async")


def screen(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def flags_in(text: str) -> set[str]:
    return {word.rstrip(".,;") for word in text.split() if word.startswith("--")}


@pytest.mark.parametrize("option", all_options(), ids=lambda option: option.name)
def test_no_option_without_help(option) -> None:
    assert option.help.strip()
    assert option.help[0].isupper() or option.help[0] == "`"
    assert option.help.rstrip().endswith(".")
    assert option.panel in PANELS


@pytest.mark.parametrize("command", COMMANDS)
def test_all_help_lists_the_command_s_options_and_no_others(command: str) -> None:
    listed = {line.split()[1] for line in screen(command, "--help-all").splitlines() if line.startswith("│ --")}
    own = {option.flag for option in options_of(command)}
    assert own <= listed
    assert not listed & ({option.flag for option in all_options()} - own)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_the_usual_options_and_says_how_to_see_the_rest(command: str) -> None:
    text = screen(command, "--help")
    listed = {line.split()[1] for line in text.splitlines() if line.startswith("│ --")}
    options = options_of(command)
    assert {o.flag for o in options if o.meta.usual} <= listed
    assert not {o.flag for o in options if not o.meta.usual} & listed
    assert f"{sum(not o.meta.usual for o in options)} more options: miles {command} --help-all" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_is_cut(width: int) -> None:
    from miles_cli.help_screen import _cells, _print_panel

    class Shown:
        opts = ("--" + "f" * 70,)
        is_flag = False
        metavar = "TEXT"
        help = "h" * 300

    out = io.StringIO()
    _print_panel(Console(file=out, width=width, force_terminal=True, color_system=None), "P", [_cells(Shown())], 30)
    assert out.getvalue().count("f") == 70
    assert out.getvalue().count("h") == 300
    assert max(len(line) for line in out.getvalue().splitlines()) <= width


def test_default_and_range_are_told() -> None:
    by_name = {option.name: option for option in options_of("train-async")}
    assert spell(by_name["max_weight_staleness"].default) == "4"
    assert spell_bounds(by_name["max_weight_staleness"]) == "≥ 0"
    assert spell_bounds(by_name["rollout_top_p"]) == "0 < x ≤ 1"
    assert spell(by_name["rollout_temperature"].default) == "1"
    text = " ".join(screen("train-async", "--help").replace("│", " ").split())
    assert "[default: 4; ≥ 0" in text
    assert "[default: true; turn off: --no-grpo-std-normalization; with --advantage-estimator" in text


@pytest.mark.parametrize("words", [(), ("--help",), ("config",), ("config", "--help"), ("config", "show", "--help")])
def test_groups_list_their_commands(words: tuple[str, ...]) -> None:
    assert "Commands" in screen(*words)


def test_version_and_presets() -> None:
    import miles

    assert screen("--version").strip() == f"miles {miles.__version__}"
    assert "reverse  a 0.4 M-parameter model" in screen("config", "presets")
