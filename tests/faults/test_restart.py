"""Ranks that die, stop answering or lose their node; and all of them started again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import netns
from tests.conftest import TINY, Command, Done
from tests.netns import Nodes, pair

__all__ = ["pair"]

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

MODEL = '''
import os, signal, time
from pathlib import Path

from torch import nn


class Model(nn.Module):
    """Rank 1 ends itself in forward `die`, in the first attempt; it is stopped in forward `stop`;
    all sleep `nap` seconds a forward."""

    def __init__(self, inputs, hidden, outputs, die=-1, stop=-1, nap=0.0):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(inputs, 32), nn.Dropout(0.1), nn.Linear(32, outputs))
        self.die, self.stop, self.nap, self.step = die, stop, nap, 0
        said = Path(f"rank{os.environ['RANK']}.pid")
        if not said.exists():  # only the first start is to be killed
            said.write_text(str(os.getpid()))

    def forward(self, x):
        self.step += self.training
        time.sleep(self.nap)
        if os.environ["RANK"] == "1" and self.training:
            if self.step == self.die and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.step == self.stop:
                os.kill(os.getpid(), signal.SIGSTOP)
        return self.head(x)
'''
JOB = "hydra.run.dir=outputs/jobs/job"
RANKS = ["strategy=ddp", "launch.threads_per_rank=1", "model._target_=mine.Model"]
TWO = [*TINY, *RANKS, "launch.nproc=2", JOB]
SAVED = ["checkpoint=sync", "checkpoint.every_steps=5"]
NUMERICS = ("loss", "grad_norm", "final_loss", "eval_loss", "init_digest")


def write(command: Command) -> None:
    (command.cwd / "mine.py").write_text(MODEL)


def steps_done(folder: Path) -> int:
    try:
        account = json.loads((folder / "outputs/jobs/job/log/progress.json").read_text())
        return int(account["step"])
    except FileNotFoundError:
        return -1


def status(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = done.job()["status"]
    return found


class TestARankThatIsKilled:
    """kill -9 of rank 1 in step 19, with launch.max_restarts=1."""

    @pytest.fixture(scope="class")
    @classmethod
    def resumed(cls, module_command: Command) -> Done:
        write(module_command)
        done = module_command(*TWO, *SAVED, "+model.die=20", "launch.max_restarts=1")
        assert done.code == 0, done.out + done.err
        return done

    def test_it_resumes_and_completes(self, resumed: Done) -> None:
        record = resumed.job()
        assert record["status"]["state"] == "completed"
        assert record["checkpoint"]["resumed_from"] == 15
        assert "no checkpoint: fresh start" in resumed.out
        assert "resumed from step 15" in resumed.out

    def test_the_restart_is_recorded(self, resumed: Done) -> None:
        (restart,) = status(resumed)["restarts"]
        assert (restart["kind"], restart["rank"], restart["step"]) == ("worker_died", 1, 19)
        assert "log/restart1/rank1.log" in restart["message"]
        assert "WARNING restart 1 of 1 after worker_died: rank 1 " in resumed.out
        assert "after worker_died of rank 1 in step 19; " in resumed.out

    def test_the_logs_of_both_attempts_are_kept(self, resumed: Done) -> None:
        log = resumed.cwd / "outputs/jobs/job/log"
        assert "no checkpoint" in (log / "restart1/rank0.log").read_text()
        assert json.loads((log / "restart1/rank0.failure.json").read_text())["communication"]
        assert "resumed from step 15" in (log / "rank0.log").read_text()
        assert not list(log.glob("*.failure.json"))

    def test_the_time_adds_up(self, resumed: Done) -> None:
        ledger = resumed.job()["ledger"]
        assert ledger["phases_s"]["restart"] > ledger["phases_s"]["startup"]
        assert abs(ledger["phases_s"]["other"]) <= 0.01 * ledger["wall_s"]

    def test_the_losses_are_those_of_an_unbroken_run(
        self, resumed: Done, module_command: Command
    ) -> None:
        whole = module_command(*TWO, *SAVED, "hydra.run.dir=outputs/whole/job")
        assert whole.code == 0, whole.err
        (unbroken,) = whole.jobs("outputs/whole")
        assert unbroken["status"]["restarts"] == []
        for key in NUMERICS:
            assert resumed.job()["numerics"][key] == unbroken["numerics"][key], key


def test_without_a_checkpoint_it_starts_afresh_and_says_so(command: Command) -> None:
    write(command)
    done = command(*TWO, "+model.die=20", "launch.max_restarts=1")
    assert done.code == 0, done.out + done.err
    said = "checkpoint=off, so that training starts again at step 0; checkpoint=sync would resume"
    assert said in done.out
    assert len(done.job()["numerics"]["loss"]) == 30


def test_a_failure_that_comes_back_ends_the_job(command: Command) -> None:
    write(command)
    words = ["loss=mse", "launch.max_restarts=1"]  # of classes, which it can't take
    done = command(*TINY, *RANKS, "launch.nproc=2", JOB, *words)
    assert done.code == 1
    found = status(done)
    assert found["state"] == "failed" and len(found["restarts"]) == 1
    assert found["kind"] == found["restarts"][0]["kind"] == "error"
    assert done.out.count("WARNING restart") == 1
    command.assert_nothing_left(within_s=2)


def test_a_rank_that_stops_answering_is_found_within_the_timeout(command: Command) -> None:
    write(command)
    words = ["+model.stop=20", "launch.timeout_s=3", "launch.stop_grace_s=1"]
    done = command(*TWO, *words, timeout_s=100)  # launch.startup_timeout_s is half an hour
    assert done.code == 1
    command.assert_nothing_left(within_s=2)
    found = status(done)
    assert (found["kind"], found["rank"], found["step"]) == ("comm_timeout", 1, 19)
    assert found["message"].startswith("rank 1 did not answer, rank 0 waited in vain (Timed out ")
    assert "3000ms" in found["message"] and "launch.timeout_s" in found["message"]


class TestTwoNodes:
    """On this machine, each in a folder of its own; rank 1 is on node 1."""

    WORDS = (*TINY, *RANKS, "launch.nproc=1", JOB)

    def slow(self, command: Command) -> tuple[Nodes, list[Any]]:
        nodes = Nodes(command)
        nodes.write("mine.py", MODEL)
        words = [*self.WORDS, "+model.nap=0.02", "run.steps=100000", "launch.stop_grace_s=5"]
        return nodes, [nodes.start(node, *words) for node in (0, 1)]

    def test_a_rank_of_node_1_is_named_on_both(
        self, command: Command, until: Callable[..., None]
    ) -> None:
        nodes, running = self.slow(command)
        until(lambda: steps_done(nodes.folder(0)) > 0, timeout_s=120)
        pid = int((nodes.folder(1) / "rank1.pid").read_text())
        psutil.Process(pid).send_signal(signal.SIGKILL)
        first, second = nodes.wait(running)
        assert (first.code, second.code) == (1, 1)
        found = status(first)
        assert (found["kind"], found["rank"]) == ("worker_died", 1)
        said, others = found["message"].splitlines()
        assert said.startswith("rank 1 was ended by SIGKILL")
        assert said.endswith("see node1/log/rank1.log on its node")
        assert others == "rank 0: terminated because of rank 1"
        assert second.out.splitlines()[-1].startswith("node 1 of 2: failed (worker_died): rank 1 ")

    def test_a_node_whose_controller_is_killed(
        self, command: Command, until: Callable[..., None]
    ) -> None:
        nodes, running = self.slow(command)
        until(lambda: steps_done(nodes.folder(0)) > 0, timeout_s=120)
        running[1].kill()
        first, _ = nodes.wait(running)
        assert first.code == 1
        found = status(first)
        assert (found["kind"], found["rank"]) == ("worker_died", 1)
        assert found["message"].startswith("rank 1: node 1 ended without a word; ")
        command.assert_nothing_left(within_s=5)

    def test_node_0_is_killed(self, command: Command, until: Callable[..., None]) -> None:
        nodes, running = self.slow(command)
        until(lambda: steps_done(nodes.folder(0)) > 0, timeout_s=120)
        running[0].kill()
        _, second = nodes.wait(running)
        assert second.code == 1
        assert "node 1 of 2: failed: node 0 ended without a word" in second.out
        command.assert_nothing_left(within_s=5)

    def test_a_signal_to_one_node_stops_both(
        self, command: Command, until: Callable[..., None]
    ) -> None:
        nodes, running = self.slow(command)
        until(lambda: steps_done(nodes.folder(0)) > 0, timeout_s=120)
        running[1].send_signal(signal.SIGINT)
        first, second = nodes.wait(running)
        assert (first.code, second.code) == (130, 130), first.out + second.out
        assert status(first)["state"] == "interrupted"
        assert "node 1 of 2: interrupted: stopped at a step's end" in second.out

    @pytest.mark.slow
    def test_all_nodes_start_again(self, command: Command) -> None:
        nodes = Nodes(command)
        nodes.write("mine.py", MODEL)
        words = [*self.WORDS, *SAVED, "+model.die=20", "launch.max_restarts=1"]
        first, second = nodes(*words, shared=True)
        assert (first.code, second.code) == (0, 0), first.out + second.out
        record = json.loads((command.cwd / "outputs/jobs/job/result.json").read_text())
        assert record["checkpoint"]["resumed_from"] == 15
        (restart,) = record["status"]["restarts"]
        assert (restart["kind"], restart["rank"]) == ("worker_died", 1)
        assert "node1/log/restart1/rank1.log" in restart["message"]
        log = command.cwd / "outputs/jobs/job/node1/log"
        assert (log / "restart1/rank1.log").exists() and (log / "rank1.log").exists()
        assert second.out.count("node 1 of 2: completed") == 1


@pytest.mark.slow
def test_a_link_that_is_cut(
    pair: tuple[netns.Node, netns.Node], command: Command, until: Callable[..., None]
) -> None:
    """Nothing comes any more and no connection is closed: both nodes end within the time-outs."""
    nodes = Nodes(command, pair)
    nodes.write("mine.py", MODEL)
    words = [*TestTwoNodes.WORDS, "+model.nap=0.02", "run.steps=100000"]
    words += ["launch.timeout_s=5", "launch.stop_grace_s=2"]
    running = [nodes.start(node, *words) for node in (0, 1)]
    until(lambda: steps_done(nodes.folder(0)) > 0, timeout_s=120)
    netns.cut(pair[1])
    try:
        first, second = nodes.wait(running, timeout_s=120)
    finally:
        netns.mend(pair[1])
    assert (first.code, second.code) == (1, 1)
    found = status(first)
    assert found["rank"] == 1 and "node 1 was silent for 5 s" in found["message"]
    assert "node 0 was silent for 5 s" in second.out
