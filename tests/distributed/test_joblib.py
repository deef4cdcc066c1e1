"""Hydra's joblib launcher runs our jobs, one at a time and two: each in a worker of joblib's."""

from __future__ import annotations

import pytest

from tests.conftest import TINY, Command
from tests.swept import sweep

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

WORDS = [*TINY, "launch.threads_per_rank=1", "hydra/launcher=joblib"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_every_cell_leaves_its_record(command: Command, at_once: int) -> None:
    swept = sweep(
        command, *WORDS, f"hydra.launcher.n_jobs={at_once}", "strategy=ddp", "optimizer.lr=0.1,1e30"
    )
    good, bad = swept.cell("optimizer.lr=0.1"), swept.cell("optimizer.lr=1e+30")
    assert (good["status"]["state"], good["effective"]["world_size"]) == ("completed", 2)
    assert good["validity"]["verdict"] == "valid" and good["numerics"]["grads_equal"] is True
    assert "hydra/launcher=joblib" in good["job"]["command"]
    assert (bad["status"]["state"], bad["status"]["kind"]) == ("failed", "nonfinite")
    assert {row["state"] for row in swept.table["rows"]} == {"completed", "failed"}
    assert swept.done.code == 1, swept.done.err
