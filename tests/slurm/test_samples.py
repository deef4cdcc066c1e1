"""The sbatch files for people without a plugin: submitted, told to stop, requeued, finished."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm

LAUNCHERS = Path(__file__).parents[2] / "launchers"
STEPS = 200
WORDS = [*TINY, "strategy=ddp", "checkpoint=sync", f"run.steps={STEPS}"]
WORDS += ["launch.threads_per_rank=1", "data.global_batch_size=64"]


class Sample:
    """A submitted sample, in a folder of its own."""

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        self.id = cluster.submit(str(LAUNCHERS / name), *WORDS, cwd=folder)

    def said(self) -> str:
        return (self.folder / f"paceline-{self.id}.log").read_text()

    def read(self, name: str) -> dict[str, Any] | None:
        found = list(self.folder.glob(f"outputs/jobs/*/{name}"))
        loaded: dict[str, Any] | None = json.loads(found[0].read_text()) if found else None
        return loaded

    def stop_in_training(self) -> None:
        deadline = time.monotonic() + 90
        while (self.read("log/progress.json") or {"step": 0})["step"] < 5:
            job = self.cluster.job(self.id)
            assert time.monotonic() < deadline and job["JobState"] in ("PENDING", "RUNNING"), (
                f"{job}\n{self.said()}"
            )
            time.sleep(0.1)
        self.cluster.run("scancel", "--signal=USR2", self.id)  # as --signal=USR2@120 does


@pytest.fixture(scope="module", params=["sbatch.sh", "sbatch_torchrun.sh"])
def sample(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Sample:
    made = Sample(cluster, tmp_path_factory.mktemp("sample") / "here", request.param)
    made.stop_in_training()
    cluster.wait_state(made.id, ["COMPLETED", "FAILED"], timeout_s=120)
    return made


def test_the_job_completed_as_one_of_four_ranks_on_two_nodes(sample: Sample) -> None:
    job, record = sample.cluster.job(sample.id), sample.read("result.json")
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), sample.said()
    assert record is not None and record["status"]["state"] == "completed"
    assert record["effective"]["world_size"] == 4
    assert record["numerics"]["grads_equal"] is True


def test_it_was_stopped_and_requeued_and_went_on(sample: Sample) -> None:
    job, record = sample.cluster.job(sample.id), sample.read("result.json")
    assert job["Restarts"] == "1", sample.said()
    assert record is not None and 5 <= record["checkpoint"]["resumed_from"] < STEPS
    assert len(record["numerics"]["loss"]) == STEPS
    assert len(list(sample.folder.glob("outputs/jobs/*/attempts/*/result.json"))) == 1
