"""``python -m miles.engines.sglang_server.guard COMMAND…``: runs a command and sees to it that nothing of it stays behind.

Whoever started the guard holds the other end of its standard input. When that closes, because it was asked to end, failed or
was killed, the guard kills the command and every process that came out of it; also those whose own parents are gone, since
they become the guard's children. Temporary files of the command (sockets, among others) go with it. Only Linux has the calls.

A guard that is killed itself (Ray kills what an actor started) cannot remove them: their folder carries the guard's process id,
and whoever starts a guard, or ends a run, removes those whose guard is gone.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from miles.orphans import remove_orphans_of

PREFIX = "miles-sgl-"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def main(command: list[str]) -> int:
    """Run the command until it ends or the starter does; the command's exit code (128 + a signal's number), else 0."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the pipe alone decides
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": folder},
                preexec_fn=prepare_child,  # noqa: PLW1509 - the guard has one thread
            )
            code = child.wait() if wait_for_either(child.pid) else 0
        finally:
            end_descendants()
    return code if code >= 0 else 128 - code


def remove_orphans() -> None:
    """Remove the temporary files of commands whose guard was killed."""
    remove_orphans_of(PREFIX, Path(tempfile.gettempdir()))


def prepare_child() -> None:
    """In the new process: signals as usual, and killed if the guard itself is."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_either(pid: int) -> bool:
    """Until the process ends (True) or standard input is closed (False)."""
    descriptor = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([descriptor, sys.stdin.fileno()], [], [])
        return descriptor in ready
    finally:
        os.close(descriptor)


def end_descendants() -> None:
    """Kill children, grandchildren, … until there are none; those that lost their parent turn up as children here."""
    while descendants := psutil.Process().children(recursive=True):
        for process in descendants:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(descendants, timeout=1)
        reap()
        time.sleep(0.01)


def reap() -> None:
    """Take the exit codes of ended children that were not started here."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
