"""``miles replay``: a failed step again, and which samples it failed on."""

from pathlib import Path

import typer


def replay_command(folder: Path) -> int:
    """Print what is found; 1 where some sample's loss or gradient is no number.

    Raises:
        CheckpointError, PolicyError: the step cannot be taken again.
    """
    from miles.policy.replay import replay

    reports = list(replay(folder))
    bad = [report for report in reports if not report.is_finite]
    if bad:
        typer.echo(f"{len(bad)} of {len(reports)} samples have a loss or gradient that is no number:")
        typer.echo("\n".join(map(str, bad)))
        return 1
    typer.echo(f"each of {len(reports)} samples alone has a finite loss and gradient; the largest gradients:")
    typer.echo("\n".join(map(str, sorted(reports, key=lambda report: -report.grad_norm)[:5])))
    return 0
