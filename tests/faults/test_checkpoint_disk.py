"""A disk that fills up, for one rank or for all, or can't be written: said, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.victim import torn
from tests.conftest import TINY, Command, Done

pytestmark = [pytest.mark.faults, pytest.mark.distributed]

ROOM, FILLED = "18m", "40m"
"""Two checkpoints of JOB have room, three have not; FILLED beside 22 MiB of something else."""

JOB = [
    *TINY,
    "optimizer=adamw",
    "model.hidden=[1024,512]",
    "checkpoint.every_steps=5",
    "checkpoint.keep_last=2",
    "launch.threads_per_rank=1",
    "hydra.run.dir=job",
]
"""7 MiB a checkpoint; the third is that of step 15."""

MOUNTED = """
mkdir -p job/checkpoint
mount -t tmpfs -o "size=$1,$2" none job/checkpoint || exit 99
[ -n "$3" ] && { head -c 22m /dev/zero > job/checkpoint/filler
    (until grep -qs "checkpoint of step" job/log/rank0.log; do sleep 0.02; done
    rm job/checkpoint/filler) & freeing=$!; }
shift 3
"$@"
code=$?
[ -n "$freeing" ] && kill "$freeing" 2> /dev/null
cp -a job/checkpoint after
exit $code
"""
"""In a mount namespace of its own, which takes the disk with it: a copy is left in `after`."""

FULL = '''
import os, sys

from torch import nn

FILE = ".staging/step_00000010/__1_0.distcp"


def fill(event, args):
    """The file of rank 1 in the second save goes to a disk that is always full: it becomes one
    just before it is opened."""
    if event == "open" and str(args[0]).endswith(FILE) and not os.path.lexists(args[0]):
        os.symlink("/dev/full", args[0])


class Model(nn.Sequential):
    def __init__(self, inputs, hidden, outputs):
        super().__init__(nn.Linear(inputs, 1024), nn.ReLU(), nn.Linear(1024, outputs))
        if os.environ.get("RANK") == "1":
            sys.addaudithook(fill)
'''


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where a small disk can't be made."""
    where = tmp_path_factory.mktemp("probe")
    mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(where)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=20)
    except FileNotFoundError as error:
        pytest.skip(f"a small disk needs {error.filename}")
    if done.returncode:
        pytest.skip(f"a small disk needs root: {done.stderr.strip()}")


def on_disk(
    command: Command, size: str, *words: str, how: str = "rw", freed: bool = False
) -> tuple[Done, Path]:
    """What the job did, and a copy of its checkpoint folder, which was a disk of that size."""
    program = ["unshare", "--mount", "bash", "-c", MOUNTED, "disk", size, how, "x" * freed]
    done = command.wait(
        command.start(*JOB, *words, program=[*program, sys.executable, "-m", "paceline"])
    )
    assert done.code != 99, done.err
    return done, command.cwd / "after"


def ranks(strategy: str) -> list[str]:
    return [f"strategy={strategy}", *(["launch.nproc=2"] if strategy != "single" else [])]


def record(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((done.cwd / "job/result.json").read_text())
    return found


def committed(folder: Path) -> list[int]:
    """Their steps; each must be whole."""
    places = sorted(folder.glob("step_*"))
    assert [wrong for place in places for wrong in torn(place)] == []
    return [int(place.name.removeprefix("step_")) for place in places]


@pytest.mark.parametrize(
    ("checkpoint", "strategy"),
    [("sync", "single"), ("dcp", "ddp"), ("async", "ddp"), ("dcp", "fsdp")],
)
def test_a_full_disk_ends_the_job_and_earlier_checkpoints_stay(
    command: Command, mounts: None, checkpoint: str, strategy: str
) -> None:
    done, after = on_disk(command, ROOM, *ranks(strategy), f"checkpoint={checkpoint}")
    assert done.code == 1, done.out + done.err
    status = record(done)["status"]
    assert (status["state"], status["kind"]) == ("failed", "disk_full"), status["message"]
    file = "state.pt" if checkpoint == "sync" else "__"
    assert f"checkpoint/.staging/step_00000015/{file}" in status["message"]
    assert (
        "No space left on device; free space, keep fewer (checkpoint.keep_last), or save"
        in (status["message"])
    )
    assert status["message"].splitlines()[0] in done.out
    assert committed(after) == [5, 10]

    subprocess.run(["rm", "-rf", "job/checkpoint"], cwd=command.cwd, check=True)
    os.rename(after, command.cwd / "job/checkpoint")
    again = command(*JOB, *ranks(strategy), f"checkpoint={checkpoint}")
    assert again.code == 0, again.out + again.err
    assert "resumed from step 10" in again.out
    assert committed(command.cwd / "job/checkpoint") == [25, 30]


@pytest.mark.parametrize(("checkpoint", "strategy"), [("sync", "single"), ("async", "ddp")])
def test_a_job_that_may_go_on_trains_to_its_end_and_saves_again(
    command: Command, mounts: None, checkpoint: str, strategy: str
) -> None:
    words = [*ranks(strategy), f"checkpoint={checkpoint}", "checkpoint.on_failure=continue"]
    # steps long enough for the space to be freed between two saves
    done, after = on_disk(command, FILLED, *words, "data.global_batch_size=1024", freed=True)
    assert done.code == 0, done.out + done.err
    saves = record(done)["checkpoint"]["saves"]
    states = {save["step"]: save["state"] for save in saves}
    assert (states[5], states[10], states[15]) == ("committed", "committed", "failed")
    assert states[30] == "committed", states
    (failed,) = [save for save in saves if save["step"] == 15]
    assert "No space left on device" in failed["message"]
    assert f"WARNING the checkpoint of step 15 failed: {failed['message']}" in done.out
    assert committed(after)[-1] == 30
    assert not (after / ".staging").exists() or not any((after / ".staging").iterdir())


@pytest.mark.parametrize(("checkpoint", "on_failure"), [("dcp", "stop"), ("async", "continue")])
def test_the_disk_of_one_rank_alone(command: Command, checkpoint: str, on_failure: str) -> None:
    (command.cwd / "mine.py").write_text(FULL)
    words = ["model._target_=mine.Model", *ranks("ddp"), f"checkpoint={checkpoint}"]
    done = command(*JOB, *words, f"checkpoint.on_failure={on_failure}")
    found = record(done)
    steps = committed(command.cwd / "job/checkpoint")
    said = "__1_0.distcp: No space left on device; free space"
    if on_failure == "stop":
        status = found["status"]
        assert (done.code, status["kind"]) == (1, "disk_full"), status["message"]
        assert said in status["message"] and "rank 1: " in status["message"]
        assert steps == [5]
        return
    assert done.code == 0, done.out + done.err
    states = {save["step"]: save["state"] for save in found["checkpoint"]["saves"]}
    assert states == dict.fromkeys((5, 15, 20, 25, 30), "committed") | {10: "failed"}
    assert said in next(s["message"] for s in found["checkpoint"]["saves"] if s["step"] == 10)
    assert steps == [25, 30]


def test_a_folder_that_cannot_be_written_is_refused_before_the_start(
    command: Command, mounts: None
) -> None:
    done, after = on_disk(command, ROOM, "checkpoint=sync", how="ro")
    assert done.code == 2, done.out + done.err
    assert done.err == (
        "paceline: this config cannot run, 1 problem:\n"
        f"  - {command.cwd}/job/checkpoint: no checkpoint can be written there (Read-only file "
        "system); make it writable, choose another hydra.run.dir, or checkpoint=off\n"
    )
    assert not (command.cwd / "job/log").exists()
    assert not list(after.iterdir())


def test_a_folder_that_is_full_already_is_refused_too(command: Command, mounts: None) -> None:
    done, _ = on_disk(command, "22m", "checkpoint=sync", freed=True)
    assert done.code == 2, done.out + done.err
    assert "no checkpoint can be written there (No space left on device)" in done.err
    assert not (command.cwd / "job/log").exists()
