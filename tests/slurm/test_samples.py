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
SAMPLES = ("sbatch.sh", "sbatch_torchrun.sh")
STEPS = 400
WORDS = [*TINY, "strategy=ddp", "checkpoint=sync", f"run.steps={STEPS}"]
WORDS += ["launch.threads_per_rank=1", "data.global_batch_size=64"]


class Sample:
    """A submitted sample, in a folder of its own."""

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        self.id = cluster.submit(str(LAUNCHERS / name), *WORDS, cwd=folder)

    def said(self) -> str:
        log = self.folder / f"paceline-{self.id}.log"
        return log.read_text() if log.exists() else ""

    def read(self, name: str) -> dict[str, Any] | None:
        found = list(self.folder.glob(f"outputs/jobs/*/{name}"))
        loaded: dict[str, Any] | None = json.loads(found[0].read_text()) if found else None
        return loaded

    def stop_if_training(self) -> bool:
        """As `--signal=USR2@120` does. False: it doesn't train yet."""
        job = self.cluster.job(self.id)
        assert job["JobState"] in ("PENDING", "RUNNING"), f"{job}\n{self.said()}"
        if self.read("log/progress.json") is None:
            return False
        self.cluster.run("scancel", "--signal=USR2", self.id)
        return True


@pytest.fixture(scope="module")
def samples(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    """Both side by side: most of their time is starting."""
    folder = tmp_path_factory.mktemp("samples")
    made = {name: Sample(cluster, folder / name, name) for name in SAMPLES}
    going, deadline = list(made.values()), time.monotonic() + 120
    while going:
        assert time.monotonic() < deadline, [one.said() for one in going]
        going = [one for one in going if not one.stop_if_training()]
        time.sleep(0.05)
    for one in made.values():
        cluster.wait_state(one.id, ["COMPLETED", "FAILED"], timeout_s=150)
    return made


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest, samples: dict[str, Sample]) -> Sample:
    return samples[request.param]


def test_the_job_completed_as_one_of_four_ranks_on_two_nodes(sample: Sample) -> None:
    job, record = sample.cluster.job(sample.id), sample.read("result.json")
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), sample.said()
    assert record is not None and record["status"]["state"] == "completed"
    assert record["effective"]["world_size"] == 4
    assert record["numerics"]["grads_equal"] is True


def test_it_was_stopped_and_requeued_and_went_on(sample: Sample) -> None:
    job, record = sample.cluster.job(sample.id), sample.read("result.json")
    assert job["Restarts"] == "1", sample.said()
    assert record is not None and 1 <= record["checkpoint"]["resumed_from"] < STEPS
    assert len(record["numerics"]["loss"]) == STEPS
    assert len(list(sample.folder.glob("outputs/jobs/*/attempts/*/result.json"))) == 1
