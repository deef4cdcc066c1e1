"""What planned jobs would hold in memory: asked of a process that ends with the answer, for it runs
the user's model on fake tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from paceline.controller.plan import Job
from paceline.controller.rules import local_world_size
from paceline.record.memory import unknown

READS = ("model", "data", "loss", "optimizer", "precision", "activation_checkpointing")
TIMEOUT_S = 120.0


def forecast(jobs: list[Job]) -> list[dict[str, Any]]:
    """`memory.estimate` of each job (docs/design.md, 8)."""
    if not jobs:
        return []
    command = [sys.executable, "-P", "-m", "paceline.rank.memory"]
    asked = "".join(f"{_line(job)}\n" for job in jobs)
    try:
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=TIMEOUT_S)
        out, why = done.stdout, f"the process that looks left with exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        out, why = error.stdout or b"", f"it took more than {TIMEOUT_S:.0f} s"
    answers = [json.loads(line) for line in out.decode().splitlines()]
    return answers + [unknown(why)] * (len(jobs) - len(answers))


def _line(job: Job) -> str:
    config = {key: job.config[key] for key in (*READS, "strategy", "run")}
    ranks = job.requested["world_size"]
    return json.dumps(
        {
            "config": config,
            "world_size": ranks,
            "local_world_size": local_world_size(job.config, ranks),
            "device": job.requested["device"],
        }
    )
