"""What an option is: one field of a frozen option set, with everything said about it.

The flag, the file key, the environment variable, bounds, help, panel, docs row, JSON schema and completion all
come from here; nothing about an option is written down a second time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

ChangeClass = Literal["safe", "course", "impossible"]


class OptionSet(BaseModel):
    """A frozen group of options; unknown names are refused, from Python as from a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False, validate_default=False)


@dataclass(frozen=True, slots=True)
class OptionMeta:
    """What pydantic has no word for.

    panel: heading in ``--help`` and in the resolved table.
    on_resume: what another value means for a run that is resumed, see ``changes``; every option says it.
    usual: listed in ``--help``; the rest only in ``--help-all``.
    selector: setting it chooses this variant of its union (``--fully-async``), see ``rules``.
    chooses: the thing a selector chooses, used in the sentence that refuses two of them.
    counts_when: option name → values of it under which this option has an effect, any of them suffices; ``"given"``
        stands for whatever is neither unset, empty, off nor zero. Otherwise the option is refused.
    alternative: the option that says the same in another way; a preset's value yields to the user's choice of the other.
    needed_unless: a run cannot start without this option unless that one is given.
    known_as: names that other tools have for it, understood when a name is not known.
    kind: what completion and checks take the value for (``file``, ``folder``, ``dotted``, ``pairs``).
    suffixes: how the names of files that completion offers end.
    """

    panel: str
    on_resume: ChangeClass
    usual: bool = True
    selector: bool = False
    chooses: str = ""
    counts_when: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    kind: str = ""
    suffixes: Sequence[str] = ()
    metavar: str = ""
    secret: bool = False
    alternative: str = ""
    needed_unless: str = ""
    known_as: Sequence[str] = ()


def option(default: Any, help: str, *, panel: str, on_resume: ChangeClass, **more: Any) -> Any:
    """Declare an option; ``more`` is split between pydantic's ``Field`` (bounds) and ``OptionMeta``."""
    meta = {name: more.pop(name) for name in list(more) if name in OptionMeta.__dataclass_fields__}
    extra: dict[str, Any] = {"miles": {"panel": panel, "on_resume": on_resume, **meta}}
    return Field(default, description=help, json_schema_extra=extra, **more)


def meta_of(info: FieldInfo) -> OptionMeta:
    """The ``OptionMeta`` of a declared option."""
    extra = info.json_schema_extra
    if not isinstance(extra, dict) or not isinstance(extra.get("miles"), dict):
        raise TypeError(f"not declared with option(): {info!r}")
    return OptionMeta(**extra["miles"])  # type: ignore[arg-type]


@cache
def metas_of(option_set: type[OptionSet]) -> Mapping[str, OptionMeta]:
    """The ``OptionMeta`` of every option of a set, by name."""
    return {name: meta_of(info) for name, info in option_set.model_fields.items()}
