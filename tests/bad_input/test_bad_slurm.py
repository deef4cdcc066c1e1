"""What a job of a cluster can't ask for: told here, before SLURM hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from paceline.__main__ import config_dir
from paceline.types import Slurm

Refuse = Callable[..., list[str]]

VALUES = {
    "two words": ({"partition": "a b"}, "partition='a b': give one word, or null for the cluster"),
    "empty": ({"account": ""}, "account='': give one word, or null"),
    "no time": ({"time": "soon"}, "time=soon: give minutes, or [DAYS-]HOURS:MINUTES:SECONDS"),
    "gpus": ({"gpus_per_node": -1}, "gpus_per_node=-1: give 0 or more"),
    "cpus": ({"cpus_per_task": 0}, "cpus_per_task=0: give 1 or more"),
    "requeues": ({"max_requeues": -1}, "max_requeues=-1: give 0 or more"),
    "an option of ours": ({"options": {"output": "x"}}, "paceline sets --output itself"),
    "an option with a key": (
        {"options": {"mem": "64G"}},
        "options.mem=64G: paceline sets --mem itself; set launch.slurm.mem",
    ),
    "nodes": ({"options": {"nodes": 2}}, "paceline sets --nodes itself; set launch.nnodes"),
    "short option": ({"options": {"N": 2}}, "options.N=2: give the long name of a sbatch option"),
    "two lines": ({"setup": ["a\nb"]}, "setup.0='a\\nb': give one line of text"),
    "signal": ({"time": "1:30", "signal_s": 90}, "signal_s=90: time=1:30 is over before that"),
}


@pytest.fixture
def given() -> dict[str, Any]:
    node: dict[str, Any] = yaml.safe_load((config_dir() / "launch/local.yaml").read_text())
    return dict(node["slurm"])


@pytest.mark.parametrize(("changed", "said"), VALUES.values(), ids=list(VALUES))
def test_a_wrong_value(given: dict[str, Any], changed: dict[str, Any], said: str) -> None:
    assert Slurm(**given).signal_s == 120
    with pytest.raises(ValueError) as refused:
        Slurm(**given | changed)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("time", "signal_s"), [("3", 179), ("1:30", 89), ("1:00:00", 3599), ("1-12", 129599)]
)
def test_the_last_second_of_a_time(given: dict[str, Any], time: str, signal_s: int) -> None:
    assert Slurm(**given | {"time": time, "signal_s": signal_s})
    with pytest.raises(ValueError, match="is over before that"):
        Slurm(**given | {"time": time, "signal_s": signal_s + 1})


def test_wrong_types(refuse: Refuse) -> None:
    words = ["launch.scheduler=pbs", "launch.slurm.time=[1]", "detach=3"]
    scheduler, time, detach = refuse(*words)
    assert scheduler == "launch.scheduler=pbs: no such choice; give none or slurm"
    assert time.startswith("launch.slurm.time=[1]: expected ")
    assert detach == "detach=3: expected bool, got int; give true or false"


def test_a_word_before_the_end_that_comes_after_it(refuse: Refuse) -> None:
    assert refuse("launch.slurm.time=2", "launch.slurm.signal_s=300") == [
        "launch.slurm.signal_s=300: time=2 is over before that; lower signal_s to what a save "
        "takes, or give more time"
    ]


def test_a_cluster_by_the_local_launcher(refuse: Refuse) -> None:
    (problem,) = refuse("-m", "launch=slurm", "run.seed=0,1")
    assert problem.startswith("launch.scheduler=slurm: ") and "hydra/launcher=slurm" in problem


def test_a_wrong_launcher(refuse: Refuse) -> None:
    words = ["hydra.launcher.mode=both", "hydra.launcher.max_in_flight=0"]
    assert refuse("-m", "hydra/launcher=slurm", *words) == [
        "hydra.launcher.mode=both: give one of jobs, allocation",
        "hydra.launcher.max_in_flight=0: give 1 or more, or null",
    ]


def test_cells_of_an_allocation_that_want_different_nodes(refuse: Refuse) -> None:
    words = ["hydra/launcher=slurm", "hydra.launcher.mode=allocation"]
    (problem,) = refuse("-m", *words, "launch.slurm.partition=main,spot")
    assert problem.startswith("hydra.launcher.mode=allocation: launch.slurm.partition is main in")


def test_jobs_side_by_side_do_not_stop_each_other(refuse: Refuse) -> None:
    (problem,) = refuse("-m", "hydra/launcher=slurm", "run.seed=0,1", "sweep.on_failure=stop")
    assert problem.startswith("sweep.on_failure=stop: jobs of a cluster run side by side")


def test_a_search_can_not_leave(refuse: Refuse) -> None:
    words = ["hydra/launcher=slurm", "hydra/sweeper=micro_batch", "detach=true"]
    (problem,) = refuse("-m", *words)
    assert problem.startswith("detach=true: ")


@pytest.mark.parametrize("words", [["launch=local"], ["-m", "run.seed=0,1"]])
def test_a_job_here_is_not_left_alone(refuse: Refuse, words: list[str]) -> None:
    (problem,) = refuse(*words, "detach=true")
    assert problem.startswith("detach=true: a job on this machine ends with its command")


def test_what_is_no_part_of_a_cell_is_not_swept(refuse: Refuse) -> None:
    keys = [f"launch.slurm.{key}" for key in ("account", "qos", "dependency")]
    problems = refuse("-m", "hydra/launcher=slurm", *(f"{key}=a,b" for key in keys))
    assert [p.partition(":")[0] for p in problems] == keys
    assert all("can't be swept" in problem for problem in problems)


def test_where_nodes_meet_is_not_for_the_user(refuse: Refuse) -> None:
    key = "launch.rdzv_endpoint=n1:29500"
    (problem,) = refuse("launch=slurm", "launch.nnodes=2", "strategy=ddp", key)
    assert problem.startswith(f"{key}: nodes of a SLURM job find each other")


def test_devices_that_are_not_asked_for(refuse: Refuse) -> None:
    (problem,) = refuse("launch=slurm", "run.device=cuda")
    assert problem.startswith("run.device=cuda: launch.slurm.gpus_per_node asks for no GPUs")


def test_ranks_that_are_not_the_gpus(refuse: Refuse) -> None:
    words = ["strategy=ddp", "launch.nproc=2", "launch.slurm.gpus_per_node=4"]
    (problem,) = refuse("launch=slurm", *words)
    assert problem.startswith("launch.nproc=2: a rank takes one GPU")
