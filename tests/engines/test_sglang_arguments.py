"""The command line of a sglang server: what miles decides, what the user replaces, and nothing twice."""

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.config.server_arguments import argument_list
from miles.engines.sglang_cpu import PLATFORM, PLATFORM_CLASS, activate
from miles.engines.sglang_server.arguments import SglangOptions, as_words, by_name, server_command, server_environment
from miles.engines.sglang_server.ports import free_port, port_range
from miles.errors import EngineError

pytestmark = pytest.mark.unit
NAMES = st.from_regex(r"[a-z]+(-[a-z]+){0,3}", fullmatch=True)
VALUES = st.from_regex(r"[a-z0-9./]+", fullmatch=True)


def options_with(*extra: tuple[str, str], device: str = "cpu") -> SglangOptions:
    return SglangOptions("/models/m", device, context_len=100, max_running_requests=4, extra=extra)  # type: ignore[arg-type]


def value_of(command: list[str], name: str) -> str:
    return command[command.index(f"--{name}") + 1]


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_every_name_appears_once_with_all_its_values(pairs: list[tuple[str, str]]) -> None:
    words = as_words(by_name(pairs))
    flags = [word for word in words if word.startswith("--")]
    assert len(flags) == len(set(flags))
    for name, _ in pairs:
        values = [value for other, value in pairs if other == name]
        if values in (["true"], ["false"]):
            continue
        start = words.index(f"--{name}") + 1
        assert words[start : start + len(values)] == values


@given(st.sampled_from(["context-length", "random-seed", "attention_backend", "--max-running-requests"]), VALUES)
def test_the_user_replaces_what_miles_chose(name: str, value: str) -> None:
    command = server_command(options_with((name, value)), "127.0.0.1", 1)
    flag = "--" + name.lstrip("-").replace("_", "-")
    if value not in ("true", "false"):
        assert command.count(flag) == 1
        assert value_of(command, flag[2:]) == value


def test_flags_are_set_and_left_out() -> None:
    command = server_command(options_with(("sleep-on-idle", "false"), ("enable-metrics", "true")), "h", 1)
    assert "--sleep-on-idle" not in command
    assert command[-1] == "--enable-metrics"


def test_a_full_context_can_be_answered() -> None:
    command = server_command(options_with(), "h", 7)
    assert (value_of(command, "host"), value_of(command, "port")) == ("h", "7")
    assert int(value_of(command, "context-length")) == 102  # sglang keeps two tokens back
    assert int(value_of(command, "max-total-tokens")) == 4 * 102


def test_a_gpu_server_gets_its_devices_and_none_of_the_cpu_settings() -> None:
    command = server_command(options_with(device="cuda"), "h", 1)
    assert value_of(command, "tp-size") == "1"
    assert "--attention-backend" not in command
    assert "SGLANG_PLATFORM" not in server_environment(options_with(device="cuda"), {})


def test_the_environment_of_a_cpu_server() -> None:
    inherited = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "8", "HOME": "/h"}
    environment = server_environment(options_with(), inherited)
    assert environment["SGLANG_PLATFORM"] == PLATFORM
    assert (environment["OMP_NUM_THREADS"], environment["HOME"]) == ("1", "/h")
    assert "SGLANG_USE_CPU_ENGINE" not in environment
    assert inherited["OMP_NUM_THREADS"] == "8"


def test_ranges_of_engines_do_not_meet() -> None:
    ports = [port for number in range(8) for port in port_range(number, 20000)]
    assert len(ports) == len(set(ports))


def test_a_port_in_use_is_passed_over_and_a_full_range_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"none of the ports {busy} to {busy} is free.*--engine-first-port"):
            free_port("127.0.0.1", [busy])
        free = free_port("127.0.0.1", [busy, *port_range(0, 20000)])
        assert free in port_range(0, 20000)


def test_the_platform_steps_back_for_a_better_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert activate() is None
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert activate() is None
    monkeypatch.setattr("miles.engines.sglang_cpu.absent_vision.stand_in_for_torchvision", lambda: None)
    monkeypatch.setenv("SGLANG_PLATFORM", PLATFORM)
    assert activate() == PLATFORM_CLASS


def test_the_entry_point_names_the_platform() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'[project.entry-points."sglang.srt.platforms"]\n{PLATFORM} = "miles.engines.sglang_cpu:activate"' in text


def test_a_server_makes_room_for_adapters_where_it_will_get_some() -> None:
    plain, adapting = (
        options_with(device="cuda"),
        SglangOptions("/m", "cuda", 100, adapter_rank=8, adapter_targets=("q_proj", "o_proj")),
    )
    assert "--enable-lora" not in server_command(plain, "h", 1)
    command = server_command(adapting, "h", 1)
    start = command.index("--lora-target-modules") + 1
    assert command[start : start + 2] == ["q_proj", "o_proj"]
    assert value_of(command, "max-lora-rank") == "8"
    assert {word[2:] for word in command if "lora" in word and word.startswith("--")} <= set(argument_list("sglang").arguments)
