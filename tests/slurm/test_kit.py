"""The cluster of these tests: it runs jobs, and nothing that a test leaves on it goes unseen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.compare import pairs, table
from tests.slurm.bound import Bound
from tests.slurm.cluster import NODES, Cluster

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]


def test_a_job_sees_two_machines(cluster: Cluster, tmp_path: Path) -> None:
    shows = 'srun sh -c "hostname; hostname -i; ls -d /proc/[0-9]* | wc -l"'
    id = cluster.submit(
        "-N2", "--ntasks-per-node=1", "-o", "out.txt", "--wrap", shows, cwd=tmp_path
    )
    cluster.wait_state(id, "COMPLETED")
    said = (tmp_path / "out.txt").read_text().split()
    assert set(NODES) <= set(said)
    addresses = {word for word in said if word.startswith("10.")}
    assert len(addresses) == 2
    assert all(int(word) < 20 for word in said if word.isdigit())  # its own process table
    assert cluster.job(id)["ExitCode"] == "0:0"
    assert id in cluster.run("sacct", "-n", "-X", "-j", id, "-o", "JobID")
    assert cluster.guests() == set() and len(cluster.pids()) >= 8


@pytest.mark.parametrize("cluster", [False], indirect=True)
def test_without_accounting(cluster: Cluster) -> None:
    done = subprocess.run(["sacct"], env=cluster.env, capture_output=True, text=True)
    assert done.returncode != 0 and "disabled" in done.stderr
    with pytest.raises(AssertionError, match="disabled"):
        cluster.run("sacct")


def test_what_is_left_is_named_and_ended(cluster: Cluster) -> None:
    jobs = [cluster.submit("-o", "/dev/null", "--wrap", "exec sleep 301") for _ in range(2)]
    jobs += [cluster.submit("-o", "/dev/null", "--begin=now+1hour", "--wrap", "true")]
    cluster.wait_state(jobs[1], "RUNNING")
    left = cluster.clear()
    assert {f"job {jobs[2]} is PENDING", f"job {jobs[0]} is RUNNING"} <= set(left)
    assert cluster.clear() == []
    assert {cluster.job(id)["JobState"] for id in jobs} == {"CANCELLED"}


def test_a_process_that_outlives_its_job_is_found(cluster: Cluster) -> None:
    """SLURM follows parents here, so that one in a session of its own stays."""
    id = cluster.submit("-o", "/dev/null", "--wrap", "setsid -f sleep 302 >/dev/null; sleep 0.1")
    cluster.wait_state(id, "COMPLETED")
    left = cluster.clear(within_s=1)
    assert left == ["process sleep 302"]
    assert cluster.job_pids() == set()


def test_a_command_that_stays_is_found(cluster: Cluster) -> None:
    process = subprocess.Popen(["sleep", "303"], env=cluster.env)
    assert cluster.clear(within_s=0.5) == ["process sleep 303"]
    assert process.wait(timeout=10) == -9


@pytest.mark.parametrize("by", ["number", "time"])
def test_the_bound_ends_all(cluster: Cluster, by: str) -> None:
    id = cluster.submit(
        "-o", "/dev/null", "--wrap", "for i in $(seq 30); do sleep 304 & done; wait"
    )
    cluster.wait_state(id, "RUNNING")
    with Bound([cluster], most=20 if by == "number" else 1000) as bound:
        if by == "time":
            bound.deadline = 0.0
        cluster.wait_state(id, "CANCELLED")
    assert bound.broken and ("more than 20" if by == "number" else "over time") in bound.broken
    assert cluster.clear() == []


def test_a_node_that_lost_power_comes_back(cluster: Cluster) -> None:
    cluster.kill_node("n2")
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    assert cluster.clear() == []
    assert set(cluster.nodes().values()) == {"idle"}
    id = cluster.submit("-N2", "-o", "/dev/null", "--wrap", "srun true")
    cluster.wait_state(id, "COMPLETED")


def test_a_controller_that_died_comes_back(cluster: Cluster, until: Callable[..., None]) -> None:
    pid = int((cluster.folder / "run" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: cluster.dead() == ["slurmctld"], timeout_s=10)
    cluster.clear()  # the end of an earlier job may not have been written: it is back
    assert cluster.clear() == []
    assert cluster.run("srun", "-w", "n1", "hostname") == "n1\n"


def test_a_plugged_out_node_comes_back(cluster: Cluster) -> None:
    cluster.unplug("n2")
    assert cluster.clear() == []
    assert cluster.run("srun", "-w", "n2", "hostname") == "n2\n"


def test_two_clusters_do_not_meet(clusters: Callable[[bool], Cluster]) -> None:
    one, other = clusters(True), clusters(False)
    assert one.pids().isdisjoint(other.pids())
    assert one.port != other.port and one.env["SLURM_CONF"] != other.env["SLURM_CONF"]


@pytest.mark.parametrize(
    ("asked", "codes", "state"),
    [
        ({}, [0], "completed"),
        ({"exits": [75, 0], "rate": 50.0}, [75, 0], "completed"),
        ({"exits": [1]}, [1], "failed"),
        ({"exits": [130]}, [130], "interrupted"),
    ],
)
def test_the_stub_leaves_a_record(
    stub_python: Path, tmp_path: Path, asked: dict[str, object], codes: list[int], state: str
) -> None:
    cell = tmp_path / "sweep" / "cell-r0"
    cell.mkdir(parents=True)
    (cell / "stub.json").write_text(json.dumps(asked | {"sleep_s": 0}))
    words = [sys.executable, str(stub_python), "-m", "paceline", "run", str(cell)]
    assert [subprocess.run(words).returncode for _ in codes] == codes
    assert len((cell / "ran.txt").read_text().splitlines()) == len(codes)
    (row,) = table.make(pairs.load([tmp_path / "sweep"]))["rows"]
    assert (row["state"], row["name"]) == (state, "cell")
    if state == "completed":
        assert row["sustained_units_per_s"] == pytest.approx(asked.get("rate", 100.0))


def test_the_stub_in_a_job_stops_when_told(
    cluster: Cluster, stub_python: Path, tmp_path: Path
) -> None:
    script = f"exec srun {stub_python} -m paceline run {tmp_path}"
    cell = ["-N2", "--ntasks-per-node=1", "-o", str(tmp_path / "log"), "--wrap", script]
    (tmp_path / "stub.json").write_text('{"sleep_s": 60}')
    id = cluster.submit(*cell)
    cluster.wait_state(id, "RUNNING")
    ran = tmp_path / "ran.txt"
    while not ran.exists() or len(ran.read_text().splitlines()) < 2:
        assert cluster.job(id)["JobState"] == "RUNNING", (tmp_path / "log").read_text()
    cluster.run("scancel", "--signal=USR2", id)
    cluster.wait_state(id, "FAILED")
    assert cluster.job(id)["ExitCode"] == "75:0"
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["status"]["state"] == "preempted"
    hosts = {line.split()[1] for line in ran.read_text().splitlines()}
    assert hosts == {"host=n1", "host=n2"}


LEAVES = """
def test_leaves(cluster):
    cluster.submit("-o", "/dev/null", "--begin=now+1hour", "--wrap", "true")
"""


def test_a_test_that_leaves_a_job_fails(tmp_path: Path) -> None:
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    words = ["-p", "tests.slurm.conftest", "-p", "no:cacheprovider", "--timeout=100", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "left on the cluster: job 1 is PENDING" in done.stdout
