"""Nodes that go down or lose power: their jobs are queued again, or go on without them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.slurm.cluster import Cluster
from tests.slurm.training import JOB, assert_same_training, number, result, step_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_node_that_goes_down_costs_no_cell(
    command: Command, cluster: Cluster, until: Callable[..., None], slow: list[str]
) -> None:
    """Its job is queued again, trained on from the last checkpoint, and collected."""
    words = ["hydra/launcher=slurm", "strategy=ddp", "launch.nnodes=2,1", "run.steps=300"]
    process = command.start(
        "-m", *slow, *words, "hydra.sweep.dir=outputs/sweeps/s", env=cluster.env
    )
    sweep = command.cwd / "outputs/sweeps/s"

    def two_nodes() -> Path:
        entries = json.loads((sweep / "slurm/jobs.json").read_text())["jobs"]
        return sweep / str(entries[0]["name"])

    until(lambda: (sweep / "slurm/jobs.json").exists() or process.poll() is not None)
    until(lambda: step_of(two_nodes()) >= 60 or process.poll() is not None)
    cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    until(lambda: cluster.nodes()["n2"].startswith("down"))
    cluster.mend()
    done = command.wait(process, 200)
    assert done.code == 0, done.err + done.out
    table = done.table()
    assert [row["state"] for row in table["rows"]] == ["completed"] * 2
    record = result(two_nodes())
    assert record["checkpoint"]["resumed_from"] >= 50
    assert record["job"]["scheduler"]["restarts"] >= 1
    assert len(record["numerics"]["loss"]) == 300
    assert_same_training(command, slow, record)


def test_an_elastic_job_goes_on_without_a_node(
    command: Command, cluster: Cluster, until: Callable[..., None], single: list[str], slow: Any
) -> None:
    words = ["strategy=ddp", "launch.nnodes=1:2", "run.steps=300"]
    process = command.start(*single, *words, env=cluster.env)
    job = command.cwd / JOB
    until(lambda: step_of(job) >= 60 or process.poll() is not None)
    nodes = cluster.job(number(job))["NodeList"]
    assert nodes == "n[1-2]"
    cluster.kill_node("n2")
    done = command.wait(process, 240)
    assert done.code == 0, done.err + done.out
    record = result(job)
    assert record["status"]["state"] == "completed"
    assert record["effective"]["world_size"] == 2
    (lost,) = record["status"]["restarts"]
    assert "node 1" in lost["message"]
    assert record["checkpoint"]["resumed_from"] >= 50
    assert cluster.job(number(job))["Restarts"] == "0"
    assert_same_training(command, slow, record)
