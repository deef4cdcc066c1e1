"""compile=...: really compiled, or said not to be; every break, recompile and fall-back told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TINY, Command, Done
from tests.swept import sweep

HERE = Path(__file__).parent
BRANCH = next(
    n
    for n, line in enumerate((HERE / "mine.py").read_text().splitlines(), 1)
    if line.endswith("# BRANCH")
)
ONE_THREAD = "launch.threads_per_rank=1"
COMPILED = [*TINY, ONE_THREAD, "compile=inductor", "compile.compare_eager=false"]
OWN = {"PYTHONPATH": str(HERE)}
EAGER_BACKEND = ["compile.backend=aot_eager", "compile.mode=null"]
"""Dynamo as it is, without the seconds that inductor takes for kernels."""


OWN_MODEL = ["~model.inputs", "~model.hidden", "~model.outputs"]


def sized(sizes: list[int], last: int) -> list[str]:
    without = ["~data.global_batch_size", "~data.flatten", "~data.loader"]
    words = [w for w in COMPILED if w != "data.flatten=true"]
    own = ["data._target_=mine.Sizes", f"+data.sizes={sizes}", f"+data.last={last}"]
    return [*words, *without, *own, "model.inputs=64", "run.eval_batches=0"]


def run(command: Command, *words: str, **env: str) -> Done:
    return command(*words, env={**OWN, **env})


@pytest.mark.slow
def test_modules_of_torch_itself_are_compiled(command: Command) -> None:
    # module.compile() runs these eager without a word: docs/design.md, 10
    words = ["model._target_=mine.sequential,mine.encoder", *OWN_MODEL]
    swept = sweep(command, *COMPILED, *EAGER_BACKEND, *words, env=OWN)
    assert swept.done.code == 0, swept.done.out
    for model, name in (("sequential", "Sequential"), ("encoder", "Encoder")):
        record = swept.cell(f"model._target_=mine.{model}")
        assert record["validity"]["verdict"] == "valid"
        assert record["compile"]["frames_compiled"] == 1
        assert record["compile"]["frames_fallen_back"] == 0
        assert record["compile"]["graph_breaks"] == []
        assert record["effective"]["strategy"] == f"compiled {name}"


def test_a_branch_on_data_is_one_break_with_its_line(command: Command) -> None:
    done = run(command, *COMPILED, *EAGER_BACKEND, "model._target_=mine.Branching", *OWN_MODEL)
    assert done.code == 0, done.out
    (broken,) = done.job()["compile"]["graph_breaks"]
    assert broken["where"] == f"{HERE / 'mine.py'}:{BRANCH}"
    assert broken["reason"] == "Data-dependent branching"
    assert f"graph break at {HERE / 'mine.py'}:{BRANCH}: Data-dependent branching" in done.out
    assert done.job()["compile"]["frames_compiled"] >= 2
    assert done.job()["validity"]["verdict"] == "valid"


def test_fullgraph_stops_at_it_with_the_way_out(command: Command) -> None:
    words = [*COMPILED, *EAGER_BACKEND, "model._target_=mine.Branching", *OWN_MODEL]
    done = run(command, *words, "compile.fullgraph=true")
    assert done.code == 1
    status = done.job()["status"]
    assert status["kind"] == "compile_error"
    assert status["message"] == (
        f"compile.fullgraph=true: the graph breaks at {HERE / 'mine.py'}:{BRANCH}: Data-dependent "
        "branching; rewrite that line, or allow breaks with compile.fullgraph=false"
    )


@pytest.mark.slow
def test_fullgraph_that_holds_counts_its_frames(command: Command) -> None:
    # Dynamo's own frame counters stay at 0 under fullgraph
    done = run(command, *COMPILED, *EAGER_BACKEND, "compile.fullgraph=true")
    assert done.code == 0, done.out
    assert done.job()["compile"]["frames_compiled"] == 1
    assert done.job()["throughput"]["steps_excluded"]["compile"] == 1
    assert done.job()["validity"]["verdict"] == "valid"


class TestShapes:
    """Sizes that change in the measured window."""

    def test_every_20_steps(self, command: Command) -> None:
        sizes = [8] * 20 + [16] * 20 + [24] * 20
        words = [*sized(sizes, 24), *EAGER_BACKEND, "run.steps=60", "compile.dynamic=false"]
        done = run(command, *words)
        assert done.code == 0, done.out
        record = done.job()
        again = record["compile"]["recompiles"]
        assert [r["step"] for r in again] == [20, 40]
        assert "expected 8, actual 16" in again[0]["reason"]
        assert all(r["compile_s"] > 0 and "mlp.py" in r["where"] for r in again)
        tags = np.load(Path(record["job"]["dir"]) / "steps.npz")["tag"]
        assert np.flatnonzero(tags == 4).tolist() == [0, 20, 40]  # and the first step after each
        assert tags[[21, 41]].tolist() == [1, 1]
        assert record["throughput"]["steps_excluded"]["compile"] == 3
        assert "recompiled in step 20" in done.out

    @pytest.mark.slow
    def test_a_dynamic_kernel_serves_them_all(self, command: Command) -> None:
        sizes = [8] * 20 + [16] * 20 + [24] * 20
        words = [*sized(sizes, 24), *EAGER_BACKEND, "run.steps=60", "compile.dynamic=true"]
        record = run(command, *words).job()
        assert record["compile"]["recompiles"] == []
        assert record["throughput"]["steps_excluded"]["compile"] == 1

    @pytest.mark.slow
    def test_a_short_last_batch(self, command: Command) -> None:
        sizes = [32] * 10 + [7] + [32] * 9 + [7]
        done = run(command, *sized(sizes, 32), *EAGER_BACKEND, "run.steps=30")
        record = done.job()
        (again,) = record["compile"]["recompiles"]  # the second one meets a dynamic graph
        assert again["step"] == 10
        assert "expected 32, actual 7" in again["reason"]
        tags = np.load(Path(record["job"]["dir"]) / "steps.npz")["tag"]
        assert np.flatnonzero(tags == 4).tolist() == [0, 10]

    @pytest.mark.slow
    def test_too_many_of_them_run_eager_and_that_is_no_result(self, command: Command) -> None:
        words = [*sized(list(range(8, 38)), 38), *EAGER_BACKEND, "compile.recompile_limit=3"]
        done = run(command, *words, "compile.dynamic=false", "strict=true")
        record = done.job()
        assert record["validity"]["verdict"] == "ineffective"
        assert record["compile"]["recompile_limit"] == 3  # read back where it compiled
        assert record["compile"]["frames_fallen_back"] == 1
        assert record["validity"]["reasons"][0].startswith("compile.recompile_limit=3: forward (")
        assert done.code == 3


class TestNothingCompiled:
    @pytest.mark.slow
    def test_dynamo_switched_off_from_outside(self, command: Command) -> None:
        done = run(command, *COMPILED, TORCH_COMPILE_DISABLE="1")
        record = done.job()
        assert record["validity"]["verdict"] == "ineffective"
        assert record["validity"]["reasons"][0].startswith(
            "compile=inductor: no frame was compiled, the model ran eager"
        )
        assert record["effective"]["compile"] == "eager"

    def test_no_compiler_on_the_path(self, command: Command) -> None:
        done = command(*COMPILED, program=[sys.executable, "-m", "paceline"], env={"PATH": ""})
        assert done.code == 2
        assert "compile=inductor: it needs a C++ compiler for CPU kernels" in done.err + done.out
        assert done.jobs() == []

    @pytest.mark.slow
    def test_a_compiler_that_does_not_work(self, command: Command) -> None:
        broken = command.cwd / "broken-cxx"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        done = command(*COMPILED, "compile.cache=cold", env={"CXX": str(broken)})
        assert done.code == 1
        status = done.job()["status"]
        assert status["kind"] == "compile_error"
        assert status["message"] == (
            "compile.backend=inductor: no working C++ compiler was found for CPU kernels; install "
            "one (apt install g++) or set CXX, or use compile=off"
        )

    def test_blocks_that_the_model_does_not_name(self, command: Command) -> None:
        words = [*COMPILED, "compile=regional", "model._target_=mine.sequential", *OWN_MODEL]
        done = run(command, *words)
        assert done.code == 1
        assert "compile.scope=blocks: Sequential doesn't define blocks()" in done.out


def test_a_backend_that_miscompiles_is_found_out(command: Command) -> None:
    words = ["compile.backend=aot_eager,mine.wrong", "compile.mode=null"]
    swept = sweep(command, *COMPILED, *words, env=OWN)
    assert swept.cell("compile.backend=mine.wrong")["compile"]["frames_compiled"] == 1
    row = swept.row("mine.wrong")
    assert (row["validity"], row["verdict"]) == ("diverged", "invalid")
    assert row["loss_deviation"] > 1e-3
    assert row["numerics"]["gate"] == "gradient"
    assert swept.row("aot_eager")["validity"] == "valid"
    assert "off its float64 reference" in swept.done.out


@pytest.mark.slow
def test_equal_blocks_are_compiled_once(command: Command) -> None:
    words = ["model.layers=3", "data.max_bytes=200000", "data.sequence_length=32", ONE_THREAD]
    done = command(
        *words, "measure=quick", "measure.window_s=0", "run.steps=8", "run.eval_batches=0",
        "scheduler=constant", "compile=regional", *EAGER_BACKEND,
    )  # fmt: skip
    record = done.job()
    assert record["effective"]["strategy"] == "GptModel with 3 compiled blocks"
    assert record["compile"]["frames_compiled"] == 1
    assert record["compile"]["recompiles"] == []


@pytest.mark.slow
def test_a_compiled_step_of_the_optimizer(command: Command) -> None:
    # the learning rate changes every step: as a number it would recompile every step
    words = ["optimizer=adamw", "scheduler=warmup_cosine", "scheduler.warmup_steps=5"]
    swept = sweep(
        command, *COMPILED, *EAGER_BACKEND, *words, "compile.optimizer_step=false,true"
    )  # fmt: skip
    off, on = (swept.cell(f"compile.optimizer_step={value}") for value in ("False", "True"))
    assert on["effective"]["optimizer"] == "AdamW, compiled"
    assert off["effective"]["optimizer"] == "AdamW"
    assert (off["compile"]["frames_compiled"], on["compile"]["frames_compiled"]) == (1, 2)
    assert on["compile"]["graph_breaks"] == on["compile"]["recompiles"] == []
    assert np.allclose(off["numerics"]["loss"], on["numerics"]["loss"], rtol=1e-5)


def test_the_break_even_step_is_measured_beside_eager(command: Command) -> None:
    words = [w for w in COMPILED if not w.startswith("compile.compare")]
    done = command(*words, *EAGER_BACKEND)
    found: dict[str, Any] = done.job()["compile"]
    low, high = found["speedup_ci95"]
    assert low <= found["speedup_over_eager"] <= high
    assert (found["break_even_steps"] is None) == (low <= 1)
    assert (found["break_even_why"] is None) == (low > 1)
    assert done.job()["ledger"]["phases_s"]["intervene"] > 0
    assert "times eager" in done.out
    # eager steps beside it change nothing of the record of the training
    assert done.job()["throughput"]["steps_measured"] == 24
    assert len(done.job()["numerics"]["loss"]) == 30


@pytest.mark.slow
def test_a_cold_cache_is_fresh_and_goes_away(command: Command) -> None:
    swept = sweep(command, *COMPILED, "compile.cache=cold", "repeat=range(2)")
    assert len(swept.records) == 2
    for record in swept.records:
        assert record["compile"]["cache"] == {"setting": "cold", "hits": 0, "misses": 2}
        assert not (Path(record["job"]["dir"]) / "compile_cache").exists()


@pytest.mark.slow
def test_a_warm_start_compiles_five_times_faster(command: Command) -> None:
    words = [
        "model.layers=2", "data.max_bytes=200000", "measure=quick", "measure.window_s=0",
        "run.steps=8", "run.eval_batches=0", ONE_THREAD, "scheduler=constant", "compile=inductor",
        "compile.cache=./cache", "compile.compare_eager=false",
    ]  # fmt: skip
    cold = command(*words, "tag=first").job()["compile"]
    (command.cwd / "outputs").rename(command.cwd / "first")
    warm = command(*words, "tag=second").job()["compile"]
    assert (cold["cache"]["hits"], cold["cache"]["misses"]) == (0, 2)
    assert (warm["cache"]["hits"], warm["cache"]["misses"]) == (2, 0)
    assert warm["compile_s"] < cold["compile_s"] / 5


@pytest.mark.slow
def test_nine_widths_in_a_sweep_are_all_compiled(command: Command) -> None:
    # in one process the ninth would run eager: the limit belongs to the code object
    widths = ",".join(f"[{w}]" for w in range(16, 25))
    swept = sweep(command, *COMPILED, *EAGER_BACKEND, f"model.hidden={widths}")
    assert swept.done.code == 0
    assert len(swept.records) == 9
    for record in swept.records:
        assert record["compile"]["frames_compiled"] == 1
        assert record["compile"]["limits_hit"] == []
        assert record["validity"]["verdict"] == "valid"


@pytest.mark.slow
@pytest.mark.distributed
def test_the_order_of_compiler_and_ddp_is_shown(command: Command) -> None:
    words = [*COMPILED, *EAGER_BACKEND, "strategy=ddp", "launch.nproc=2"]
    swept = sweep(command, *words, "strategy.compile=inside,outside")
    assert swept.done.code == 0, swept.done.out
    inside, outside = swept.cell("strategy.compile=inside"), swept.cell("strategy.compile=outside")
    assert inside["effective"]["strategy"] == "DistributedDataParallel(compiled MlpModel)"
    assert outside["effective"]["strategy"] == "compiled DistributedDataParallel(MlpModel)"
    assert np.allclose(inside["numerics"]["loss"], outside["numerics"]["loss"], rtol=1e-5)
