"""A run whose driver is killed at random moments, started again until it ends, and what must be true of it then.

    python -m tests.chaos.lives --kills 50 -- train-async --fully-async --preset reverse

kills the driver (SIGKILL) so often, each time at a random moment of the start or of one of the next rollouts, and checks the
whole run: every rollout is there once, the ledger adds up, and every prompt issued is trained, dropped with a reason, or still
there. With ``--same-as-undisturbed`` a second run that nobody kills must have measured the same, bit for bit, apart from times:

    python -m tests.chaos.lives --kills 50 --same-as-undisturbed -- train --preset reverse --deterministic

With ``--ranks 1 2`` the lives have one and two trainer ranks in turn, which add up gradients in another order. Then the run must
have measured the same as an undisturbed one up to ``--tolerance``, for as long as all answers are the same.
"""

import argparse
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MILES = Path(sys.executable).with_name("miles")
LIFE_SECONDS = 300.0
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Chaos:
    """What a chaotic run left behind. kills: how often the driver was killed before the run ended by itself."""

    run_dir: Path
    kills: int

    @property
    def steps(self) -> Rows:
        """The rows of trained rollouts."""
        return [row for row in read_rows(self.run_dir / "metrics.jsonl") if "ledger/issued" in row]

    @property
    def measured(self) -> Rows:
        """Everything in the rows that is no time."""
        return [{key: value for key, value in row.items() if not key.startswith("perf/")} for row in self.steps]

    @property
    def ledger(self) -> dict[str, Any]:
        """The last checkpoint's."""
        latest = (self.run_dir / "checkpoints" / "latest").read_text().strip()
        state: dict[str, Any] = json.loads((self.run_dir / "checkpoints" / latest / "state.json").read_text())
        return state["ledger"]

    def check(self, num_rollout: int, batch_size: int) -> None:
        """Raise AssertionError unless every rollout was trained once and every group is accounted for."""
        ids = [row["rollout_id"] for row in self.steps]
        assert ids == list(range(num_rollout)), f"rollouts {ids}"
        for row in self.steps:
            states = [value for key, value in row.items() if key.startswith("ledger/") and key != "ledger/issued"]
            assert row["ledger/issued"] == sum(states), row
        ledger = self.ledger
        kept = len(ledger["waiting"]) + len(ledger["finished"])
        assert ledger["trained"] == num_rollout * batch_size, ledger
        assert ledger["issued"] == ledger["trained"] + sum(ledger["dropped"].values()) + kept, ledger
        assert len({*ledger["waiting"], *ledger["finished"]}) == kept, ledger


def num_alike(mine: Rows, theirs: Rows, tolerance: float) -> int:
    """Rows from the first on whose answers are the same; raise AssertionError if one of them has another loss or gradient.

    Later answers may differ, since two tokens can be nearly as likely.
    """
    answers = ("rollout/raw_reward", "rollout/num_tokens", "rollout/zero_std/share")
    alike = list(
        itertools.takewhile(lambda pair: all(pair[0][key] == pair[1][key] for key in answers), zip(mine, theirs, strict=True))
    )
    for one, other in alike:
        for key in ("train/loss", "train/grad_norm"):
            assert math.isclose(one[key], other[key], rel_tol=tolerance, abs_tol=1e-6), (one["rollout_id"], key)
    return len(alike)


def read_rows(path: Path) -> Rows:
    """Whole lines of a metrics file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def live_through(
    arguments: list[str], run_dir: Path, kills: int, seed: int, within_rows: int = 6, ranks: Sequence[int] = (1,)
) -> Chaos:
    """Start the run again and again, killing its driver ``kills`` times, then let it end.

    within_rows: a life lasts for at most so many new rows; one of them is chosen, and a moment within its rollout.
    ranks: trainer ranks of one life after the other, over and over.
    """
    rng, killed = random.Random(seed), 0
    while True:
        with (run_dir.parent / f"{run_dir.name}.log").open("ab") as log:
            ranked = [*arguments, "--actor-num-gpus-per-node", str(ranks[killed % len(ranks)])]
            process = start(ranked if len(ranks) > 1 or ranks[0] > 1 else arguments, run_dir, log)
            if killed < kills:
                ended = wait_for_rows(process, run_dir, rng.randint(0, within_rows), rng.uniform(0, 0.4))
            else:
                ended = wait(process, LIFE_SECONDS)
        if ended is not None:
            assert ended == 0, (run_dir.parent / f"{run_dir.name}.log").read_text()[-3000:]
            return Chaos(run_dir, killed)
        assert killed < kills, f"the run did not end within {LIFE_SECONDS:g} s"
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
        wait_for_lock(run_dir)


def start(arguments: list[str], run_dir: Path, log: Any) -> "subprocess.Popen[bytes]":
    """The run as a process of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MILES_")}
    command = [str(MILES), *arguments, "--run-dir", str(run_dir)]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment)


def wait_for_rows(process: "subprocess.Popen[bytes]", run_dir: Path, new_rows: int, seconds: float) -> int | None:
    """Let it live for so many more rows and then some; the exit code if it ends before."""
    path, deadline = run_dir / "metrics.jsonl", time.monotonic() + LIFE_SECONDS
    seen, last = 0, len(read_rows(path))
    while seen < new_rows and time.monotonic() < deadline:
        if process.poll() is not None:
            return process.returncode
        time.sleep(0.02)
        now = len(read_rows(path))
        seen, last = seen + max(0, now - last), now
    return wait(process, seconds if new_rows else 20 * seconds)


def wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """The exit code, None if it has not ended by then."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def wait_for_lock(run_dir: Path, seconds: float = 30.0) -> None:
    """Return once nobody holds the run folder: a child of the driver may live a moment longer."""
    import fcntl

    lock, deadline = run_dir / ".lock", time.monotonic() + seconds
    while lock.exists():
        with lock.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                assert time.monotonic() < deadline, f"{lock} is still held"
                time.sleep(0.05)
                continue
            return


def compare(chaos: Chaos, undisturbed: Chaos, tolerance: float | None) -> None:
    """Raise AssertionError unless both measured the same; print what that means."""
    number = len(chaos.steps)
    if tolerance is None:
        for mine, theirs in zip(chaos.measured, undisturbed.measured, strict=True):
            assert mine == theirs, {
                key: (mine.get(key), theirs.get(key)) for key in mine | theirs if mine.get(key) != theirs.get(key)
            }
        print(f"{number} rows are those of a run that nobody killed, bit for bit")
        return
    alike = num_alike(chaos.steps, undisturbed.steps, tolerance)
    rewards = [sum(row["rollout/raw_reward"] for row in run.steps[-10:]) / 10 for run in (chaos, undisturbed)]
    print(
        f"the first {alike} of {number} rows have the same answers as a run that nobody killed, losses and gradients alike to "
        f"{tolerance:g}; rewards of the last ten rows: {rewards[0]:.3f}, {rewards[1]:.3f}"
    )


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within-rows", type=int, default=6, help="a life lasts for at most so many new rows")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1], help="trainer ranks of one life after the other")
    parser.add_argument("--num-rollout", type=int, default=60)
    parser.add_argument("--same-as-undisturbed", action="store_true", help="compare with a run that nobody kills")
    parser.add_argument("--tolerance", type=float, help="relative, of losses and gradients; without it bits are compared")
    parser.add_argument("arguments", nargs="+", help="the command of miles and its options, after --")
    given = parser.parse_args()
    arguments = [*given.arguments, "--num-rollout", str(given.num_rollout), "--save-interval", "2"]
    with tempfile.TemporaryDirectory(prefix="miles-chaos-") as folder:
        chaos = live_through(arguments, Path(folder) / "run", given.kills, given.seed, given.within_rows, given.ranks)
        chaos.check(given.num_rollout, batch_size=16)
        if given.same_as_undisturbed:
            undisturbed = live_through(arguments, Path(folder) / "undisturbed", 0, given.seed)
            compare(chaos, undisturbed, given.tolerance)
        ledger = chaos.ledger
        print(
            f"{chaos.kills} kills, {given.num_rollout} rollouts, {ledger['trained']} groups trained once, "
            f"{ledger['issued']} issued, dropped {ledger['dropped']}: all accounted for"
        )


if __name__ == "__main__":
    main()
