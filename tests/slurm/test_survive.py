"""Preempted, out of time, without a node, cancelled: what was trained is kept, and gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY, Command
from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

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


@pytest.fixture
def slow(command: Command) -> list[str]:
    command.most = 120
    (command.cwd / "mine.py").write_text(SLOW)
    words = [*TINY, "model._target_=mine.Model", "launch.threads_per_rank=1", "checkpoint=sync"]
    return [*words, "checkpoint.every_steps=50", "measure.gradient_check=false"]


@pytest.fixture
def single(slow: list[str]) -> list[str]:
    return [*slow, "launch=slurm", f"hydra.run.dir={JOB}"]


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


@pytest.mark.timeout(400)
def test_the_end_of_the_time(
    command: Command, cluster: Cluster, until: Callable[..., None], slow: list[str]
) -> None:
    """Told of it 60 s before, a job saves, is queued again, and ends; not told, it is a row."""
    on = [*slow, "launch=slurm", "strategy=ddp"]
    told = ["run.steps=2600", "launch.slurm.time=2", "launch.slurm.signal_s=60"]
    untold = ["run.steps=100000", "launch.slurm.time=1", "launch.slurm.signal_s=0"]
    untold += ["launch.slurm.max_requeues=0", "measure.window_s=0"]
    jobs = [command.cwd / f"outputs/jobs/{name}" for name in ("told", "untold")]
    first, second = (
        command.start(*on, *words, f"hydra.run.dir={job}", env=cluster.env)
        for words, job in zip((told, untold), jobs, strict=True)
    )
    late = command.wait(second, 200)
    assert late.code == 1, late.err + late.out
    status = result(jobs[1])["status"]
    assert (status["state"], status["kind"]) == ("failed", "time_limit")
    assert "launch.slurm.time" in status["message"] and status["step"] > 50
    assert "launch.slurm.time" in late.out + late.err
    done = command.wait(first, 300)
    assert done.code == 0, done.err + done.out
    record = result(jobs[0])
    assert record["job"]["scheduler"]["restarts"] >= 1
    assert record["checkpoint"]["resumed_from"] > 50
    assert len(record["numerics"]["loss"]) == 2600
    assert result(jobs[0] / "attempts/001")["status"]["state"] == "preempted"


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
