"""What is pinned for sglang fits together: the project's needs, one version on CPUs and GPUs, the lists of its arguments."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from miles.config.server_arguments import argument_list
from miles.engines.external import TESTED_SGLANG

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
FILES = ("constraints.txt", "constraints-sglang.txt", "requirements/sglang-cpu.txt")


def pins(name: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return {place.lower().replace("_", "-"): version for place, version in (line.split("==") for line in lines if line)}


def project() -> dict[str, object]:
    content: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return content


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-sglang.txt"])
def test_a_pin_satisfies_every_need(name: str) -> None:
    needs = [*project()["dependencies"], *project()["optional-dependencies"]["sglang"]]  # type: ignore[misc, index]
    found = pins(name)
    for need in map(Requirement, needs):
        assert need.specifier.contains(found[need.name.lower().replace("_", "-")]), need


def test_sglang_is_one_version_everywhere() -> None:
    assert {pins(name)["sglang"] for name in FILES} == {TESTED_SGLANG} == {argument_list("sglang").version}
    assert {pins(name)["sglang-router"] for name in FILES} == {argument_list("router").version}


def test_what_both_machines_share_of_sglang_s_own_is_the_same() -> None:
    gpu, cpu = pins("constraints-sglang.txt"), pins("requirements/sglang-cpu.txt")
    assert {name: gpu[name] for name in ("transformers", "tokenizers", "safetensors", "xgrammar")} == {
        name: cpu[name] for name in ("transformers", "tokenizers", "safetensors", "xgrammar")
    }
