"""A rank that the kernel killed: out of memory only if the kernel says that it killed for that."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from paceline.__main__ import config_dir
from paceline.controller.job import complete
from paceline.controller.launch import Ended, oom_kills
from paceline.controller.plan import make_job
from paceline.record.failure import MORE_MEMORY


@pytest.mark.parametrize(
    ("number", "kills", "kind"),
    [
        (signal.SIGKILL, 1, "oom"),
        (signal.SIGKILL, 0, "worker_died"),
        (signal.SIGSEGV, 1, "worker_died"),
    ],
)
def test_its_kind(number: signal.Signals, kills: int, kind: str, tmp_path: Path) -> None:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        job = make_job(compose("config", ["model=mlp"], return_hydra_config=True), tmp_path)
    ended = Ended(exits={0: -number}, oom_kills=kills)
    status = complete(job, job.section(), ended, 0.0, 1.0)["status"]
    assert (status["state"], status["kind"], status["rank"]) == ("failed", kind, 0)
    assert status["message"].startswith(f"rank 0 was ended by {number.name}")
    assert status["message"].endswith(MORE_MEMORY) == (kind == "oom")


def test_the_kernel_counts_them() -> None:
    before = oom_kills()
    assert 0 <= before <= oom_kills()
