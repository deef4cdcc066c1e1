"""Several nodes for real: the same command on each, on one machine and in network namespaces."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import netns
from tests.conftest import TINY, Command, Done
from tests.netns import Nodes, pair

__all__ = ["pair"]

pytestmark = pytest.mark.distributed

MODEL = '''
import json, os, time
from pathlib import Path

from torch import nn

SAID = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NCCL_DEBUG",
        "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Model(nn.Module):
    """Says who its rank is, in the folder of its node; rank 1 sleeps `nap` seconds a forward."""

    def __init__(self, inputs, hidden, outputs, nap=0.0):
        super().__init__()
        self.nap = nap if os.environ["RANK"] == "1" else 0.0
        self.head = nn.Linear(inputs, outputs)
        found = {name: os.environ.get(name) for name in SAID}
        Path(f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))

    def forward(self, x):
        time.sleep(self.nap)
        return self.head(x)
'''
JOB = "hydra.run.dir=outputs/jobs/job"
OWN = [*TINY, "model._target_=mine.Model", "strategy=ddp", "launch.threads_per_rank=1", JOB]
NUMERICS = ("loss", "grad_norm", "final_loss", "eval_loss", "init_digest", "samples_digest")


def said(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text())
    return found


class TestTwoNodes:
    """Each in a folder of its own, node 1 started first."""

    @pytest.fixture(scope="class")
    @classmethod
    def ran(cls, module_command: Command) -> tuple[Nodes, list[Done]]:
        nodes = Nodes(module_command)
        nodes.write("mine.py", MODEL)
        done = nodes(*OWN, "launch.nproc=1", "+launch.nccl.DEBUG=WARN")
        assert [one.code for one in done] == [0, 0], [one.out + one.err for one in done]
        return nodes, done

    def test_it_is_the_training_of_two_ranks_on_one_node(
        self, ran: tuple[Nodes, list[Done]], module_command: Command
    ) -> None:
        alone = module_command(*OWN, "launch.nproc=2")
        assert alone.code == 0, alone.err
        one, two = alone.job(), ran[1][0].job()
        for key in NUMERICS:
            assert one["numerics"][key] == two["numerics"][key], key
        assert one["job"]["work_hash"] == two["job"]["work_hash"]

    def test_the_ranks_lie_where_their_nodes_are(self, ran: tuple[Nodes, list[Done]]) -> None:
        for node in (0, 1):
            found = said(ran[0].folder(node), node)
            assert found["RANK"] == found["GROUP_RANK"] == str(node)
            assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("0", "1")
            assert found["WORLD_SIZE"] == "2"

    def test_launch_keys_reach_the_ranks(self, ran: tuple[Nodes, list[Done]]) -> None:
        found = said(ran[0].folder(1), 1)
        assert found["NCCL_DEBUG"] == "WARN"
        assert found["GLOO_SOCKET_IFNAME"] == "lo"  # on the way to node 0
        assert found["NCCL_SOCKET_IFNAME"] is None

    def test_the_record_is_on_node_0(self, ran: tuple[Nodes, list[Done]]) -> None:
        nodes, done = ran
        record = done[0].job()
        assert record["requested"]["nnodes"] == 2
        assert record["effective"]["world_size"] == record["requested"]["world_size"] == 2
        assert record["ledger"]["phases_s"]["other"] <= 0.01 * record["ledger"]["wall_s"]
        assert "completed, valid" in done[0].out
        (line,) = done[1].out.splitlines()
        assert line.startswith("node 1 of 2: completed; the record is on node 0, ")
        assert line.endswith("outputs/jobs/job/result.json")
        left = {p.name for p in (nodes.folder(1) / "outputs/jobs/job").iterdir()}
        assert left == {".hydra", "node1"}

    def test_a_node_keeps_its_own_logs(self, ran: tuple[Nodes, list[Done]]) -> None:
        job = "outputs/jobs/job"
        assert (ran[0].folder(0) / job / "log/rank0.log").exists()
        assert not (ran[0].folder(0) / job / "log/rank1.log").exists()
        assert (ran[0].folder(1) / job / "node1/log/rank1.log").exists()
        frozen = yaml.safe_load((ran[0].folder(1) / job / "node1/node.yaml").read_text())
        assert frozen["directory"] == str(ran[0].folder(1) / job)

    def test_the_same_again_is_shown_on_both(self, ran: tuple[Nodes, list[Done]]) -> None:
        first, second = ran[0](*OWN, "launch.nproc=1", "+launch.nccl.DEBUG=WARN")
        assert (first.code, second.code) == (0, 0), first.err + second.err
        assert "finished before: job" in first.out
        assert second.out.startswith("node 1 of 2: completed; ")


def test_nodes_that_differ_end_before_anything_starts(command: Command) -> None:
    nodes = Nodes(command)
    own = (["launch.nproc=1"], ["launch.nproc=1", "run.seed=3"])
    for done in nodes(*TINY, "strategy=ddp", own=own):
        assert done.code == 2
        assert "run.seed: 0 on node 0, 3 on node 1; type the same command" in done.err
        assert not list(done.cwd.rglob("log"))


def test_a_sweep_over_nodes_needs_its_launcher(command: Command) -> None:
    nodes = ["launch.nnodes=2", "launch.node_rank=0", "launch.rdzv_endpoint=127.0.0.1:29500"]
    done = command("-m", *TINY, "strategy=ddp", *nodes, "run.seed=0,1")
    assert done.code == 2
    assert "launch.nnodes=2: a sweep runs its cells on this node alone; " in done.err
    assert "one command a node and job, or hydra/launcher=slurm" in done.err
    assert not (command.cwd / "outputs").exists()


SHIFTED = ("unshare", "--time", "--monotonic", "100000")
"""A monotonic clock of its own, as any other machine has."""


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run([*SHIFTED, "true"], capture_output=True).returncode != 0,
    reason="time namespaces need root, unshare (util-linux) and Linux 5.6",
)
def test_the_time_adds_up_though_the_slowest_rank_has_another_clock(command: Command) -> None:
    nodes = Nodes(command)
    nodes.write("mine.py", MODEL)
    words = [*OWN, "launch.nproc=1", "+model.nap=0.02"]
    running = [nodes.start(0, *words), nodes.start(1, *words, before=SHIFTED)]
    first, second = nodes.wait(running)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    ledger = first.job()["ledger"]
    assert ledger["slowest_rank"] == 1
    assert abs(ledger["phases_s"]["other"]) <= 0.01 * ledger["wall_s"]
    assert all(seconds is None or seconds >= 0 for seconds in ledger["phases_s"].values())


@pytest.mark.slow
class TestNamespaces:
    """Two nodes that reach each other by one link, and nothing else."""

    def test_the_losses_are_those_of_one_node(
        self, pair: tuple[netns.Node, netns.Node], command: Command
    ) -> None:
        nodes = Nodes(command, pair)
        nodes.write("mine.py", MODEL)
        first, second = nodes(*OWN, "launch.nproc=2", shared=True)
        assert (first.code, second.code) == (0, 0), first.out + second.out + second.err
        assert said(command.cwd, 3)["GLOO_SOCKET_IFNAME"] == pair[1].interface
        assert [said(command.cwd, r)["GROUP_RANK"] for r in range(4)] == ["0", "0", "1", "1"]
        assert [said(command.cwd, r)["LOCAL_RANK"] for r in range(4)] == ["0", "1", "0", "1"]
        job = command.cwd / "outputs/jobs/job"
        assert sorted(p.name for p in job.glob("node*")) == ["node1"]
        assert sorted(p.name for p in job.rglob("rank?.log")) == [f"rank{r}.log" for r in range(4)]
        alone = command(*OWN, "launch.nproc=4", "hydra.run.dir=outputs/jobs/one")
        assert alone.code == 0, alone.err
        two, one = alone.jobs()
        for key in NUMERICS:
            assert one["numerics"][key] == two["numerics"][key], key

    def test_a_node_that_never_comes(
        self, pair: tuple[netns.Node, netns.Node], command: Command
    ) -> None:
        nodes = Nodes(command, pair)
        words = [*TINY, "strategy=ddp", "launch.nproc=1", "launch.meet_timeout_s=3"]
        for node, missing in ((0, "node 1 did not come"), (1, "node 0 did not come there")):
            done = command.wait(nodes.start(node, *words))
            assert done.code == 2
            assert f"{missing}" in done.err and "launch.meet_timeout_s=3" in done.err
