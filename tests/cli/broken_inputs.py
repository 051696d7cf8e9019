"""Makes broken inputs by the hundred: for a seed, the words of a command line and what lies in the working directory.

Every one is broken for certain, so that a run that would be accepted is a failure of the test.
"""

import json
import os
import random
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles.config.registry import Option, all_options

UNICODE = ["ÿ", "日本語", "🦆", "\u202etxet", "é" * 40, "\u00a0", "１２３", "−3"]
HUGE = ["1" + "0" * 400, "-" + "9" * 60, "1e999", "9" * 5000, "1e-99999x"]
NAN = ["nan", "inf", "-inf", "NaN", "infinity"]
JUNK = ["", " ", "-", "--", "true", "[1]", "{}", "null", "0x", "1,5", "1 2", "$(ls)", "%s", "\\", "'", '"']


@dataclass(frozen=True)
class Broken:
    """One broken input.

    words: after ``miles``.
    variables: set in the environment.
    about: what is broken, for the report.
    """

    about: str
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


Kind = Callable[[random.Random, Path], Broken]


def own(kind: type) -> list[Option]:
    """Single-valued options of ``miles train`` that hold a type and have no words to choose from."""
    return [
        option
        for option in all_options()
        if "train" in option.commands
        and option.shape.scalar is kind
        and not option.shape.repeated
        and not option.choices
        and not option.meta.selector
        and option.name not in ("offload_train", "offload_rollout")
    ]


NUMBERS = [*own(int), *own(float)]
PATHS = [option for option in own(Path) if option.name in ("hf_checkpoint", "prompt_data")]
CHOICES = [option for option in all_options() if len(option.choices) > 1 and "train" in option.commands]


def as_flag(option: Option, text: str) -> tuple[str, ...]:
    return (f"{option.flag}={text}",)


def in_some_form(rng: random.Random, folder: Path, option: Option, text: str, about: str) -> Broken:
    """The same text as a flag, as a string in a file, or in a variable."""
    form = rng.choice(["flag", "file", "variable"])
    if form == "flag":
        return Broken(f"{about} as a flag", as_flag(option, text))
    if form == "file":
        return in_file(folder, f"{option.name} = {json.dumps(text)}\n", about)
    return Broken(f"{about} in a variable", (), {option.variable: text})


def in_file(folder: Path, text: str | bytes, about: str) -> Broken:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    (folder / "run.toml").write_bytes(content)
    return Broken(f"{about} in a file", ("--config", "run.toml"))


def wrong_text(rng: random.Random, folder: Path) -> Broken:
    letters = "".join(rng.choices(string.ascii_letters, k=rng.randint(1, 30)))
    if letters.lower() in ("none", "nan", "inf", "infinity"):
        letters += "x"
    return in_some_form(rng, folder, rng.choice(NUMBERS), letters, "letters for a number")


def unicode_number(rng: random.Random, folder: Path) -> Broken:
    text = rng.choice([word for word in UNICODE if word not in ("１２３",)])
    return in_some_form(rng, folder, rng.choice(NUMBERS), text, "unicode for a number")


def huge_number(rng: random.Random, folder: Path) -> Broken:
    return in_some_form(rng, folder, rng.choice(own(int)), rng.choice(HUGE), "a huge number")


def huge_literal(rng: random.Random, folder: Path) -> Broken:
    literal = rng.choice(["1" + "0" * 400, "9" * 5000, "1e999", "-" + "9" * 60])
    return in_file(folder, f"{rng.choice(NUMBERS).name} = {literal}\n", "a huge literal")


def not_finite(rng: random.Random, folder: Path) -> Broken:
    return in_some_form(rng, folder, rng.choice(NUMBERS), rng.choice(NAN), "no finite number")


def junk(rng: random.Random, folder: Path) -> Broken:
    text = rng.choice(JUNK)
    return in_some_form(rng, folder, rng.choice([*NUMBERS, *CHOICES]), text, f"junk {text!r}")


def empty(rng: random.Random, folder: Path) -> Broken:
    return in_some_form(rng, folder, rng.choice([*NUMBERS, *PATHS, *own(str)]), "", "nothing")


def nested(rng: random.Random, folder: Path) -> Broken:
    option = rng.choice([*NUMBERS, *own(str), *PATHS, *own(bool)])
    shape = rng.choice(["[{0}]\nx = 1\n", "{0}.a.b = 1\n", "{0} = {{ a = [1, {{ b = 2 }}] }}\n", "[[{0}]]\nx = 1\n"])
    return in_file(folder, shape.format(option.name), "a table where a value is due")


def wrong_type(rng: random.Random, folder: Path) -> Broken:
    option = rng.choice([*NUMBERS, *PATHS, *own(str)])
    literal = rng.choice(["[1, 2]", "1979-05-27", "07:32:00", "[[1], [2]]", "[]", '["a"]'])
    return in_file(folder, f"{option.name} = {literal}\n", f"the wrong type {literal}")


def broken_toml(rng: random.Random, folder: Path) -> Broken:
    lines = ["lr = 1e-5", "[train]", "seed = 3", 'rollout_stop = ["a", "b"]']
    place = rng.randrange(len(lines))
    lines[place] += rng.choice([" = ", " ]", ' "', " '''", "\x00", " \\", "\r x", " # \x07", ", ,"])
    return in_file(folder, "\n".join(lines), "broken TOML")


def deep_toml(rng: random.Random, folder: Path) -> Broken:
    depth = rng.choice([500, 3000, 20000])
    return in_file(folder, f"rollout_stop = {'[' * depth}{']' * depth}\n", "deep TOML")


def random_bytes(rng: random.Random, folder: Path) -> Broken:
    return in_file(folder, b"\xff" + rng.randbytes(rng.randint(1, 400)), "bytes")


def unknown_name(rng: random.Random, folder: Path) -> Broken:
    name = "".join(rng.choices(string.ascii_lowercase + "_", k=rng.randint(1, 60))).strip("_") + "_zz"
    if rng.random() < 0.5:
        return Broken("an unknown flag", (f"--{name.replace('_', '-')}", rng.choice(["1", "🦆"])))
    return in_file(folder, f"{json.dumps(name + rng.choice(UNICODE))} = 1\n", "an unknown key")


def stray_word(rng: random.Random, folder: Path) -> Broken:
    return Broken("a stray word", (rng.choice(["reverse", "🦆", "lr=1", "x" * 3000]),))


def odd_path(rng: random.Random, folder: Path) -> Broken:
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "ring").symlink_to(folder / "ring2")
    (folder / "ring2").symlink_to(folder / "ring")
    os.mkfifo(folder / "pipe")
    path = rng.choice(
        ["loop", "ring", "ring/x", "model/config.json", "x" * 5000, "a\0b", ".", "/dev/null", "pipe", "~nobody-there/x"]
    )
    option = rng.choice(PATHS)
    if "\0" in path:
        return in_file(folder, f"{option.name} = {json.dumps(path)}\n", "a path with a null")
    return in_some_form(rng, folder, option, path, f"the path {path[:20]!r} for {option.name}")


def odd_config_file(rng: random.Random, folder: Path) -> Broken:
    (folder / "loop.toml").symlink_to(folder / "loop.toml")
    name = rng.choice(["model", "loop.toml", "gone.toml", "x" * 5000, ".", "", "base.toml/x", "🦆"])
    return Broken(f"the configuration file {name[:20]!r}", ("--config", name))


def odd_model(rng: random.Random, folder: Path) -> Broken:
    config = folder / "model" / "config.json"
    content: Any = rng.choice([b"\xff\x00", b"", b"[1]", b"3", b"{", b'{"a": NaN', b"[" * 100_000, None])
    if content is None:
        config.unlink()
        config.mkdir()
    else:
        config.write_bytes(content)
    return Broken(f"a config.json of {content[:8] if content else content!r}", ())


def odd_prompts(rng: random.Random, folder: Path) -> Broken:
    content = rng.choice(
        [b"\xff\xfe\n", b"{\n", b"3\n", b"[]\n", b'{"question": 1}\n', b"\x00" * 100, b"[" * 100_000, b"null\n", b'"x"\n']
    )
    (folder / "prompts.jsonl").write_bytes(content)
    return Broken(f"prompts {content[:8]!r}", ())


def odd_pairs(rng: random.Random, folder: Path) -> Broken:
    text = rng.choice(['{"a": 1', "a", "[[1,2,3]]", '{"a": {}}', "=", "a=", "[" * 50_000, '{"a": null}'])
    return Broken(f"pairs {text[:10]!r} in a variable", (), {"MILES_EVAL_PROMPT_DATA": text})


def odd_preset(rng: random.Random, folder: Path) -> Broken:
    return Broken("a preset", ("--preset", rng.choice(["", "../reverse", "🦆", "reverse/", ".", "x" * 3000])))


def odd_argument(rng: random.Random, folder: Path) -> Broken:
    name, value = rng.choice(
        [("", "1"), ("🦆", "1"), ("tp-size", "9" * 5000), ("mem-fraction-static", ""), ("--port", "1"), ("x" * 3000, "")]
    )
    return Broken("an argument of sglang", ("--sglang", name, value))


KINDS: tuple[Kind, ...] = (
    wrong_text, unicode_number, huge_number, huge_literal, not_finite, junk, empty, nested, wrong_type, broken_toml,
    deep_toml, random_bytes, unknown_name, stray_word, odd_path, odd_config_file, odd_model, odd_prompts, odd_pairs,
    odd_preset, odd_argument,
)  # fmt: skip


def broken_input(number: int, folder: Path) -> Broken:
    """The input of a number; the kinds take turns."""
    return KINDS[number % len(KINDS)](random.Random(number), folder)
