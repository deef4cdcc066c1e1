"""Nobody waits: detached, killed, interrupted; many cells, few in flight. All without torch."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY, Command, Done
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm

SWEEP = "outputs/sweeps/s"


@pytest.fixture
def sweep(command: Command, stub_python: Path) -> list[str]:
    """`-m` and a stub in the place of Python in the cells; the collector gets the real one."""
    command.most = 120
    words = ["-m", *TINY, "hydra/launcher=slurm", f"hydra.sweep.dir={SWEEP}"]
    return [*words, f"launch.slurm.python={stub_python}", "launch.slurm.cpus_per_task=1"]


def env(cluster: Cluster, **stub: Any) -> dict[str, str]:
    return cluster.env | {"STUB": json.dumps(stub)}


def entries(command: Command) -> list[dict[str, str]]:
    path = command.cwd / SWEEP / "slurm/jobs.json"
    found: list[dict[str, str]] = json.loads(path.read_text())["jobs"] if path.exists() else []
    return found


def ran(command: Command) -> dict[str, int]:
    """How often each cell was run."""
    paths = (command.cwd / SWEEP).glob("*/ran.txt")
    return {path.parent.name: len(path.read_text().splitlines()) for path in paths}


def table(command: Command) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((command.cwd / SWEEP / "table.json").read_text())
    return found


def test_sixty_cells_eight_in_flight(command: Command, cluster: Cluster, sweep: list[str]) -> None:
    words = ["repeat=range(60)", "hydra.launcher.max_in_flight=8"]
    process = command.start(*sweep, *words, env=env(cluster, sleep_s=0.5))
    most = 0
    while process.poll() is None:
        running = [s for s in cluster.queued().values() if s == "RUNNING"]
        most = max(most, len(running))
        time.sleep(0.2)
    done = command.wait(process)
    assert done.code == 0, done.err + done.out
    assert list(ran(command).values()) == [1] * 60
    assert len(entries(command)) == len({e["id"] for e in entries(command)}) == 60
    (row,) = table(command)["rows"]
    assert row["repeats"] == 60 and row["state"] == "completed"
    assert 1 < most <= 8


def test_detached_the_collector_makes_the_table(
    command: Command, cluster: Cluster, sweep: list[str], until: Callable[..., None]
) -> None:
    words = ["run.seed=0,1,2", "detach=true"]
    done = command(*sweep, *words, env=env(cluster, sleep_s=1, exits=[0]))
    assert done.code == 0, done.err
    assert f"paceline status {command.cwd / SWEEP} --wait" in done.out
    assert not (command.cwd / SWEEP / "table.json").exists()
    until((command.cwd / SWEEP / "table.json").exists)
    assert [row["state"] for row in table(command)["rows"]] == ["completed"] * 3
    until(lambda: cluster.queued() == {})
    assert set(ran(command).values()) == {1}


@pytest.mark.parametrize("cluster", [True, False], indirect=True, ids=["sacct", "no sacct"])
def test_a_killed_submitter_loses_nothing(
    command: Command, cluster: Cluster, sweep: list[str], until: Callable[..., None]
) -> None:
    """One of the cells leaves no result at all: that is a row too, by the collector alone."""
    process = command.start(*sweep, "run.seed=0,1,2", env=env(cluster, sleep_s=3, exits=[9]))
    until(lambda: len(entries(command)) == 3 and len(ran(command)) == 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    status = command("status", str(command.cwd / SWEEP), env=cluster.env)
    assert status.code == 0, status.err
    assert len(re.findall("running|pending", status.out)) >= 3
    until((command.cwd / SWEEP / "table.json").exists)
    rows = table(command)["rows"]
    assert [row["state"] for row in rows] == ["failed"] * 3
    for path in (command.cwd / SWEEP).glob("*/result.json"):
        record = json.loads(path.read_text())["status"]
        assert record["kind"] == "error" and "exit code 9" in record["message"]
    until(lambda: cluster.queued() == {})
    assert set(ran(command).values()) == {1}


def test_the_same_command_attaches_to_what_runs(
    command: Command, cluster: Cluster, sweep: list[str], until: Callable[..., None]
) -> None:
    words = ["run.seed=0,1"]
    first = command(*sweep, *words, "detach=true", env=env(cluster, sleep_s=4))
    assert first.code == 0, first.err
    ids = [e["id"] for e in entries(command)]
    again = command(*sweep, *words, env=env(cluster, sleep_s=4))
    assert again.code == 0, again.err
    assert [e["id"] for e in entries(command)] == ids
    assert set(ran(command).values()) == {1}
    until(lambda: cluster.queued() == {})


class TestCtrlC:
    """On a terminal it asks; elsewhere the jobs are left alone."""

    def on_terminal(
        self, command: Command, cluster: Cluster, words: list[str], answer: str
    ) -> tuple[int, str]:
        main, side = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *words],
            cwd=command.cwd,
            env=env(cluster, sleep_s=60) | {"PACELINE_TEST": command.mark, "TERM": "xterm"},
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        os.close(side)
        said, deadline, asked = "", time.monotonic() + 100, False
        while time.monotonic() < deadline:
            if select.select([main], [], [], 0.2)[0]:
                try:
                    said += os.read(main, 4096).decode(errors="replace")
                except OSError:
                    break
            if not asked and len(ran(command)) == 2:
                process.send_signal(signal.SIGINT)
                asked = True
            if asked and "[d]etach" in said and answer:
                os.write(main, answer.encode())
                answer = ""
            if process.poll() is not None:
                break
        code = process.wait(20)
        os.close(main)
        return code, said

    def test_cancel(self, command: Command, cluster: Cluster, sweep: list[str]) -> None:
        code, said = self.on_terminal(command, cluster, [*sweep, "run.seed=0,1"], "c\n")
        assert code == 130, said
        assert cluster.queued() == {}
        assert [row["state"] for row in table(command)["rows"]] == ["failed"] * 2

    def test_detach(
        self, command: Command, cluster: Cluster, sweep: list[str], until: Callable[..., None]
    ) -> None:
        code, said = self.on_terminal(command, cluster, [*sweep, "run.seed=0,1"], "d\n")
        assert code == 130, said
        assert "left alone" in said
        ids = [e["id"] for e in entries(command)]
        assert {cluster.queued().get(id) for id in ids} == {"RUNNING"}
        cluster.run("scancel", *cluster.queued())
        until(lambda: cluster.queued() == {})

    def test_without_a_terminal(
        self, command: Command, cluster: Cluster, sweep: list[str], until: Callable[..., None]
    ) -> None:
        process = command.start(*sweep, "run.seed=0,1", env=env(cluster, sleep_s=60))
        until(lambda: len(ran(command)) == 2)
        process.send_signal(signal.SIGTERM)
        done: Done = command.wait(process)
        assert done.code == 130, done.err + done.out
        ids = [e["id"] for e in entries(command)]
        assert f"scancel {' '.join(ids)}" in done.out
        assert {cluster.queued().get(id) for id in ids} == {"RUNNING"}
        cluster.run("scancel", *cluster.queued())
        until(lambda: cluster.queued() == {})


def test_an_allocation_that_is_preempted_goes_on_with_its_cells(
    command: Command, cluster: Cluster, sweep: list[str]
) -> None:
    """Each of three cells is told to leave once: the job goes back to the queue three times."""
    words = ["hydra.launcher.mode=allocation", "run.seed=0,1,2"]
    done = command(*sweep, *words, env=env(cluster, sleep_s=0.1, exits=[75, 0]), timeout_s=150)
    assert done.code == 0, done.err + done.out
    assert list(ran(command).values()) == [2, 2, 2]
    (number,) = {e["id"] for e in entries(command)}
    assert cluster.job(number)["Restarts"] == "3"
    assert [row["state"] for row in table(command)["rows"]] == ["completed"] * 3


def test_requeues_come_to_an_end(command: Command, cluster: Cluster, sweep: list[str]) -> None:
    """A cell that is preempted again and again is a row in the end."""
    words = ["launch.slurm.max_requeues=1"]
    done = command(*sweep, *words, env=env(cluster, sleep_s=0.1, exits=[75]))
    assert done.code == 1, done.err + done.out
    assert set(ran(command).values()) == {2}
    (path,) = (command.cwd / SWEEP).glob("*/result.json")
    status = json.loads(path.read_text())["status"]
    assert (status["state"], status["kind"]) == ("failed", "preempted")
    assert "max_requeues" in status["message"]


class TestBadInput:
    """One message, and nothing in the queue."""

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["launch.slurm.partition=nope"], "launch.slurm.partition"),
            (["strategy=ddp", "launch.nnodes=3", "data.global_batch_size=60"], "launch.nnodes=3"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_exit_2(
        self, command: Command, cluster: Cluster, sweep: list[str], words: list[str], says: str
    ) -> None:
        done = command(*sweep, "run.seed=0,1", *words, env=env(cluster))
        assert done.code == 2, done.out
        assert says in done.err and "Traceback" not in done.err
        assert cluster.queued() == {}
        assert ran(command) == {}

    def test_a_single_run(self, command: Command, cluster: Cluster) -> None:
        words = [*TINY, "launch=slurm", "launch.slurm.partition=nope"]
        done = command(*words, env=env(cluster))
        assert done.code == 2, done.out
        assert "launch.slurm.partition" in done.err and "Traceback" not in done.err
        assert cluster.queued() == {} and not list(command.cwd.rglob("jobs.json"))

    def test_no_sbatch(self, command: Command, cluster: Cluster, sweep: list[str]) -> None:
        done = command(*sweep, env=env(cluster) | {"PATH": "/nowhere"})
        assert done.code == 2
        assert "sbatch: not found" in done.err and "Traceback" not in done.err

    def test_a_directory_that_cant_be_written(
        self, command: Command, cluster: Cluster, sweep: list[str]
    ) -> None:
        single = [*TINY, "launch=slurm", "hydra.run.dir=/proc/paceline/s"]
        for words in ([*sweep, "hydra.sweep.dir=/proc/paceline/s"], single):
            done = command(*words, env=env(cluster))
            assert done.code == 2 and "Traceback" not in done.err
            assert "/proc/paceline/s" in done.err and cluster.queued() == {}

    def test_inside_of_a_job(self, command: Command, cluster: Cluster, sweep: list[str]) -> None:
        done = command(*sweep, env=env(cluster) | {"PACELINE_SUBMITTED": "1"})
        assert done.code == 2 and "PACELINE_SUBMITTED" in done.err
        assert cluster.queued() == {}

    def test_a_setup_that_fails_is_a_row(
        self, command: Command, cluster: Cluster, sweep: list[str]
    ) -> None:
        words = ['launch.slurm.setup=["echo about to fail","exit 1"]', "run.seed=0,1"]
        done = command(*sweep, *words, env=env(cluster))
        assert done.code == 1, done.err + done.out
        assert ran(command) == {}
        for path in (command.cwd / SWEEP).glob("*/result.json"):
            status = json.loads(path.read_text())["status"]
            assert (status["state"], status["kind"]) == ("failed", "setup")
            (log,) = path.parent.glob("slurm/*.log")
            assert str(log) in status["message"]
        assert cluster.queued() == {}

    def test_a_python_that_isnt_there_is_a_row(
        self, command: Command, cluster: Cluster, sweep: list[str]
    ) -> None:
        done = command(*sweep, "launch.slurm.python=/no/python", env=env(cluster))
        assert done.code == 1, done.err + done.out
        (path,) = (command.cwd / SWEEP).glob("*/result.json")
        status = json.loads(path.read_text())["status"]
        assert status["kind"] == "start" and "/no/python" in status["message"]
