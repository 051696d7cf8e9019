"""A command under a guard, as a child of this process: launch, watch, say why it ended, end it with everything of it."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from miles.engines.last_lines import last_lines
from miles.engines.sglang_server.guard import remove_orphans
from miles.errors import EngineError

STOP_SECONDS = 20.0


class Guarded:
    """A command, not started yet; ``log`` takes everything it and its processes print, ``title`` names it in errors."""

    def __init__(self, title: str, log: Path) -> None:
        self.title, self.log = title, log
        self._guard: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it."""
        remove_orphans()
        with self.log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "miles.engines.sglang_server.guard", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def refuse_if_ended(self) -> None:
        """Nothing while it runs.

        Raises:
            EngineError: it ended; with its last lines.
        """
        if self._guard is not None and (code := self._guard.poll()) is not None:
            raise EngineError(self._ended_words(code))

    def refuse_another_at(self, port: int) -> None:
        """Nothing if it is this command that listens at ``port``: between choosing a port and taking it another may have come.

        Raises:
            EngineError: it is another.
        """
        if self._guard is None or not listens_at(self._guard.pid, port):
            raise EngineError(f"another process took port {port}, which was free for {self.title}. Start again.")

    async def wait(self) -> str:
        """Until it ends: why, with its last lines, or "" after ``stop``."""
        if self._guard is None:
            return ""
        code = await asyncio.to_thread(self._guard.wait)
        return "" if self._is_stopping else self._ended_words(code)

    def kill(self) -> None:
        """Let the guard end it, and do not wait."""
        self._is_stopping = True
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()

    async def stop(self) -> None:
        """End it and every process of it."""
        self.kill()
        if self._guard is not None:
            await asyncio.to_thread(self._guard.wait, STOP_SECONDS)

    def _ended_words(self, code: int | None) -> str:
        return (
            f"{self.title} ended with exit code {code}{signal_words(code)}.\nIts last lines ({self.log}):\n{last_lines(self.log)}"
        )


def signal_words(code: int | None) -> str:
    """The signal behind an exit code, in brackets; "" where there is none. The guard reports signal n as 128 + n."""
    number = 0 if code is None else max(-code, code - 128)
    if number not in set(signal.Signals):
        return ""
    hint = ", which the system sends when memory runs out" if number == signal.SIGKILL else ""
    return f" ({signal.Signals(number).name}{hint})"


def listens_at(pid: int, port: int) -> bool:
    """Whether a process, or one that came out of it, takes connections at a port."""
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            found = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found):
            return True
    return False
