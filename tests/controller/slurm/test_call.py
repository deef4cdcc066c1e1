"""SLURM's commands where there are none, and what they refuse in our words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.controller.slurm import call
from paceline.controller.slurm.state import look
from paceline.types import ConfigError


def problem(of: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        of()
    (only,) = raised.value.problems
    return str(only)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without SLURM's commands."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("sbatch", lambda: call.sbatch(Path("job.sh"), None, test_only=False)),
        ("squeue", lambda: call.squeue(["1"])),
        ("scancel", lambda: call.scancel(["1"])),
        ("sinfo", call.partitions),
        ("squeue", lambda: look(["1"])),
    ],
)
def test_no_slurm_here(nowhere: Path, name: str, called: Callable[[], Any]) -> None:
    assert problem(called) == (
        f"{name}: not found; is this a machine that may submit to SLURM? "
        "hydra/launcher=local runs here"
    )


def test_no_accounts_without_sacct(nowhere: Path) -> None:
    assert call.sacct(["1"]) is None


def test_nothing_asked_is_nothing_run(nowhere: Path) -> None:
    assert (call.squeue([]), call.sacct([]), look([])) == ("", "", {})
    call.scancel([])


def test_only_slurm_conf_of_slurms_variables_reaches_it_and_ids_go_in_chunks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "squeue"
    program.write_text(
        '#!/bin/sh\nenv | grep -E "SLURM|SQUEUE|LC_ALL"\necho "$5" | tr -cd ,\necho\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in {
        "SLURM_CONF": "/here",
        "SLURM_JOB_ID": "7",
        "SQUEUE_PARTITION": "main",
        "LC_ALL": "de_DE",
    }.items():
        monkeypatch.setenv(name, value)
    lines = call.squeue(map(str, range(450))).split()
    assert sorted({x for x in lines if "=" in x}) == ["LC_ALL=C", "SLURM_CONF=/here"]
    assert [len(x) for x in lines if "=" not in x] == [199, 199, 49]  # commas


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("Invalid account or account/partition combination specified", "launch.slurm.account"),
        ("Invalid qos specification", "launch.slurm.qos"),
        ("Invalid feature specification", "launch.slurm.constraint"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "launch.slurm.time"),
        ("Invalid generic resource (gres) specification", "launch.slurm.gpus_per_node"),
        ("Memory specification can not be satisfied", "launch.slurm.mem"),
        ("Job dependency problem", "launch.slurm.dependency"),
        ("Node count specification invalid", "launch.nnodes"),
        ("Requested reservation is invalid", "launch.slurm.options"),
    ],
)
def test_what_sbatch_refuses_names_the_key(words: str, key: str) -> None:
    said = f"sbatch: error: Batch job submission failed: {words}"
    told = call.refusal(f"sbatch: error: something before it\n{said}\n")
    assert told.startswith(f"{key}: ")
    assert told.endswith(f"[sbatch: error: something before it; {said}]")


def test_a_limit_of_the_account_and_a_silent_controller_and_anything_else() -> None:
    limit = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    assert "until fewer of your jobs are queued" in call.refusal(limit)
    silent = "Unable to contact slurm controller (connect failure)"
    assert call.refusal(silent).startswith("sbatch: SLURM's controller does not answer")
    assert call.refusal("").endswith("[it said nothing]")
