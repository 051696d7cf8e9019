"""Nothing of a guarded command stays behind, however its starter or the command itself ends."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from miles.engines.sglang_server.guard import remove_orphans
from miles.engines.sglang_server.guarded import Guarded, signal_words
from miles.engines.sglang_server.ports import free_port, port_range
from miles.errors import EngineError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]
GUARD = [sys.executable, "-m", "miles.engines.sglang_server.guard"]

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]

# starts a child in a session of its own and a grandchild whose parent ends, and says who they are
FAMILY = f"""
import os, subprocess, sys, time
child = subprocess.Popen({SLEEPER}, start_new_session=True)
middle = "import subprocess; print(subprocess.Popen({SLEEPER}, stdout=-3, stderr=-3).pid)"
orphan = subprocess.run([sys.executable, "-c", middle], capture_output=True, text=True).stdout.strip()
open(os.environ["TMPDIR"] + "/socket", "w").close()
print(os.getpid(), child.pid, orphan, os.environ["TMPDIR"], flush=True)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """A guard (or what starts one) with pipes, closed at the end."""
    with ExitStack() as started:

        def begin(script: str, *before: str) -> "subprocess.Popen[str]":
            command = [*before, *GUARD, sys.executable, "-c", script]
            return started.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

        yield begin


def family_of(guard: "subprocess.Popen[str]") -> tuple[list[int], Path]:
    assert guard.stdout is not None
    *pids, folder = guard.stdout.readline().split()
    return [int(pid) for pid in pids], Path(folder)


@pytest.fixture
def left_over() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in filter(psutil.pid_exists, pids):
        os.kill(pid, signal.SIGKILL)


def gone(pids: list[int]) -> bool:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_a_closed_pipe_ends_the_whole_family(start: Start, left_over: list[int]) -> None:
    guard = start(FAMILY + "time.sleep(600)")
    pids, folder = family_of(guard)
    left_over += pids
    assert all(map(psutil.pid_exists, pids))
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(20) == 0
    assert gone(pids)
    assert not folder.exists()


def test_so_does_the_death_of_its_starter(start: Start, left_over: list[int]) -> None:
    middle = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], stdin=-1); time.sleep(600)"
    starter = start(FAMILY + "time.sleep(600)", sys.executable, "-c", middle)
    pids, _ = family_of(starter)
    left_over += pids
    starter.kill()
    starter.wait(10)
    assert gone(pids)


def test_and_the_end_of_the_command(start: Start, left_over: list[int]) -> None:
    guard = start(FAMILY + "sys.exit(7)")
    pids, folder = family_of(guard)
    left_over += pids
    assert guard.wait(20) == 7
    assert gone(pids)
    assert not folder.exists()


def test_a_killed_guard_takes_the_command_with_it(start: Start, left_over: list[int]) -> None:
    guard = start("import os, time; print(os.getpid(), os.environ['TMPDIR'], flush=True); time.sleep(600)")
    pids, _ = family_of(guard)
    left_over += pids
    guard.kill()
    guard.wait(10)
    assert gone(pids)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGTERM, 143)])
def test_a_signal_shows_in_the_exit_code(start: Start, number: int, code: int) -> None:
    guard = start(f"import os; os.kill(os.getpid(), {int(number)})")
    assert guard.wait(20) == code


@pytest.mark.parametrize(("code", "words"), [
    (None, ""), (0, ""), (1, ""), (2, ""), (255, ""), (143, " (SIGTERM)"), (-6, " (SIGABRT)"),
    (137, " (SIGKILL, which the system sends when memory runs out)"),
])  # fmt: skip
def test_a_signal_is_named_and_what_usually_sends_it(code: int | None, words: str) -> None:
    assert signal_words(code) == words


async def test_a_port_that_another_took_in_between_is_noticed(tmp_path: Path) -> None:
    serves = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('up', flush=True)"
    process, port = Guarded("it", tmp_path / "log"), free_port("127.0.0.1", port_range(0, 27000))
    process.launch([sys.executable, "-c", f"{serves}; time.sleep(600)", str(port)], os.environ)
    try:
        while "up" not in process.log.read_text():
            process.refuse_if_ended()
        process.refuse_another_at(port)
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = other.getsockname()[1]
            with pytest.raises(EngineError, match=f"another process took port {taken}, which was free for it"):
                process.refuse_another_at(taken)
    finally:
        await process.stop()


def test_what_a_killed_guard_left_is_removed_and_what_lives_is_not(
    start: Start, left_over: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    killed, living = (
        start("import os, time; print(os.getpid(), os.environ['TMPDIR'], flush=True); time.sleep(600)") for _ in "ab"
    )
    (pids, folder), (others, kept) = family_of(killed), family_of(living)
    left_over += pids + others
    killed.kill()
    killed.wait(10)
    assert folder.exists()
    remove_orphans()
    assert not folder.exists()
    assert kept.exists()
    assert living.stdin is not None
    living.stdin.close()
    assert living.wait(20) == 0
