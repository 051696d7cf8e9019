"""``miles config explain`` and ``search``: one option in full, and the options that speak of something."""

import json
from collections.abc import Iterator

from miles.config.environment import FULLY_ASYNC, ROLLOUT_REFACTOR
from miles.config.files import home_table
from miles.config.old_names import old_name_words, old_names
from miles.config.registry import Option, all_options, find_option, nearest_option, option_name, selector_of, variants_of
from miles.config.resolution import Examination
from miles.config.server_arguments import SERVERS
from miles.config.sources import Sources
from miles.errors import ConfigError, Problem
from miles_cli.beside_options import Explained, Fact, explained, nearest_key
from miles_cli.describe import conditions, spell_bounds, spell_defaults
from miles_cli.showing import console_here, print_pairs, say
from miles_cli.source_options import check_format
from miles_cli.wording import shown_value

RESUME_WORDS = {
    "safe": "safe: another value is taken",
    "course": "changes the course: another value is taken with --accept-changes",
    "impossible": "fixed: another value is refused",
}
RARE = 5  # a word that at most so many options share says that they are related


def explain(key: str, sources: Sources, format: str) -> None:
    """Print everything about one option: ``key`` is a flag, a file key, a variable, an argument of a server, or nearly so.

    Raises:
        ConfigError: nothing is called so, or nearly so.
    """
    check_format(format, ("plain", "json"))
    note, head, facts = _found(key, sources)
    _print(key, [note, ""] if note else [], head, facts, format)


def _found(key: str, sources: Sources) -> tuple[str, str, list[Fact]]:
    """What is called so, or nearly so: a note where only nearly, the first line, and the facts.

    Raises:
        ConfigError: nothing is.
    """
    option = find_option(key)
    if option is None and (other := _no_option(key, sources)) is not None:
        return "", other.head, list(other.facts)
    meant = option or find_option(key.rpartition(".")[2]) or _by_old_name(key) or _by_other_name(key) or nearest_option(key)
    if meant is not None:
        return "" if option else _note(key, meant), f"{meant.name}: {meant.help}", list(option_facts(meant, sources))
    near = nearest_key(key)
    if near and (other := _no_option(near, sources)) is not None:
        return f"There is no {key}; the nearest is {near}.", other.head, list(other.facts)
    remedy = f"Try: miles config search {key.strip('-$')}"
    raise ConfigError([Problem(key or '""', "", "", "no option has this name, or one like it", remedy)])


def _no_option(key: str, sources: Sources) -> Explained | None:
    """What is called so and is no option of a run: a derived value, a flag of a command, an argument of a server."""
    rows = {row.option: row for row in _examined(("train", "train-async"), sources).rows}
    row = rows.get(option_name(key))
    if row is not None:
        return Explained(f"{row.option}: derived from options, and none itself", (("now", f"{row.value}  {row.arithmetic}"),))
    return explained(key, {server: rows[server].value for server in SERVERS if server in rows})


def _print(key: str, note: list[str], head: str, facts: list[Fact], format: str) -> None:
    if format == "json":
        told = {label: "; ".join(text for name, text in facts if name == label) for label, _ in facts}
        console_here().file.write(json.dumps({"asked": key, "about": head, **told}, indent=2, ensure_ascii=False) + "\n")
        return
    console = console_here()
    say(console, [*note, head, ""])
    print_pairs(console, [(f"  {label}", text) for label, text in facts])


def search(words: list[str]) -> None:
    """Print the options whose name or meaning holds all of the words, best first.

    Raises:
        ConfigError: there is none.
    """
    found = [option for option in all_options() if _speaks_of(option, words)]
    if not found:
        text = " ".join(words)
        problem = Problem("words", text, "", "no option speaks of them all", "Try one word, or `miles train --help-all`")
        raise ConfigError([problem])
    found.sort(key=lambda option: not all(word.lower() in option.name for word in words))
    print_pairs(console_here(), [(option.flag, option.help) for option in found])


def option_facts(option: Option, sources: Sources) -> Iterator[Fact]:
    """What there is to know, in order."""
    yield "value", _value(option)
    if default := spell_defaults(option):
        yield "default", default
    yield "flag", f"{option.flag} {option.metavar}".rstrip() + _negative(option)
    home = home_table(option)
    yield "file key", f"{option.name} in [{home}]" if home else option.name
    yield "variable", _variable(option)
    yield "command", ", ".join(owner_words(option))
    if text := conditions(option):
        yield "counts", text
    yield "resumed", RESUME_WORDS[option.meta.on_resume]
    if option.meta.known_as:
        yield "elsewhere", ", ".join(option.meta.known_as)
    yield "now", _now(option, sources)
    if related := related_options(option):
        yield "related", ", ".join(other.flag for other in related)


def owner_words(option: Option) -> list[str]:
    """``miles train``, ``miles train-async --fully-async``, ``miles train-async without --fully-async``."""
    words = []
    for command in option.commands:
        variants = variants_of(command, option.section)
        owners = [owner.option_set for owner in option.owners if owner.command == command]
        switches = {variant: f"--{(selector_of(variant) or '').replace('_', '-')}" for variant in variants}
        if len(owners) == len(variants):
            words.append(f"miles {command}")
        elif variants[0] in owners:
            without = " or ".join(switches[variant] for variant in variants if variant not in owners)
            words.append(f"miles {command} without {without}")
        else:
            words += [f"miles {command} {switches[variant]}" for variant in owners]
    return words


def related_options(option: Option) -> list[Option]:
    """Options that one condition or a rare word of their names ties to this one."""
    names = {option.meta.alternative, *option.meta.counts_when}
    words = [set(other.name.split("_")) for other in all_options()]
    rare = {word for word in option.name.split("_") if len(word) > 1 and sum(word in those for those in words) <= RARE}
    return [
        other
        for other in all_options()
        if other.name != option.name
        and (other.name in names or option.name in other.meta.counts_when or _shares(rare, option, other))
    ]


def _shares(rare: set[str], option: Option, other: Option) -> bool:
    return other.section == option.section and bool(rare & set(other.name.split("_")))


def _value(option: Option) -> str:
    kind = ", ".join(str(choice) for choice in option.choices) or (option.metavar or "switch").lower()
    text = ", ".join(part for part in (kind, spell_bounds(option)) if part)
    return text + ("; may be repeated" if option.shape.repeated else "") + ("; may be none" if option.shape.optional else "")


def _negative(option: Option) -> str:
    return f", {option.negative_flag}" if option.negative_flag and not option.meta.selector else ""


def _variable(option: Option) -> str:
    if option.variable == FULLY_ASYNC:
        return f"none: {option.variable} is refused, the schedule is not chosen by a variable"
    older = f", or the older {ROLLOUT_REFACTOR}: 1 is class, 0 is function" if option.name == "rollout_api" else ""
    return option.variable + older


def _now(option: Option, sources: Sources) -> str:
    found = _examined(option.commands, sources)
    row = next((row for row in found.rows if row.option == option.name), None)
    wrong = sum(not problem.is_missing for problem in found.problems)
    doubt = f"; but there is something wrong ({wrong}): miles config show {found.command}" if wrong else ""
    if row is None:
        return f"does not count in `miles {found.command}` as it stands{doubt}"
    return f"{shown_value(row)}  {row.origin or 'nobody has given it'}  (miles {found.command}){doubt}"


def _examined(commands: tuple[str, ...], sources: Sources) -> Examination:
    """What is known of the command that the sources are about, else of the first of ``commands``."""
    from miles.config.layers import command_named
    from miles.config.resolve import examine

    named = command_named(sources)
    return examine(named if named in commands else commands[0], sources)


def _note(key: str, option: Option) -> str:
    if key.lstrip("$") == ROLLOUT_REFACTOR:
        return f"{key} is read as {option.flag}: 1 is class, 0 is function."
    old = old_name_words(key)
    return f"{key} {old[0]}." if old else f"There is no {key}; the nearest is {option.flag}."


def _by_old_name(key: str) -> Option | None:
    """The option that says now what slime's or miles's said.

    Raises:
        ConfigError: it is not here, with the reason.
    """
    known = old_names().get(option_name(key))
    if known is not None and known.fate == "absent":
        why, remedy = old_name_words(key) or ("", "")
        raise ConfigError([Problem(key, "", "", why, remedy)])
    return find_option(known.option) if known is not None else None


def _by_other_name(key: str) -> Option | None:
    if key.lstrip("$") == ROLLOUT_REFACTOR:
        return find_option("rollout_api")
    plain = key.lstrip("-$").replace("-", "_").lower()
    return next((option for option in all_options() if plain in option.meta.known_as), None)


def _speaks_of(option: Option, words: list[str]) -> bool:
    text = " ".join((option.name, option.flag, option.help, option.panel, *option.meta.known_as, *map(str, option.choices)))
    return all(word.lower() in text.lower() for word in words)
