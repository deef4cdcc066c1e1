"""diagnose=intervene: what a perfect loader would give, what the loader gives alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.diagnose.intervene import Intervene
from paceline.record.schema import empty_record
from tests.conftest import TINY, Command

ROOT = Path(__file__).parents[2]
SLOW = [
    *[w for w in TINY if not w.startswith("data")],
    "launch.threads_per_rank=1",
    "data=map_style",
    "data.dataset._target_=tests.data.slow.Slow",
    "data.global_batch_size=4",
    "model.inputs=8",
    "model.outputs=2",
    "run.steps=12",
    "diagnose=intervene",
]


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_slow_loader_has_a_high_ceiling(command: Command, workers: int) -> None:
    words = [*SLOW, f"data.loader.num_workers={workers}"]
    done = command(*words, env={"PYTHONPATH": str(ROOT)})
    assert done.code == 0, done.out
    record = done.job()
    cached, alone = record["counter_runs"]
    assert (cached["name"], alone["name"]) == ("cached_batch", "loader_alone")
    assert cached["speedup"] > 3
    low, high = cached["speedup_ci95"]
    assert low <= cached["speedup"] <= high
    assert cached["units_per_s"] > 3 * record["throughput"]["steady_units_per_s"]
    # nothing but the loader: no faster than the job by much, since the job waits for it
    assert 0.6 < alone["units_per_s"] / record["throughput"]["steady_units_per_s"] < 1.7
    assert "with a perfect loader (one cached batch)" in done.out
    # the counter-runs are no part of the training or of its figures
    assert len(record["numerics"]["loss"]) == 12
    assert record["throughput"]["samples_used"] == 12 * 4
    ledger = record["ledger"]
    assert ledger["phases_s"]["intervene"] > 0
    known = sum(v for v in ledger["phases_s"].values() if v is not None)
    assert known == pytest.approx(ledger["wall_s"])


@pytest.mark.slow
def test_the_start_of_the_workers_is_in_the_ledger(command: Command) -> None:
    words = [*SLOW[:-1], "data.loader.num_workers=2"]
    record = command(*words, env={"PYTHONPATH": str(ROOT)}).job()
    assert record["ledger"]["phases_s"]["loader_start"] > 0
    samples = record["throughput"]["steps_measured"] * 4
    epochs = record["throughput"]["epochs_measured"]
    assert epochs == pytest.approx(samples / 243)  # 256 samples, 5 % of them held out


def test_what_it_says() -> None:
    record = empty_record()
    record["ledger"] |= {
        "steady_wall_s": 1.0,
        "steady_phases_s": {
            "data_wait": 0.8, "to_device": 0.0, "forward": 0.1, "backward": 0.1,
            "optimizer": 0.0, "other": 0.0, "checkpoint": 0.0,
        },
    }  # fmt: skip
    record["counter_runs"] = [
        {"name": "cached_batch", "step_s": 0.1, "units_per_s": 640.0, "speedup": 2.5},
        {"name": "loader_alone", "step_s": 0.2, "units_per_s": 1320.0},
    ]
    found = Intervene(["cached_batch", "loader_alone"]).explain(record)
    assert found["bound"] == "input"
    assert found["evidence"][-2:] == [
        "cached batch: 2.500 times the rate",
        "loader alone: 1,320 units/s",
    ]
