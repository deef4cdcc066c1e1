"""SIGKILL of the controller or of a rank, and data that fails: typed, named, nothing left."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import TINY, Command, Done
from tests.swept import Swept, sweep

pytestmark = pytest.mark.faults

SLOW = '''
import os, time
from pathlib import Path

from torch import nn


class Model(nn.Module):
    """20 ms a forward; says which process it is."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)
        Path(f"rank{os.environ['RANK']}.pid").write_text(str(os.getpid()))

    def forward(self, x):
        time.sleep(0.02)
        return self.head(x)
'''

LOSSES = '''
import torch
import torch.nn.functional as F


class Summed:
    """Cross-entropy whose sum is not a number in step `bad`."""

    fixed_weight = True

    def __init__(self, bad):
        self.bad, self.step = bad, 0

    def __call__(self, model, batch):
        inputs, targets = batch
        total = F.cross_entropy(model(inputs), targets, reduction="sum")
        if self.step == self.bad:
            total = total * float("nan")
        self.step += 1
        return total, torch.tensor(float(len(targets)))
'''

ROWS = '''
import os

import torch

SAID = [[8, 8], [10, 9], [10, None], [5, 5], None]
GIVEN = [[8, 8], [10, 9], [10, 10], [5, 5], [8, 5]]


class Rows:
    """Its own sampling: says how many micro-batches a rank has, and gives so many, or fewer."""

    unit, sampling = "rows", "own"

    def __init__(self, case):
        rank = int(os.environ.get("RANK", 0))
        self.said = SAID[case] and SAID[case][rank]
        self.given = GIVEN[case][rank]

    def count(self, batch):
        return len(batch[0])

    def batches(self, first_step):
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.given):
            yield torch.randn(8, 64, generator=generator), torch.zeros(8, dtype=torch.int64)

    def held_out(self, batches):
        return iter(())

    def num_batches(self):
        return self.said

    def digest(self, micro_batches):
        return None

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass
'''

JOB = "hydra.run.dir=outputs/jobs/job"


def write(command: Command, text: str) -> None:
    (command.cwd / "mine.py").write_text(text)


def steps_done(where: Path) -> int:
    try:
        return int(json.loads((where / "log/progress.json").read_text())["step"])
    except FileNotFoundError:
        return -1


def status(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = done.job()["status"]
    return found


def test_the_controller_is_killed_in_mid_sweep(
    command: Command, until: Callable[..., None]
) -> None:
    write(command, SLOW)
    slow = [*TINY, "model._target_=mine.Model", "launch.threads_per_rank=1"]
    words = [*slow, "run.steps=60", "strategy=ddp", "run.seed=0,1,2", "data.loader.num_workers=1"]
    process = command.start("-m", *words, "hydra.sweep.dir=outputs/sweeps/s")
    directory = command.cwd / "outputs/sweeps/s"

    def second_runs() -> bool:
        running = [p for p in directory.glob("*/log") if steps_done(p.parent) >= 10]
        return process.poll() is not None or len(running) == 2

    until(second_runs)
    assert len(command.alive()) >= 6  # controller, forkserver, two ranks and their workers
    process.kill()
    command.assert_nothing_left(within_s=10)
    command.wait(process)
    assert not (directory / "table.json").exists()
    (finished,) = directory.glob("*/result.json")
    before = finished.read_bytes()

    again = sweep(command, *words)
    assert again.done.code == 0, again.done.err
    assert "3 cells, 2 to run, 1 done" in again.done.out
    assert again.done.out.count("/3] ") == 3  # the two, and the baseline beside them
    base = again.cell("run.seed=0")["job"]["name"]
    assert base == f"{finished.parent.name}.1"
    assert finished.read_bytes() == before
    assert len(again.files) == 4
    assert sorted(len(list(d.glob("attempts/*"))) for d in directory.glob("mlp*")) == [0, 0, 0, 1]
    assert [r["state"] for r in again.table["rows"]] == ["completed"] * 3
    assert [r["ratio_to_baseline"] is None for r in again.table["rows"]] == [False] * 3

    once_more = sweep(command, *words)
    assert once_more.done.code == 0
    assert once_more.files == again.files


def test_between_the_kill_and_the_next_start_it_is_known_what_is_missing(
    command: Command, until: Callable[..., None]
) -> None:
    write(command, SLOW)
    words = [*TINY, "model._target_=mine.Model", "run.steps=100000", JOB]
    process = command.start(*words)
    until(lambda: steps_done(command.cwd / "outputs/jobs/job") > 0)
    process.kill()
    command.wait(process)
    command.assert_nothing_left()
    told = command("status", "outputs/jobs/job", "--json")
    assert json.loads(told.out)[0]["state"] == "interrupted"


def test_a_killed_rank_is_named_and_the_other_one_ends(
    command: Command, until: Callable[..., None]
) -> None:
    write(command, SLOW)
    words = [*TINY, "model._target_=mine.Model", "strategy=ddp", "run.steps=100000", JOB]
    process = command.start(*words)
    until(lambda: steps_done(command.cwd / "outputs/jobs/job") > 0)
    rank = psutil.Process(int((command.cwd / "rank1.pid").read_text()))
    rank.send_signal(signal.SIGKILL)
    done = command.wait(process, timeout_s=60)
    assert done.code == 1
    command.assert_nothing_left(within_s=2)
    found = status(done)
    assert (found["state"], found["kind"], found["rank"]) == ("failed", "worker_died", 1)
    first, peers = found["message"].splitlines()
    # the second when rank 0, whose collective broke, was seen to end first
    assert first.startswith(("rank 1 was ended by SIGKILL", "rank 1 ended without a word"))
    assert peers == "rank 0: terminated because of rank 1"
    assert first in done.out and "worker_died" in done.out


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_a_loss_that_is_no_number_is_named_with_its_step(command: Command, strategy: str) -> None:
    write(command, LOSSES)
    words = ["loss=mse", "loss._target_=mine.Summed", "+loss.bad=4"]
    done = command(*TINY, f"strategy={strategy}", *words)
    assert done.code == 1
    found = status(done)
    assert (found["state"], found["kind"]) == ("failed", "nonfinite")
    assert found["step"] == 4
    assert "the loss is nan at step 4" in found["message"]
    assert "terminated" not in found["message"]
    assert "the loss is nan at step 4" in done.out


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_a_long_job_does_not_train_on_nothing_to_its_end(command: Command, strategy: str) -> None:
    write(command, LOSSES)
    words = ["loss=mse", "loss._target_=mine.Summed", "+loss.bad=700", "run.steps=100000000"]
    done = command(*TINY, f"strategy={strategy}", *words, timeout_s=100)
    found = status(done)
    assert (done.code, found["kind"], found["step"]) == (1, "nonfinite", 700)


@pytest.fixture(scope="module")
def own_data(module_command: Command) -> Swept:
    write(module_command, ROWS)
    config = module_command.cwd / "conf/data"
    config.mkdir(parents=True)
    (config / "rows.yaml").write_text("_target_: mine.Rows\ncase: 0\n")
    tiny = [w for w in TINY if not w.startswith("data")]
    words = [*tiny, "data=rows", "strategy=ddp", "run.steps=8", "measure.warmup_steps=1"]
    return sweep(module_command, "--config-dir", "conf", *words, "data.case=range(5)")


class TestOwnData:
    """A user's own data class, two ranks."""

    def test_the_failures_are_counted(self, own_data: Swept) -> None:
        assert own_data.done.code == 1, own_data.done.err
        states = [own_data.cell(f"data.case={n}")["status"]["state"] for n in range(5)]
        assert states == ["completed"] + ["failed"] * 4

    def test_it_runs(self, own_data: Swept) -> None:
        record = own_data.cell("data.case=0")
        assert record["throughput"]["unit"] == "rows"
        assert record["numerics"]["samples_digest"] is None
        assert any("samples_digest" in r for r in record["validity"]["reasons"])

    @pytest.mark.parametrize("case, counts", [(1, "9"), (2, "None")])
    def test_unequal_numbers_of_batches_are_found_before_step_0(
        self, own_data: Swept, case: int, counts: str
    ) -> None:
        record = own_data.cell(f"data.case={case}")
        found = record["status"]
        assert (found["kind"], found["phase"], found["step"]) == ("data_error", "build", None)
        assert f"(rank 0: 10, rank 1: {counts})" in found["message"]
        assert not (Path(record["job"]["dir"]) / "log/progress.json").exists()

    def test_too_few_batches_are_found_before_step_0(self, own_data: Swept) -> None:
        found = own_data.cell("data.case=3")["status"]
        assert (found["kind"], found["step"]) == ("data_error", None)
        assert "has 5 micro-batches a rank" in found["message"]

    def test_data_that_ends_early_is_named_with_rank_and_step(self, own_data: Swept) -> None:
        found = own_data.cell("data.case=4")["status"]
        assert (found["kind"], found["rank"], found["step"]) == ("data_error", 1, 5)
        assert "rank 1: the data source ended in step 5, after 5 micro-batches" in found["message"]
        assert found["phase"] == "data_wait"
