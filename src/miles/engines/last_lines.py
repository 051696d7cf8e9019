"""The end of a process's log."""

from pathlib import Path

ENDED_EARLY = "it wrote nothing"
TAIL_LINES = 12


def last_lines(path: Path) -> str:
    """The end of a process's log, for an error that speaks of its death."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:]) or f"  {ENDED_EARLY}"
