"""A job that was planned on one machine and runs on another: job.yaml is all that goes along."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from paceline.controller.directory import FROZEN
from paceline.controller.frozen import freeze, read_job
from paceline.controller.plan import on_this_node
from paceline.controller.slurm.script import MARK
from paceline.controller.slurm.submit import INSIDE, ask_of, check_outside, one_for_all
from paceline.record.environment import cores
from paceline.types import ConfigError
from tests.submitted import plan


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a job of SLURM's, whatever starts the tests."""
    names = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", "SLURM_NODEID")
    for name in (*names, "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", *INSIDE):
        monkeypatch.delenv(name, raising=False)


def test_it_comes_back_whole_from_wherever_its_directory_is(tmp_path: Path) -> None:
    job = plan(tmp_path / "here", "launch=slurm", "repeat=2", "tag=x", "scaling.mode=weak")
    job.directory.mkdir()
    freeze(job, job.directory / FROZEN)
    assert read_job(job.directory) == job
    moved = shutil.move(job.directory, tmp_path / "there")
    assert read_job(Path(moved)) == dataclasses.replace(job, directory=tmp_path / "there")


@pytest.mark.parametrize("text", [None, "", "[1]", "{name: x}", "identity: {"])
def test_one_that_is_no_job_says_so(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / FROZEN).write_text(text)
    with pytest.raises(ConfigError, match=r"job\.yaml (is missing|can't be used)"):
        read_job(tmp_path)


def test_what_only_the_node_knows_is_known_there(tmp_path: Path) -> None:
    job = plan(tmp_path, "launch=slurm", "strategy=ddp", "run.device=auto")
    assert job.requested["threads_per_rank"] == "auto"
    here = on_this_node(job, None)
    assert here.requested["threads_per_rank"] == max(1, cores() // 2)
    assert here.requested["world_size"] == 2 and here.config_hash == job.config_hash
    assert here.config["launch"]["scheduler"] == "none"


def test_other_nodes_than_planned_are_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    monkeypatch.setenv("SLURM_NODEID", "0")
    job = plan(tmp_path, "launch=slurm", "strategy=ddp", "launch.nnodes=2")
    with pytest.raises(ConfigError, match="nnodes=2: SLURM gave SLURM_JOB_NUM_NODES=3"):
        on_this_node(job, "n1:29500")


def test_a_node_without_the_gpus_does_not_train_on_its_cpu(tmp_path: Path) -> None:
    words = ["launch=slurm", "strategy=ddp", "launch.slurm.gpus_per_node=4", "run.device=auto"]
    job = plan(tmp_path, *words)
    assert (job.requested["world_size"], job.requested["device"]) == (4, "cuda")
    with pytest.raises(ConfigError, match="gpus_per_node=4: torch sees no CUDA device on this"):
        on_this_node(job, None)


def test_a_node_has_cpus_for_ranks_and_workers(tmp_path: Path) -> None:
    words = ["launch=slurm", "strategy=ddp", "launch.nproc=3", "data.loader.num_workers=2"]
    words += ["data.global_batch_size=48", "launch.nnodes=2"]
    ask = ask_of(plan(tmp_path, *words))
    assert (ask.nodes, ask.ranks, ask.cpus_per_task) == ((2, 2), 3, 9)
    assert ask_of(plan(tmp_path, *words, "launch.slurm.cpus_per_task=5")).cpus_per_task == 5
    assert ask_of(plan(tmp_path, *words, "launch.slurm.cpus_per_task=null")).cpus_per_task is None


def test_an_allocation_is_large_enough_for_every_cell(tmp_path: Path) -> None:
    cells = [
        plan(tmp_path / "a", "launch=slurm"),
        plan(tmp_path / "b", "launch=slurm", "strategy=ddp", "launch.nnodes=2", "launch.nproc=4"),
        plan(tmp_path / "c", "launch=slurm", "data.loader.num_workers=7"),
    ]
    (script,) = one_for_all(cells, tmp_path)
    assert script.names == ["a", "b", "c"]
    assert "#SBATCH --nodes=2\n" in script.text and "#SBATCH --cpus-per-task=8\n" in script.text


@pytest.mark.parametrize("name", INSIDE)
def test_a_process_of_a_job_submits_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    check_outside()
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name} is set"):
        check_outside()
    assert MARK in INSIDE
