"""The figures against what is known from outside: a stopwatch, sleeps of known length, counts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TINY, Command
from tests.swept import Swept, sweep

pytestmark = pytest.mark.distributed

ONE_THREAD = "launch.threads_per_rank=1"
"""Several threads on cores that others use too wait for each other longer than for any sleep."""

MODELS = '''
import time

import numpy as np
from torch import nn


class Slow(nn.Module):
    """Sleeps `nap` seconds a forward, and writes down when each forward began."""

    def __init__(self, inputs, hidden, outputs, nap):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)
        self.nap, self.began = nap, []

    def forward(self, x):
        self.began.append(time.perf_counter())
        if not self.training:  # the first held-out batch closes the last step
            np.save("began.npy", self.began)
        time.sleep(self.nap)
        return self.head(x)


def sequential(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.GELU(), nn.Linear(64, outputs))
'''

ITEMS = """
import time

import torch


class Items:
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((64,), index / 400), index % 10
"""


def job(command: Command, name: str, *words: str) -> dict[str, Any]:
    (command.cwd / "mine.py").write_text(MODELS)
    done = command(*TINY, ONE_THREAD, *words, f"hydra.run.dir=outputs/jobs/{name}")
    assert done.code == 0, done.err
    (record,) = [r for r in done.jobs() if r["job"]["name"] == name]
    return record


def steps(record: dict[str, Any]) -> dict[str, Any]:
    """steps.npz, with the tags as words."""
    loaded = dict(np.load(Path(record["job"]["dir"]) / "steps.npz"))
    return loaded | {"tag": loaded["tags"][loaded["tag"]]}


def assert_phases_add_up(record: dict[str, Any]) -> None:
    phases = record["ledger"]["phases_s"]
    known = [seconds for seconds in phases.values() if seconds is not None]
    assert sum(known) == pytest.approx(record["ledger"]["wall_s"])
    assert min(known) >= 0
    steady, wall = record["ledger"]["steady_phases_s"], record["ledger"]["steady_wall_s"]
    assert sum(steady.values()) == pytest.approx(wall)
    assert steady["other"] <= 0.01 * wall


class TestAStopwatch:
    """The user's model stamps each forward itself."""

    @pytest.fixture(scope="class")
    @classmethod
    def record(cls, module_command: Command) -> dict[str, Any]:
        words = ["model._target_=mine.Slow", "+model.nap=0.005", "run.steps=200"]
        return job(module_command, "stopwatch", *words)

    def test_the_steady_rate_agrees_with_it(
        self, record: dict[str, Any], module_command: Command
    ) -> None:
        began = np.load(module_command.cwd / "began.npy")[:201]
        steady = np.flatnonzero(steps(record)["tag"] == "steady")
        assert len(steady) == record["throughput"]["steps_measured"] >= 190
        seconds = np.diff(began)[steady].sum()
        rate = record["throughput"]["units_per_step"] * len(steady) / seconds
        assert record["throughput"]["steady_units_per_s"] == pytest.approx(rate, rel=0.01)

    def test_the_interval_holds_the_rate(self, record: dict[str, Any]) -> None:
        rate = record["throughput"]
        low, high = rate["ci95"]
        assert low < rate["steady_units_per_s"] < high
        assert rate["ci_scope"] == "within_process"

    def test_the_rate_is_that_of_the_steps_in_the_file(self, record: dict[str, Any]) -> None:
        found = steps(record)
        mean = found["step_s"][found["tag"] == "steady"].mean()
        rate = record["throughput"]
        expected = rate["units_per_step"] / mean
        assert rate["steady_units_per_s"] == pytest.approx(expected)

    def test_every_second_has_its_phase(self, record: dict[str, Any]) -> None:
        assert_phases_add_up(record)
        ledger = record["ledger"]
        assert ledger["steady_phases_s"]["forward"] > 0.5 * ledger["steady_wall_s"]

    def test_the_whole_job_is_slower_than_its_steps(self, record: dict[str, Any]) -> None:
        rate = record["throughput"]
        whole = rate["samples_used"] / record["ledger"]["wall_s"]
        assert rate["end_to_end_units_per_s"] == pytest.approx(whole)
        assert whole < rate["steady_units_per_s"]


class TestAKnownRate:
    """20 ms a forward, four micro-batches a step, two ranks."""

    @pytest.fixture(scope="class")
    @classmethod
    def record(cls, module_command: Command) -> dict[str, Any]:
        words = ["model._target_=mine.Slow", "+model.nap=0.02", "run.steps=20", "strategy=ddp"]
        return job(module_command, "known", *words, "run.accumulation_steps=4")

    def test_counts_are_exact(self, record: dict[str, Any]) -> None:
        rate = record["throughput"]
        assert rate["units_per_step"] == rate["global_batch_size"] == 64
        assert rate["micro_batch_size"] == 64 // (4 * 2)
        assert rate["samples_used"] == 20 * 64

    def test_the_rate_is_the_known_one(self, record: dict[str, Any]) -> None:
        most = 64 / (4 * 0.02)
        assert most / 2 <= record["throughput"]["steady_units_per_s"] <= most

    def test_the_rate_of_a_rank_is_half_of_it(self, record: dict[str, Any]) -> None:
        rate = record["throughput"]
        assert rate["per_device_units_per_s"] * 2 == pytest.approx(rate["steady_units_per_s"])

    def test_what_is_not_known_is_null_with_a_reason(self, record: dict[str, Any]) -> None:
        assert record["throughput"]["mfu"] is None
        assert any(r.startswith("mfu: ") for r in record["validity"]["reasons"])

    def test_every_second_has_its_phase(self, record: dict[str, Any]) -> None:
        assert_phases_add_up(record)
        assert len(record["ledger"]["per_rank"]) == 2


@pytest.mark.slow
class TestSlowData:
    """5 ms an item, read by the rank itself or by two workers."""

    @pytest.fixture(scope="class")
    @classmethod
    def swept(cls, tmp_path_factory: pytest.TempPathFactory) -> Any:
        command = Command(tmp_path_factory.mktemp("slow"))
        (command.cwd / "mine.py").write_text(ITEMS)
        tiny = [w for w in TINY if not w.startswith("data")]
        words = ["data=map_style", "data.dataset._target_=mine.Items", "data.global_batch_size=8"]
        yield sweep(command, *tiny, ONE_THREAD, *words, "data.loader.num_workers=0,2")
        command.assert_nothing_left()

    @pytest.mark.parametrize("workers", [0, 2])
    def test_it_is_bound_by_its_input(self, swept: Swept, workers: int) -> None:
        assert swept.done.code == 0, swept.done.err
        record = swept.cell(f"data.loader.num_workers={workers}")
        ledger = record["ledger"]
        assert ledger["steady_phases_s"]["data_wait"] > 0.5 * ledger["steady_wall_s"]
        assert record["diagnosis"]["bound"] == "input"
        assert record["effective"]["data"]["workers"] == workers
        assert_phases_add_up(record)

    def test_more_workers_give_a_higher_rate(self, swept: Swept) -> None:
        rates = [swept.row(n)["steady_units_per_s"] for n in ("0", "2")]
        assert rates[0] <= 8 / (8 * 0.005)
        assert rates[0] < rates[1] <= 1.1 * 2 * 8 / (8 * 0.005)

    def test_it_is_the_same_training(self, swept: Swept) -> None:
        losses = [r["numerics"]["loss"] for r in swept.records]
        assert losses[0] == losses[1]


class TestAProfiledJob:
    """Two steps of warm-up, three recorded, after eight."""

    @pytest.fixture(scope="class")
    @classmethod
    def record(cls, module_command: Command) -> dict[str, Any]:
        words = ["profiler=schedule", "profiler.wait=8", "profiler.warmup=2", "profiler.active=3"]
        return job(module_command, "profiled", *words)

    def test_profiled_steps_are_not_measured(self, record: dict[str, Any]) -> None:
        found = steps(record)
        profiled = np.flatnonzero(found["tag"] == "profiled").tolist()
        assert profiled == [8, 9, 10, 11, 12, 13]  # the last one waits for the trace's file
        rate = record["throughput"]
        assert rate["steps_excluded"]["profiled"] == len(profiled)
        assert rate["steps_measured"] == (found["tag"] == "steady").sum()
        assert rate["steps_measured"] + sum(rate["steps_excluded"].values()) == 30

    def test_the_loop_fetches_nothing_from_the_device_in_a_step(
        self, record: dict[str, Any]
    ) -> None:
        # an .item() a step would wait for the device each time; only the progress may, twice a
        # second, and three steps of this job take a few milliseconds
        with gzip.open(Path(record["job"]["dir"]) / "trace/rank0.json.gz") as file:
            events = json.load(file)["traceEvents"]
        names = [event.get("name") for event in events]
        assert names.count("Optimizer.step#SGD.step") == 3
        assert names.count("aten::_local_scalar_dense") <= 1


@pytest.mark.slow
def test_compiling_stays_out_of_the_rate(command: Command) -> None:
    (command.cwd / "mine.py").write_text(MODELS)
    words = ["model._target_=mine.sequential", "compile=off,inductor"]
    swept = sweep(command, *TINY, ONE_THREAD, *words)
    assert swept.done.code == 0, swept.done.err
    compiled = swept.cell("compile=inductor")
    report, rate = compiled["compile"], compiled["throughput"]
    assert report["frames_compiled"] >= 1
    assert report["compile_s"] > 0
    assert rate["step_s_median"] < report["first_step_s"] / 5
    assert rate["steps_excluded"]["compile"] >= 1
    assert rate["steady_units_per_s"] > rate["units_per_step"] / report["first_step_s"]
    assert compiled["ledger"]["phases_s"]["compile"] >= report["first_step_s"]
    assert compiled["validity"]["verdict"] == "valid"
    assert swept.row("inductor")["compile_s"] == report["compile_s"]
    assert swept.row("off")["compile_s"] is None
    assert "compile s" in swept.done.out
    off, on = (swept.cell(f"compile={c}")["numerics"]["loss"] for c in ("off", "inductor"))
    assert np.allclose(off, on, rtol=1e-5)
