"""Told to stop by SLURM: what was trained is kept, and gone on with, or is a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Command
from tests.slurm.cluster import Cluster
from tests.slurm.training import JOB, assert_same_training, number, result, step_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_preempted_it_goes_on_where_it_was(
    command: Command, cluster: Cluster, until: Callable[..., None], single: list[str], slow: Any
) -> None:
    """spot loses its nodes to main, is queued again, and ends as if nothing had happened."""
    words = ["strategy=ddp", "launch.nnodes=2", "run.steps=400", "launch.slurm.partition=spot"]
    words.append("measure.window_s=1")
    process = command.start(*single, *words, env=cluster.env)
    job = command.cwd / JOB
    until(lambda: step_of(job) >= 30 or process.poll() is not None)
    other = cluster.submit(
        "-p", "main", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2"
    )
    done = command.wait(process, 150)
    assert done.code == 0, done.err + done.out
    assert cluster.job(other)["JobState"] == "COMPLETED"
    assert cluster.job(number(job))["Restarts"] == "1"
    record = result(job)
    before = result(job / "attempts/001")
    assert before["status"]["state"] == "preempted"
    stopped = record["checkpoint"]["resumed_from"]
    assert 30 <= stopped < 400 and stopped % 50, "it was saved when it was told, not before"
    assert record["job"]["scheduler"]["restarts"] == 1
    assert record["checkpoint"]["economics"]["goodput"] is not None
    assert len(record["numerics"]["loss"]) == 400
    assert "restart 1" in done.out
    assert_same_training(command, slow, record)


def test_scancel_is_a_row_and_leaves_nothing(
    command: Command, cluster: Cluster, until: Callable[..., None], slow: list[str]
) -> None:
    words = ["hydra/launcher=slurm", "run.steps=100000", "run.seed=0,1", "run.eval_batches=0"]
    process = command.start(
        "-m", *slow, *words, "hydra.sweep.dir=outputs/sweeps/s", env=cluster.env
    )
    book = command.cwd / "outputs/sweeps/s/slurm/jobs.json"
    until(lambda: book.exists() or process.poll() is not None)

    def entries() -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(book.read_text())["jobs"]
        return found

    until(lambda: len(entries()) == 2)
    cells = [book.parents[1] / e["name"] for e in entries()]
    until(lambda: min(map(step_of, cells)) >= 20 or process.poll() is not None)
    cluster.run("scancel", *(e["id"] for e in entries()))
    done = command.wait(process, 100)
    assert done.code == 1, done.err + done.out
    assert [row["state"] for row in done.table()["rows"]] == ["failed"] * 2
    for cell in cells:
        status = result(cell)["status"]
        assert status["kind"] == "cancelled" and status["step"] >= 20
    command.assert_nothing_left(within_s=5)
    assert cluster.queued() == {}
