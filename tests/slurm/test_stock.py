"""Hydra's own launchers run our jobs of one node: on the cluster, and in joblib's workers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import TINY, Command
from tests.slurm.cluster import Cluster
from tests.swept import Swept, sweep

pytestmark = pytest.mark.slurm

WORDS = [*TINY, "launch.threads_per_rank=1"]
SUBMITIT = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5"]


class TestSubmitit:
    """One cell of two that are fine, with two ranks, and one that fails."""

    @pytest.fixture(scope="class")
    @classmethod
    def swept(cls, module_command: Command, cluster: Cluster) -> Swept:
        words = [*WORDS, *SUBMITIT, "strategy=ddp", "optimizer.lr=0.1,0.2,1e30"]
        made = sweep(module_command, *words, env=cluster.env, timeout_s=200)
        for id in cluster.queued():
            cluster.wait_state(id, ["COMPLETED", "COMPLETING"])
        return made

    def test_each_cell_left_its_record_and_ran_on_a_node(self, swept: Swept) -> None:
        assert len(swept.records) == 3, swept.done.out + swept.done.err
        good = [r for r in swept.records if r["status"]["state"] == "completed"]
        assert len(good) == 2
        for record in good:
            assert record["effective"]["world_size"] == 2
            assert record["environment"]["host"] in ("n1", "n2")
            assert record["validity"]["verdict"] == "valid"
        assert all("submitit_slurm" in r["job"]["command"] for r in swept.records)

    def test_a_cell_that_fails_is_a_row_and_the_exit_code(self, swept: Swept) -> None:
        assert swept.done.code == 1
        row = swept.row("1e+30")
        assert (row["state"], row["kind"]) == ("failed", "nonfinite")

    def test_the_table_can_be_made_again(self, swept: Swept) -> None:
        (directory,) = swept.done.cwd.glob("outputs/sweeps/*")
        words = [sys.executable, "-m", "paceline", "report", str(directory), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["rows"] == swept.table["rows"]
