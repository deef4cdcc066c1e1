"""Ctrl-C and SIGTERM, at any moment: a clean end, nothing left, and what was done is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TINY, Command, Done
from tests.swept import look

pytestmark = pytest.mark.faults

SLOW = '''
import time
from pathlib import Path

from torch import nn


class Model(nn.Module):
    """20 ms a forward; it never returns from step `stuck`."""

    def __init__(self, inputs, hidden, outputs, stuck=-1):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 32), nn.Dropout(0.1), nn.Linear(32, outputs))
        self.stuck, self.step = stuck, 0

    def forward(self, x):
        while self.training and self.step == self.stuck:
            Path("is_stuck").touch()
            time.sleep(0.1)
        self.step += 1
        time.sleep(0.02)
        return self.net(x)
'''
SAVED = ["checkpoint=sync", "checkpoint.every_steps=1000", "hydra.run.dir=outputs/jobs/job"]


@pytest.fixture
def slow(command: Command) -> list[str]:
    (command.cwd / "mine.py").write_text(SLOW)
    return [*TINY, "model._target_=mine.Model", "run.steps=150", "launch.threads_per_rank=1"]


def step_of(where: Path) -> int:
    try:
        return int(json.loads((where / "log/progress.json").read_text())["step"])
    except FileNotFoundError:
        return -1


def to_group(process: subprocess.Popen[str], number: int) -> None:
    """As a terminal does on Ctrl-C, and a scheduler at the end of the time."""
    os.killpg(process.pid, number)


def stop_at(
    command: Command, until: Callable[..., None], words: list[str], step: int, number: int
) -> Done:
    """Run the job outputs/jobs/job, send the signal once it has done `step` steps."""
    process = command.start(*words)
    where = command.cwd / "outputs/jobs/job"
    until(lambda: step_of(where) >= step or process.poll() is not None)
    to_group(process, number)
    return command.wait(process)


def status(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((done.cwd / "outputs/jobs/job/status.json").read_text())
    return found["status"]


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_ctrl_c_ends_a_long_job(
    command: Command, slow: list[str], until: Callable[..., None], strategy: str
) -> None:
    words = [*slow, "run.steps=100000", f"strategy={strategy}", "hydra.run.dir=outputs/jobs/job"]
    done = stop_at(command, until, words, 20, signal.SIGINT)
    assert done.code == 130, done.err
    assert "Traceback" not in done.out + done.err
    command.assert_nothing_left(within_s=2)
    assert status(done)["state"] == "interrupted"
    assert "stopped by SIGINT after step" in done.out


@pytest.mark.parametrize("wait_for", ["", "status.json", "log/rank1.log"])
def test_ctrl_c_while_it_starts(
    command: Command, slow: list[str], until: Callable[..., None], wait_for: str
) -> None:
    words = [*slow, "strategy=ddp", "run.steps=100000", "hydra.run.dir=outputs/jobs/job"]
    process = command.start(*words)
    path = command.cwd / "outputs" / ("jobs/job" if wait_for else "") / wait_for
    until(path.exists)
    to_group(process, signal.SIGINT)
    done = command.wait(process)
    assert done.code == 130, done.err
    command.assert_nothing_left(within_s=5)


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_sigterm_saves_and_the_same_command_goes_on(
    command: Command, slow: list[str], until: Callable[..., None], strategy: str
) -> None:
    words = [*slow, *SAVED, f"strategy={strategy}", "data.loader.num_workers=1"]
    done = stop_at(command, until, words, 20, signal.SIGTERM)
    assert done.code == 75, done.err
    command.assert_nothing_left(within_s=2)
    assert status(done)["state"] == "preempted"
    job = command.cwd / "outputs/jobs/job"
    (saved,) = (job / "checkpoint").glob("step_*")
    stopped = int(saved.name.removeprefix("step_"))
    assert 20 <= stopped < 150

    done = command(*words)
    assert done.code == 0, done.err
    assert f"resumed from step {stopped}" in done.out
    assert done.job()["checkpoint"]["resumed_from"] == stopped
    assert (job / "attempts/001/result.json").exists()

    whole = command(*words, "hydra.run.dir=outputs/jobs/whole")
    assert whole.code == 0, whole.err
    resumed, unbroken = whole.jobs()
    for key in ("loss", "grad_norm", "final_loss", "eval_loss", "init_digest"):
        assert resumed["numerics"][key] == unbroken["numerics"][key], key
    assert len(unbroken["numerics"]["loss"]) == 150
    states = [
        torch.load(d / "checkpoint/step_00000150/state.pt") for d in (job, job.parent / "whole")
    ]
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name]), name


def test_a_model_that_never_returns_is_killed(
    command: Command, slow: list[str], until: Callable[..., None]
) -> None:
    words = ["+model.stuck=3", "launch.stop_grace_s=2", "hydra.run.dir=outputs/jobs/job"]
    process = command.start(*slow, *words, "data.loader.num_workers=1")
    until((command.cwd / "is_stuck").exists)
    to_group(process, signal.SIGINT)
    done = command.wait(process)
    assert done.code == 130, done.err
    command.assert_nothing_left(within_s=2)
    assert status(done)["state"] == "interrupted"
    assert "killed" in status(done)["message"]


def test_a_second_ctrl_c_kills_at_once(
    command: Command, slow: list[str], until: Callable[..., None]
) -> None:
    words = ["+model.stuck=3", "launch.stop_grace_s=1000", "strategy=ddp"]
    process = command.start(*slow, *words)
    until((command.cwd / "is_stuck").exists)
    to_group(process, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    to_group(process, signal.SIGINT)
    assert command.wait(process).code == 130


def test_a_finished_job_shows_its_result_and_trains_nothing(command: Command) -> None:
    first = command(*TINY)
    assert first.code == 0, first.err
    (path,) = command.cwd.glob("outputs/jobs/*/result.json")
    before = path.read_bytes()
    again = command(*TINY)
    assert again.code == 0, again.err
    assert "finished before" in again.out
    assert first.out.strip() in again.out
    assert path.read_bytes() == before
    assert not (path.parent / "attempts").exists()


def test_a_job_that_died_after_its_last_step_gets_its_result_without_training(
    command: Command,
) -> None:
    words = [*TINY, *SAVED, "measure.window_s=0.2"]
    first = command(*words)
    assert first.code == 0, first.err
    path = command.cwd / "outputs/jobs/job/result.json"
    before = first.job()
    path.unlink()
    again = command(*words)
    assert again.code == 0, again.err
    record = again.job()
    assert record["checkpoint"]["resumed_from"] == 30
    for key in ("loss", "eval_loss"):
        assert record["numerics"][key] == before["numerics"][key]
    assert record["validity"]["verdict"] == "valid"
    assert record["throughput"]["steps_measured"] > 0
    assert record["throughput"]["steps_excluded"] == {"warmup": 5}


def test_two_controllers_do_not_share_a_directory(
    command: Command, slow: list[str], until: Callable[..., None]
) -> None:
    words = [*slow, "run.steps=100000", "hydra.run.dir=outputs/jobs/job"]
    first = command.start(*words)
    until(lambda: step_of(command.cwd / "outputs/jobs/job") > 0)
    second = command(*words)
    assert second.code == 2
    assert "Error executing job" not in second.err  # Hydra's own line
    assert f"process {first.pid}" in second.err
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    assert command.wait(first).code == 130


def test_a_job_under_nohup_outlives_its_terminal(
    command: Command, slow: list[str], until: Callable[..., None]
) -> None:
    words = [*slow, "hydra.run.dir=outputs/jobs/job"]
    process = command.start(*words, program=["nohup", sys.executable, "-m", "paceline"])
    until(lambda: step_of(command.cwd / "outputs/jobs/job") > 0)
    to_group(process, signal.SIGHUP)
    assert command.wait(process).code == 0


class TestASweep:
    """Three cells; a signal in the second."""

    def words(self, slow: list[str]) -> list[str]:
        return ["-m", *slow, "run.steps=60", "run.seed=0,1,2", "hydra.sweep.dir=outputs/sweeps/s"]

    def stop_second(
        self, command: Command, until: Callable[..., None], words: list[str], number: int
    ) -> Done:
        process = command.start(*words)
        sweep = command.cwd / "outputs/sweeps/s"

        def second_runs() -> bool:
            running = [p for p in sweep.glob("*/log/progress.json") if step_of(p.parents[1]) >= 10]
            return process.poll() is not None or len(running) == 2

        until(second_runs)
        to_group(process, number)
        return command.wait(process)

    def test_ctrl_c_ends_it_and_the_command_it_prints_goes_on(
        self, command: Command, slow: list[str], until: Callable[..., None]
    ) -> None:
        done = self.stop_second(command, until, self.words(slow), signal.SIGINT)
        assert done.code == 130, done.err
        assert "Traceback" not in done.out + done.err
        command.assert_nothing_left(within_s=2)
        stopped = look(done)
        assert [r["state"] for r in stopped.table["rows"]] == [
            "completed",
            "interrupted",
            "pending",
        ]
        (go_on,) = [x for x in done.out.splitlines() if x.startswith("to go on: paceline ")]
        line = f"{sys.executable} -m {go_on.removeprefix('to go on: ')}"

        again = command.wait(command.start(line, program=["bash", "-c"]))
        assert again.code == 0, again.err
        resumed = look(again)
        assert [r["state"] for r in resumed.table["rows"]] == ["completed"] * 3
        first = stopped.cell("run.seed=0")["job"]["name"]
        assert resumed.files[first] == stopped.files[first]
        assert f"{first}.1" in resumed.files  # the baseline beside the missing ones
        assert "to go on" not in again.out

    def test_sigterm_with_checkpoints_preempts_it(
        self, command: Command, slow: list[str], until: Callable[..., None]
    ) -> None:
        words = [*self.words(slow), "checkpoint=sync"]
        done = self.stop_second(command, until, words, signal.SIGTERM)
        assert done.code == 75, done.err
        states = [r["state"] for r in look(done).table["rows"]]
        assert states == ["completed", "preempted", "pending"]

        again = command(*words)
        assert again.code == 0, again.err
        resumed = look(again)
        assert resumed.cell("run.seed=1")["checkpoint"]["resumed_from"] > 0
        assert [r["state"] for r in resumed.table["rows"]] == ["completed"] * 3
