"""``miles export``: the weights of a run as a folder that others load."""

from pathlib import Path

import typer


def export_command(run: Path, out: Path, step: int | None, *, merge_lora: bool) -> None:
    """Copy and say what was copied.

    Raises:
        CheckpointError: it cannot be done.
    """
    from miles.loops.export_run import export_run

    checkpoint = export_run(run, out, step, merge_lora=merge_lora)
    adapters = (out / "adapter_config.json").is_file()
    kind = "the adapters" if adapters else "the weights"
    how = "as peft loads them; `--merge-lora` gives the whole model" if adapters else "as an HF folder"
    typer.echo(f"{out}: {kind} of {checkpoint}, {how}")
