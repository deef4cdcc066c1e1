"""Drills of real jobs: they pass, they change nothing, and what is planted is named."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.controller import drill
from tests.conftest import TINY, Command

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

MODEL = """
from torch import nn

SCALE = 1.0


class Net(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, hidden[0]), nn.Linear(hidden[0], outputs)

    def forward(self, x):
        return SCALE * self.last(self.first(x).relu())
"""

LOADS_WRONG = """

def _off(model, *_):
    model.last.bias.data[0] += 1e-3


_init = Net.__init__


def _made(self, *given, **named):
    _init(self, *given, **named)
    self.register_load_state_dict_post_hook(_off)


Net.__init__ = _made
"""


@pytest.fixture(scope="module")
def job(module_command: Command) -> Path:
    """Two ranks, saved at steps 10, 20 and 30 of 30; its model lies in the working directory."""
    (module_command.cwd / "mine.py").write_text(MODEL)
    words = ["strategy=ddp", "launch.nproc=2", "checkpoint=dcp", "checkpoint.every_steps=10"]
    words += ["checkpoint.keep_last=3", "optimizer=adamw", "model._target_=mine.Net"]
    done = module_command(*TINY, *words)
    assert done.code == 0, done.err
    return Path(done.job()["job"]["dir"])


def test_two_ranks_come_back_and_one(job: Path, module_command: Command) -> None:
    before = content(job)
    done = module_command("checkpoint", "drill", str(job / "checkpoint/step_00000020"))
    assert done.code == 0, done.out + done.err
    assert content(job) == before
    made = certificate(job)
    assert made["verdict"] == "passed" and made["step"] == 20 and made["reasons"] == []
    files = (job / "checkpoint/step_00000020").glob("*")
    assert made["verified_bytes"] == sum(
        f.stat().st_size for f in files if f.name != "manifest.json"
    )
    same, other = made["runs"]
    assert [(r["world_size"], r["strategy"]) for r in made["runs"]] == [(2, "ddp"), (1, "ddp")]
    for run in made["runs"]:
        assert run["steps"] == [20, 25] and run["compared_with"] == "the job's own record"
        assert run["digests"]["equal"] == run["digests"]["total"] > 20
        assert run["samples_equal"] is True
    assert same["losses"] == {"bit_equal": True, "max_rel_diff": 0.0, "tolerance": 0.0}
    assert same["grad_norms"]["bit_equal"] and same["reasons"] == []
    assert other["losses"]["max_rel_diff"] <= other["losses"]["tolerance"] == 1e-4
    assert "random numbers of the ranks anew: 2 saved, 1 go on" in other["reasons"]
    # of each rank alone: not compared where another number goes on
    assert same["digests"]["total"] > other["digests"]["total"]
    assert "passed" in done.out and "losses equal bit for bit" in done.out


def test_a_model_that_was_edited_since_fails_with_its_losses(job: Path, command: Command) -> None:
    (command.cwd / "mine.py").write_text(MODEL.replace("SCALE = 1.0", "SCALE = 1.01"))
    copied = shutil.copytree(job, command.cwd / "job")
    done = command("checkpoint", "drill", str(copied / "checkpoint/step_00000020"), "--steps", "2")
    assert done.code == 1, done.err
    made = certificate(copied)
    assert made["verdict"] == "failed"
    for run in made["runs"]:
        assert run["digests"]["differing"] == []
        assert run["losses"]["bit_equal"] is False
        assert any("the loss of step 20 is" in reason for reason in run["reasons"])
    assert "the same bits are demanded" in done.out
    logs = sorted(p.relative_to(copied) for p in (copied / "drill").rglob("*") if p.is_file())
    assert logs and all(p.parts[3] == "log" for p in logs)  # nothing else stays


def test_state_that_was_restored_wrong_is_named(job: Path, command: Command) -> None:
    (command.cwd / "mine.py").write_text(MODEL + LOADS_WRONG)
    copied = shutil.copytree(job, command.cwd / "job")
    words = [str(copied / "checkpoint/step_00000020"), "--steps", "1", "--json"]
    done = command("checkpoint", "drill", *words)
    assert done.code == 1, done.err
    made = json.loads(done.out)
    assert made == certificate(copied)
    for run in made["runs"]:
        assert run["digests"]["differing"] == ["model.last.bias"]
        assert "restored otherwise than in the files: model.last.bias" in run["reasons"]


def test_one_process_saved_in_the_background(command: Command) -> None:
    """Its record ends where the checkpoint does: the uninterrupted training is made."""
    done = command(*TINY, "checkpoint=async", "checkpoint.every_steps=20")
    assert done.code == 0, done.err
    job = Path(done.job()["job"]["dir"])
    before = content(job)
    done = command("checkpoint", "drill", str(job), "--steps", "3")
    assert done.code == 0, done.out + done.err
    assert content(job) == before
    made = certificate(job)
    assert made["verdict"] == "passed" and made["step"] == 30
    whole, again, other = made["runs"]
    assert [run["steps"] for run in made["runs"]] == [[30, 36], [33, 36], [30, 36]]
    assert (other["world_size"], other["strategy"]) == (2, "ddp")
    assert whole["losses"] is None and whole["samples_equal"] is True
    assert again["losses"]["bit_equal"] and again["grad_norms"]["bit_equal"]
    assert other["losses"]["max_rel_diff"] <= 1e-4 and other["samples_equal"] is True


def test_ctrl_c_leaves_nothing(
    job: Path, module_command: Command, until: Callable[..., None]
) -> None:
    before = content(job)
    drilled = module_command.start("checkpoint", "drill", str(job), "--steps", "100000")
    until(lambda: list(job.glob("drill/001/*/log/progress.json")))
    drilled.send_signal(signal.SIGINT)
    done = module_command.wait(drilled)
    assert done.code == 130 and "interrupted" in done.err
    assert content(job) == before
    assert not (job / "drill").exists()
    module_command.assert_nothing_left()


def test_damage_fails_and_names_the_file(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(job, tmp_path / "job")
    path = copied / "checkpoint/step_00000010"
    file = next(path.glob("__1_*"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    assert drill.run([str(path)]) == 1
    made = certificate(copied)
    assert made["verdict"] == "failed" and made["runs"] == [] and made["checkpoint"] is None
    assert made["damaged"] == [f"{file} is damaged: its bytes are not those that were written"]
    assert str(file) in capsys.readouterr().out


def test_what_can_not_be_drilled(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: str) -> str:
        assert drill.run([*words]) == 2
        return capsys.readouterr().err

    assert "does not exist" in refused(str(tmp_path / "nothing"))
    lone = shutil.copytree(job / "checkpoint/step_00000020", tmp_path / "lone/step_00000020")
    assert "there is no job.yaml" in refused(str(lone))
    assert "give 1 or more" in refused(str(job), "--steps", "0")
    assert "data.global_batch_size=64: 3 ranks" in refused(str(job), "--world", "3")
    assert "--world 2" in refused(str(job), "--world", "2")
    descriptor = os.open(job / ".lock", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "in use by a running paceline" in refused(str(job))
    finally:
        os.close(descriptor)
    assert not (job / "drill").exists()


def content(job: Path) -> dict[str, str]:
    """Every file of a job but the certificate, by the hash of its bytes."""
    return {
        str(p.relative_to(job)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(job.rglob("*"))
        if p.is_file() and p.name != "drill.json"
    }


def certificate(job: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((job / "drill.json").read_text())
    return made
