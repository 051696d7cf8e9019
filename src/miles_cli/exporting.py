"""``miles export``: the weights of a run as a folder that others load."""

from pathlib import Path

import typer


def export_command(run: Path, out: Path, step: int | None) -> None:
    """Copy and say what was copied.

    Raises:
        CheckpointError: it cannot be done.
    """
    from miles.loops.export_run import export_run

    checkpoint = export_run(run, out, step)
    typer.echo(f"{out}: the weights of {checkpoint}, as an HF folder")
