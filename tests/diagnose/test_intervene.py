"""diagnose=intervene: what a perfect loader would give, what the loader gives alone."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    runs = {run["name"]: run for run in record["counter_runs"]}
    assert list(runs) == [
        "cached_batch", "loader_alone", "operators", "double_batch", "fused_optimizer",
        "forward_only", "no_optimizer",
    ]  # fmt: skip
    cached, alone = runs["cached_batch"], runs["loader_alone"]
    # a loader that sleeps needs no core; what is behind it gains nothing
    assert alone["cpu_s"] < alone["step_s"] / 4
    assert 0 < alone["handover_s"] <= alone["handover_cpu_s"] + 0.01  # counted in 10 ms
    assert runs["no_optimizer"]["speedup"] < 1.5 < cached["speedup"]
    # a small perceptron: dozens of operators, none of which takes as long as an item
    assert runs["operators"]["operators"] > 20
    assert runs["operators"]["large_s"] < alone["step_s"]
    assert record["diagnosis"]["bound"] == "input"
    (advice, *_) = record["diagnosis"]["advice"]
    assert advice["override"].startswith("data.loader.num_workers=")
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
