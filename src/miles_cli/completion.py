"""What Tab offers: commands, the options of the command being typed, choices, presets, and paths by kind.

The shell starts ``miles`` with ``_MILES_COMPLETE`` set: the word under the cursor, then the words before it, one a
line. The answer is one candidate per line (``value<TAB>help``), or a single directive (``:folder``, ``:file``, or
``:file jsonl`` for files of that kind) that leaves the work to the shell, which knows best how to complete paths.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typer.core import TyperGroup, TyperOption

VARIABLE = "_MILES_COMPLETE"


class Candidate(NamedTuple):
    """A word that would fit, and one line about it."""

    value: str
    help: str = ""


class Typed(NamedTuple):
    """Where the cursor is: the command, its flags so far, and the option that waits for a value."""

    command: Any
    context: Any
    given: frozenset[str]
    waiting: "TyperOption | None"
    place: int = 0  # which of the option's values


DIRECTIVES = {"FILE": ":file", "PATH": ":file", **dict.fromkeys(("FOLDER", "RUN", "ROOT", "OUT"), ":folder")}  # by metavar
SUFFIXES = {"config": ("toml",), "files": ("toml",)}  # by the name of a parameter that is no option of a run


def candidates(root: "TyperGroup", words: Sequence[str], current: str) -> list[Candidate]:
    """Everything that may stand where ``current`` is.

    words: complete words after ``miles``, before the cursor; a lone ``=`` (bash splits there) is skipped.
    """
    if current.startswith("--") and "=" in current:
        name, _, value = current.partition("=")
        return [
            item if item.value.startswith(":") else Candidate(f"{name}={item.value}", item.help)
            for item in candidates(root, [*words, name], value)
        ]
    typed = _walk(root, [word for word in words if word != "="])
    current = "" if current == "=" else current
    return list(_fitting(_offers(typed, current), current))


def _walk(root: "TyperGroup", words: Iterable[str]) -> Typed:
    """Follow the words through commands and options."""
    command: Any = root
    context = _context(command, root.name or "miles", None)
    options = _options_by_flag(command, context)
    given: set[str] = set()
    waiting, missing = None, 0
    for word in words:
        if missing:
            missing -= 1
        elif (option := options.get(word)) is not None:
            given.add(word)
            waiting, missing = option, 0 if option.is_flag else option.nargs
        elif word in (below := getattr(command, "commands", {})):
            command = below[word]
            context = _context(command, word, context)
            options, given = _options_by_flag(command, context), set()
        elif not word.startswith("-"):
            context.args.append(word)
        waiting = waiting if missing else None
    place = waiting.nargs - missing if waiting else 0
    return Typed(command, context, frozenset(given), waiting, place)


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.context_class(command, info_name=name, parent=parent, resilient_parsing=True)


def _options_by_flag(command: Any, context: Any) -> "dict[str, TyperOption]":
    return {
        flag: param
        for param in command.get_params(context)
        if param.param_type_name == "option"
        for flag in (*param.opts, *param.secondary_opts)
    }


def _offers(typed: Typed, current: str) -> Iterator[Candidate]:
    if typed.waiting is not None:
        yield from _values(typed.waiting, typed.context, current, typed.place)
    elif current.startswith("-"):
        for flag, option in _options_by_flag(typed.command, typed.context).items():
            again = option.multiple or not typed.given.intersection((*option.opts, *option.secondary_opts))
            asked_for = flag in option.opts or current.startswith("--n")  # --no-…: only to those who begin it
            if not option.hidden and again and asked_for:
                yield Candidate(flag, option.help or "")
        if typed.command.context_settings.get("ignore_unknown_options"):  # an argument may be a flag: `config explain --lr`
            yield from _arguments(typed, current)
    else:
        for name, command in getattr(typed.command, "commands", {}).items():
            if not command.hidden:
                yield Candidate(name, command.get_short_help_str(limit=80))
        more = getattr(typed.command, "more_words", None)
        if more is not None:
            yield from (Candidate(*offer) for offer in more(current))
        yield from _arguments(typed, current)


def _arguments(typed: Typed, current: str) -> Iterator[Candidate]:
    """What fits the argument whose turn it is; the last one takes all words that follow if it takes several."""
    params = [param for param in typed.command.get_params(typed.context) if param.param_type_name == "argument"]
    place = len(typed.context.args)
    if params and place >= len(params) and params[-1].nargs == -1:
        place = len(params) - 1
    if place < len(params):
        yield from _values(params[place], typed.context, current, 0)


def _values(param: Any, context: Any, current: str, place: int) -> Iterator[Candidate]:
    metavars = (param.metavar or "").split()
    directive = DIRECTIVES.get(metavars[place]) if place < len(metavars) else None
    offered = param.shell_complete(context, current) if place == 0 else ()
    offers = [Candidate(item.value, item.help or "") for item in offered]
    if directive is None or any(offer.value.startswith(current) for offer in offers):
        yield from offers
    elif directive == ":file":
        suffixes = param.option.meta.suffixes if hasattr(param, "option") else SUFFIXES.get(param.name, ())
        yield Candidate(" ".join((directive, *suffixes)))
    else:
        yield Candidate(directive)


def _fitting(offers: Iterable[Candidate], current: str) -> Iterator[Candidate]:
    for offer in offers:
        if offer.value.startswith(":") or offer.value.startswith(current):
            yield Candidate(offer.value, " ".join(offer.help.split()))


def answer(root: "TyperGroup", request: str) -> str:
    """The text that answers one press of Tab; ``request`` is the value of ``VARIABLE``."""
    current, *words = request.split("\n")
    found = candidates(root, [word for word in words if word], current)
    return "\n".join(f"{item.value}\t{item.help}" if item.help else item.value for item in found)
