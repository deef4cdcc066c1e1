"""Jobs that train long enough to be stopped, and what they left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command

SLOW = '''
import time

from torch import nn


class Model(nn.Module):
    """20 ms a forward; nothing that a rank draws for itself."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))

    def forward(self, x):
        time.sleep(0.02)
        return self.net(x)
'''
JOB = "outputs/jobs/job"


def step_of(where: Path) -> int:
    try:
        return int(json.loads((where / "log/progress.json").read_text())["step"])
    except FileNotFoundError:
        return -1


def result(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (path if path.is_file() else path / "result.json").read_text()
    )
    return found


def number(where: Path) -> str:
    (only,) = json.loads((where / "slurm/jobs.json").read_text())["jobs"]
    return str(only["id"])


def assert_same_training(command: Command, slow: list[str], record: dict[str, Any]) -> None:
    """As the unbroken run of the same work, here, in as many ranks."""
    ranks = record["requested"]["world_size"]
    words = [*slow, f"run.steps={len(record['numerics']['loss'])}", "strategy=ddp"]
    whole = command(*words, f"launch.nproc={ranks}", "hydra.run.dir=outputs/jobs/whole")
    assert whole.code == 0, whole.err
    unbroken = result(command.cwd / "outputs/jobs/whole")
    heads = (Path(record["job"]["dir"]) / "attempts").glob("*/result.json")
    digests = [r["numerics"]["samples_digest"] for r in (*map(result, heads), record)]
    if len(digests) > 1 and None not in digests:  # a killed attempt left no account of its samples
        parts = sum(int(digest, 16) for digest in digests)
        assert parts % 2**64 == int(unbroken["numerics"]["samples_digest"], 16)
    for key in ("loss", "grad_norm"):
        assert record["numerics"][key] == pytest.approx(unbroken["numerics"][key], rel=1e-5), key
