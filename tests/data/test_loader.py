"""What loader workers are worth, read from the ledger of the real command."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

from paceline.__main__ import config_dir
from paceline.controller.plan import make_job
from paceline.controller.show import print_plan
from paceline.data.stream import auto_workers
from tests.conftest import TINY, Command
from tests.data.slow import SLEEP_S

ROOT = Path(__file__).parents[2]
BATCH = 12  # 240 ms a step: far more than a step's own work, on a busy machine too
JOB = [
    "data=map_style",
    "data.dataset._target_=tests.data.slow.Slow",
    f"data.global_batch_size={BATCH}",
    "data.held_out=0.02",
    "model=mlp",
    "model.inputs=8",
    "model.hidden=[16]",
    "model.outputs=2",
    "optimizer=sgd",
    "scheduler=constant",
    "measure=quick",
    "measure.window_s=0",
    "run.steps=16",
    "launch.threads_per_rank=1",
    "run.eval_batches=1",
]


@pytest.fixture(scope="module")
def jobs(module_command: Command) -> dict[int, dict[str, Any]]:
    """The records of one training with no and with two workers."""
    found = {}
    for workers in (0, 2):
        words = [*JOB, f"data.loader.num_workers={workers}"]
        done = module_command(*words, env={"PYTHONPATH": str(ROOT)})
        assert done.code == 0, done.out + done.err
        (found[workers],) = [
            record
            for record in done.jobs()
            if record["requested"]["data"]["num_workers"] == workers
        ]
    return found


def waits(record: dict[str, Any]) -> float:
    """Seconds of a steady step spent waiting for its batch."""
    phases, steps = record["ledger"]["steady_phases_s"], record["throughput"]["steps_measured"]
    return float(phases["data_wait"] / steps)


@pytest.mark.slow
def test_without_workers_all_of_the_work_is_waited_for(jobs: dict[int, dict[str, Any]]) -> None:
    record = jobs[0]
    assert waits(record) >= BATCH * SLEEP_S
    ledger = record["ledger"]
    assert ledger["steady_phases_s"]["data_wait"] >= 0.9 * ledger["steady_wall_s"]


@pytest.mark.slow
def test_two_workers_halve_the_wait(jobs: dict[int, dict[str, Any]]) -> None:
    assert 0.35 < waits(jobs[2]) / waits(jobs[0]) < 0.7


@pytest.mark.slow
def test_the_rate_shows_it(jobs: dict[int, dict[str, Any]]) -> None:
    rates = [jobs[n]["throughput"]["steady_units_per_s"] for n in (0, 2)]
    assert rates[1] > 1.4 * rates[0]


@pytest.mark.slow
def test_it_is_the_same_training(jobs: dict[int, dict[str, Any]]) -> None:
    none, two = (jobs[n]["numerics"] for n in (0, 2))
    assert none["loss"] == two["loss"]
    assert none["samples_digest"] == two["samples_digest"]
    assert jobs[0]["job"]["work_hash"] == jobs[2]["job"]["work_hash"]


@pytest.mark.slow
def test_the_record_says_how_many_ran(jobs: dict[int, dict[str, Any]]) -> None:
    for workers, record in jobs.items():
        assert record["effective"]["data"]["workers"] == workers
        assert record["validity"]["verdict"] == "valid"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores can't be told apart here")
@pytest.mark.slow
def test_auto_runs_as_many_as_the_rule_says(command: Command) -> None:
    done = command(*TINY, "data.loader.num_workers=auto")
    assert done.code == 0, done.out + done.err
    record = done.job()
    assert record["requested"]["data"]["num_workers"] == "auto"
    wanted = auto_workers(len(os.sched_getaffinity(0)), 1)
    assert record["effective"]["data"]["workers"] == wanted
    assert record["validity"]["verdict"] == "valid"


@pytest.mark.parametrize(("workers", "processes"), [("0", 1), ("3", 4), ("auto", None)])
def test_a_plan_counts_the_workers(tmp_path: Path, workers: str, processes: int | None) -> None:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        overrides = ["data=digits", f"data.loader.num_workers={workers}"]
        job = make_job(compose("config", overrides, return_hydra_config=True), tmp_path)
    said = io.StringIO()
    print_plan([job], [], Console(file=said, width=200))
    if processes is None:
        processes = max(2, len(os.sched_getaffinity(0)))
    assert f"at most 1 ranks, {processes} processes" in said.getvalue()
