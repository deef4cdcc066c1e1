"""What is looked at before ranks start: can checkpoints be written, and whose are those there?"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir

from paceline.__main__ import config_dir
from paceline.checkpoint.shelf import MANIFEST, Manifest, Shelf
from paceline.controller.checkpoints import another, check
from paceline.controller.identity import work
from paceline.controller.plan import Job, make_job
from paceline.types import ConfigError
from tests.conftest import TINY, Command

SAVED = [*TINY, "checkpoint=sync", "checkpoint.every_steps=10"]


def job(where: Path, *words: str) -> Job:
    where.mkdir(exist_ok=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        root = compose("config", [*SAVED, *words], return_hydra_config=True)
        return make_job(root, where)


def refused(made: Job) -> str:
    with pytest.raises(ConfigError) as raised:
        check(made)
    (problem,) = raised.value.problems
    return problem


def saved_by(of: Job, folder: Path, step: int) -> Path:
    """A committed checkpoint of that training, without a state: only its manifest is looked at."""
    shelf = Shelf(folder)
    shelf.stage(step)
    identity = {"work_hash": of.work_hash, "work": work(of.config)}
    return shelf.commit(Manifest(step, "torch", "", {"world_size": 1}, identity, {}))


def test_a_folder_that_can_be_written_is_made_and_left_empty(tmp_path: Path) -> None:
    check(job(tmp_path / "job"))
    assert list((tmp_path / "job/checkpoint").iterdir()) == []
    check(job(tmp_path / "none", "checkpoint=off"))
    assert not (tmp_path / "none/checkpoint").exists()


def test_a_file_in_its_place(tmp_path: Path) -> None:
    made = job(tmp_path / "job")
    (tmp_path / "job/checkpoint").write_text("")
    assert refused(made) == (
        f"{tmp_path}/job/checkpoint: no checkpoint can be written there (File exists); make it "
        "writable, choose another hydra.run.dir, or checkpoint=off"
    )


def test_what_to_resume_from_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases = [
        ("/nope", "does not exist"),
        (str(tmp_path / "empty"), "holds no committed checkpoint"),
    ]
    for path, what in cases:
        assert refused(job(tmp_path / "job", f"checkpoint.resume={path}")) == (
            f"checkpoint.resume={path}: {path} {what}; give a job's directory, its checkpoint "
            "folder, or one step_... in it"
        )
    assert refused(job(tmp_path / "job", "checkpoint.resume=required")) == (
        f"checkpoint.resume=required: {tmp_path}/job/checkpoint holds no committed checkpoint; use "
        "checkpoint.resume=auto to start fresh"
    )


def test_a_job_that_has_one_of_its_own_needs_no_other(tmp_path: Path) -> None:
    made = job(tmp_path / "job", "checkpoint.resume=/nope")
    saved_by(made, tmp_path / "job/checkpoint", 10)
    check(made)


@pytest.mark.parametrize("where", ["job", "elsewhere"])
def test_a_checkpoint_of_another_training(tmp_path: Path, where: str) -> None:
    other = job(tmp_path / "job", "run.seed=7", "model.hidden=[32]")
    path = saved_by(other, tmp_path / where / "checkpoint", 10)
    asked = "auto" if where == "job" else str(tmp_path / where)
    assert refused(job(tmp_path / "job", f"checkpoint.resume={asked}")) == (
        f"checkpoint.resume={asked}: {path} is of another training (model.hidden, run.seed "
        "differ); set them as they were, choose another hydra.run.dir, or start from step 0 with "
        "checkpoint.resume=off"
    )
    check(job(tmp_path / "job", "checkpoint.resume=off"))


def test_a_damaged_manifest_is_the_ranks_affair_and_the_one_before_decides(tmp_path: Path) -> None:
    made = job(tmp_path / "job")
    other = job(tmp_path / "job", "run.seed=7")
    (saved_by(made, tmp_path / "job/checkpoint", 20) / MANIFEST).write_text("{}")
    check(made)
    saved_by(other, tmp_path / "job/checkpoint", 10)
    assert "step_00000010 is of another training (run.seed differ)" in refused(made)


def test_fewer_steps_than_it_has_trained(tmp_path: Path) -> None:
    made = job(tmp_path / "job", "run.steps=30")
    path = saved_by(made, tmp_path / "job/checkpoint", 30)
    check(made)  # it may have died after its last step
    assert refused(job(tmp_path / "job", "run.steps=29")) == (
        f"run.steps=29: {path} has trained 30 already; raise it, choose another hydra.run.dir, or "
        "start from step 0 with checkpoint.resume=off"
    )


def test_whose_result_a_directory_holds(tmp_path: Path) -> None:
    made = job(tmp_path / "job")
    record: dict[str, Any] = {"job": made.section()}
    assert not another(made, record)
    assert not another(replace(made, repeat=1), record)
    assert another(job(tmp_path / "job", "run.steps=50", "strategy=ddp"), record)
    with pytest.raises(ConfigError) as raised:
        another(job(tmp_path / "job", "run.seed=7"), record)
    assert raised.value.problems == [
        f"hydra.run.dir={tmp_path}/job: it holds the result of another training (what is trained "
        "differs); choose another hydra.run.dir"
    ]


@pytest.mark.distributed
@pytest.mark.slow  # three jobs
def test_more_steps_of_the_same_training_go_on_from_its_checkpoint(command: Command) -> None:
    words = [*SAVED, "hydra.run.dir=job"]
    first = command(*words, "run.steps=20")
    assert first.code == 0, first.err
    path = command.cwd / "job/result.json"
    kept = path.read_bytes()

    other = command(*words, "run.steps=20", "run.seed=7")
    assert other.code == 2
    assert other.err == (
        "paceline: this config cannot run, 1 problem:\n"
        f"  - hydra.run.dir={path.parent}: it holds the result of another training (run.seed "
        "differ); choose another hydra.run.dir\n"
    )
    assert path.read_bytes() == kept

    again = command(*words, "run.steps=30", "strategy=ddp", "launch.nproc=2")
    assert again.code == 0, again.err
    said = "the same training finished here with other settings: its record is set aside"
    assert said in again.out
    assert "resumed from step 20" in again.out
    record = json.loads(path.read_text())
    assert record["checkpoint"]["resumed_from"] == 20
    assert (command.cwd / "job/attempts/001/result.json").read_bytes() == kept
    before = torch.tensor(json.loads(kept)["numerics"]["loss"])
    assert torch.equal(torch.tensor(record["numerics"]["loss"])[:20], before)
    assert len(record["numerics"]["loss"]) == 30


def test_the_check_needs_no_torch() -> None:
    code = "import sys, paceline.controller.checkpoints; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
