"""CPU seconds of the processes of a run, by their role, read in microseconds through the system's clocks of processes."""

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

DRIVER, POLICY, ENGINES, OTHERS = "driver", "policy", "engines", "others"


class CpuClocks:
    """Reads how long this process, the driver, and others of this host have been at work.

    pids: by role. A role one of whose processes has no clock (it has ended, or the system knows none) is left out.
    others: processes beside them, such as Ray's own, some of which may end.
    """

    def __init__(self, pids: Mapping[str, Sequence[int]], others: Sequence[int] = ()) -> None:
        self._others = {clock: 0.0 for pid in others if (clock := clock_of(pid)) is not None}
        self._clocks: dict[str, list[int]] = {}
        for role, theirs in pids.items():
            clocks = [clock for pid in theirs if (clock := clock_of(pid)) is not None]
            if len(clocks) == len(theirs):
                self._clocks[role] = clocks

    def read(self) -> dict[str, float]:
        """CPU seconds so far, of all processes of a role together."""
        seconds = {DRIVER: time.process_time()}
        for role, clocks in self._clocks.items():
            try:
                seconds[role] = sum(map(time.clock_gettime, clocks))
            except OSError:  # one has ended, so that the sum would go back
                continue
        return seconds | self._read_others()

    def _read_others(self) -> dict[str, float]:
        for clock in self._others:
            with suppress(OSError):  # it has ended and stays at what was read last
                self._others[clock] = time.clock_gettime(clock)
        return {OTHERS: sum(self._others.values())} if self._others else {}


def clock_of(pid: int) -> int | None:
    """The clock of a process's CPU time, for ``time.clock_gettime``; None where there is none. See clock_getcpuclockid(3)."""
    find, clock = getattr(ctypes.CDLL(None), "clock_getcpuclockid", None), ctypes.c_int()
    return clock.value if find is not None and find(pid, ctypes.byref(clock)) == 0 else None


def num_cores() -> int:
    """Cores that this process, and what it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
