"""profiler=schedule: real jobs, and what they leave."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from paceline.__main__ import config_dir
from paceline.types import ConfigError
from tests.conftest import TINY, Command, Done
from tests.controller.test_plan import planned_job

SCHEDULE = ["profiler=schedule", "profiler.wait=8", "profiler.warmup=2", "profiler.active=3"]

BLOCKED = '''
"""A model whose making puts a file where the traces belong."""

from pathlib import Path

from torch import nn


def model(inputs, hidden, outputs):
    for job in Path("outputs/jobs").iterdir():
        (job / "trace").write_text("in the way")
    return nn.Linear(inputs, outputs)
'''


def ran(command: Command, *words: str) -> Done:
    done = command(*TINY, *words)
    assert done.code == 0, done.err[-2000:]
    return done


def directory(record: dict[str, Any]) -> Path:
    return Path(record["job"]["dir"])


def tags(record: dict[str, Any]) -> list[str]:
    with np.load(directory(record) / "steps.npz") as loaded:
        return [str(loaded["tags"][tag]) for tag in loaded["tag"]]


def read_json(path: Path) -> dict[str, Any]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: dict[str, Any] = json.loads(raw)
    return found


def test_a_run_shorter_than_its_schedule_is_refused(command: Command, tiny: list[str]) -> None:
    # P49: three steps for 2 + 2 + 2 left no trace and no error
    words = ["profiler.wait=2", "profiler.warmup=2", "profiler.active=2", "run.steps=3"]
    done = command(*tiny, "measure.warmup_steps=1", "profiler=schedule", *words)
    assert done.code == 2
    assert "profiler.wait=2: (wait + warmup=2 + active=2) x repeat=1 needs 6 steps" in done.err
    assert "lower profiler.wait or raise run.steps" in done.err
    assert not list(done.cwd.glob("outputs/**/trace"))


VALUES = {
    "wait": ("profiler.wait=0", "the first step is checked before the second"),
    "warmup": ("profiler.warmup=0", "give 1 or more"),
    "activities": ("profiler.activities=[]", "give auto, or [cpu]"),
    "a word": ("profiler.ranks=[fastest]", "profiler.ranks"),
    "no rank": ("profiler.ranks=[]", "use profiler=off"),
    "cap": ("profiler.max_trace_mb=0", "give 1 or more"),
    "warm-up of the job": ("profiler.wait=2", "measure.warmup_steps=10 takes for unsettled"),
}


@pytest.mark.parametrize(("typed", "said"), VALUES.values(), ids=VALUES)
def test_values_are_checked(tmp_path: Path, typed: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned_job(tmp_path, "profiler=schedule", typed)
    assert said in str(error.value)


def test_the_default_is_bounded() -> None:
    # P51: hundreds of MB, and memory that grows
    default = yaml.safe_load((config_dir() / "profiler/schedule.yaml").read_text())
    assert default["active"] * default["repeat"] <= 3
    dear = ("record_shapes", "profile_memory", "with_stack", "with_flops")
    assert not any(default[key] for key in dear)
    assert default["max_trace_mb"] <= 256  # what a string in Chrome may hold


class TestTwoCycles:
    @pytest.fixture(scope="class")
    @classmethod
    def done(cls, module_command: Command) -> Done:
        words = [*SCHEDULE, "profiler.repeat=2", "profiler.profile_memory=true"]
        return ran(module_command, *words, "tag=cycles")

    @pytest.fixture(scope="class")
    @classmethod
    def record(cls, done: Done) -> dict[str, Any]:
        return next(r for r in done.jobs() if r["job"]["tag"] == "cycles")

    def test_each_leaves_a_summary_of_its_own_steps(self, record: dict[str, Any]) -> None:
        # P49: the last cycle alone was in it
        cycles = record["profiler"]["cycles"]
        assert [c["steps"] for c in cycles] == [[10, 11, 12], [23, 24, 25]]
        for i, cycle in enumerate(cycles):
            assert cycle["trace"] == f"trace/rank0.{i}.json.gz"
            summary = read_json(directory(record) / f"trace/rank0.{i}.summary.json")
            assert summary["steps"] == cycle["steps"]
            assert len(summary["step_s"]) == 3
            (step,) = [o for o in summary["operators"] if o["name"] == "Optimizer.step#SGD.step"]
            assert step["count"] == 3
            table = (directory(record) / cycle["table"]).read_text()
            assert f"steps {', '.join(map(str, cycle['steps']))}\n" in table

    def test_exactly_the_schedules_steps_stay_out_of_the_rate(self, record: dict[str, Any]) -> None:
        # P50: what profiling costs was inside the published rate
        profiled = [i for i, tag in enumerate(tags(record)) if tag == "profiled"]
        assert profiled == [*range(8, 14), *range(21, 27)]  # and one that waits for each file
        rate = record["throughput"]
        assert rate["steps_excluded"] == {"warmup": 5, "profiled": 12}
        assert rate["steps_measured"] == 30 - 17

    def test_the_overhead_is_that_of_recorded_steps(self, record: dict[str, Any]) -> None:
        with np.load(directory(record) / "steps.npz") as loaded:
            step_s = loaded["step_s"]
        steady = np.array(tags(record)) == "steady"
        recorded = [*range(10, 13), *range(23, 26)]
        ratio = np.median(step_s[recorded]) / np.median(step_s[steady])
        assert record["profiler"]["overhead_ratio"] == pytest.approx(ratio)

    def test_any_reader_of_chrome_traces_takes_it(self, record: dict[str, Any]) -> None:
        for cycle in record["profiler"]["cycles"]:
            path = directory(record) / cycle["trace"]
            events = read_json(path)["traceEvents"]
            names = {str(event.get("name")) for event in events}
            assert {f"ProfilerStep#{step}" for step in cycle["steps"]} <= names
            assert "layer: layers.0" in names
            assert path.stat().st_size == cycle["compressed_bytes"]
            assert len(gzip.decompress(path.read_bytes())) == cycle["trace_bytes"]
        assert not list((directory(record) / "trace").glob(".*")), "nothing half-written is left"

    def test_it_lies_where_tensorboard_looks(self, record: dict[str, Any]) -> None:
        # P53: the plugin shows no runs; nothing here depends on it
        for cycle in record["profiler"]["cycles"]:
            named = directory(record) / cycle["tensorboard"]
            assert re.fullmatch(r"tb/[\w-]+\.\d+\.pt\.trace\.json\.gz", cycle["tensorboard"])
            assert named.samefile(directory(record) / cycle["trace"])
        assert len(list((directory(record) / "tb").glob("*.pt.trace.json.gz"))) == 2

    def test_every_layer_has_its_time(self, record: dict[str, Any]) -> None:
        rows = read_json(directory(record) / "trace/rank0.0.summary.json")["layers"]
        named = {row["name"]: row for row in rows}
        assert {"layers.0", "layers.0.linear", "layers.1", "head"} <= set(named)
        for name in ("layers.0.linear", "head"):
            assert named[name]["calls"] == 3
            assert named[name]["forward_self_s"] > 0
            assert named[name]["backward_self_s"] > 0
        text = (directory(record) / "trace/rank0.0.operators.txt").read_text()
        assert re.search(r"^layers\.0\.linear +1 +\d+\.\d+ +\d+\.\d+$", text, re.M)

    def test_operators_that_take_memory_are_named(self, record: dict[str, Any]) -> None:
        memory = read_json(directory(record) / "trace/rank0.0.summary.json")["memory"]
        taken = [o["bytes"] for o in memory["operators"]]
        assert "aten::mm" in {o["name"] for o in memory["operators"]}
        assert taken == sorted(taken, reverse=True)
        assert len(memory["grown_bytes"]) == 3

    def test_nothing_synchronises(self, record: dict[str, Any]) -> None:
        # P56: a profiler that waits at each phase changes overlap and hides a starved input
        summary = read_json(directory(record) / "trace/rank0.0.summary.json")
        assert summary["synchronises"] is False
        assert "no mode that waits" in summary["note"]
        fetched = [o for o in summary["operators"] if o["name"] == "aten::_local_scalar_dense"]
        assert sum(o["count"] for o in fetched) <= 1  # the progress may, twice a second
        marks = {"phase", "sync"}
        assert not [o for o in summary["operators"] if marks & set(o["name"].lower().split("::"))]

    def test_the_job_explains_it(self, done: Done) -> None:
        lines = [line.strip() for line in done.out.splitlines()]
        assert "profile    steps 10 to 12 of rank 0: trace/rank0.0.json.gz" in done.out
        assert any(re.match(r"most self time: \S+ \d+%", line) for line in lines)
        assert any(re.match(r"a profiled step takes [\d.]+ times one that isn't", s) for s in lines)


def test_a_trace_that_would_be_too_large_has_fewer_steps(command: Command) -> None:
    # P51: active=500 with stacks and shapes
    words = [*SCHEDULE, "profiler.active=500", "profiler.with_stack=true", "run.steps=520"]
    words += ["profiler.record_shapes=true", "profiler.max_trace_mb=2", "launch.max_restarts=0"]
    done = ran(command, *words)
    record = done.job()
    (cycle,) = record["profiler"]["cycles"]
    count = len(cycle["steps"])
    assert 1 <= count < 500
    assert cycle["asked_steps"] == 500
    assert cycle["steps"] == list(range(10, 10 + count))
    assert cycle["trace_bytes"] <= 2e6
    assert (directory(record) / cycle["trace"]).stat().st_size <= cycle["trace_bytes"]
    said = f"would pass profiler.max_trace_mb=2: {count} steps recorded; have fewer active steps"
    assert re.search(rf"WARNING profiler, rank 0: .*{re.escape(said)}", done.out)
    assert any(said in problem for problem in record["profiler"]["problems"])
    assert record["throughput"]["steps_excluded"]["profiled"] == 503  # the schedule's, as asked
    assert record["validity"]["verdict"] == "valid"


def test_a_trace_that_cannot_be_written_costs_no_run(command: Command) -> None:
    (command.cwd / "mine.py").write_text(BLOCKED)
    done = ran(command, *SCHEDULE, "model._target_=mine.model")
    record = done.job()
    assert len(record["numerics"]["loss"]) == 30
    assert record["profiler"]["traces"] == record["profiler"]["cycles"] == []
    (problem,) = record["profiler"]["problems"]
    assert "nothing more is recorded in this cycle of the profiler" in problem
    assert "trace" in problem
    assert f"WARNING {problem}" in done.out


BREAKS = '''
"""A model that breaks in its twelfth forward in training."""

from torch import nn


class Breaks(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head, self.calls = nn.Linear(inputs, outputs), 0

    def forward(self, x):
        self.calls += self.training
        if self.calls == 13:
            raise ValueError("it breaks here")
        return self.head(x)
'''


@pytest.mark.slow
def test_an_error_keeps_what_was_recorded_and_its_own_words(command: Command) -> None:
    (command.cwd / "mine.py").write_text(BREAKS)
    done = command(*TINY, *SCHEDULE, "model._target_=mine.Breaks", "measure.gradient_check=false")
    assert done.code == 1
    assert done.job()["status"]["message"] == "ValueError: it breaks here"
    assert done.job()["status"]["step"] == 12
    (summary,) = done.cwd.glob("outputs/jobs/*/trace/rank0.summary.json")
    assert read_json(summary)["steps"] == [10, 11]
    assert read_json(summary.with_name("rank0.json.gz"))["traceEvents"]


@pytest.mark.slow
def test_a_resumed_run_with_too_few_steps_left_says_so(command: Command) -> None:
    saved = ["checkpoint=sync", "checkpoint.every_steps=20"]
    first = ran(command, *saved, "run.steps=20", "tag=first").job()
    where = directory(first) / "checkpoint"
    done = ran(command, *saved, *SCHEDULE, "tag=second", f"checkpoint.resume={where}")
    record = next(r for r in done.jobs() if r["job"]["tag"] == "second")
    assert record["numerics"]["first_step"] == 20
    said = "profiler: 10 steps are left from step 20 on, 0 of 1 cycles of wait=8 + warmup=2 + acti"
    assert [r for r in record["validity"]["reasons"] if r.startswith(said)]
    assert f"WARNING {said}" in done.out
    assert record["profiler"]["reasons"]


@pytest.mark.slow
def test_marks_make_nothing_compile_again(command: Command) -> None:
    words = [*SCHEDULE, "compile=regional", "compile.backend=aot_eager", "compile.mode=null"]
    record = ran(command, *words).job()
    again = {recompile["step"] for recompile in record["compile"]["recompiles"]}
    assert again <= {0}, "two blocks, one of them without a gradient for its inputs"
    assert tags(record).count("compile") == 1
    summary = read_json(directory(record) / "trace/rank0.summary.json")
    assert summary["layers_left_out"] > 0
    assert "compile=off" in summary["layers_why"]
    assert {"layers.0", "layers.1", "head"} <= {row["name"] for row in summary["layers"]}


LEAKS = '''
"""A model that keeps what it has computed."""

from torch import nn


class Leaks(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head, self.kept = nn.Linear(inputs, outputs), []

    def forward(self, x):
        self.kept.append(x.detach().clone())
        return self.head(x)
'''


@pytest.mark.slow
def test_memory_that_grows_is_found(command: Command) -> None:
    (command.cwd / "mine.py").write_text(LEAKS)
    words = ["profiler.profile_memory=true", "model._target_=mine.Leaks"]
    done = ran(command, *SCHEDULE, *words)
    record = done.job()
    memory = read_json(directory(record) / "trace/rank0.summary.json")["memory"]
    kept = 64 * 64 * 4  # a micro-batch of 64 images of 64 pixels in float32
    assert memory["growth_bytes_per_step"] == pytest.approx(kept, rel=0.1)
    assert {"name": "aten::clone", "bytes": 3 * kept} in memory["operators"]
    assert "memory grows by 16.4 kB a step" in done.out


DELAYED = '''
"""A loss that takes longer on rank 1."""

import os
import time

from torch import nn


def sleepy(inputs, hidden, outputs):
    if os.environ["RANK"] == "1":
        return Sleepy(inputs, outputs)
    return Plain(inputs, outputs)


class Plain(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.head(x)


class Sleepy(Plain):
    def forward(self, x):
        time.sleep(0.02)
        return self.head(x)
'''


@pytest.mark.distributed
def test_the_slowest_rank_is_traced_beside_rank_0(command: Command) -> None:
    (command.cwd / "mine.py").write_text(DELAYED)
    words = ["model._target_=mine.sleepy", "strategy=ddp", "launch.nproc=2"]
    done = ran(command, *SCHEDULE, *words, "launch.threads_per_rank=1")
    record = done.job()
    cycles = record["profiler"]["cycles"]
    assert [(c["rank"], c["slowest"]) for c in cycles] == [(0, False), (1, True)]
    assert record["profiler"]["traces"] == ["trace/rank0.json.gz", "trace/rank1.json.gz"]
    assert tags(record).count("profiled") == 6
    for cycle in cycles:
        info = read_json(directory(record) / cycle["trace"])["distributedInfo"]
        assert (info["rank"], info["world_size"], info["backend"]) == (cycle["rank"], 2, "gloo")
        assert cycle["steps"] == [10, 11, 12]
    assert "of rank 1 (the slowest)" in done.out
