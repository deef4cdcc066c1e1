"""`paceline status` of what lies on a real cluster: by anyone, from anywhere, at any time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.controller.slurm import call
from paceline.controller.slurm.settle import settle
from tests.conftest import Command
from tests.slurm.cluster import Cluster
from tests.slurm.looks import over, quick, seen
from tests.submitted import Sweep, plan

pytestmark = pytest.mark.slurm


@pytest.fixture
def submitted(used: Cluster, tmp_path: Path) -> Sweep:
    """Four cells: one completes, one is killed, one runs, one asks for more than there is."""
    sweep = Sweep(tmp_path / "sweep", plan(tmp_path, "checkpoint=sync"))
    ids = {
        "good": quick(used, "true"),
        "killed": quick(used, "kill -KILL $$"),
        "runs": quick(used, "sleep 300"),
        "never": quick(used, "true", "-N5"),
    }
    sweep.numbered(ids)
    sweep.began("good", "completed")
    sweep.began("killed", step=12)
    sweep.began("runs", step=3)
    sweep.saved("killed", 10)
    seen([ids["good"], ids["killed"]], over)
    used.wait_state(ids["runs"], "RUNNING")
    return sweep


def lines_of(said: str) -> dict[str, str]:
    return {line.split()[0]: " ".join(line.split()[1:]) for line in said.splitlines() if line}


def test_status_without_a_submitter(
    used: Cluster, submitted: Sweep, command: Command, tmp_path: Path
) -> None:
    env = {"SLURM_CONF": str(used.conf), "COLUMNS": "200"}
    done = command("status", str(submitted.root), env=env)
    assert (done.code, done.err) == (0, "")
    said = lines_of(done.out)
    id = {entry["name"]: entry["id"] for entry in submitted.book()["jobs"]}
    assert said["runs"].startswith("running on n")
    assert said["runs"].endswith(f"step 3 of 30, 7/s (SLURM job {id['runs']})")
    assert said["never"].startswith("pending PartitionNodeLimit: it never starts like this; launch")
    assert said["killed"].startswith("failed killed: ended by SIGKILL (SLURM job")
    assert "at step 12 of 30; the same command goes on from step 10" in said["killed"]
    assert said["killed"].count(f"SLURM job {id['killed']}") == 1
    assert said["good"].startswith("completed")
    assert "ratio" not in done.out  # no table yet
    call.scancel([id["runs"], id["never"]])
    seen(id.values(), over)
    done = command("status", str(submitted.root.relative_to(tmp_path)), "--wait", env=env)
    assert done.code == 0
    assert {name: said.split()[0] for name, said in lines_of(done.out).items() if name in id} == {
        "good": "completed",
        "killed": "failed",
        "runs": "failed",
        "never": "failed",
    }
    assert "ratio" in done.out  # the table, as a report shows it
    rows = json.loads((submitted.root / "table.json").read_text())["rows"]
    assert {row["name"]: row["kind"] for row in rows} == {
        "good": None,
        "killed": "killed",
        "runs": "cancelled",
        "never": "cancelled",
    }


def test_status_as_json_of_one_cell_from_elsewhere(
    used: Cluster, submitted: Sweep, command: Command
) -> None:
    env = {"SLURM_CONF": str(used.conf)}
    done = command("status", str(submitted.root / "runs"), "--json", env=env)
    (line,) = json.loads(done.out)
    assert (line["state"], line["step"], line["slurm"]["word"]) == ("running", 3, "RUNNING")
    ids = [entry["id"] for entry in submitted.book()["jobs"]]
    assert line["slurm"]["id"] in ids
    used.run("scancel", *ids)
    seen(ids, over)


def test_status_where_there_is_no_squeue(
    used: Cluster, submitted: Sweep, command: Command, tmp_path: Path
) -> None:
    used.run("scancel", *(entry["id"] for entry in submitted.book()["jobs"]))
    done = command("status", str(submitted.root), env={"PATH": str(tmp_path)})
    assert done.code == 0
    assert done.err.startswith("squeue: not found; is this a machine that may submit to SLURM?")
    states = {name: said.split()[0] for name, said in lines_of(done.out).items()}
    assert states == {
        "good": "completed",
        "killed": "running",
        "runs": "running",
        "never": "pending",
    }


def test_a_person_without_a_right_to_write_sees_it_too(submitted: Sweep, used: Cluster) -> None:
    ids = [entry["id"] for entry in submitted.book()["jobs"]]
    used.run("scancel", *ids)
    states: Any = seen(ids, over)
    os.mkdir(submitted.root / "slurm" / ".settle.lock")  # root may write anywhere; not in this
    assert settle(submitted.root, states) == []
