"""Dotted paths: found in all their spellings, or refused with the nearest name."""

import json
import json.decoder
import sys

import pytest

from miles.config.dotted import load_dotted
from miles.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a module that works and one that does not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "made_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "rewards.py").write_text("class Judge:\n    def score(self): ...\ndef length(sample, prompt): ...\n")
    (folder / "broken.py").write_text("raise RuntimeError('half written')\n")
    (folder / "script.py").write_text("raise SystemExit(0)\n")
    yield
    for name in [name for name in sys.modules if name.startswith("made_package")]:
        del sys.modules[name]


@pytest.mark.parametrize("path", ["json.decoder:JSONDecoder", "json.decoder.JSONDecoder", "json:decoder.JSONDecoder"])
def test_spellings(path):
    assert load_dotted(path, "custom_rm_path", "--custom-rm-path") is json.decoder.JSONDecoder


def test_modules_beside_the_working_directory_are_found(package):
    assert load_dotted("made_package.rewards:Judge.score", "custom_rm_path", "").__name__ == "score"


@pytest.mark.parametrize(
    ("path", "why", "remedy"),
    [
        ("made_package.reward:length", "there is no module made_package.reward", "Did you mean made_package.rewards?"),
        ("made_packag.rewards:length", "there is no module made_packag", "Did you mean made_package?"),
        ("nowhere:length", "there is no module nowhere", "Give --custom-rm-path package.module:name"),
        ("made_package.rewards:lenght", "made_package.rewards has no lenght", "Did you mean made_package.rewards:length?"),
        ("made_package.rewards.lenght", "made_package.rewards has no lenght", "Did you mean made_package.rewards:length?"),
        ("made_package.rewards:Judge.scores", "Judge has no scores", "Did you mean Judge.score?"),
        (
            "made_package.broken:x",
            "importing made_package.broken fails: RuntimeError: half written",
            "Correct made_package.broken",
        ),
        ("made_package.script:x", "importing made_package.script fails: SystemExit: 0", "Correct made_package.script"),
        ("made_package.rewards.length.more:x", "there is no module made_package.rewards.length", "Give --custom-rm-path"),
        ("made_package.rewards:", "names no object", "Give --custom-rm-path package.module:name"),
        (":x", "names no object", "Give --custom-rm-path package.module:name"),
        ("..x", "there is no module", "Give"),
        ("lonely", "is no dotted path, and there is no such name among the entry points of miles.reward", "Give"),
    ],
)
def test_refusals(package, path, why, remedy):
    with pytest.raises(ConfigError) as caught:
        load_dotted(path, "custom_rm_path", "run.toml:3", "reward")
    (problem,) = caught.value.problems
    assert problem.why.startswith(why)
    assert problem.remedy.startswith(remedy)
    assert (problem.option, problem.value, problem.origin) == ("custom_rm_path", path, "run.toml:3")


def test_entry_points(package, tmp_path, monkeypatch):
    info = tmp_path / "made-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[miles.reward]\nlength = made_package.rewards:length\ngone = made_package.gone:x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_dotted("length", "custom_rm_path", "", "reward").__name__ == "length"
    with pytest.raises(ConfigError, match="Did you mean length?"):
        load_dotted("lenght", "custom_rm_path", "", "reward")
    with pytest.raises(ConfigError, match="cannot be loaded: ModuleNotFoundError"):
        load_dotted("gone", "custom_rm_path", "", "reward")
