"""launch.nnodes=LO:HI: the job begins with as many nodes as come."""

from __future__ import annotations

import pytest

from tests.conftest import TINY, Command, Done
from tests.netns import Nodes

pytestmark = pytest.mark.distributed

JOB = "outputs/jobs/job"
OWN = [*TINY, "strategy=ddp", "launch.threads_per_rank=1", "data.global_batch_size=24"]
OWN += [f"hydra.run.dir={JOB}"]


@pytest.fixture(scope="module")
def alone(module_command: Command) -> Done:
    """Node 0 of two, with two ranks."""
    nodes = Nodes(module_command)
    words = [*OWN, "launch.nproc=2", "launch.nnodes=1:2", "launch.meet_timeout_s=1"]
    (done,) = nodes.wait([nodes.start(0, *words)])
    assert done.code == 0, done.out + done.err
    return done


def test_only_node_0_comes(alone: Done) -> None:
    assert alone.out.splitlines()[0] == "nodes: 1 of 2 came; going on with 1"
    record = alone.job()
    assert (record["requested"]["nnodes"], record["requested"]["world_size"]) == (2, 4)
    assert (record["effective"]["nnodes"], record["effective"]["world_size"]) == (1, 2)
    assert record["validity"]["verdict"] == "valid" and record["status"]["restarts"] == []


def test_those_that_slurm_gave_begin_at_once(command: Command, alone: Done) -> None:
    """Two of three at most, with a rank each; what they train is the same."""
    nodes = Nodes(command)
    words = [*OWN, "launch.nproc=1", "launch.nnodes=1:3", "launch.meet_timeout_s=1000"]
    slurm = ("env", "SLURM_JOB_NUM_NODES=2")
    done, other = nodes.wait([nodes.start(node, *words, before=slurm) for node in (0, 1)])
    assert (done.code, other.code) == (0, 0), done.out + done.err + other.out + other.err
    assert "came; going on" not in done.out
    assert "node 1 of 3: completed; " in other.out
    record = done.job()
    assert record["requested"]["world_size"] == 3
    assert (record["effective"]["nnodes"], record["effective"]["world_size"]) == (2, 2)
    for key in ("loss", "init_digest", "samples_digest"):
        assert record["numerics"][key] == alone.job()["numerics"][key], key


def test_too_few_come(command: Command) -> None:
    nodes = Nodes(command)
    words = [*OWN, "launch.nproc=1", "launch.nnodes=2:3", "launch.meet_timeout_s=1"]
    (done,) = nodes.wait([nodes.start(0, *words)])
    assert done.code == 2
    for node in (1, 2):
        assert f"launch.nnodes=2:3: node {node} did not come to {nodes.endpoint}" in done.err
    assert not list(done.cwd.rglob("log"))
