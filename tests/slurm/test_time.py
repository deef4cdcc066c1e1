"""The end of the time that a job was given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Command
from tests.slurm.cluster import Cluster
from tests.slurm.training import result

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.timeout(400)
def test_the_end_of_the_time(
    command: Command, cluster: Cluster, until: Callable[..., None], slow: list[str]
) -> None:
    """Told of it 60 s before, a job saves, is queued again, and ends; not told, it is a row."""
    on = [*slow, "launch=slurm", "strategy=ddp"]
    told = ["run.steps=2600", "launch.slurm.time=2", "launch.slurm.signal_s=60"]
    untold = ["run.steps=100000", "launch.slurm.time=1", "launch.slurm.signal_s=0"]
    untold += ["launch.slurm.max_requeues=0", "measure.window_s=0"]
    jobs = [command.cwd / f"outputs/jobs/{name}" for name in ("told", "untold")]
    first, second = (
        command.start(*on, *words, f"hydra.run.dir={job}", env=cluster.env)
        for words, job in zip((told, untold), jobs, strict=True)
    )
    late = command.wait(second, 200)
    assert late.code == 1, late.err + late.out
    status = result(jobs[1])["status"]
    assert (status["state"], status["kind"]) == ("failed", "time_limit")
    assert "launch.slurm.time" in status["message"] and status["step"] > 50
    assert "launch.slurm.time" in late.out + late.err
    done = command.wait(first, 300)
    assert done.code == 0, done.err + done.out
    record = result(jobs[0])
    assert record["job"]["scheduler"]["restarts"] >= 1
    assert record["checkpoint"]["resumed_from"] > 50
    assert len(record["numerics"]["loss"]) == 2600
    assert result(jobs[0] / "attempts/001")["status"]["state"] == "preempted"
