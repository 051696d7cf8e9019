"""``miles doctor``: can a run start on this machine, and if not, what to do about it."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from miles_cli.findings import Finding
from miles_cli.showing import console_here

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
UNFIT = 3  # exit code


def doctor(run_dir: str | None, ray_address: str | None, *, as_json: bool, tries_sglang: bool = True) -> int:
    """Print the findings; the exit code: 3 if a run could not start."""
    from miles_cli.machine import look

    folder = run_dir or os.environ.get("MILES_RUN_DIR") or "runs"
    address = ray_address or os.environ.get("MILES_RAY_ADDRESS")
    findings = list(look(Path(folder), address, tries_sglang=tries_sglang))
    if as_json:
        data = [asdict(finding) for finding in findings]
        console_here().file.write(json.dumps({"fit": is_fit(findings), "findings": data}, indent=2, ensure_ascii=False) + "\n")
    else:
        _print(findings)
    return 0 if is_fit(findings) else UNFIT


def is_fit(findings: Sequence[Finding]) -> bool:
    """Whether a run could start."""
    return all(finding.state != "problem" for finding in findings)


def _print(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    console = console_here()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = Text.assemble((f"{finding.state:<8}", STYLES[finding.state]), f" {finding.name:<{width}}  {finding.text}")
        console.print(line, soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':<8} {'':<{width}}  -> {finding.remedy}", STYLES[finding.state]), soft_wrap=True)
    problems = sum(finding.state == "problem" for finding in findings)
    console.print("a run can start here" if not problems else f"a run could not start here: {problems} to mend", soft_wrap=True)
