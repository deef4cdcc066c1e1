"""Sweeps with real ranks: own resources, own directories, one table; failures are rows."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY, Command
from tests.slurm.cluster import Cluster
from tests.swept import Swept, sweep

pytestmark = pytest.mark.slurm

SLURM = ["hydra/launcher=slurm", "launch.threads_per_rank=1"]


def words(*more: str) -> list[str]:
    return [*TINY, *SLURM, *more]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Swept:
    command = Command(tmp_path_factory.mktemp("four"))
    command.most = 120
    typed = ["strategy=ddp,fsdp", "launch.nnodes=1,2", "checkpoint=async", "run.steps=30"]
    return sweep(command, *words(*typed), env=cluster.env, timeout_s=200)


class TestFourCells:
    """`strategy=ddp,fsdp launch.nnodes=1,2`: four jobs, each with its own number of nodes."""

    def book(self, four: Swept) -> dict[str, Any]:
        (path,) = four.done.cwd.glob("outputs/sweeps/s/slurm/jobs.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def test_all_ran_on_the_nodes_that_they_asked_for(self, four: Swept, cluster: Cluster) -> None:
        assert four.done.code == 0, four.done.err + four.done.out
        assert {r["status"]["state"] for r in four.records} == {"completed"}
        assert len(four.records) == 4
        numbers = {e["name"]: e["id"] for e in self.book(four)["jobs"]}
        assert len(set(numbers.values())) == 4
        for record in four.records:
            (asked,) = [o for o in record["job"]["overrides"] if o.startswith("launch.nnodes=")]
            nodes = int(asked.partition("=")[2])
            assert record["effective"]["world_size"] == 2 * nodes
            assert cluster.job(numbers[record["job"]["name"]])["NumNodes"] == str(nodes)
            assert cluster.job(numbers[record["job"]["name"]])["ExitCode"] == "0:0"

    def test_one_table_with_the_same_losses(self, four: Swept) -> None:
        assert [row["state"] for row in four.table["rows"]] == ["completed"] * 4
        assert [row["validity"] for row in four.table["rows"]] == ["valid"] * 4
        losses = [record["numerics"]["loss"] for record in four.records]
        assert all(len(loss) == 30 for loss in losses)
        for loss in losses[1:]:
            assert loss == pytest.approx(losses[0], rel=1e-4)

    def test_each_cell_has_its_directory_with_script_and_log(self, four: Swept) -> None:
        for entry in self.book(four)["jobs"]:
            cell = four.done.cwd / "outputs/sweeps/s" / entry["name"]
            assert Path(entry["script"]) == cell / "slurm/job.sh"
            assert Path(entry["log"]).exists()
            assert (cell / ".hydra/overrides.yaml").exists()
            assert list((cell / "checkpoint").glob("step_*"))
            assert not (cell / "attempts").exists()

    def test_the_same_again_starts_nothing(self, four: Swept, cluster: Cluster) -> None:
        before = cluster.run("squeue", "-h", "-t", "all", "-o", "%A")
        typed = ["strategy=ddp,fsdp", "launch.nnodes=1,2", "checkpoint=async", "run.steps=30"]
        command = Command(four.done.cwd)
        again = sweep(command, *words(*typed), env=cluster.env)
        assert again.done.code == 0, again.done.err
        assert "0 to run, 4 done" in again.done.out
        assert again.files == four.files
        assert cluster.run("squeue", "-h", "-t", "all", "-o", "%A") == before

    def test_status_tells_it_from_anywhere(self, four: Swept, cluster: Cluster) -> None:
        where = str(four.done.cwd / "outputs/sweeps/s")
        done = Command(Path("/"))("status", where, "--json", env=cluster.env)
        assert done.code == 0, done.err
        assert done.out.count("completed") >= 4


RAISES = '''
import os

from torch import nn


class Model(nn.Module):
    """Rank `bad` dies in step 12: by an error of its own, or killed without a word."""

    def __init__(self, inputs, hidden, outputs, bad=-1, how="raise"):
        super().__init__()
        self.net = nn.Linear(inputs, outputs)
        self.bad, self.how, self.step = bad, how, 0

    def forward(self, x):
        self.step += 1
        if self.step == 12 and int(os.environ["RANK"]) == self.bad:
            if self.how == "raise":
                raise RuntimeError("the third rank has had enough")
            os.kill(os.getpid() if self.how == "rank" else os.getppid(), 9)
        return self.net(x)
'''


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Swept:
    command = Command(tmp_path_factory.mktemp("failing"))
    command.most = 120
    (command.cwd / "mine.py").write_text(RAISES)
    typed = ["model._target_=mine.Model", "+model.bad=-1,3", "+model.how=raise,rank"]
    typed += ["strategy=ddp", "launch.nnodes=2", "measure.gradient_check=false"]
    return sweep(command, *words(*typed), env=cluster.env, timeout_s=250)


class TestCellsThatFail:
    """Two nodes, four ranks; one cell has rank 3 raise, one is killed, the others are whole."""

    def test_the_others_lose_nothing(self, failing: Swept) -> None:
        assert failing.done.code == 1, failing.done.err + failing.done.out
        assert failing.row("-1", "raise")["state"] == "completed"
        assert failing.row("-1", "rank")["state"] == "completed"
        assert len(failing.records) == 4

    def test_an_error_in_rank_3_is_the_row_with_its_traceback(
        self, failing: Swept, cluster: Cluster
    ) -> None:
        record = failing.cell("+model.bad=3", "+model.how=raise")
        status = record["status"]
        assert (status["state"], status["rank"], status["phase"]) == ("failed", 3, "forward")
        assert "the third rank has had enough" in status["message"]
        assert "RuntimeError" in status["traceback"]
        assert self.of_slurm(failing, record, cluster)["JobState"] == "FAILED"
        assert self.of_slurm(failing, record, cluster)["ExitCode"] == "1:0"

    def test_a_killed_rank_is_a_typed_row(self, failing: Swept, cluster: Cluster) -> None:
        record = failing.cell("+model.bad=3", "+model.how=rank")
        status = record["status"]
        assert (status["state"], status["rank"]) == ("failed", 3)
        assert "SIGKILL" in status["message"]
        assert self.of_slurm(failing, record, cluster)["ExitCode"] == "1:0"

    def of_slurm(self, failing: Swept, record: dict[str, Any], cluster: Cluster) -> dict[str, str]:
        (path,) = failing.done.cwd.glob("outputs/sweeps/s/slurm/jobs.json")
        (id,) = [
            e["id"]
            for e in json.loads(path.read_text())["jobs"]
            if e["name"] == record["job"]["name"]
        ]
        return cluster.job(id)


def test_one_allocation_runs_all_on_the_same_nodes(command: Command, cluster: Cluster) -> None:
    command.most = 120
    typed = ["hydra.launcher.mode=allocation", "strategy=ddp", "launch.nnodes=2"]
    typed += ["optimizer.lr=0.1,-1,0.05", "repeat=range(2)"]
    done = command(
        "-m", *words(*typed), "hydra.sweep.dir=outputs/sweeps/s", env=cluster.env, timeout_s=200
    )
    assert done.code == 2  # a wrong value in one cell, before anything is submitted
    assert "optimizer.lr=-1" in done.err and cluster.queued() == {}
    typed[3] = "optimizer.lr=0.1,0.05"
    swept = sweep(command, *words(*typed), env=cluster.env, timeout_s=200)
    assert swept.done.code == 0, swept.done.err + swept.done.out
    book = json.loads((command.cwd / "outputs/sweeps/s/slurm/jobs.json").read_text())
    assert book["mode"] == "allocation" and len({e["id"] for e in book["jobs"]}) == 1
    assert {r["environment"]["host"] for r in swept.records} == {"n1"}
    started = sorted(swept.records, key=lambda r: r["job"]["started_at"])
    order = [(r["job"]["repeat"], r["job"]["overrides"][-1]) for r in started]
    assert [repeat for repeat, _ in order] == [0, 0, 1, 1]  # interleaved
    assert [row["state"] for row in swept.table["rows"]] == ["completed"] * 2
    assert swept.table["rows"][0]["repeats"] == 2


def test_a_single_run(command: Command, cluster: Cluster) -> None:
    typed = [*TINY, "launch=slurm", "launch.threads_per_rank=1", "launch.nnodes=2", "strategy=ddp"]
    done = command(*typed, env=cluster.env)
    assert done.code == 0, done.err + done.out
    record = done.job()
    assert record["effective"]["world_size"] == 4
    assert record["environment"]["host"] == "n1"
    assert str(command.cwd / "outputs/jobs") in done.out.splitlines()[-1]  # as a job here is shown
    again = command(*typed, env=cluster.env)
    assert again.code == 0 and len(again.jobs()) == 1
    assert cluster.queued() == {}


def test_four_copies_of_a_command_are_not_four_ranks(command: Command, cluster: Cluster) -> None:
    """P28, P30: each of them would train alone; both numbers are said, in seconds."""
    typed = [*TINY, "strategy=ddp", "launch.nnodes=2", "launch.rdzv_endpoint=n1:29511"]
    line = shlex.join(["srun", "python", "-m", "paceline", *typed])
    log = command.cwd / "log"
    options = ["-N2", "--ntasks-per-node=2", "-o", str(log), "--wrap", line]
    number = cluster.submit(*options, cwd=command.cwd)
    assert cluster.wait_state(number, ["FAILED", "COMPLETED"]) == "FAILED"
    assert cluster.job(number)["ExitCode"] == "2:0"
    said = "launch.nnodes=2: that is 4 ranks, but SLURM starts SLURM_"
    assert said in log.read_text() and "--ntasks-per-node=1" in log.read_text()


def test_plan_prints_the_scripts_and_starts_nothing(command: Command, cluster: Cluster) -> None:
    typed = words("launch.nnodes=1,2", "strategy=ddp", "plan=true")
    done = command("-m", *typed, env=cluster.env)
    assert done.code == 0, done.err
    assert done.out.count("#SBATCH --nodes=") == 2
    assert "#SBATCH --nodes=1\n" in done.out and "#SBATCH --nodes=2\n" in done.out
    assert not (command.cwd / "outputs").exists()
    single = command(*TINY, "launch=slurm", "plan=true", env=cluster.env)
    assert single.code == 0 and "#SBATCH --nodes=1\n" in single.out
    assert cluster.run("squeue", "-h", "-t", "pending,running") == ""


def test_code_that_is_edited_while_a_job_waits_is_told(command: Command, cluster: Cluster) -> None:
    """P35: the row says that what ran isn't what was submitted."""

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *who, *words], cwd=command.cwd, check=True, capture_output=True)

    (command.cwd / "mine.py").write_text(RAISES)
    git("init")
    git("add", "mine.py")
    git("commit", "-m", "mine")
    typed = ["model._target_=mine.Model", "+launch.slurm.options.begin=now+8", "run.seed=0,1"]
    sweep_dir = command.cwd / "outputs/sweeps/s"
    done = command(
        "-m", *words(*typed, "detach=true"), f"hydra.sweep.dir={sweep_dir}", env=cluster.env
    )
    assert done.code == 0, done.err
    (command.cwd / "mine.py").write_text(RAISES.replace("has had enough", "went home"))
    waited = command("status", str(sweep_dir), "--wait", env=cluster.env)
    assert waited.code == 0, waited.err
    table = json.loads((sweep_dir / "table.json").read_text())
    assert [row["state"] for row in table["rows"]] == ["completed"] * 2
    assert all(row["source_changed"] for row in table["rows"])
    for path in sweep_dir.glob("*/result.json"):
        record = json.loads(path.read_text())
        code = record["environment"]["source"]
        assert code["submitted"]["dirty"] is None and code["started"]["dirty"] is not None
        assert code["changed"] == [
            "code changed since it was submitted: uncommitted changes differ"
        ]
