"""No option is accepted without effect: for each one some module outside the configuration reads it.

A read is an attribute of the option's section (``config.data.input_key``, or of a name bound to ``….data`` or annotated with
its option set), ``getattr(….rollout, "name")``, or a value that ``derive`` turns into one the run reads.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import miles
from miles.config.registry import Option, all_options, option_table, selector_of

pytestmark = pytest.mark.unit
SOURCE = Path(miles.__file__).parent
INSIDE = ("config/changes.py", "config/commands.py")  # the parts of the configuration that act on an option themselves


def is_fixed(option: Option) -> bool:
    """Whether a run can have no other value than the default at present."""
    meta = option.meta
    if len(option.choices) == 1:
        return True
    if meta.counts_when and all(is_fixed(option_table()[other]) for other in meta.counts_when):
        return True
    selectors = {selector_of(owner.option_set) for owner in option.owners}
    return None not in selectors and all(option.name != name and is_fixed(option_table()[name]) for name in selectors)


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted(SOURCE.rglob("*.py"))
    names = [(path.relative_to(SOURCE).as_posix(), path) for path in paths]
    wanted = [(name, path) for name, path in names if not name.startswith("config/") or name in INSIDE]
    return tuple((name, ast.parse(path.read_text())) for name, path in wanted)


def names_bound_to(tree: ast.Module, section: str, option_sets: set[str]) -> set[str]:
    """Local names that stand for the section."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
            pairs += [
                pair
                for target, value in pairs
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                for pair in zip(target.elts, value.elts, strict=True)
            ]
            found |= {ast.unparse(target) for target, value in pairs if ends_with(value, section)}
        if isinstance(node, ast.arg) and node.annotation is not None and ast.unparse(node.annotation) in option_sets:
            found.add(node.arg)
    return found


def ends_with(node: ast.AST, section: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == section


@cache
def read_places() -> dict[str, list[tuple[str, ast.AST, str]]]:
    """Attribute name, or text given to ``getattr`` → module, what it is an attribute of, place."""
    found: dict[str, list[tuple[str, ast.AST, str]]] = {}
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                found.setdefault(node.attr, []).append((name, node.value, f"{name}:{node.lineno}"))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and isinstance(node.args[1], ast.Constant):
                found.setdefault(str(node.args[1].value), []).append((name, node.args[0], f"{name}:{node.lineno}"))
    return found


@cache
def derived_from() -> set[str]:
    """Options that ``derive`` and ``derive_sft`` look up by name."""
    tree = ast.parse("\n".join((SOURCE / "config" / name).read_text() for name in ("derived.py", "sft.py")))
    indexed = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    got = [n.args[0] for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "values.get"]
    return {str(node.value) for node in (*indexed, *got) if isinstance(node, ast.Constant)}


@cache
def bound(module: str, section: str, option_sets: frozenset[str]) -> set[str]:
    return names_bound_to(dict(modules())[module], section, set(option_sets))


def reads_of(option: Option) -> Iterator[str]:
    sets = frozenset(base.__name__ for option_set in option.option_sets for base in option_set.__mro__)
    for module, base, place in read_places().get(option.name, []):
        if ends_with(base, option.section) or ast.unparse(base) in bound(module, option.section, sets):
            yield place
    if option.name in derived_from():
        yield "config/derived.py"


CHOICES = [option for option in all_options() if not option.meta.selector]


@pytest.mark.parametrize("option", CHOICES, ids=lambda option: option.name)
def test_some_module_reads_it(option: Option) -> None:
    if not is_fixed(option):
        assert list(reads_of(option)), f"{option.flag} is accepted and nobody reads it"


def test_selectors_are_read_as_classes() -> None:
    used = {node.id for name, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Name)}
    derived = ast.parse((SOURCE / "config" / "derived.py").read_text())
    used |= {node.id for node in ast.walk(derived) if isinstance(node, ast.Name)}
    for option in all_options():
        if option.meta.selector and option.shape.scalar is bool and not is_fixed(option):
            assert {option_set.__name__ for option_set in option.option_sets} & used, option.flag


def test_a_read_of_something_else_with_the_same_name_does_not_count() -> None:
    tree = ast.parse("def f(x, options: EngineOptions):\n    data = c.data\n    return x.lr, data.seed, options.engine")
    assert names_bound_to(tree, "data", {"DataOptions"}) == {"data"}
    assert names_bound_to(tree, "engine", {"EngineOptions"}) == {"options"}
    assert names_bound_to(tree, "optimizer", {"OptimizerOptions"}) == set()


def test_what_is_fixed_is_told_from_the_declarations() -> None:
    assert not is_fixed(option_table()["lr"])
    assert not is_fixed(option_table()["max_weight_staleness"])
    assert not is_fixed(option_table()["off_policy_correction"])
