"""sglang's own arguments: checked by name and type against lists that are what the pinned packages say."""

import pytest

from miles.config.server_arguments import OWNED, SERVERS, argument_list, server_arguments
from miles.config.view import View

pytestmark = pytest.mark.unit
GOOD = {"flag": "true", "int": "3", "float": "0.5", "str": "some", "json": '{"a": 1}', "size": "4Ki"}
BAD = {"flag": "perhaps", "int": "3.5", "float": "half", "str": " ", "json": "{", "size": "4 apples"}


def said(bench, server, *pairs, files=()):
    problems = bench.examine("train", {server: pairs} if pairs else {}, files=files).problems
    return [problem.why for problem in problems if problem.option == server]


def checked(server, name, value):
    """What the check says about one argument, without resolving all the rest."""
    view = View("train", {}, {server: ((name, value),)}, frozenset({server}))
    return [problem.why for problem in server_arguments(server)(view)]


@pytest.mark.parametrize("server", SERVERS)
def test_every_argument_takes_its_type_and_nothing_else(server):
    for argument in argument_list(server).arguments.values():
        if argument.name in OWNED[server]:
            assert ["belongs to miles" in why for why in checked(server, argument.name, "1")] == [True], argument
            continue
        good = argument.choices[0] if argument.choices else GOOD[argument.kind]
        assert checked(server, argument.name, good) == [], argument
        bad = "sideways" if argument.choices else BAD[argument.kind]
        assert len(checked(server, argument.name, bad)) == 1, argument


@pytest.mark.parametrize("server", SERVERS)
def test_what_miles_owns_is_an_argument(server):
    assert {argument_list(server).find(name) is None for name in OWNED[server]} == {False}


@pytest.mark.parametrize("server", SERVERS)
def test_other_names_are_understood(bench, server):
    for alias, name in argument_list(server).aliases.items():
        found = argument_list(server).find(alias.replace("-", "_"))
        assert found is not None
        assert found.name == name


@pytest.mark.parametrize(
    ("pair", "why", "remedy"),
    [
        (("mem-fraction-statik", "0.7"), "there is no such argument of sglang 0.5.23", "Did you mean mem-fraction-static?"),
        (("zzz", "1"), "there is no such argument", "`python -m sglang.launch_server --help` lists the arguments"),
        (("tp-size", "2"), "belongs to miles: it has an option", "Use --rollout-num-gpus-per-engine"),
        (("tensor_parallel_size", "2"), "belongs to miles: it has an option", "Use --rollout-num-gpus-per-engine"),
        (("port", "30000"), "belongs to miles: miles gives each server its own", "Leave port out"),
        (("mem_fraction_static", "much"), "'much' is not a number", "Give mem_fraction_static a number"),
        (("attention-backend", "fa9"), "'fa9' is not one of aiter, ", "Give attention-backend one of them"),
    ],
)
def test_slips_are_named(bench, pair, why, remedy):
    (problem,) = bench.examine("train", {"sglang": (pair,)}).problems
    assert problem.why.startswith(f"{pair[0]}: {why}")
    assert problem.remedy == remedy
    assert problem.origin == "--sglang"


def test_a_table_holds_values_of_any_type(bench):
    text = """
[sglang]
mem-fraction-static = 0.7
enable-metrics = true
bucket-e2e-request-latency = [1, 2.5]
json-model-override-args = {a = 1}
"""
    assert said(bench, "sglang", files=[text]) == []
    (row,) = [row for row in bench.examine("train", files=[text]).rows if row.option == "sglang"]
    assert row.value == (
        "mem-fraction-static=0.7, enable-metrics=true, bucket-e2e-request-latency=1, bucket-e2e-request-latency=2.5, "
        'json-model-override-args={"a": 1}'
    )
    wrong = text.replace("0.7", '"much"').replace("enable-metrics", "enable-metrix")
    problems = bench.examine("train", files=[wrong]).problems
    assert [problem.why.partition(":")[0] for problem in problems] == ["mem-fraction-static", "enable-metrix"]
    assert [problem.origin.rpartition(":")[2] for problem in problems] == [
        str(line_of(wrong, name)) for name in ("much", "metrix")
    ]


def line_of(text, word):
    return next(number for number, line in enumerate(text.splitlines(), 1) if word in line)


def test_one_value_means_one(bench):
    pairs = (("mem-fraction-static", "0.7"), ("mem_fraction_static", "0.8"))
    assert said(bench, "sglang", *pairs) == ["mem_fraction_static: is given twice, and takes one value"]
    assert said(bench, "sglang", ("allowed-media-domains", "a"), ("allowed-media-domains", "b")) == []
