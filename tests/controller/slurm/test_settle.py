"""A job that SLURM has ended gets a typed record; one that has its own end keeps it."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.controller.directory import FROZEN, claim
from paceline.controller.plan import Job
from paceline.controller.slurm.settle import APART_S, QUIET_S, progress, settle, typed
from paceline.controller.slurm.state import JobState
from paceline.record.schema import read_json, write_json
from tests.submitted import Sweep, plan


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Job:
    words = ["checkpoint=sync", "launch.slurm.time=60", "launch.slurm.max_requeues=2"]
    return plan(tmp_path_factory.mktemp("planned"), *words)


@pytest.fixture
def sweep(tmp_path: Path, planned: Job) -> Sweep:
    return Sweep(tmp_path, planned)


def ended(word: str, id: str = "11", **more: Any) -> JobState:
    facts = {"reason": "", "nodes": "n1", "exit_code": 0, "signal": 0, "restarts": 0, "over": True}
    return JobState(**{"id": id, "word": word, "since": "2026-11-30T13:00:00"} | facts | more)


LOG = "loading\nbash: python: command not found\nsrun: error: n1: task 0: Exited with exit code 127"


@pytest.mark.parametrize(
    ("state", "phase", "own", "kind", "said"),
    [
        (ended("CANCELLED", by="0"), "run", "running", "cancelled", "cancelled by root (SLURM"),
        (ended("CANCELLED", by="987654"), "run", None, "cancelled", "cancelled by user 987654"),
        (ended("CANCELLED"), "setup", "preempted", "cancelled", "cancelled (SLURM job 11)"),
        (ended("TIMEOUT"), "run", "running", "time_limit", "launch.slurm.time=60"),
        (ended("TIMEOUT"), "run", "interrupted", "time_limit", "raise launch.slurm.time"),
        (ended("NODE_FAIL", nodes="n[1-2]"), "run", "running", "node_lost", "node of n[1-2]"),
        (ended("OUT_OF_MEMORY"), "run", "running", "oom", "raise launch.slurm.mem"),
        (ended("PREEMPTED"), "run", "running", "preempted", "not queued again"),
        (ended("FAILED", exit_code=4), "setup", None, "setup", "setup failed with exit code 4"),
        (ended("FAILED", exit_code=75, restarts=2), "run", "preempted", "preempted", "3 times"),
        (ended("FAILED", exit_code=130), "run", "interrupted", "preempted", "checkpoint=sync"),
        (ended("FAILED", signal=9), "run", "running", "killed", "ended by SIGKILL"),
        (ended("FAILED", exit_code=137), "run", "running", "killed", "ended by SIGKILL"),
        (ended("FAILED", exit_code=127), "run", None, "start", "python: command not found (SLURM"),
        (ended("FAILED", signal=53, reason="JobLaunchFailure"), "", None, "start", "JobLaunch"),
        (ended("FAILED", exit_code=1), "run", "running", "error", "exit code 1 and no record"),
        (ended("COMPLETED"), "run", "running", "lost", "left no record"),
    ],
)
def test_what_became_of_it(
    sweep: Sweep, state: JobState, phase: str, own: str | None, kind: str, said: str
) -> None:
    sweep.submitted("a")
    sweep.says("a", LOG, phase)
    if own is not None:
        sweep.began("a", own)
    assert sweep.twice(state) == ["a"]
    status = sweep.record("a")["status"]
    assert (status["state"], status["kind"]) == ("failed", kind)
    assert said in status["message"]
    assert "(SLURM job 11)" in status["message"] and "11.log" in status["message"]
    assert "\n" not in status["message"]


def test_the_record_says_whose_it_is_how_far_it_came_and_where_it_goes_on(sweep: Sweep) -> None:
    sweep.submitted("a")
    sweep.began("a", step=17)
    sweep.saved("a", 10)
    sweep.twice(ended("NODE_FAIL"))
    record = sweep.record("a")
    assert record["job"]["config_hash"] == "a"
    assert record["job"]["work_hash"] == sweep.planned.work_hash
    assert record["job"]["overrides"] == sweep.planned.overrides
    assert record["job"]["started_at"] == "2026-11-30T13:00:00.000+00:00"
    assert record["requested"]["world_size"] == 1
    assert record["status"]["step"] == 17
    assert record["status"]["message"] == (
        "lost a node of n1 (SLURM job 11) at step 17 of 30; the same command goes on from step 10; "
        "it left no log"
    )


@pytest.mark.parametrize("own", ["completed", "invalid", "failed"])
@pytest.mark.parametrize("word", ["NODE_FAIL", "FAILED", "UNKNOWN", "CANCELLED"])
def test_an_end_of_its_own_stays(sweep: Sweep, own: str, word: str) -> None:
    sweep.submitted("a", age_s=2 * QUIET_S)
    sweep.began("a", own)
    before = (sweep.root / "a/result.json").read_bytes()
    assert sweep.twice(ended(word)) == []
    assert (sweep.root / "a/result.json").read_bytes() == before


def test_it_was_killed_between_its_record_and_its_status(sweep: Sweep) -> None:
    sweep.submitted("a")
    sweep.began("a", "completed")
    status = {"job": {"name": "a"}, "status": {"state": "running", "phase": "startup"}}
    write_json(sweep.root / "a/status.json", status)
    assert sweep.twice(ended("FAILED", signal=9)) == []
    assert sweep.record("a")["status"]["state"] == "completed"


@pytest.mark.parametrize("own", ["preempted", "interrupted"])
def test_figures_of_a_record_that_is_no_end_stay(sweep: Sweep, own: str) -> None:
    sweep.submitted("a")
    sweep.began("a", own)
    sweep.twice(ended("CANCELLED"))
    record = sweep.record("a")
    assert record["status"]["kind"] == "cancelled"
    assert record["throughput"]["steady_units_per_s"] == 5.0


def test_one_look_is_not_enough_and_a_requeue_begins_anew(sweep: Sweep) -> None:
    sweep.submitted("a")
    over, again = {"11": ended("PREEMPTED")}, {"11": ended("PENDING", over=False)}
    assert settle(sweep.root, over) == settle(sweep.root, over) == []
    assert settle(sweep.root, again) == []
    sweep.later(APART_S)
    assert settle(sweep.root, over) == []
    assert not (sweep.root / "a/result.json").exists()
    sweep.later(APART_S)
    assert settle(sweep.root, over) == ["a"]


def test_the_second_settler_finds_nothing_to_do(sweep: Sweep) -> None:
    sweep.submitted("a", "b")
    states = {id: ended("TIMEOUT", id) for id in ("11", "12")}
    settle(sweep.root, states)
    sweep.later(APART_S)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.extend(settle(sweep.root, states))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["a", "b"]


def test_unknown_to_slurm_is_lost_only_when_nothing_of_it_is_written_any_more(sweep: Sweep) -> None:
    sweep.submitted("a", age_s=2 * QUIET_S)
    sweep.began("a", step=3)
    unknown = ended("UNKNOWN", nodes="", since=None, reason="last RUNNING")
    assert sweep.twice(unknown) == []
    for path in (sweep.root / "a").rglob("*.json"):
        os.utime(path, (time.time() - 2 * QUIET_S,) * 2)
    assert settle(sweep.root, {"11": unknown}) == ["a"]
    status = sweep.record("a")["status"]
    assert status["kind"] == "lost"
    assert "doesn't know it any more (last RUNNING)" in status["message"]


def test_one_whose_controller_is_alive_is_left_alone(sweep: Sweep) -> None:
    sweep.submitted("a")
    sweep.began("a")
    with claim(sweep.root / "a"):
        assert sweep.twice(ended("FAILED", signal=9)) == []
    assert settle(sweep.root, {"11": ended("FAILED", signal=9)}) == ["a"]


def test_in_an_allocation_the_end_is_that_of_those_that_had_begun(sweep: Sweep) -> None:
    sweep.submitted("a", "b", "c", mode="allocation")
    sweep.began("a", "completed")
    sweep.began("b", step=4)
    assert [v.state for v in progress(sweep.root, {"11": ended("RUNNING", over=False)})] == [
        "completed",
        "running",
        "pending",
    ]
    assert sweep.twice(ended("TIMEOUT")) == ["b"]
    assert not (sweep.root / "c/result.json").exists()
    views = progress(sweep.root, {"11": ended("TIMEOUT")})
    assert [v.state for v in views] == ["completed", "failed", "pending"]
    assert [v.started for v in views] == [True, True, False]


def test_in_an_allocation_that_never_ran_a_cell_the_first_one_tells_why(sweep: Sweep) -> None:
    sweep.submitted("a", "b", mode="allocation")
    sweep.says("a", "module: no such module\n", "setup")
    assert sweep.twice(ended("FAILED", exit_code=1)) == ["a"]
    assert sweep.record("a")["status"]["kind"] == "setup"
    assert not (sweep.root / "b/result.json").exists()


def test_a_single_job_whose_directory_names_itself(sweep: Sweep, tmp_path: Path) -> None:
    job = tmp_path / "alone"
    single = Sweep(job, sweep.planned)
    single.submitted("alone")
    (job / "alone").rename(job / "moved")
    (job / "moved" / FROZEN).rename(job / FROZEN)
    assert single.twice(ended("TIMEOUT")) == ["alone"]
    assert (read_json(job / "result.json") or {})["status"]["kind"] == "time_limit"


def test_a_cell_of_a_sweep_by_itself(sweep: Sweep) -> None:
    sweep.submitted("a", "b")
    assert [view.name for view in progress(sweep.root / "b", {})] == ["b"]
    states = {id: ended("TIMEOUT", id) for id in ("11", "12")}
    settle(sweep.root / "b", states)
    sweep.later(APART_S)
    assert settle(sweep.root / "b", states) == ["b"]
    assert not (sweep.root / "a/result.json").exists()


def test_nothing_submitted_is_nothing_to_settle(tmp_path: Path) -> None:
    assert settle(tmp_path, {}) == []
    assert progress(tmp_path, {}) == []


def test_a_job_that_cannot_say_it_itself(sweep: Sweep) -> None:
    sweep.submitted("a")
    record = typed(replace(sweep.planned, directory=sweep.root / "a"), "start", "srun: no")
    assert record == sweep.record("a") | {"job": record["job"]}
    assert (record["status"]["state"], record["status"]["kind"]) == ("failed", "start")
    assert record["job"]["name"] == "a"
