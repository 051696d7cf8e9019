"""Tab pressed for real, in the shells that are installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from miles_cli.completion import VARIABLE
from miles_cli.shells import SCRIPTS, install, script_of

pytestmark = [pytest.mark.cli, pytest.mark.timeout(120)]
BIN = Path(sys.executable).parent
CASES = [
    ("miles train-async --fu", "miles train-async --fully-async"),
    ("miles train --fu", "miles train --fu"),
    ("miles config sh", "miles config show"),
    ("miles train --preset rev", "miles train --preset reverse"),
    ("miles train --preset qwen3-30", "miles train --preset qwen3-30b-a3b-fully-async"),
    ("miles train --sglang mem-fraction-s", "miles train --sglang mem-fraction-static"),
    ("miles train --engine=em", "miles train --engine=embedded"),
    ("miles train --config on", "miles train --config only.toml"),
    ("miles train --run-dir=fo", "miles train --run-dir=folder/"),
    ("miles train --run-dir on", "miles train --run-dir on"),
    ("miles train --prompt-data da", "miles train --prompt-data data.jsonl"),
    ("miles config explain --lr-d", "miles config explain --lr-decay-style"),
    ("miles config explain MILES_LR_D", "miles config explain MILES_LR_DECAY_STYLE"),
    ("miles config show run", "miles config show runs/one"),
    ("miles runs show run", "miles runs show runs/one"),
    ("miles export runs/one --step 1", "miles export runs/one --step 150"),
    ("miles train --custom-rm-path mi", "miles train --custom-rm-path mine:"),
    ("miles train --custom-rm-path mine:ex", "miles train --custom-rm-path mine:exact"),
    ("miles train --custom-rm-path=mine:ex", "miles train --custom-rm-path=mine:exact"),
]


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a folder with files, a folder, a run and some code."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    (work / "folder").mkdir(parents=True)
    for name in ("only.toml", "only.txt", "data.jsonl", "data.txt"):
        (work / name).touch()
    (work / "runs" / "one").mkdir(parents=True)
    for name in ("config.json", "config.toml"):
        (work / "runs" / "one" / name).touch()
    saved = work / "runs" / "one" / "checkpoints" / "rollout-000149"
    saved.mkdir(parents=True)
    (saved / "state.json").touch()
    (work / "mine.py").write_text("def exact(): ...\ndef other(): ...\n")
    monkeypatch.chdir(work)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TERM", "dumb")
    return home


SHOW_LINE = {  # Ctrl-O prints the line as it stands and empties it
    "bash": r"""show() { printf '\n<<%s>>\n' "$READLINE_LINE"; READLINE_LINE=; READLINE_POINT=0; }; bind -x '"\C-o": show'""",
    "zsh": r"""show() { print -r "<<$BUFFER>>"; BUFFER= }; zle -N show; bindkey '^O' show""",
    "fish": r"""bind \co 'printf "\n<<%s>>\n" (commandline); commandline ""'""",
}


def start(shell: str) -> "pexpect.spawn[str]":
    """An interactive shell that has read its start-up files, in which completion was installed."""
    install(shell, VARIABLE)
    child = pexpect.spawn(shell, ["-i"], encoding="utf8", timeout=20, dimensions=(40, 200))
    child.sendline(f"{SHOW_LINE[shell]}; echo rea''dy")
    child.expect("ready\r")
    return child


@pytest.mark.parametrize("shell", SCRIPTS)
def test_tab(shell: str, place: Path) -> None:
    needs(shell)
    child = start(shell)
    try:
        for line, expected in CASES:
            child.send(f"{line}\t")
            child.send("\x0f")
            child.expect("<<([^>]*)>>")
            assert str(child.match.group(1)).rstrip() == expected
    finally:
        child.close(force=True)


def test_bash_reply() -> None:
    needs("bash")
    text = (
        script_of("bash", VARIABLE)
        + """
press() {
    COMP_LINE="$1"; COMP_POINT=${#1}; COMPREPLY=()
    _miles_complete miles "$2" ""
    echo "${#COMPREPLY[@]} ${COMPREPLY[*]}"
}
press "miles train-async --fu" --fu
press "miles train --fu" --fu
press "miles train --engine=" =
press "miles train --engine=e" e
press "sudo  miles train --engine e" e
"""
    )
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True, env=env, timeout=60, check=True)
    expected = ["1 --fully-async", "0 ", "3 auto embedded sglang", "1 embedded", "1 embedded"]
    assert done.stdout.splitlines() == expected


def test_installing_twice_changes_nothing(place: Path) -> None:
    for shell in SCRIPTS:
        install(shell, VARIABLE)
        before = {path: path.read_text() for path in place.rglob("*") if path.is_file()}
        install(shell, VARIABLE)
        assert {path: path.read_text() for path in place.rglob("*") if path.is_file()} == before


def test_installing_keeps_what_was_in_the_start_up_file(place: Path) -> None:
    (place / ".bashrc").write_text("alias a=b")
    path = install("bash", VARIABLE)
    assert (place / ".bashrc").read_text().splitlines() == ["alias a=b", f'[ -f "{path}" ] && source "{path}"']


def test_the_shell_that_asks_is_found(place: Path) -> None:
    needs("bash")
    done = subprocess.run(
        ["bash", "-c", 'eval "$(miles --show-completion)"; complete -p miles'], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "complete -F _miles_complete miles"


@pytest.mark.parametrize(
    ("shell", "path"),
    [
        ("bash", ".local/share/miles/completion.bash"),
        ("zsh", ".local/share/miles/completion.zsh"),
        ("fish", ".config/fish/completions/miles.fish"),
    ],
)
def test_install_completion_writes_for_the_shell_that_asks(place: Path, shell: str, path: str) -> None:
    needs(shell)
    done = subprocess.run([shell, "-c", "miles --install-completion; :"], capture_output=True, text=True, check=False, timeout=60)
    assert str(place / path) in done.stdout, done.stderr
    assert (place / path).read_text() == script_of(shell, VARIABLE)


def test_a_shell_that_cannot_be_told_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from miles_cli import shells
    from miles_cli.app import app

    monkeypatch.setattr(shells, "detect_shell", lambda: None)
    result = CliRunner().invoke(app, ["--show-completion"])
    assert result.exit_code == 1
    assert "set SHELL" in result.stderr
