"""What a real cluster says of jobs, and what becomes of it: states, rows, `paceline status`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paceline.controller.doctor.host import slurm_facts
from paceline.controller.slurm import call
from paceline.controller.slurm.settle import APART_S, QUIET_S, settle
from paceline.controller.slurm.state import JobState, look
from paceline.diagnose.doctor.software import slurm
from paceline.types import ConfigError
from tests.slurm.cluster import Cluster
from tests.slurm.looks import over, quick, seen
from tests.submitted import Sweep, plan

pytestmark = pytest.mark.slurm

both = pytest.mark.parametrize("cluster", [True, False], indirect=True, ids=["accounts", "none"])


@both
def test_how_jobs_end(used: Cluster) -> None:
    good = quick(used, "true")
    bad = quick(used, "exit 3")
    killed = quick(used, "kill -KILL $$")
    running = quick(used, "sleep 300", "-N2")
    held = quick(used, "true", "--hold")
    used.wait_state(running, "RUNNING")
    states = look([held, running, "999999"])
    assert (states[held].word, states[held].reason, states[held].over) == (
        "PENDING",
        "JobHeldUser",
        False,
    )
    assert (states[running].word, states[running].nodes) == ("RUNNING", "n[1-2]")
    assert states[running].since is not None
    assert (states["999999"].word, states["999999"].over) == ("UNKNOWN", True)
    seen([good], over)
    call.scancel([running, held, good])  # one that is over is no trouble
    accounts = call.sacct([good])  # they hear of it a moment later

    def told(state: JobState) -> bool:
        return state.over and (accounts is None or state.word != "CANCELLED" or bool(state.by))

    states = seen([good, bad, killed, running, held], told)
    assert [state.word for state in states.values()] == [
        "COMPLETED",
        "FAILED",
        "FAILED",
        "CANCELLED",
        "CANCELLED",
    ]
    assert (states[bad].exit_code, states[bad].signal) == (3, 0)
    assert (states[killed].exit_code, states[killed].signal) == (0, 9)
    assert states[running].by == (None if accounts is None else "0")
    assert {state.restarts for state in states.values()} == {0}


def test_a_lost_node_ends_one_job_and_queues_the_other_again(used: Cluster) -> None:
    again = quick(used, "sleep 300", "-w", "n2", "--requeue")
    once = quick(used, "sleep 300", "-w", "n2", "--no-requeue")
    for id in (again, once):
        used.wait_state(id, "RUNNING")
    used.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    states = seen([once], over)
    assert (states[once].word, states[once].nodes) == ("NODE_FAIL", "n2")
    states = seen([again], lambda state: state.word == "PENDING")  # for sacct it is NODE_FAIL
    assert (states[again].restarts, states[again].over) == (1, False)
    used.mend()
    states = seen([again], lambda state: state.word == "RUNNING")
    assert (states[again].restarts, states[again].nodes) == (1, "n2")
    call.scancel([again])
    assert seen([again], over)[again].word == "CANCELLED"


@pytest.mark.slow
def test_the_end_of_its_time(used: Cluster) -> None:
    id = quick(used, "sleep 300", "--time=1")
    used.wait_state(id, "TIMEOUT", timeout_s=150)
    assert look([id])[id].over


def script(folder: Path, *lines: str) -> Path:
    path = folder / "job.sh"
    text = ["#!/bin/bash", *(f"#SBATCH --{line}" for line in lines), "#SBATCH --output=/dev/null"]
    path.write_text("\n".join([*text, "true", ""]))
    return path


def refused(path: Path, dependency: str | None = None, test_only: bool = True) -> str:
    with pytest.raises(ConfigError) as raised:
        call.sbatch(path, dependency, test_only)
    (problem,) = raised.value.problems
    return problem


def test_what_the_cluster_refuses(used: Cluster, tmp_path: Path) -> None:
    assert refused(script(tmp_path, "partition=nosuch")) == (
        "launch.slurm.partition: SLURM takes none like this; there are main, spot [sbatch: error: "
        "invalid partition specified: nosuch; allocation failure: Invalid partition name specified]"
    )
    assert call.partitions() == ["main", "spot"]
    assert refused(script(tmp_path, "nodes=5", "partition=spot")).startswith(
        "launch.nnodes=5: partition spot has 2; ask for fewer nodes, or name another"
    )
    assert refused(script(tmp_path, "nodes=3-4")).startswith("launch.nnodes=3: partition main")
    assert "2 nodes, but none like that" in refused(script(tmp_path, "cpus-per-task=99"))
    assert refused(script(tmp_path, "constraint=fast")).startswith("launch.slurm.constraint: ")
    assert refused(script(tmp_path, "time=soon")).startswith("launch.slurm.time: ")
    assert refused(script(tmp_path, "gres=gpu:1")).startswith("launch.slurm.gpus_per_node: ")
    assert refused(script(tmp_path, "bogus=1")).startswith("launch.slurm.options: ")
    assert refused(script(tmp_path), "afterok:no", test_only=False).startswith(
        "launch.slurm.dependency: "
    )
    assert used.queued() == {}


def test_a_script_is_tried_then_submitted(used: Cluster, tmp_path: Path) -> None:
    path = script(tmp_path, "nodes=2")
    assert call.sbatch(path, None, test_only=True) == ""
    first = call.sbatch(path, None, test_only=False)
    second = call.sbatch(path, f"afterany:{first}", test_only=False)
    assert int(second) == int(first) + 1
    assert {s.word for s in seen([first, second], over).values()} == {"COMPLETED"}


def test_nodes_that_are_down_are_waited_for(used: Cluster, tmp_path: Path) -> None:
    used.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    assert call.sbatch(script(tmp_path, "nodes=2"), None, test_only=True) == ""
    assert refused(script(tmp_path, "nodes=3")).startswith("launch.nnodes=3: partition main has 2")
    used.mend()


def test_a_controller_that_does_not_answer(
    used: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = used.conf.read_text().splitlines()
    lines = ["SlurmctldPort=1" if x.startswith("SlurmctldPort=") else x for x in lines]
    lines.append("MessageTimeout=2")
    (tmp_path / "slurm.conf").write_text(
        "\n".join(x for x in lines if x != "MessageTimeout=10") + "\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    said = refused(script(tmp_path), test_only=False)
    assert said.startswith("sbatch: SLURM's controller does not answer; wait for it and type the")
    assert "[sbatch: error: " in said and "Unable to contact slurm controller" in said


def test_the_doctor_sees_the_cluster(used: Cluster) -> None:
    (line,) = slurm(slurm_facts())
    assert (line.state, line.why) == ("ok", "nodes: 2 idle")


@both
def test_a_row_for_whatever_slurm_ended(used: Cluster, tmp_path: Path) -> None:
    """Looked at while it happens: none gets a row before it is over, each exactly one."""
    sweep = Sweep(tmp_path / "sweep", plan(tmp_path))
    ids = {
        "cancelled": quick(used, "sleep 300", "--hold"),
        "killed": quick(used, "kill -TERM $$"),
        "start": quick(used, "exit 127"),
        "node_lost": quick(used, "sleep 300", "-w", "n2", "--no-requeue"),
        "requeued": quick(used, "sleep 300", "-w", "n2", "--requeue"),
    }
    sweep.numbered({**ids, "lost": "999999"}, age_s=2 * QUIET_S)
    for name in ("node_lost", "requeued"):
        used.wait_state(ids[name], "RUNNING")
    used.run("scancel", ids["cancelled"])
    used.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    settled: list[str] = []
    deadline = time.monotonic() + 30
    while len(settled) < 5 and time.monotonic() < deadline:
        settled += settle(sweep.root, look([*ids.values(), "999999"]))
        time.sleep(APART_S / 8)
    assert sorted(settled) == sorted({*ids, "lost"} - {"requeued"})
    kinds = {name: sweep.record(name)["status"]["kind"] for name in settled}
    assert kinds == {name: name for name in settled}
    assert not (sweep.root / "requeued/result.json").exists()
    used.run("scancel", ids["requeued"])
    used.mend()
