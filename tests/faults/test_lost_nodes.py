"""launch.nnodes=LO:HI: a node is lost in mid-run, and the others go on without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks import netns
from tests.conftest import TINY, Command, Done
from tests.netns import Nodes, pair

__all__ = ["pair"]

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

MODEL = '''
import json, os, time
from pathlib import Path

from torch import nn

SAID = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class Model(nn.Module):
    """In the first start all ranks sleep `nap` seconds a forward. Each start leaves who it is."""

    def __init__(self, inputs, hidden, outputs, nap=0.0):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)
        start = os.environ["TORCHELASTIC_RESTART_COUNT"]
        self.nap = nap if start == "0" else 0.0
        found = {name: os.environ[name] for name in SAID} | {"pid": os.getpid()}
        Path(f"start{start}_rank{found['RANK']}.json").write_text(json.dumps(found))

    def forward(self, x):
        time.sleep(self.nap)
        return self.head(x)
'''
JOB = "outputs/jobs/job"
OWN = [*TINY, "model._target_=mine.Model", "strategy=ddp", "launch.threads_per_rank=1"]
OWN += ["data.global_batch_size=24", f"hydra.run.dir={JOB}", "launch.stop_grace_s=5"]
SAVED = ["checkpoint=sync", "checkpoint.every_steps=5"]
SLOW = "+model.nap=0.03"


def start(command: Command, number: int, *words: str) -> tuple[Nodes, list[Any]]:
    """The same command on so many nodes, each in a folder of its own."""
    nodes = Nodes(command)
    for node in range(number):
        (nodes.folder(node) / "mine.py").write_text(MODEL)
    return nodes, [nodes.start(node, *OWN, SLOW, *words) for node in range(number)]


def steps_done(folder: Path) -> int:
    try:
        return int(json.loads((folder / JOB / "log/progress.json").read_text())["step"])
    except FileNotFoundError:
        return -1


def wait_for(condition: Callable[[], bool], running: list[Any]) -> None:
    """Until it holds; while all of them run."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline and all(one.poll() is None for one in running)
        time.sleep(0.02)


def lose(process: subprocess.Popen[str]) -> None:
    """As when a machine loses its power: controller and ranks are gone at once."""
    os.killpg(process.pid, signal.SIGKILL)


def said(folder: Path, start: int, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"start{start}_rank{rank}.json").read_text())
    return found


class TestTwoNodes:
    """Two ranks each; node 1 is lost after a checkpoint."""

    @pytest.fixture(scope="class")
    @classmethod
    def survived(cls, module_command: Command) -> Done:
        nodes, running = start(module_command, 2, "launch.nnodes=1:2", "launch.nproc=2", *SAVED)
        wait_for(lambda: steps_done(nodes.folder(0)) >= 8, running)
        lose(running[1])
        done, _ = nodes.wait(running)
        assert done.code == 0, done.out + done.err
        return done

    def test_it_completes_with_the_ranks_that_are_left(self, survived: Done) -> None:
        record = survived.job()
        assert record["status"]["state"] == "completed"
        assert (record["requested"]["nnodes"], record["requested"]["world_size"]) == (2, 4)
        assert (record["effective"]["nnodes"], record["effective"]["world_size"]) == (1, 2)
        assert record["checkpoint"]["resharded"] == {
            "from": {"world_size": 4},
            "to": {"world_size": 2},
        }

    def test_the_loss_of_the_node_is_recorded(self, survived: Done) -> None:
        (lost,) = survived.job()["status"]["restarts"]
        assert (lost["rank"], lost["kind"]) == (2, "worker_died")
        cause, others, how = lost["message"].splitlines()
        assert cause.startswith("rank 2: node 1 ended without a word; see node1/log/restart1/rank2")
        assert others == "ranks 0, 1, 3: terminated because of rank 2"
        assert how == "node 1 lost, going on with node 0"
        assert f"WARNING {how}: rank 2: node 1 ended" in survived.out

    def test_it_is_the_training_of_an_unbroken_run(
        self, survived: Done, module_command: Command
    ) -> None:
        (module_command.cwd / "mine.py").write_text(MODEL)
        resumed = survived.job()["checkpoint"]["resumed_from"]
        assert resumed >= 5
        # the record's digest is of the samples since then; and these are the ones before
        words = [f"run.steps={resumed}", "measure.warmup_steps=1"]
        words += ["hydra.run.dir=outputs/jobs/head", "launch.nproc=1"]
        runs = [[*OWN, "launch.nproc=4"], [*OWN, *words]]
        started = [module_command.start(*one) for one in runs]
        ran = [module_command.wait(one) for one in started]
        assert [done.code for done in ran] == [0, 0], [done.err for done in ran]
        head, whole = (one["numerics"] for one in ran[0].jobs())
        broken = survived.job()["numerics"]
        parts = (int(one["samples_digest"], 16) for one in (head, broken))
        assert sum(parts) % 2**64 == int(whole["samples_digest"], 16)
        assert broken["init_digest"] == whole["init_digest"]
        assert broken["loss"][:resumed] == whole["loss"][:resumed]
        for key in ("loss", "grad_norm"):
            np.testing.assert_allclose(broken[key], whole[key], rtol=1e-5)


def test_the_ranks_are_numbered_without_gaps(command: Command) -> None:
    """Three nodes, node 1 is lost; without a checkpoint training starts again."""
    nodes, running = start(command, 3, "launch.nnodes=2:3", "launch.nproc=1")
    wait_for(lambda: steps_done(nodes.folder(0)) >= 2, running)
    lose(running[1])
    first, _, third = nodes.wait(running)
    assert (first.code, third.code) == (0, 0), first.out + first.err + third.out
    assert said(nodes.folder(2), 0, rank=2)["GROUP_RANK"] == "2"
    found = said(nodes.folder(2), 1, rank=1)
    assert (found["GROUP_RANK"], found["WORLD_SIZE"]) == ("1", "2")
    assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("0", "1")
    log = nodes.folder(2) / JOB / "node2/log"  # a node keeps the directory that it began with
    assert (log / "restart1/rank2.log").exists() and (log / "rank1.log").exists()
    assert "node 2 of 3: completed; the record is on node 0, " in third.out
    (warning,) = (line for line in first.out.splitlines() if line.startswith("WARNING"))
    assert warning.startswith("WARNING node 1 lost, going on with nodes 0, 2: rank 1: node 1 ended")
    assert warning.endswith("training starts again at step 0; checkpoint=sync would resume")
    record = first.job()
    assert record["effective"]["world_size"] == 2 and len(record["numerics"]["loss"]) == 30


@pytest.mark.parametrize("nnodes", ["2", "2:3"])
def test_too_few_are_left(command: Command, nnodes: str) -> None:
    words = [f"launch.nnodes={nnodes}", "launch.nproc=1", "run.steps=100000"]
    words += ["launch.max_restarts=1"]  # no node comes back by it
    nodes, running = start(command, int(nnodes[-1]), *words)
    wait_for(lambda: steps_done(nodes.folder(0)) >= 2, running)
    for process in running[1:]:
        lose(process)
    first = nodes.wait(running)[0]
    assert first.code == 1
    status = first.job()["status"]
    assert (status["state"], status["kind"], status["rank"]) == ("failed", "worker_died", 1)
    assert status["message"].startswith("rank 1: node 1 ended without a word; ")
    assert status["restarts"] == []


def test_a_rank_that_fails_is_no_lost_node(command: Command) -> None:
    words = ["launch.nnodes=1:2", "launch.nproc=1", "run.steps=100000"]
    nodes, running = start(command, 2, *words)
    wait_for(lambda: steps_done(nodes.folder(0)) >= 2, running)
    psutil.Process(said(nodes.folder(1), 0, rank=1)["pid"]).kill()
    first, second = nodes.wait(running)
    assert (first.code, second.code) == (1, 1)
    status = first.job()["status"]
    assert status["message"].startswith("rank 1 was ended by SIGKILL") and not status["restarts"]


@pytest.mark.slow
@pytest.mark.parametrize("whose", [0, 1])
def test_a_link_that_is_cut(
    pair: tuple[netns.Node, netns.Node],
    command: Command,
    whose: int,
) -> None:
    """Nothing comes any more and no connection is closed: node 0 goes on, node 1 ends."""
    nodes = Nodes(command, pair)
    nodes.write("mine.py", MODEL)
    words = [*OWN, SLOW, *SAVED, "launch.nnodes=1:2", "launch.nproc=2", "run.steps=300"]
    words += ["launch.timeout_s=5", "launch.stop_grace_s=2"]
    running = [nodes.start(node, *words) for node in (0, 1)]
    wait_for(lambda: steps_done(nodes.folder(0)) >= 8, running)
    netns.cut(pair[whose])
    try:
        first, second = nodes.wait(running)
    finally:
        netns.mend(pair[whose])
    assert (first.code, second.code) == (0, 1), first.out + first.err + second.out
    record = first.job()
    assert record["effective"]["world_size"] == 2 and len(record["numerics"]["loss"]) == 300
    assert "node 1 was silent for 5 s" in record["status"]["restarts"][0]["message"]
    assert "node 0 was silent for 5 s" in second.out
