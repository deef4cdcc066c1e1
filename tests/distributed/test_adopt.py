"""Under an outer torchrun: its processes are the ranks, and still one job, one directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY, Command, Done

pytestmark = pytest.mark.distributed

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "paceline"]

LATE = """
import os, time

if os.environ.get("RANK") == "1":
    time.sleep(1.5)
"""

BREAKS = """
import os

from torch import nn


class Model(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)
        self.step = 0

    def forward(self, x):
        self.step += 1
        if self.step == 4 and os.environ["RANK"] == "1":
            raise ValueError("no more of this")
        return self.head(x)
"""


def torchrun(command: Command, *words: str, **options: Any) -> Done:
    process = command.start(*words, program=[sys.executable, "-m", *TORCHRUN], **options)
    return command.wait(process)


class TestALateRank:
    @pytest.fixture(scope="class")
    @classmethod
    def done(cls, module_command: Command) -> Done:
        late = module_command.cwd / "late"
        late.mkdir()
        (late / "sitecustomize.py").write_text(LATE)
        words = [*TINY, "strategy=ddp", "hydra.run.dir=outputs/jobs/${now:%H-%M-%S-%f}"]
        return torchrun(module_command, *words, env={"PYTHONPATH": str(late)})

    def test_it_succeeds(self, done: Done) -> None:
        assert done.code == 0, done.err

    def test_there_is_one_directory_and_one_config(self, done: Done) -> None:
        assert len(list(done.cwd.glob("outputs/jobs/*"))) == 1
        assert len(list(done.cwd.rglob("job.yaml"))) == 1
        assert len(list(done.cwd.rglob("config.yaml"))) == 1

    def test_both_ranks_trained(self, done: Done) -> None:
        record = done.job()
        assert record["effective"]["world_size"] == record["requested"]["world_size"] == 2
        assert record["effective"]["strategy"] == "DistributedDataParallel(MlpModel)"
        assert record["numerics"]["grads_equal"] is True
        assert record["throughput"]["samples_used"] == 30 * 64
        assert record["status"]["state"] == "completed"

    def test_threads_are_set_by_us_and_not_by_torchrun(self, done: Done) -> None:
        record = done.job()
        threads = record["requested"]["threads_per_rank"]
        assert record["effective"]["threads_per_rank"] == threads

    def test_only_rank_0_speaks(self, done: Done) -> None:
        assert done.out.count("completed, valid") == 1
        assert (Path(done.job()["job"]["dir"]) / "log/rank1.log").exists()


def test_a_failing_rank_is_named(command: Command) -> None:
    (command.cwd / "mine.py").write_text(BREAKS)
    done = torchrun(command, *TINY, "strategy=ddp", "model._target_=mine.Model")
    assert done.code != 0
    status = done.job()["status"]
    assert (status["state"], status["rank"], status["phase"], status["step"]) == (
        "failed",
        1,
        "forward",
        3,
    )
    assert "ValueError: no more of this" in status["traceback"]
    assert "ValueError: no more of this" in done.out


REFUSED = [
    (["strategy=ddp", "optimizer.lrr=1"], ["optimizer.lrr", "did you mean lr?"]),
    (["strategy=ddp", "launch.nproc=3"], ["launch.nproc=3", "WORLD_SIZE=2"]),
    (
        ["-m", "strategy=ddp", "run.seed=0,1"],
        ["paceline -m strategy=ddp run.seed=0,1 launch.nproc=2"],
    ),
]


@pytest.mark.parametrize("words, said", REFUSED, ids=["key", "nproc", "multirun"])
def test_what_cannot_run_is_said_once_and_leaves_nothing(
    command: Command, words: list[str], said: list[str]
) -> None:
    done = torchrun(command, *words)
    assert done.code != 0
    for text in said:
        assert (done.out + done.err).count(text) == 1, done.err
    assert not (command.cwd / "outputs").exists()


def test_what_needs_no_ranks_ends_all_of_them(command: Command) -> None:
    done = torchrun(command, "plan=true", "strategy=ddp")
    assert done.code == 0, done.err
    assert not (command.cwd / "outputs").exists()
